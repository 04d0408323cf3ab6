"""`--init-from` with a checkpoint of the Hub's form: its model, vocabulary and weights; then it is not needed again."""

import json
import shutil

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from regard.errors import BadValue
from regard.tasks.batch import Batch
from regard.training.build import build_new_model, build_task
from regard.training.config.recipe import complete
from regard.training.loading import load
from regard.training.run import train

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "fine",
    "bad",
    "even",
    "##ing",
    "play",
    "!",
    "dull",
]
TEXT = "A fine evening! [SEP] playing zzz"
SIZES = {
    "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 17,
    "max_position_embeddings": 23, "vocab_size": len(PIECES) + 3,
}  # fmt: skip


def tokenizer():
    ids = {piece: number for number, piece in enumerate(PIECES)}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(PIECES[:5])
    special = [(name, ids[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    made.enable_truncation(5)  # which must not be taken over
    made.enable_padding(length=9)
    return made


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "bert"
    torch.manual_seed(4)
    transformers.BertModel(transformers.BertConfig(**SIZES)).eval().save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def settings(folder, **more):
    return {
        "task": "classify",
        "init_from": str(folder),
        "steps": 2,
        "batch_size": 3,
        "device": "cpu",
        **more,
    }


def begun(folder, **more):
    config = complete(settings(folder, **more))
    task = build_task(config)
    told = []
    return config, task, build_new_model(config, task, told.append).eval(), told


def test_a_run_begins_with_the_rows_that_transformers_gives_for_the_same_text(checkpoint):
    config, task, model, told = begun(checkpoint)
    example = task.encode(TEXT)
    marked = "A fine evening! [SEP] playing zzz".replace("[SEP]", "\\")  # what is no piece is unknown
    wanted = [2, 5, 6, 8, 9, 11]
    assert list(example.tokens)[:6] == wanted and example.tokens[-1] == 3 and 3 not in example.tokens[1:-1], (
        marked
    )
    assert len(task.encode("a " * 40).tokens) == 23 and task.encode("a " * 40).tokens[-1] == 3
    theirs = transformers.BertModel.from_pretrained(checkpoint).eval()
    ids = torch.tensor([example.tokens])
    with torch.no_grad():
        rows = theirs(ids).last_hidden_state
        torch.testing.assert_close(model.rows(Batch.of(ids)), rows, rtol=0, atol=1e-5)
        logits = model(Batch.of(ids))
        torch.testing.assert_close(logits, model.head.logits(rows.mean(1)), rtol=0, atol=1e-5)
    assert config.model.startswith("encoder(dim=12, layers=2, num_heads=3, hidden=17")
    assert any("took max_length and vocabulary" in line for line in told)
    assert any("new here: head.logits.weight, head.logits.bias" in line for line in told)


def test_a_run_is_trained_resumed_and_evaluated_after_the_checkpoint_is_gone(checkpoint, tmp_path):
    folder = tmp_path / "bert"
    shutil.copytree(checkpoint, folder)
    result = train(settings(folder, out=str(tmp_path / "run")), quiet=True, tell=lambda line: None)
    shutil.rmtree(folder)
    loaded = load(result.folder, device="cpu")
    assert loaded.task.vocabulary.level == "pretrained" and list(loaded.task.encode("a bad").tokens) == [
        2,
        5,
        7,
        3,
    ]
    assert loaded.task.input_pieces(loaded.task.encode("evening")) == ["[CLS]", "even", "##ing", "[SEP]"]
    again = train({"steps": 3}, resume=str(result.folder), quiet=True, tell=lambda line: None)
    assert again.steps == 3


def test_options_of_the_model_are_added_to_the_checkpoint_s(checkpoint):
    config, _, model, _ = begun(checkpoint, model="encoder(dropout=0.3, pooling=first)")
    assert model.pooling == "first" and model.stack.layers[0].around_attention.dropout.p == 0.3
    assert "dim=12" in config.model


def test_a_classifier_s_own_pooling_is_taken_over(checkpoint, tmp_path):
    torch.manual_seed(5)
    folder = tmp_path / "classifier"
    theirs = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES)).eval()
    theirs.save_pretrained(folder)
    shutil.copy(checkpoint / "tokenizer.json", folder)
    _, task, model, _ = begun(folder)
    ids = torch.tensor([task.encode(TEXT).tokens])
    with torch.no_grad():
        torch.testing.assert_close(model(Batch.of(ids)), theirs(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lower", [True, False])
def test_berts_list_of_pieces_serves_where_there_is_no_tokenizer_json(checkpoint, tmp_path, lower):
    folder = tmp_path / "bert"
    shutil.copytree(checkpoint, folder)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    theirs = transformers.BertTokenizer.from_pretrained(folder)
    task = begun(folder)[1]
    for text in ("A fine evening!", "a bad play", "Dull"):
        assert list(task.encode(text).tokens) == theirs(text)["input_ids"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), r"holds no tokenizer\.json and no vocab\.txt"),
        (lambda folder: (folder / "tokenizer.json").write_text("[]"), "expected a JSON object"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "its tokenizer cannot be read"),
        (lambda folder: (folder / "config.json").unlink(), r"no run in .* and no checkpoint"),
    ],
    ids=["no tokenizer", "a list", "an empty object", "no configuration"],
)
def test_what_is_missing_is_named(checkpoint, tmp_path, change, words):
    folder = tmp_path / "bert"
    shutil.copytree(checkpoint, folder)
    change(folder)
    with pytest.raises(BadValue, match=words):
        begun(folder)


def test_tasks_with_special_tokens_of_their_own_refuse_a_checkpoint_s_vocabulary(checkpoint):
    with pytest.raises(
        BadValue, match=r"cannot read with the vocabulary of a checkpoint.*Tasks that can: classify"
    ):
        begun(checkpoint, task="language(level=word)")


def test_parts_of_words_and_a_checkpoint_s_pieces_exclude_each_other(checkpoint):
    with pytest.raises(BadValue, match="parts: only words have parts"):
        begun(checkpoint, task="classify(parts=50)")

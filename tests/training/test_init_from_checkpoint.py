"""`--init-from` with a checkpoint of the Hub's form: its model, vocabulary and weights; then it is not needed again."""

import json
import shutil

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from regard.errors import BadValue
from regard_workbench.tasks import Answered
from regard_workbench.tasks.measures.entities import F1
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training.build import build_new_model, build_task
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.loading import load
from regard_workbench.training.run import train

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "bad", "even", "##ing", "play", "!", "dull"]
TEXT = "A fine evening! [SEP] playing zzz"
SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 17,
    "max_position_embeddings": 23,
    "vocab_size": len(PIECES) + 3,
}


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
    return {"task": "classify", "init_from": str(folder), "steps": 2, "batch_size": 3, "device": "cpu", **more}


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
    assert list(example.tokens)[:6] == wanted and example.tokens[-1] == 3 and 3 not in example.tokens[1:-1], marked
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
    assert loaded.task.fitted.vocabulary.level == "pretrained"
    assert list(loaded.task.encode("a bad").tokens) == [2, 5, 7, 3]
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
    with pytest.raises(BadValue, match=r"cannot read with the vocabulary of a checkpoint.*Tasks that can: classify"):
        begun(checkpoint, task="language(level=word)")


def test_parts_of_words_and_a_checkpoint_s_pieces_exclude_each_other(checkpoint):
    with pytest.raises(BadValue, match="parts: only words have parts"):
        begun(checkpoint, task="classify(parts=50)")


SENTENCE = ("A", "fine", "evening", "\u0301", "played", "playing!", "zzz")
CONLL = "A O\nfine B-mood\nevening I-mood\n! O\n\nplaying B-work\nbad O\nDull B-mood\n\n"


def tagged(folder, tmp_path, **more):
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.conll").write_text(CONLL)
    return settings(folder, **{"task": "tag", "data": [str(tmp_path)], **more})


def test_tags_are_those_of_the_rows_that_transformers_gives_for_the_first_piece_of_each_word(checkpoint, tmp_path):
    config = complete(tagged(checkpoint, tmp_path))
    task = build_task(config)
    model = build_new_model(config, task, lambda line: None).eval()
    example = task.parse({"text": "A fine evening playing bad"})
    batch = task.collate([example], torch.Generator())
    assert batch.inputs.tolist() == [[2, 5, 6, 8, 9, 10, 9, 7, 3]], "[CLS] a fine even ##ing play ##ing bad [SEP]"
    with torch.no_grad():
        rows = transformers.BertModel.from_pretrained(checkpoint).eval()(batch.inputs).last_hidden_state
        scores = model.head.logits(rows[:, [1, 2, 3, 5, 7]])  # of the words alone, which nothing stands between
        wanted = model.head.predict(scores, Batch.of(torch.zeros(1, 5)))
        assert model.predict(model(batch), batch) == wanted
        gold = torch.tensor([[0, 3, 4, 1, 0]])
        known = task.collate([example._replace(tags=tuple(gold[0].tolist()))], torch.Generator())
        theirs = model.loss(scores, Batch.of(torch.zeros(1, 5), None, gold))
        torch.testing.assert_close(model.loss(model(known), known), theirs, rtol=1e-5, atol=1e-5)


def test_each_word_has_a_first_piece_whatever_the_tokenizer_leaves_of_it(checkpoint, tmp_path):
    tagged(checkpoint, tmp_path)
    task = begun(checkpoint, task="tag", data=[str(tmp_path)])[1]
    ids, firsts = task.fitted.words.vocabulary.encode_words(SENTENCE)
    pieces = task.fitted.words.vocabulary.pieces(ids)
    assert pieces == ["[CLS]", "a", "fine", "even", "##ing", "[UNK]", "[UNK]", "play", "##ing", "!", "[UNK]", "[SEP]"]
    assert firsts == [1, 2, 3, 5, 6, 7, 10], "a lone accent is unknown, not lost"
    assert task.fitted.words.vocabulary.encode_words(SENTENCE, 6) == ([*ids[:5], 3], [1, 2, 3])
    assert task.fitted.words.vocabulary.encode_words(()) == ([2, 3], [])
    words = task.parse({"text": "a " * 40})
    batch = task.collate([words], torch.Generator())
    assert batch.inputs.shape == (1, 23), "as many pieces as the checkpoint has positions"
    assert task.understood({}, words).notes == ["only the first 23 of 42 pieces were read"]
    assert task.show(words, batch).pieces == ["[CLS]", *["a"] * 21, "[SEP]"]


@pytest.mark.parametrize("model", [None, "tagger(dim=12, crf=false)"])
def test_a_tagger_is_trained_and_used_after_the_checkpoint_is_gone(checkpoint, tmp_path, model):
    folder = tmp_path / "bert"
    shutil.copytree(checkpoint, folder)
    data = tmp_path / "data"
    data.mkdir()
    more = {"out": str(tmp_path / "run"), **({} if model is None else {"model": model})}
    result = train(tagged(folder, data, **more), quiet=True, tell=lambda line: None)
    shutil.rmtree(folder)
    loaded = load(result.folder, device="cpu")
    sentence = loaded.task.parse({"text": "playing a fine evening"})
    batch = loaded.task.collate([sentence], torch.Generator())
    (predicted,) = loaded.model.predict(loaded.model(batch), batch)
    assert len(predicted) == 4 and "playing" in loaded.task.answer_text(predicted, sentence)


def test_words_behind_the_longest_text_are_judged_as_outside(checkpoint, tmp_path):
    config = complete(tagged(checkpoint, tmp_path))
    task = build_task(config)
    model = build_new_model(config, task, lambda line: None).eval()
    long = task.parse({"text": "a " * 29})._replace(tags=(0,) * 28 + (1,))
    batch = task.collate([long], torch.Generator())
    counts = F1.of(Answered(model, batch))
    assert counts["words"] == 29 and counts["true"] == 1 and counts.get("right", 0) == 0


@pytest.mark.parametrize("option", ["vectors=7", "clues=1", "parts=50"])
def test_what_only_words_have_is_refused_beside_a_checkpoint_s_pieces(checkpoint, tmp_path, option):
    tagged(checkpoint, tmp_path)
    with pytest.raises(BadValue, match=f"{option.partition('=')[0]}: sentences are read in the pieces"):
        begun(checkpoint, task=f"tag({option})", data=[str(tmp_path)])

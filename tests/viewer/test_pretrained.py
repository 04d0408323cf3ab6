"""Hugging Face models from folders, opened for the viewer."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.errors import BadValue
from regard_workbench.viewer.opening import ViewOptions, open_page
from regard_workbench.viewer.opening.pretrained import pieces_of
from regard_workbench.viewer.requests import RequestHandler

pytest.importorskip("transformers")

import transformers

from tests.viewer.pretrained import MAKERS, WORDS, save

TEXT = "the cat sat on a mat and it looked at the dog"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    return {kind: save(kind, home / kind) for kind in MAKERS}


def opened(where, **options):
    return open_page(ViewOptions(str(where), device="cpu", **options))


def eager(folder, cls, **inputs):
    """The same model with eager attention, which returns its weights."""
    import transformers

    model = getattr(transformers, cls).from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


def ids_of(text):
    from tests.viewer.pretrained import WORDS

    return torch.tensor([[WORDS.index(word) for word in text.split()]])


def test_an_encoder_shows_the_weights_of_its_eager_twin(folders):
    page_model = opened(folders["bert"], text=TEXT)
    scene = page_model.scene()
    assert scene["tokens"]["tokens"] == TEXT.split() and scene["title"] == "bert"
    expected = eager(folders["bert"], "BertModel", input_ids=ids_of(TEXT)).attentions
    assert len(expected) == len(scene["sites"]) == 2
    for site, weights in enumerate(expected):
        found = page_model.site(0, site).weights()
        torch.testing.assert_close(found, weights, atol=1e-5, rtol=0)


def test_a_decoder_writes_as_its_own_generate_does(folders):
    import transformers

    scene = opened(folders["gpt2"], text=TEXT, generate=7).scene()
    model = transformers.GPT2LMHeadModel.from_pretrained(folders["gpt2"]).eval()
    ids = ids_of(TEXT)
    written = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=7, do_sample=False, pad_token_id=0
    )[0, ids.shape[1] :]
    from tests.viewer.pretrained import WORDS

    assert [step["token"] for step in scene["generation"]["steps"]] == [WORDS[number] for number in written.tolist()]
    calls = scene["sites"][1]["calls"]
    assert (calls[0]["queries"], calls[0]["keys"]) == (12, 12)
    assert [(call["queries"], call["keys"], call["start"]) for call in calls[1:]] == [
        (1, 12 + n, 11 + n) for n in range(1, len(written))
    ]


def test_an_encoder_decoder_shows_what_it_reads_and_what_it_writes(folders):
    page_model = opened(folders["t5"], text=TEXT, target="a dog sat")
    scene = page_model.scene()
    assert scene["tokens"]["targets"] == ["a", "dog", "sat"] and scene["tokens"]["read"] == ["<pad>", "a", "dog"]
    twin = eager(
        folders["t5"],
        "T5ForConditionalGeneration",
        input_ids=ids_of(TEXT),
        decoder_input_ids=torch.tensor([[0, *ids_of("a dog")[0].tolist()]]),
    )
    groups = {"encoder": twin.encoder_attentions, "decoder": twin.decoder_attentions, "cross": twin.cross_attentions}
    for group, expected in groups.items():
        sites = [n for n, site in enumerate(scene["sites"]) if site["group"] == group]
        assert len(sites) == len(expected) == 2
        for number, weights in zip(sites, expected, strict=True):
            torch.testing.assert_close(page_model.site(0, number).weights(), weights, atol=1e-5, rtol=0)


def test_an_encoder_decoder_is_stepped_through_with_beams(folders):
    scene = opened(folders["t5"], text=TEXT, generate=4, beams=2).scene()
    assert len(scene["generation"]["steps"]) <= 4 and scene["generation"]["prompt"] == 1
    assert all(1 <= len(step["beams"]) <= 2 for step in scene["generation"]["steps"])
    crossing = next(site for site in scene["sites"] if site["cross"])
    assert all(call["queries"] == 1 and call["keys"] == 12 for call in crossing["calls"])
    json.dumps(scene, allow_nan=False)


def test_an_image_model_shows_the_pixels_it_was_given_and_where_its_patches_are(folders, tmp_path):
    path = tmp_path / "x.png"
    Image.fromarray((np.arange(30 * 40 * 3) % 251).astype(np.uint8).reshape(30, 40, 3)).save(path)
    page_model = opened(folders["vit"], image=str(path))
    scene = page_model.scene()
    image = {key: scene["image"][key] for key in ("rows", "columns", "skip", "width", "height")}
    assert image == {"rows": 4, "columns": 4, "skip": 1, "width": 20, "height": 20}
    assert scene["tokens"]["patches"][:2] == ["CLS", "0,0"] and len(scene["tokens"]["patches"]) == 17
    assert RequestHandler(page_model).answer("overview", {})[1]
    assert scene["variants"][0]["answer"]["text"].startswith(
        "LABEL_"
    )  # it classifies images, without names for classes


def test_a_bare_model_and_a_deeper_classifier_are_compared_layer_by_layer(folders):
    page_model = opened(folders["bert"], text=TEXT, against=str(folders["classifier"]))
    scene = page_model.scene()
    assert [site["headsOf"] for site in scene["sites"]] == [[4, 2], [4, 2], [0, 2]]
    own = [
        eager(folders["bert"], "BertModel", input_ids=ids_of(TEXT)).attentions,
        eager(folders["classifier"], "BertForSequenceClassification", input_ids=ids_of(TEXT)).attentions,
    ]
    for variant, expected in enumerate(own):
        for site, weights in enumerate(expected):
            torch.testing.assert_close(page_model.site(variant, site).weights(), weights, atol=1e-5, rtol=0)
    asked = {"site": "1", "head": "1", "minus": "1", "row": "3"}
    found = np.frombuffer(RequestHandler(page_model).answer("row", asked)[1], np.float32)
    np.testing.assert_allclose(found, own[0][1][0, 1, 3] - own[1][1][0, 1, 3], atol=1e-5)


def piped(folder, task, text, **options):
    """The answer of the library's own pipeline."""
    import transformers

    return transformers.pipeline(task, model=str(folder), device="cpu")(text, **options)


def test_the_answer_of_a_classifier_is_the_one_its_own_pipeline_gives(folders):
    (variant,) = opened(folders["classifier"], text=TEXT).scene()["variants"]
    ranked = piped(folders["classifier"], "text-classification", TEXT, top_k=None)
    best, *others = [(one["label"], one["score"]) for one in ranked]
    assert variant["answer"]["text"] == f"{best[0]} {100 * best[1]:.1f} %"
    assert [label for label, _ in variant["answer"]["others"]] == [label for label, _ in others]
    np.testing.assert_allclose([p for _, p in variant["answer"]["others"]], [p for _, p in others], rtol=1e-3)


def test_a_model_of_several_labels_answers_with_those_it_gives(folders):
    (variant,) = opened(folders["labeller"], text=TEXT).scene()["variants"]
    ranked = piped(folders["labeller"], "text-classification", TEXT, top_k=None)
    given = [f"{one['label']} {100 * one['score']:.1f} %" for one in ranked if one["score"] >= 0.5]
    assert given and variant["answer"]["text"] == ", ".join(given)
    assert len(variant["answer"]["others"]) == 5 - len(given)


def test_a_model_of_one_score_answers_with_the_number(folders):
    (variant,) = opened(folders["scorer"], text=TEXT).scene()["variants"]
    (found,) = piped(folders["scorer"], "text-classification", TEXT, function_to_apply="none")
    assert float(variant["answer"]["text"]) == pytest.approx(found["score"], rel=1e-3)


def test_a_tagger_answers_with_its_labelled_tokens(folders):
    (variant,) = opened(folders["tagger"], text=TEXT).scene()["variants"]
    found = piped(folders["tagger"], "token-classification", TEXT)
    told = [f"{one['word']} {one['entity']} {100 * one['score']:.1f} %" for one in found]
    assert found and variant["answer"]["text"].startswith(", ".join(told[:8]))


def test_a_model_without_a_head_has_no_answer(folders):
    assert opened(folders["bert"], text=TEXT).scene()["variants"][0]["answer"] is None


def test_the_answer_of_a_decoder_is_its_next_token_with_its_probability(folders):
    answer = opened(folders["gpt2"], text=TEXT).scene()["variants"][0]["answer"]
    model, tokenizer = read_back(folders["gpt2"], transformers.GPT2LMHeadModel)
    odds = model(**tokenizer(TEXT, return_tensors="pt")).logits[0, -1].softmax(-1)
    best = odds.argsort(descending=True).tolist()
    assert answer["text"] == f"next “{WORDS[best[0]]}” {100 * odds[best[0]]:.1f} %"
    assert [label for label, _ in answer["others"]] == [f"“{WORDS[number]}”" for number in best[1:6]]


def test_the_answer_of_an_encoder_decoder_is_its_text_with_its_probability(folders):
    answer = opened(folders["t5"], text=TEXT, target="the dog sat").scene()["variants"][0]["answer"]
    model, tokenizer = read_back(folders["t5"], transformers.T5ForConditionalGeneration)
    target = tokenizer("the dog sat", return_tensors="pt")["input_ids"]
    inputs = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    loss = model(input_ids=inputs, labels=target).loss.item()  # the mean over the tokens
    count = target.shape[1]
    whole, each = written_share(math.exp(-count * loss)), f"{100 * math.exp(-loss):.1f} % per token"
    assert answer["text"] == f"“the dog sat” {whole} ({each})"
    assert [label for label, _ in answer["others"]] == [f"“{word}”" for word in ("the", "dog", "sat")]


def written_share(share):
    return f"{100 * share:.1f} %" if share >= 0.0005 else f"{100 * share:.2g} %"


def test_a_generated_text_carries_the_product_of_its_steps(folders):
    scene = opened(folders["gpt2"], text="the cat", generate=3).scene()
    shares = [step["probability"] for step in scene["generation"]["steps"]]
    mean = math.prod(shares) ** (1 / len(shares))
    assert f"{100 * mean:.1f} % per token" in scene["variants"][0]["answer"]["text"]


def read_back(folder, kind):
    return kind.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("vit", {}, "--image"),
        ("vit", {"text": "a"}, "reads images"),
        ("bert", {"image": "x.png"}, "reads text"),
        ("bert", {"text": TEXT, "generate": 3}, "writes no text"),
        ("bert", {"text": "cat " * 99}, "at most 32 tokens"),
        ("bert", {"text": TEXT, "checkpoint": "last"}, "--checkpoint"),
        ("bert", {"checkpoints": True}, "--checkpoints"),
    ],
)
def test_inputs_that_a_model_cannot_read_are_refused(folders, kind, options, words):
    with pytest.raises(BadValue, match=words):
        opened(folders[kind], **options)


def test_pieces_of_a_vocabulary_of_bytes_are_shown_as_text():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ["привет мир the cat"] * 9, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    assert pieces_of(tokenizer, tokenizer("привет мир the")["input_ids"]) == ["привет", " мир", " the"]
    parts = pieces_of(tokenizer, tokenizer("🙂")["input_ids"])
    assert len(parts) == 4 and "\ufffd" not in "".join(parts)


@pytest.mark.parametrize(("kind", "vocabulary"), [("bert", "vocab.txt"), ("gpt2", "vocab.json and merges.txt")])
@pytest.mark.parametrize("configured", [True, False])
def test_a_folder_without_tokenizer_files_says_which(folders, tmp_path, kind, vocabulary, configured):
    folder = tmp_path / "bare"
    shutil.copytree(folders[kind], folder)
    (folder / "tokenizer.json").unlink()
    if not configured:  # the library then builds a tokenizer that knows no word
        (folder / "tokenizer_config.json").unlink()
    with pytest.raises(BadValue, match="holds no tokenizer files") as caught:
        opened(folder, text=TEXT)
    assert "tokenizer.json" in str(caught.value) and vocabulary in str(caught.value)


def test_the_name_of_a_model_says_how_to_get_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BadValue) as caught:
        opened("bert-base-uncased")
    for words in ("does not exist", "not in the Hub's cache", "`hf download bert-base-uncased`"):
        assert words in str(caught.value)
    with pytest.raises(BadValue, match="`hf download google/vit-small`"):
        opened("google/vit-small")
    for path in ("runs/dates-1", "./bert", "/nowhere/bert", "a/b/c"):
        with pytest.raises(BadValue, match=r"does not exist\. `regard train dates` makes a run") as caught:
            opened(path)
        assert "hf download" not in str(caught.value)


@pytest.mark.parametrize("referenced", [True, False])
def test_the_name_of_a_model_is_opened_from_the_hub_s_cache(folders, tmp_path, monkeypatch, referenced):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "models--someone--bert-small"
    shutil.copytree(folders["bert"], kept / "snapshots" / "1a2b")
    if referenced:  # the branch says which snapshot; another one is newer
        (kept / "refs").mkdir()
        (kept / "refs" / "main").write_text("1a2b")
        shutil.copytree(folders["gpt2"], kept / "snapshots" / "3c4d")
    page_model = opened("someone/bert-small", text=TEXT)
    assert page_model.title == "someone/bert-small"
    with regard.observe("someone/bert-small") as seen:
        seen.model(torch.tensor([[2, 5, 3]]))
    assert type(seen.model).__name__.startswith("Bert") and not seen.model.training and len(seen.names()) > 0
    with pytest.raises(BadValue, match=r"model: .*does not exist"):
        regard.observe("someone/never-downloaded")


def test_a_folder_s_own_code_is_never_run(folders, tmp_path):
    folder = tmp_path / "hostile"
    shutil.copytree(folders["bert"], folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}, "model_type": "never-heard-of"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('this ran')")
    with pytest.raises(BadValue, match="configuration"):
        opened(folder, text=TEXT)


@pytest.mark.parametrize("name", ["os", "__import__", "PreTrainedModel.from_config", "pipeline", 7])
def test_an_architecture_that_is_not_a_model_is_ignored(folders, tmp_path, name):
    folder = tmp_path / "odd"
    shutil.copytree(folders["bert"], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [name]}))
    try:
        scene = opened(folder, text=TEXT).scene()
    except BadValue:  # the library may refuse the configuration itself
        return
    assert scene["words"].startswith("BertModel")


def test_broken_folders_give_a_one_line_error(folders, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(folders["bert"], folder)
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadValue, match="weights"):
        opened(folder, text=TEXT)
    (folder / "config.json").write_text("{")
    with pytest.raises(BadValue, match="configuration"):
        opened(folder, text=TEXT)

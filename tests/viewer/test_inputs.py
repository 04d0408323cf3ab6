"""Another input for an open model: what is accepted, what is refused, what the page is told."""

import io
import json

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import regard
from regard.errors import BadValue
from regard_workbench.training.loading import load
from regard_workbench.viewer import inputs
from regard_workbench.viewer.guard import BODIES
from regard_workbench.viewer.opening import ViewOptions, open_page
from tests.browser.page_models import HOSTILE
from tests.viewer.pretrained import save
from tests.viewer.requests import PORT, Visitor
from tests.viewer.stand_ins import small_page_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(kind):
        if kind not in made:
            made[kind] = save(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return folder


def visitor_of(folder, **options):
    return Visitor(open_page(ViewOptions(str(folder), device="cpu", **options)))


def fields(**given):
    return json.dumps(given).encode()


def weights_of(visitor, number, keys, **which):
    words = "&".join(f"{name}={value}" for name, value in {"site": 1, "head": 2, "row": 1, **which}.items())
    found = visitor.ask(f"/api/row?{words}&input={number}")
    assert found.status == 200, found.text
    return np.frombuffer(found.content, "<f4").reshape(keys)


def test_a_typed_text_shows_the_weights_of_that_text(folders):
    visitor = visitor_of(folders("bert"), text="the cat sat")
    scene = visitor.send("/api/input", fields(text="a dog looked at the mat")).json
    assert scene["tokens"]["tokens"] == ["a", "dog", "looked", "at", "the", "mat"]
    assert scene["input"]["number"] == 1 and scene["input"]["text"] == "a dog looked at the mat"
    other = open_page(ViewOptions(str(folders("bert")), device="cpu", text="a dog looked at the mat"))
    expected = other.site(0, 1).weights(rows=[1], heads=[2])[0, 0, 0]
    torch.testing.assert_close(torch.tensor(weights_of(visitor, 1, 6)), expected, atol=1e-6, rtol=0)
    assert visitor.ask("/api/scene").json["input"]["number"] == 1  # a reload shows the newest
    assert visitor.ask("/api/scene?input=0").json["tokens"]["tokens"] == ["the", "cat", "sat"]


@pytest.mark.parametrize("name", ["text", "target"])
def test_half_a_character_is_refused_and_the_page_lives(folders, name):
    """What JSON.stringify sends where a text was cut inside an emoji."""
    visitor = visitor_of(folders("bert"), text="the cat sat")
    body = json.dumps({"text": "a dog", name: "a \ud83d dog"}).encode()
    assert b"\\ud83d" in body
    refused = visitor.send("/api/input", body)
    assert refused.status == 400 and f"{name}: expected whole characters, got half of one at 2" in refused.text
    assert visitor.ask("/api/scene").json["tokens"]["tokens"] == ["the", "cat", "sat"]
    assert visitor.send("/api/input", fields(text="\U0001f600 dog")).status == 200


def test_an_input_whose_scene_cannot_be_sent_does_not_become_the_newest(folders, monkeypatch):
    page_model = open_page(ViewOptions(str(folders("bert")), device="cpu", text="the cat sat"))
    answers = inputs.Inputs(page_model)
    with monkeypatch.context() as patch:
        patch.setattr(type(page_model), "scene", lambda self: {"weight": float("nan")})
        with pytest.raises(ValueError, match="JSON"):
            answers.read_text(fields(text="a dog"), None)
    assert json.loads(answers.answer("scene", {})[1])["tokens"]["tokens"] == ["the", "cat", "sat"]
    later = json.loads(answers.read_text(fields(text="a mat"), None)[1])
    assert later == json.loads(answers.answer("scene", {})[1])
    assert later["input"]["number"] not in (0, 1)  # a number is used once


def test_an_edited_token_is_shown_beside_the_text_before(folders):
    visitor = visitor_of(folders("bert"), text="the cat sat on it")
    scene = visitor.send("/api/input?input=0", fields(text="the dog sat on it", edited=True)).json
    assert [one["name"] for one in scene["variants"]] == ["edited", "as it was"]
    assert scene["tokens"]["tokens"][1] == "dog" and scene["variants"][1]["tokens"]["tokens"][1] == "cat"
    new, old = weights_of(visitor, 1, 5), weights_of(visitor, 1, 5, variant=1)
    np.testing.assert_allclose(weights_of(visitor, 1, 5, variant=0, minus=1), new - old, atol=1e-7)
    np.testing.assert_allclose(old, weights_of(visitor, 0, 5))
    assert abs(new - old).max() > 1e-4


def test_an_edit_that_changes_the_number_of_tokens_is_shown_alone_with_a_reason(folders):
    visitor = visitor_of(folders("bert"), text="the cat sat")
    scene = visitor.send("/api/input?input=0", fields(text="the cat and dog sat", edited=True)).json
    assert len(scene["variants"]) == 1
    assert scene["input"]["notes"] == [
        "The edited input has 5 positions, the one before 3: their maps cannot be subtracted."
    ]


def test_a_text_is_continued_from_the_page(folders):
    visitor = visitor_of(folders("gpt2"), text="the cat")
    assert visitor.ask("/api/scene").json["input"]["writes"]
    scene = visitor.send("/api/input", fields(text="the cat sat on", generate=5)).json
    assert scene["start"] == "steps" and len(scene["generation"]["steps"]) <= 5
    assert scene["tokens"]["tokens"][:4] == ["the", "cat", "sat", "on"]


def test_a_dropped_picture_is_read(folders, tmp_path):
    pixels = np.random.default_rng(3).integers(0, 255, (2, 20, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels[0]).save(tmp_path / "one.png")
    visitor = visitor_of(folders("vit"), image=str(tmp_path / "one.png"))
    before = visitor.ask("/api/scene").json
    assert before["input"]["takes"] == ["image"]
    buffer = io.BytesIO()
    Image.fromarray(pixels[1]).save(buffer, "PNG")
    found = visitor.send("/api/file?kind=image&name=../../etc/two.png", buffer.getvalue(), "application/octet-stream")
    assert found.status == 200, found.text
    assert found.json["image"]["data"] != before["image"]["data"] and "the image two.png" in found.json["words"]


def test_other_examples_of_a_task_can_be_shown(runs):
    visitor = visitor_of(runs["dates"])
    first = visitor.ask("/api/scene").json
    assert first["input"]["examples"] > 3 and first["input"]["example"] is None
    scenes = [visitor.send("/api/input", fields(example=number)).json for number in (0, 3)]
    assert [scene["input"]["example"] for scene in scenes] == [0, 3]
    assert scenes[0]["tokens"]["tokens"] != scenes[1]["tokens"]["tokens"]
    task = load(runs["dates"], device="cpu").task
    examples = task.examples("test")
    assert first["input"]["examples"] == len(examples) != len(task.examples("validation"))
    for number, scene in zip((0, 3), scenes, strict=True):
        assert scene["tokens"]["tokens"] == task.input_pieces(examples[number])
    assert visitor.send("/api/input", fields(example=10**6)).status == 400


def test_a_run_whose_data_has_no_test_split_opens_without_numbered_examples(runs, monkeypatch):
    task = type(load(runs["dates"], device="cpu").task)
    examples = task.examples

    def without_test(self, split):
        if split == "test":
            raise BadValue("data: it has no file for test.")
        return examples(self, split)

    monkeypatch.setattr(task, "examples", without_test)
    visitor = visitor_of(runs["dates"])
    assert visitor.ask("/api/scene").json["input"]["examples"] == 0
    found = visitor.send("/api/input", fields(example=0))
    assert found.status == 400 and "no task with test examples" in found.text


def test_hostile_texts_are_read_as_text_or_refused_in_words(folders):
    visitor = visitor_of(folders("bert"), text="the cat")
    for text in [*HOSTILE, " ", "a " * 300, "\u202e" * 50]:
        body = json.dumps({"text": text}).encode()
        found = visitor.send("/api/input", body)
        assert found.status in (200, 400), (text[:30], found.text)
        assert found.status == 200 or found.json["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        pytest.param(b"[" * 100_000, id="deep"),
        b'{"text": 3}',
        b'{"path": "x"}',
        b'{"generate": true}',
        b'{"text": "the", "generate": 0}',
        b'{"text": "the", "beams": 99, "generate": 3}',
        b'{"kind": "image"}',
        b'{"example": -1}',
        b"\xff\xfe",
        b'{"text": "\\ud800"',
    ],
)
def test_a_malformed_input_is_refused_with_a_reason(folders, body):
    visitor = visitor_of(folders("gpt2"), text="the cat")
    found = visitor.send("/api/input", body)
    assert found.status == 400 and found.json["error"]
    assert visitor.ask("/api/scene").json["input"]["number"] == 0


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n" + b"x" * 100, b"<svg/>"])
def test_a_file_that_is_no_picture_is_refused_with_a_reason(folders, tmp_path, content):
    Image.new("RGB", (20, 20)).save(tmp_path / "one.png")
    visitor = visitor_of(folders("vit"), image=str(tmp_path / "one.png"))
    found = visitor.send("/api/file?kind=image&name=x.png", content, "application/octet-stream")
    assert found.status == 400 and found.json["error"]
    assert list(tmp_path.iterdir()) == [tmp_path / "one.png"]


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"cookie": None}, 403),
        ({"origin": None}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": None}, 415),
        ({"content_length": None}, 411),
        ({"content_length": "-1"}, 411),
        ({"content_length": "9" * 30}, 411),
        ({"content_length": str(BODIES["/api/input"][1] + 1)}, 413),
        ({"transfer_encoding": "chunked"}, 411),
        ({"host": "evil.example"}, 403),
    ],
)
def test_an_input_that_the_page_did_not_send_is_refused(visitor, changed, status):
    found = visitor.send("/api/input", fields(text="the dog"), **changed)
    assert found.status == status
    assert found.headers["connection"] == "close"  # what is left of the body is no request


@pytest.fixture(scope="module")
def visitor(folders):
    return visitor_of(folders("bert"), text="the cat")


@pytest.mark.parametrize("query", ["kind=file", "kind=../x", "", "kind=image&path=/etc/passwd", "kind=sound"])
def test_only_kinds_that_the_model_reads_are_accepted(visitor, query):
    assert visitor.send(f"/api/file?{query}", b"x", "application/octet-stream").status == 400


def test_old_inputs_are_forgotten_and_said_so(folders):
    visitor = visitor_of(folders("bert"), text="the cat")
    for _ in range(inputs.KEPT):
        assert visitor.send("/api/input", fields(text="a mat")).status == 200
    assert visitor.ask("/api/scene?input=0").status == 404
    assert visitor.ask("/api/scene?input=1").status == 200
    for number in ("-1", "x", "1e3", "9" * 20, "", "٣"):
        assert visitor.ask(f"/api/scene?input={number.encode().hex() if number == '٣' else number}").status == 404


def test_a_page_without_a_model_takes_no_input():
    visitor = Visitor(small_page_model())
    assert visitor.ask("/api/scene").json["input"] is None
    assert visitor.send("/api/input", fields(text="x")).status == 404


def test_other_machines_may_look_and_not_run_the_model(folders):
    page_model = open_page(ViewOptions(str(folders("bert")), device="cpu", text="the cat"))
    visitor = Visitor(page_model, host="192.168.1.7")
    assert visitor.ask("/api/scene").json["input"] is None
    assert visitor.send("/api/input", fields(text="the dog"), origin=f"http://127.0.0.1:{PORT}").status == 404


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("a.png", "a.png"),
        ("../../x.png", "x.png"),
        ("", "file"),
        ("..", "file"),
        ("\0", "file"),
        ("a b/c d.wav", "c-d.wav"),
        ("x" * 300 + ".png", "x" * 56 + ".png"),
        ("-rf.csv", "rf.csv"),
        ("…", "file"),
    ],
)
def test_names_of_dropped_files_stay_inside_their_folder(name, kept):
    assert inputs.safe_name(name) == kept


def test_a_sweep_of_patches_is_that_of_the_library(folders):
    visitor = visitor_of(folders("gpt2"), text="the cat sat on a mat")
    question = {"by": "heads", "against": "the cat sat on a dog"}
    found = visitor.send("/api/cause?input=0", fields(**question)).json
    model = transformers.GPT2LMHeadModel.from_pretrained(folders("gpt2")).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders("gpt2"))
    clean, corrupted = (tokenizer(text, return_tensors="pt") for text in ("the cat sat on a mat", question["against"]))
    with torch.no_grad(), regard.observe(model) as seen:
        model(**clean)
    expected = seen.patch(clean, corrupted)
    assert not found["doubt"] and bool(expected.recovered.isfinite().all())
    np.testing.assert_allclose(found["recovered"], expected.recovered, atol=1e-5)
    assert found["sites"] == [0, 1] and found["clean"] == pytest.approx(expected.clean)
    layers = visitor.send("/api/cause?input=0", fields(**{**question, "by": "layers", "positions": "each"})).json
    assert layers["sites"] == [0, 1] and np.shape(layers["recovered"]) == (2, 6)


def test_what_layers_and_heads_say_is_answered_for_the_shown_input(folders):
    visitor = visitor_of(folders("gpt2"), text="the cat sat on a mat")
    scene = visitor.ask("/api/scene").json["input"]
    assert scene["says"] and scene["places"] == []
    model = transformers.GPT2LMHeadModel.from_pretrained(folders("gpt2")).eval()
    ids = transformers.AutoTokenizer.from_pretrained(folders("gpt2"))(scene["text"], return_tensors="pt")
    with torch.no_grad():
        logits = model(**ids).logits[0]
    lens = visitor.send("/api/cause?input=0", fields(by="lens")).json
    assert lens["sites"] == [None, 0, 1]
    best = logits.softmax(-1).max(-1)
    assert [row[0] for row in lens["ids"][-1]] == best.indices.tolist()
    np.testing.assert_allclose([row[0] for row in lens["probabilities"][-1]], best.values, atol=1e-5)
    written = visitor.send("/api/cause?input=0", fields(by="contributions")).json
    parts = np.nansum(np.array(written["heads"], float)) + sum(written["others"].values()) + written["bias"]
    assert written["sites"] == [0, 1] and parts == pytest.approx(float(logits[-1].max()), abs=1e-4)
    inputs = visitor.send("/api/cause?input=0", fields(by="inputs")).json
    assert len(inputs["scores"]["integrated gradients"]) == 6
    question = {"by": "paths", "against": "the dog sat on a mat", "measure": "loss"}
    paths = visitor.send("/api/cause?input=0", fields(**question)).json
    assert paths["paths"] == "the answer" and paths["measured"].startswith("loss of “")
    assert paths["clean"] == pytest.approx(float(-logits[-1].log_softmax(-1).max()), abs=1e-5)


def test_an_answer_at_several_places_is_asked_about_one_of_them(folders):
    visitor = visitor_of(folders("t5"), text="the cat sat", target="a dog")
    places = visitor.ask("/api/scene").json["input"]["places"]
    assert [words for _, words in places][:2] == ["a", "dog"]
    found = [visitor.send("/api/cause", fields(by="contributions", position=at)).json for at in (0, 1)]
    first = visitor.send("/api/cause", fields(by="contributions")).json
    assert first == found[0] != found[1]
    lens = visitor.send("/api/cause", fields(by="lens")).json
    assert lens["tokens"][1:] == ["a", "dog"][: len(lens["tokens"]) - 1]  # what the decoder read, not its source


def test_a_hidden_token_is_the_place_that_is_asked_about(folders):
    """A masked language model answers at its blank; its last position is a separator."""
    from regard_workbench.viewer.opening.predictions import hidden_places

    assert hidden_places([5, 9, 4, 9], 9) == [(1, "hidden token 1"), (3, "hidden token 2")]
    assert hidden_places([5, 9], None) == []


def test_every_map_is_judged_against_random_ones(folders):
    visitor = visitor_of(folders("classifier"), text="the cat sat on a mat")
    found = visitor.send("/api/cause?input=0", fields(by="faithfulness")).json
    assert [one["site"] for one in found["maps"]] == [0, 1, 2]
    for one in found["maps"]:
        for kind in ("comprehensiveness", "sufficiency"):
            assert one[kind]["low"] <= one[kind]["random"] <= one[kind]["high"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"by": "everything"}, "by: there is no"),
        ({"by": "heads"}, "another text"),
        ({"by": "heads", "against": "the dog sat"}, "as many tokens"),
        ({"by": "heads", "against": "the dog", "positions": "some"}, "positions"),
        ({"by": "heads", "against": 3}, "against: expected str"),
        ({"by": "heads", "against": "the dog sat", "measure": "size"}, "measure"),
        ({"by": "lens", "position": "last"}, "position: expected int"),
        ({"of": "heads"}, "body: expected an object"),
    ],
)
def test_a_wrong_question_about_causes_is_refused_in_words(visitor, given, words):
    found = visitor.send("/api/cause", fields(**given))
    assert found.status == 400 and words in found.json["error"]


def test_causes_of_a_generation_are_refused(folders):
    visitor = visitor_of(folders("gpt2"), text="the cat", generate=2)
    assert not visitor.ask("/api/scene").json["input"]["causes"]
    assert visitor.send("/api/cause", fields(by="faithfulness")).status == 400


def test_outputs_that_are_no_classes_are_compared_by_the_cosine_of_their_mean_rows():
    from regard_workbench.viewer.opening.causes import _similarity

    before, after = torch.randn(2, 1, 5, 3, dtype=torch.float64).unbind()
    mean = [rows[0].mean(0) for rows in (before, after)]
    expected = float(mean[0] @ mean[1] / (mean[0].norm() * mean[1].norm()))
    measured = _similarity(before)
    assert float(measured(before)) == pytest.approx(1) and float(measured(after)) == pytest.approx(expected)
    assert float(measured((after, None))) == pytest.approx(expected)

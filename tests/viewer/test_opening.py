"""Runs of regard, opened for the viewer."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from regard.errors import BadValue
from regard_workbench.inspection import attribution
from regard_workbench.tasks import Batch
from regard_workbench.tasks.formats import image_files
from regard_workbench.training import train
from regard_workbench.training.loading import load
from regard_workbench.viewer.opening import ViewOptions, open_page, opening
from regard_workbench.viewer.page_model import Variant
from regard_workbench.viewer.requests import RequestHandler
from tests.cli.trained import written_by_hand
from tests.viewer.stand_ins import small_page_model

DATE = "3rd of May, 1979"


def opened(where, **options):
    return open_page(ViewOptions(str(where), device="cpu", **options))


def weights(page_model, site=0, head=0, call=-1):
    return page_model.site(0, site).weights(heads=[head], call=call)[0, 0]


def test_a_translation_is_shown_with_the_words_it_wrote(runs):
    page_model = opened(runs["dates"], text=DATE)
    scene = page_model.scene()
    loaded = load(runs["dates"], device="cpu", tell=lambda text: None)
    example = loaded.task.encode(DATE)
    written = written_by_hand(loaded.model, torch.tensor([example.source]))
    assert scene["tokens"]["tokens"] == loaded.task.input_pieces(example)
    assert scene["tokens"]["targets"] == loaded.task.output_pieces(written)
    assert scene["tokens"]["read"][1:] == scene["tokens"]["targets"][:-1]
    batch = Batch.of(torch.tensor([example.source]), targets=torch.tensor([written]))
    expected = attribution.alignment(loaded.model, batch).weights
    torch.testing.assert_close(weights(page_model), expected, atol=1e-6, rtol=0)
    pairs = [[int(row.argmax()), number] for number, row in enumerate(expected)]
    assert scene["alignment"]["pairs"] == sorted(pairs) and scene["start"] == "alignment"


def test_a_given_target_replaces_the_model_s_own(runs):
    scene = opened(runs["dates-transformer"], text=DATE, target="1979-05-03").scene()
    assert scene["tokens"]["targets"] == [*"1979-05-03", "</s>"]
    assert [site["group"] for site in scene["sites"]] == ["encoder"] * 2 + ["decoder", "cross"] * 2


def test_a_gold_alignment_adds_links_and_an_error_rate(runs, tmp_path):
    gold = tmp_path / "gold"
    gold.write_text("1-1\n1-1 2p2\n")
    scene = opened(runs["dates"], text=DATE, target="1979-05-03", gold=f"{gold}:2").scene()
    found = scene["alignment"]
    assert found["sure"] == [[0, 0]] and found["possible"] == [[1, 1]]
    links = {tuple(pair) for pair in found["pairs"]}
    links -= {pair for pair in links if pair[1] == 10}  # the end token is not a word
    hits = len(links & {(0, 0)}) + len(links & {(0, 0), (1, 1)})
    assert found["aer"] == pytest.approx(1 - hits / (len(links) + 1), abs=1e-6)


def test_a_text_is_written_step_by_step_and_every_step_is_a_call(runs):
    page_model = opened(runs["language"], text="The sea was", generate=5)
    scene = page_model.scene()
    loaded = load(runs["language"], device="cpu", tell=lambda text: None)
    prompt = loaded.task.encode("The sea was").tokens.tolist()
    tokens, odds = list(prompt), []
    for _ in range(5):
        found = loaded.model(Batch.of(torch.tensor([tokens])))[0, -1].detach().softmax(-1)
        tokens.append(int(found.argmax()))
        odds.append(found.max().item())
    steps = scene["generation"]["steps"]
    assert scene["generation"]["prompt"] == 11 and scene["start"] == "steps"
    assert [step["token"] for step in steps] == loaded.task.output_pieces(tokens[11:])
    np.testing.assert_allclose([step["probability"] for step in steps], odds, rtol=1e-3)
    for step in steps:
        falling = [step["probability"], *(p for _, p in step["others"])]
        assert falling == sorted(falling, reverse=True) and len(falling) == 6
    calls = scene["sites"][0]["calls"]
    assert [(call["queries"], call["keys"], call["start"]) for call in calls] == [
        (11, 11, 0),
        (1, 12, 11),
        (1, 13, 12),
        (1, 14, 13),
        (1, 15, 14),
    ]
    whole = opened(runs["language"], text="The sea was" + loaded.task.decode(tokens[11:15]))
    torch.testing.assert_close(weights(page_model, call=4)[0], weights(whole)[14], atol=1e-5, rtol=0)


def test_beams_are_listed_step_by_step_and_the_best_is_shown(runs):
    scene = opened(runs["dates"], text=DATE, generate=4, beams=3).scene()
    loaded = load(runs["dates"], device="cpu", tell=lambda text: None)
    batch = Batch.of(torch.tensor([loaded.task.encode(DATE).source]))
    (best, *_) = loaded.model.generate(batch, method="beam", beam=3, n_best=3, max_length=4)[0]
    steps = scene["generation"]["steps"]
    assert [step["token"] for step in steps] == loaded.task.output_pieces(best.tokens)
    for number, step in enumerate(steps, 1):
        scores = [beam["score"] for beam in step["beams"]]
        assert scores == sorted(scores, reverse=True) and 1 <= len(scores) <= 3
        assert loaded.task.output_pieces(best.tokens)[:number] in [beam["tokens"] for beam in step["beams"]]
    assert steps[-1]["beams"][0]["score"] == pytest.approx(best.score, rel=1e-3)


def test_the_first_beams_are_the_likeliest_tokens(runs):
    scene = opened(runs["dates"], text=DATE, generate=2, beams=3).scene()
    first = scene["generation"]["steps"][0]
    loaded = load(runs["dates"], device="cpu", tell=lambda text: None)
    batch = Batch.of(torch.tensor([loaded.task.encode(DATE).source]), targets=torch.tensor([[0]]))
    values, ids = loaded.model(batch)[0, 0].log_softmax(-1).topk(3)
    assert [beam["tokens"] for beam in first["beams"]] == [[p] for p in loaded.task.output_pieces(ids.tolist())]
    np.testing.assert_allclose([beam["score"] for beam in first["beams"]], values.detach(), rtol=1e-3)


def test_without_a_text_an_example_of_the_task_is_shown(runs):
    for name in ("classify", "classify-encoder", "masked", "copy", "digits", "dates", "segments"):
        page_model = opened(runs[name])
        scene = page_model.scene()
        assert scene["sites"] and scene["words"]
        json.dumps(scene, allow_nan=False)
        answers = RequestHandler(page_model)
        for path in ("overview", "facts"):
            assert answers.answer(path, {})[1]


def test_the_memory_of_a_turing_machine_is_shown_step_by_step(runs):
    page_model = opened(runs["copy"])
    scene = page_model.scene()
    assert scene["memory"] == {"write": [0], "read": [1]} and scene["start"] == "memory"
    steps = scene["sites"][0]["calls"][0]["queries"]
    assert [len(scene["bits"][name]) for name in ("input", "output")] == [steps, steps]
    assert {bit for row in scene["bits"]["input"] for bit in row} <= {0.0, 1.0}
    assert scene["sites"][0]["rows"] == "steps" and scene["sites"][0]["calls"][0]["keys"] == 8
    torch.testing.assert_close(weights(page_model).sum(-1), torch.ones(scene["sites"][0]["calls"][0]["queries"]))


def test_an_image_is_read_as_the_task_reads_it(runs, tmp_path):
    drawn = np.full((80, 80), 255, np.uint8)
    drawn[20:60, 35:45] = 0  # dark on light paper
    Image.fromarray(drawn).save(tmp_path / "one.png")
    scene = opened(runs["digits"], image=str(tmp_path / "one.png")).scene()
    assert scene["image"]["rows"] == 8 and scene["image"]["columns"] == 1 and scene["image"]["skip"] == 0
    assert scene["image"]["data"].startswith("data:image/png;base64,")
    assert scene["sites"][0]["columns"] == "patches" and scene["tokens"]["patches"][0] == "row 0"


def test_checkpoints_are_a_timeline(runs):
    scene = opened(runs["dates"], text=DATE, checkpoints=True).scene()
    steps = scene["timeline"]["steps"]
    assert steps == sorted(steps) and [variant["step"] for variant in scene["variants"]] == steps
    assert scene["timeline"]["metric"]["name"] == "loss"
    assert len(scene["timeline"]["metric"]["values"]) == len(steps)


def test_a_run_that_keeps_all_checkpoints_has_a_timeline_of_the_whole_training(tmp_path, monkeypatch):
    settings = {"task": "classify", "model": "encoder(dim=8, layers=1, num_heads=2)", "steps": 7, "save_every": 1}
    settings |= {"batch_size": 2, "eval_limit": 2, "device": "cpu", "keep": "all", "out": str(tmp_path / "run")}
    with torch.enable_grad():
        train(settings, tell=lambda text: None)
    options = ViewOptions(str(tmp_path / "run"), text="a calm sea", checkpoints=True, device="cpu")
    assert open_page(options).scene()["timeline"]["steps"] == [0, 1, 2, 3, 4, 5, 6, 7]
    told = []
    monkeypatch.setattr("regard_workbench.viewer.opening.opening.MOST_CHECKPOINTS", 3)
    assert open_page(options, told.append).scene()["timeline"]["steps"] == [0, 4, 7]
    assert "Showing 3 of 8 checkpoints, from step 0 to step 7." in told


def test_two_runs_are_compared(runs):
    page_model = opened(runs["classify-encoder"], text="a calm sea", against=str(runs["classify-encoder"]))
    assert len(page_model.scene()["variants"]) == 2 and page_model.scene()["start"] == "compare"
    tile = RequestHandler(page_model).answer(
        "tile", {"site": "0", "head": "0", "level": "0", "x": "0", "y": "0", "minus": "1"}
    )[1]
    assert set(tile[8:]) == {128}  # the same model: no difference


def test_a_model_that_reads_in_segments_shows_one_map_of_all_it_read(runs):
    scene = opened(runs["segments"], text="The sea was calm. A").scene()
    (call,) = scene["sites"][0]["calls"]
    assert call == {"queries": 19, "keys": 19, "start": 0}
    loaded = load(runs["segments"], device="cpu", tell=lambda text: None)
    batch = Batch.of(loaded.task.encode("The sea was calm. A").tokens[None])
    apart = loaded.model(batch)
    loaded.model.segment = 19
    torch.testing.assert_close(loaded.model(batch), apart)


def test_importance_is_what_the_answer_loses_without_a_head(runs):
    page_model = opened(runs["classify-encoder"], text="a calm sea", importance=True)
    found = json.loads(RequestHandler(page_model).answer("facts", {})[1])
    numbers = {
        (entry["site"], n): head["importance"] for entry in found["sites"] for n, head in enumerate(entry["heads"])
    }
    loaded = load(runs["classify-encoder"], device="cpu", tell=lambda text: None)
    batch = Batch.of(torch.tensor([loaded.task.encode("a calm sea").tokens]))
    with torch.no_grad():
        before = loaded.model(batch)[0]
        layer = loaded.model.stack.layers[1].attention
        layer.output_map.weight[:, :8] = 0  # the output of the first of two heads
        after = loaded.model(batch)[0]
    best = int(before.argmax())
    assert numbers[1, 0] == pytest.approx(float(before[best] - after[best]), abs=1e-4)
    assert len(numbers) == 4 and sorted(found["order"]["importance"]) == sorted(map(list, numbers))


def test_a_classifier_shows_its_answer(runs):
    (variant,) = opened(runs["classify-encoder"], text="a calm sea").scene()["variants"]
    loaded = load(runs["classify-encoder"], device="cpu", tell=lambda text: None)
    with torch.no_grad():
        odds = loaded.model(Batch.of(torch.tensor([loaded.task.encode("a calm sea").tokens])))[0].softmax(-1)
    label = loaded.task.fitted.labels[int(odds.argmax())]
    assert variant["answer"]["text"] == f"{label} {100 * float(odds.max()):.1f} %"
    assert len(variant["answer"]["others"]) == min(5, len(odds) - 1)
    digit = opened(runs["digits"]).scene()["variants"][0]["answer"]
    assert digit["text"].split()[0] in [str(n) for n in range(10)] and len(digit["others"]) == 5


def test_a_translation_shows_its_text_with_its_probability(runs):
    answer = opened(runs["dates"], text=DATE, target="1979-05-03").scene()["variants"][0]["answer"]
    shares = [share for _, share in answer["others"]]
    assert len(shares) == len("1979-05-03") + 1  # with the end
    assert answer["text"].startswith("“1979-05-03” ")
    mean = float(torch.tensor(shares, dtype=torch.float64).log().mean().exp())
    assert answer["text"].endswith(f"({100 * mean:.1f} % per token)")


def test_maps_over_different_kinds_of_positions_are_not_compared(runs):
    with pytest.raises(BadValue, match="maps over patches and tokens"):
        opened(runs["digits"], against=str(runs["classify-encoder"]))


def test_models_that_write_different_texts_need_a_target():
    sides = {"tokens": list("abcde"), "targets": list("xyz"), "read": list("sxy")}
    seen = small_page_model().variants[0].seen
    longer = {**sides, "targets": list("xyzz"), "read": list("sxyz")}
    with pytest.raises(BadValue, match=r"one and two write 3 and 4 tokens.*--target") as refused:
        opening._check_sizes([Variant("one", seen, sides), Variant("two", seen, longer)])
    assert "tokenizer" not in str(refused.value)


def test_models_with_different_tokenizers_are_not_compared(runs):
    with pytest.raises(BadValue, match=r"--against.*same tokenizer") as refused:
        opened(runs["language"], text="The sea was calm", against=str(runs["classify-encoder"]))
    assert "--target" not in str(refused.value)


def test_a_comparison_names_its_runs(tmp_path):
    (tmp_path / "runs" / "encoder-seed-0").mkdir(parents=True)
    with pytest.raises(BadValue, match="encoder-seed-0"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text": ""}, "--text"),
        ({"text": "x" * 200_001}, "--text"),
        ({"text": "a", "sound": "b"}, "--sound"),
        ({"generate": 0}, "--generate"),
        ({"generate": 10**9}, "--generate"),
        ({"beams": 3}, "--generate"),
        ({"generate": 3, "beams": 99}, "--beams"),
        ({"checkpoints": True, "against": "x"}, "--against"),
        ({"generate": 3, "target": "x"}, "--target"),
        ({"where": "a\0b"}, "RUN"),
        ({"image": ""}, "--image"),
        ({"generate": 3, "gold": "x"}, "--gold"),
    ],
)
def test_contradictory_options_are_refused_before_anything_is_loaded(options, words):
    with pytest.raises(BadValue, match=words):
        ViewOptions(**{"where": "runs/none", **options})


def test_an_image_with_a_text_is_refused_where_the_model_reads_only_one(runs):
    with pytest.raises(BadValue, match="--image: expected --text or --image, not both"):
        opened(runs["language"], text="The sea was calm", image="x.png")


def test_folders_without_a_model_are_refused(tmp_path):
    with pytest.raises(BadValue, match="does not exist"):
        opened(tmp_path / "nowhere")
    with pytest.raises(BadValue, match="neither a config"):
        opened(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadValue, match="is a file"):
        opened(tmp_path / "file")


@pytest.mark.parametrize(
    ("run", "options", "words"),
    [
        ("digits", {"text": "five"}, "--image"),
        ("language", {"image": "x.png"}, "--text"),
        ("classify", {"generate": 3}, "writes nothing"),
        ("copy", {"text": "a"}, "--text"),
        ("language", {"checkpoint": "nope"}, "checkpoint"),
        ("language", {"gold": "x"}, "--gold"),
        ("dates", {"target": "9" * 99}, "--target"),
    ],
)
def test_inputs_that_a_run_cannot_read_are_refused(runs, run, options, words):
    with pytest.raises(BadValue, match=words):
        opened(runs[run], **options)


def test_images_that_are_too_large_or_none_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "image.png"
    with pytest.raises(BadValue, match="no file"):
        image_files.read_image(str(path))
    path.write_bytes(b"not an image")
    with pytest.raises(BadValue, match="no image"):
        image_files.read_image(str(path))
    Image.new("RGB", (30, 40)).save(path)
    assert image_files.read_image(str(path)).size == (30, 40)
    monkeypatch.setattr(image_files, "MOST_PIXELS", 1199)
    with pytest.raises(BadValue, match="30 × 40"):
        image_files.read_image(str(path))
    monkeypatch.setattr(image_files, "MOST_BYTES", 10)
    with pytest.raises(BadValue, match="MB"):
        image_files.read_image(str(path))
    with pytest.raises(BadValue, match="not a file"):
        image_files.read_image(str(tmp_path))
    svg = tmp_path / "image.svg"
    svg.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    with pytest.raises(BadValue):
        image_files.read_image(str(svg))

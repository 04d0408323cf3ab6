"""`detect` and `segment`: the scenes, what people see of an answer, and that the models learn them."""

import gzip
import json
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard_workbench import models, tasks
from regard_workbench.tasks.formats.figure_files import load_figures
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.training.run import train

NAMES = ("detect", "segment")
SPLITS = ("train", "validation", "test")


def seeded():
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize("name", NAMES)
def test_scenes_are_the_same_in_every_process_and_differ_between_splits(name) -> None:
    one, two = tasks.build(name), pickle.loads(pickle.dumps(tasks.build(name)))
    kept = []
    for split in SPLITS:
        first, second = one.examples(split), pickle.loads(pickle.dumps(two.examples(split)))
        assert np.array_equal(first[11].picture, second[11].picture) and first[11].labels == second[11].labels
        kept.append(first[11].picture.tobytes())
    assert len(set(kept)) == 3
    assert not np.array_equal(tasks.build(name, seed=1).examples("test")[11].picture, one.examples("test")[11].picture)
    assert len(tasks.build(name, scenes=7).examples("train")) == 7


def test_both_tasks_ask_about_the_same_scenes() -> None:
    boxes, pixels = tasks.build("detect"), tasks.build("segment")
    for number in range(5):
        one, other = boxes.examples("test")[number], pixels.examples("test")[number]
        assert np.array_equal(one.picture, other.picture)
        for label, box in zip(one.labels, one.boxes, strict=True):
            left, top, right, bottom = np.round(box * 32).astype(int)
            inside = other.pixels[top:bottom, left:right]
            assert (inside == label + 1).any(0).all() and (inside == label + 1).any(1).all()
        assert set(np.unique(other.pixels)) == {0, *(label + 1 for label in one.labels)}


def test_batches_hold_patches_boxes_and_classes_of_pixels() -> None:
    task = tasks.build("detect", side=24, patch=3)
    some = [task.examples("validation")[number] for number in (0, 1, 2, 5, 7)]
    batch = task.collate(some, seeded())
    assert batch.inputs.shape == (5, 64, 9) and batch.targets.shape[2] == 6
    counts = [len(example.labels) for example in some]
    assert batch.target_keep.sum(1).tolist() == counts and batch.targets.shape[1] == max(counts)
    assert batch.targets[0, 0, 0] == some[0].labels[0] and batch.targets.min() >= 0
    assert task.length(some[0]) == 64
    task = tasks.build("segment", side=24, patch=3)
    batch = task.collate([task.examples("validation")[0]], seeded())
    assert batch.targets.shape == (1, 24, 24) and batch.target_keep is None and int(batch.targets.max()) <= 10


@pytest.mark.parametrize("name", NAMES)
def test_the_state_restores_the_problem_and_wrong_options_are_refused(name) -> None:
    task = tasks.build(name)
    state = json.loads(json.dumps(task.state()))
    gone = tasks.TASKS[name](data="/nowhere")
    gone.restore(state)
    assert gone.problems() == task.problems() and gone.state() == state
    with pytest.raises(regard.RegardError, match="patch: expected a side that divides"):
        tasks.build(name, patch=5)
    with pytest.raises(regard.RegardError, match="overlap: expected a share from 0 to 1"):
        tasks.build(name, overlap=1.5)
    with pytest.raises(regard.RegardError, match="side: expected at least 8, the height of a figure"):
        tasks.build(name, side=4)
    with pytest.raises(regard.RegardError, match="split: there is no 'valid'"):
        task.examples("valid")


def idx(numbers: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, numbers.ndim])
    return head + b"".join(size.to_bytes(4, "big") for size in numbers.shape) + numbers.astype(np.uint8).tobytes()


def test_figures_of_idx_files_are_placed_into_scenes(tmp_path) -> None:
    draws = np.random.default_rng(1)
    for begin, count in (("train", 31), ("t10k", 7)):
        pixels = draws.integers(100, 255, (count, 9, 7))
        (tmp_path / f"{begin}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (tmp_path / f"{begin}-labels-idx1-ubyte").write_bytes(idx(np.arange(count) % 3))
    found = load_figures([tmp_path], 0)
    assert {split: len(labels) for split, (_, labels) in found.items()} == {"train": 28, "validation": 3, "test": 7}
    task = tasks.build("detect", data=str(tmp_path), side=24, patch=4, most=2)
    assert task.classes == ["0", "1", "2"] and task.problem.answer.classes == 3
    heights = [
        round(float(bottom - top) * 24)
        for number in range(30)
        for _, top, _, bottom in task.examples("test")[number].boxes
    ]
    assert min(heights) >= 9 and max(heights) <= 16
    assert tasks.build("segment", data=str(tmp_path), side=24, patch=4).classes == ["background", "0", "1", "2"]
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.arange(5)))
    with pytest.raises(regard.RegardError, match="holds 7 pictures, its labels are 5"):
        load_figures([tmp_path], 0)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(regard.RegardError, match="holds no labels for test"):
        load_figures([tmp_path], 0)
    assert load_figures([tmp_path / "nothing"], 0) is None


def test_boxes_are_printed_in_pixels_of_the_file_and_drawn(tmp_path) -> None:
    Image.new("L", (64, 32), 255).save(tmp_path / "x.png")
    task = tasks.build("detect")
    example = task.parse({"image": str(tmp_path / "x.png")})
    assert (
        example.picture.shape == (1, 32, 32)
        and example.picture[:, :16].min() == 1
        and not example.picture[:, 16:].any()
    )
    predicted = [
        {"query": 1, "label": 7, "score": 0.914, "box": [0.25, 0.125, 0.5, 0.4]},
        {"query": 0, "label": 2, "score": 0.2, "box": [0.0, 0.0, 1.0, 1.0]},
    ]
    assert task.answer_text(predicted, example) == "7  0.91  [16, 8, 32, 26]"
    assert task.answer_text(predicted[1:], example) == "nothing with a score of at least 0.5 (the best is 0.20)"
    task.draw(predicted, example, Looked([[1 / 64] * 64] * 2, [""] * 64)).savefig(tmp_path / "boxes.svg")
    assert "#e45756" in (tmp_path / "boxes.svg").read_text()  # the colour of the first box
    marked = task.marked(example, predicted)
    shown = task.show(marked, task.collate([marked], seeded()))
    assert shown.streams == {"queries": ["query 0: nothing", "query 1: 7 0.91"]} and shown.grid == (8, 8)
    assert shown.picture.shape == (256, 256, 3)
    red = (np.abs(shown.picture - np.array([0xE4, 0x57, 0x56]) / 255) < 1e-3).all(-1)
    assert red[32, 64:128].all() and red[32:102, 64].all() and not red[60, 90]


def test_masks_are_drawn_and_told(tmp_path) -> None:
    task = tasks.build("segment")
    example = task.examples("test")[0]
    predicted = example.pixels.tolist()
    text = task.answer_text(predicted, example)
    assert text.startswith("background ") and sum(
        float(part.split()[-2]) for part in text.split(", ")
    ) == pytest.approx(100, abs=0.3)
    task.draw(predicted, example, None).savefig(tmp_path / "mask.png")
    assert (tmp_path / "mask.png").stat().st_size > 1000
    shown = task.show(task.marked(example, predicted), task.collate([example], seeded()))
    assert shown.streams["classes"] == task.classes and shown.picture.shape == (256, 256, 3)
    grey = (np.ptp(shown.picture, axis=-1) < 1e-6)[::8, ::8]
    assert np.array_equal(grey, example.pixels == 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_small_model_learns_is_evaluated_predicts_and_is_seen(name, tmp_path) -> None:
    from regard_workbench.cli.predict.figure import draw
    from regard_workbench.comparison.evaluate import evaluate_run
    from regard_workbench.inspection.prediction import Writing, predict
    from regard_workbench.training.loading import load
    from regard_workbench.viewer.opening import ViewOptions, open_page

    size = "dim=16, num_heads=2, width=8, layers=0"
    model = f"detector({size}, queries=4, decoder_layers=1)" if name == "detect" else f"segmenter({size})"
    train(
        {
            "task": f"{name}(side=16, most=1, scenes=400)",
            "model": model,
            "steps": 40,
            "batch_size": 16,
            "eval_every": 40,
            "optim": {"lr": 5e-3, "warmup": 5},
            "out": str(tmp_path / "run"),
            "device": "cpu",
        },
        quiet=True,
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < 0.8 * losses[0]
    measured = {one.metric: one.value for one in evaluate_run(tmp_path / "run", device="cpu", limit=50).metrics}
    expected = {"detect": {"loss", "map_50", "map"}, "segment": {"loss", "accuracy", "mean_iou"}}
    assert set(measured) == expected[name]
    if name == "segment":
        assert measured["accuracy"] > 0.75
    loaded = load(str(tmp_path / "run"), None, "cpu")
    path = tmp_path / "x.png"
    pixels = loaded.task.examples("test")[0].picture[0]
    Image.fromarray((255 * pixels).astype(np.uint8)).resize((32, 32)).save(path)
    found = predict(loaded, {"image": str(path)}, Writing())
    assert found["kind"] == "answer" and json.dumps(found)
    count = 4 if name == "detect" else 11
    weights = np.array(found["attention"]["weights"])
    assert weights.shape == (count, 16) and weights.sum(1) == pytest.approx(np.ones(count), abs=1e-3)
    draw(loaded, {"image": str(path)}, found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
    page = open_page(ViewOptions(str(tmp_path / "run"), image=str(path)))
    (cross,) = (site for site in page.page_sites if site.name == "decoder.0.cross")
    rows_called = "queries" if name == "detect" else "classes"
    assert (cross.rows, cross.columns) == (rows_called, "patches")
    assert page.image["rows"] == page.image["columns"] == 4 and page.image["width"] == 256


@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_names_a_model_that_fits(name) -> None:
    task = tasks.build(name)
    assert models.problem_for(task.recipe.model, task.problems()) == task.problem

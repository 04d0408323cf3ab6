"""The task `glimpse`: its scenes, its measure after each glimpse, training and what is shown."""

import json

import numpy as np
import pytest
import torch

import regard
from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.inspection.inspection import inspect_model
from regard_workbench.tasks.generated.scenes import resized
from regard_workbench.tasks.pictures.patches import fold
from regard_workbench.tasks.pictures.written_digits import SIDE, images, split_of

SMALL = "glimpse(canvas=20, smallest=9, largest=11, clutter=2, patch=5)"  # 4 × 4 places
MODEL = "glimpse(dim=16, glimpses=3, side=5, scales=2)"


def seeded():
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_scene_holds_its_digit_whole_and_from_its_own_split(split):
    task = tasks.build(SMALL)
    examples = task.examples(split)
    own = [number for number, theirs in enumerate(split_of()) if theirs == split]
    pixels, digits = images()
    for number in (0, 7, len(own) + 3, len(examples) - 1):
        canvas, image = examples[number], own[number % len(own)]
        assert canvas.label == digits[image]
        found = False
        for size in (9, 10, 11):
            bytewise = np.rint(pixels[image].reshape(SIDE, SIDE) * 255).astype(np.float32) / 255  # as bytes
            digit = resized(bytewise, size)
            ink = digit >= 0.2
            digit = np.rint(digit * 255).astype(np.float32) / 255  # scenes are kept as bytes
            windows = np.lib.stride_tricks.sliding_window_view(canvas.picture, digit.shape)
            found |= bool((np.abs(windows - digit)[..., ink].max(-1) < 1e-6).any())
        assert found


def test_scenes_are_always_the_same_and_another_seed_makes_others():
    one, two = tasks.build(SMALL).examples("test")[5], tasks.build(SMALL).examples("test")[5]
    assert np.array_equal(one.picture, two.picture)
    other = tasks.build(SMALL.replace("patch=5", "patch=5, seed=3")).examples("test")[5]
    assert other.label == one.label and not np.array_equal(one.picture, other.picture)


def test_patches_are_the_canvas():
    task = tasks.build(SMALL)
    examples = task.examples("validation")[:3]
    batch = task.collate(examples, seeded())
    assert torch.equal(fold(batch.inputs, task.spec)[1, 0], torch.from_numpy(examples[1].picture))
    assert batch.targets.tolist() == [example.label for example in examples]
    assert task.collate([], seeded()).inputs.shape == (0, 16, 25)


class Stub:
    """Says the right class from a given glimpse on, 0 before."""

    def __init__(self, right_from):
        self.right_from = right_from

    def __call__(self, batch):
        return batch.targets

    def predict(self, outputs, batch):
        said = [
            [0] * (n % self.right_from) + [target] * (3 - n % self.right_from)
            for n, target in enumerate(outputs.tolist())
        ]
        return [{"class": one[-1], "after_each": one} for one in said]


def test_accuracy_after_each_glimpse_is_counted_by_hand():
    task = tasks.build(SMALL)
    found = task.examine(Stub(3), "validation", batch_size=30, device="cpu")
    labels = [example.label for example in task.examples("validation")]
    for glimpses, (metric, state) in enumerate(found, 1):
        assert metric.name == f"accuracy_{glimpses}"
        by_hand = [
            glimpses > n % 30 % 3 or label == 0 for n, label in enumerate(labels)
        ]  # batches of thirty begin anew
        assert metric.value(state) == pytest.approx(sum(by_hand) / len(by_hand))
    assert len(found) == 3


def test_other_models_answer_with_one_class_and_have_no_glimpses():
    task = tasks.build(SMALL)
    task.pose(models.problem_for("encoder", task.problems()))
    assert isinstance(task.problem.answer, tasks.OneOf)
    assert task.examine(Stub(3), "validation", batch_size=30, device="cpu") == []


EASY = "glimpse(canvas=10, smallest=10, largest=10, clutter=0, patch=5)"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short training of a small model on digits that fill the canvas."""
    out = tmp_path_factory.mktemp("glimpse") / "run"
    return regard.train(
        EASY,
        model="glimpse(dim=64, glimpses=3, side=5, scales=2)",
        steps=120,
        batch_size=32,
        seed=1,
        out=out,
        quiet=True,
        eval_every=120,
        eval_limit=100,
        device="cpu",
        optim={"lr": 5e-3, "warmup": 10},
    )


@pytest.mark.slow
def test_a_short_training_learns_and_is_measured_after_each_glimpse(run):
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["validation"]["loss"] < 2.0  # guessing: log 10 = 2.30
    found = {one.metric: one for one in regard.evaluate(run, device="cpu", limit=64).metrics}
    assert {"loss", "accuracy", "accuracy_1", "accuracy_2", "accuracy_3"} <= set(found)
    assert {one.count for one in found.values()} == {64}, "the limit holds for all of them"
    assert found["accuracy_3"].value == found["accuracy"].value


@pytest.mark.slow
def test_a_resumed_training_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    settings = {
        "model": MODEL,
        "batch_size": 8,
        "seed": 3,
        "quiet": True,
        "device": "cpu",
        "eval_limit": 8,
        "optim": {"schedule": "constant"},
    }
    whole = regard.train(SMALL, steps=6, out=tmp_path / "whole", **settings)
    stopped = regard.train(SMALL, steps=3, out=tmp_path / "part", **settings)
    again = regard.train(SMALL, steps=6, out=stopped.folder, resume="auto", **settings)
    one, two = (next((run.folder / "checkpoints").glob("step-*6")) / "model.safetensors" for run in (whole, again))
    assert again.steps == 6 and one.read_bytes() == two.read_bytes()


def test_the_places_of_all_glimpses_are_shown_on_the_canvas():
    task, model = tasks.build(SMALL), None
    torch.manual_seed(3)
    model = models.build(MODEL, task.problem).eval()
    found = inspect_model(model, task)
    first = found.attributions[0]
    assert first.rows == ["glimpse 1", "glimpse 2", "glimpse 3"] and len(first.columns) == 16
    assert torch.equal(first.weights.sum(1), torch.ones(3)) and first.weights.max() == 1
    assert found.shown.grid == (4, 4) and found.shown.picture.shape == (20, 20)
    batch = task.collate([task.examples("validation")[0]], seeded())
    with torch.no_grad():
        (said,) = model.predict(model(batch), batch)
    assert [row * 4 + column for row, column in said["places"]] == first.weights.argmax(1).tolist()


def test_the_path_is_drawn_through_the_places():
    task = tasks.build(SMALL)
    said = {"class": 4, "after_each": [1, 4, 4], "places": [(0, 0), (2, 3), (2, 3)]}
    figure = task.draw(said, task.examples("test")[0], None)
    (axes,) = figure.axes
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[2.0, 2.0], [17.0, 12.0], [17.0, 12.0]]
    assert [text.get_text() for text in axes.texts] == ["1", "2 3"]
    assert task.answer_text(said, task.examples("test")[0]) == "4 (after each glimpse: 1, 4, 4)"
    assert task.draw(3, task.examples("test")[0], None) is None  # no places are known


def test_pictures_of_class_folders_lie_on_the_canvas_with_the_names_of_their_classes(tmp_path):
    from PIL import Image

    for name, colour in (("sun", (250, 240, 0)), ("sea", (0, 80, 255))):
        for split, count in (("train", 5), ("val", 1), ("test", 2)):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (11, 11), (colour[0], colour[1] - number, colour[2])).save(folder / f"{number}.png")
    task = tasks.build("glimpse(canvas=20, smallest=9, largest=11, clutter=0, patch=5)", data=str(tmp_path))
    assert task.classes == ("sea", "sun") and len(task.examples("test")) == 4 * 4
    for canvas in task.examples("test")[:4]:
        red, green, blue = [(0, 80, 255), (250, 240, 0)][canvas.label]
        assert canvas.picture.max() == pytest.approx((0.299 * red + 0.587 * green + 0.114 * blue) / 255, abs=0.01)
    said = {"class": 1, "after_each": [0, 1], "places": [(0, 0), (1, 1)]}
    assert task.answer_text(said, canvas) == "sun (after each glimpse: sea, sun)"
    gone = tasks.build(
        "glimpse(canvas=20, smallest=9, largest=11, clutter=0, patch=5)",
        json.loads(json.dumps(task.state())),
        data="/nowhere",
    )
    assert gone.problems() == task.problems() and gone.decode([0]) == "sea"


def test_impossible_sizes_are_refused():
    with pytest.raises(BadValue, match="smallest, largest: expected 8 ≤ smallest ≤ largest ≤ canvas"):
        tasks.build("glimpse(smallest=30, largest=20)")
    with pytest.raises(BadValue, match="patch: expected a side that divides"):
        tasks.build("glimpse(patch=7)")


@pytest.mark.nightly
@pytest.mark.slow
def test_chosen_glimpses_beat_random_ones_and_those_at_the_centre(tmp_path):
    found = {}
    for policy in ("learned", "random", "centre"):
        done = regard.train(
            "glimpse", model=f"glimpse(policy={policy})", out=tmp_path / policy, quiet=True, device="cpu"
        )
        found[policy] = {one.metric: one.value for one in regard.evaluate(done, device="cpu").metrics}
    assert found["learned"]["accuracy_6"] > found["learned"]["accuracy_1"]
    assert found["learned"]["accuracy"] > max(found["random"]["accuracy"], found["centre"]["accuracy"])

"""The task `generate`: requests and their noise, metrics, files, training, and what is shown of made pictures."""

import dataclasses
import json
import pickle
import re

import numpy as np
import pytest
import torch

import regard
from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.cli.main import main
from regard_workbench.inspection.inspection import inspect_run
from regard_workbench.tasks.figures.colours import ON_PICTURES
from regard_workbench.tasks.figures.looks import grid_over, looks_figure, spread_places
from regard_workbench.tasks.measures.metrics import Answered
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.tasks.pictures.written_digits import figures
from regard_workbench.training.loading import load
from regard_workbench.viewer.opening.options import ViewOptions
from regard_workbench.viewer.opening.runs import open_run
from tests.tasks.test_images import idx_files, members, written


def seeded(number=5):
    return torch.Generator().manual_seed(number)


@pytest.fixture(scope="module")
def task():
    return tasks.build("generate")


def test_a_request_asks_for_the_class_of_a_real_digit_of_its_split(task):
    for split in ("train", "validation", "test"):
        grey, shown = figures(split)
        examples = task.examples(split)
        batch = task.collate([examples[number] for number in (0, 7, len(shown) - 1)], seeded())
        assert batch.streams["class"].data.tolist() == [[shown[0]], [shown[7]], [shown[-1]]]
        assert np.allclose(batch.targets[1, 0] * 255, grey[7]) and batch.targets.shape == (3, 1, 8, 8)
        assert len(examples) == len(shown)
    empty = task.collate([], seeded())
    assert empty.streams["noise"].data.shape == (0, 1, 32) and empty.targets.shape == (0, 1, 8, 8)


def test_noise_is_drawn_in_training_and_belongs_to_the_example_elsewhere(task):
    train, test = (task.examples(split)[:5] for split in ("train", "test"))
    drawn = [task.collate(train, seeded(number)).streams["noise"].data for number in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[0][:, 0], torch.randn(5, 32, generator=seeded(1)))
    whole = task.collate(test, seeded(1)).streams["noise"].data
    assert torch.equal(whole[3:4], task.collate(test[3:4], seeded(2)).streams["noise"].data)
    others = tasks.build("generate(seed=3)").examples("test")[3]
    assert not torch.allclose(others.noise, test[3].noise)


def test_the_noise_of_examples_is_normal(task):
    noise = np.stack([one.noise.numpy() for split in ("validation", "test") for one in task.examples(split)]).ravel()
    count = len(noise)
    assert abs(noise.mean()) < 4 / count**0.5 and abs(noise.var() - 1) < 4 * (2 / count) ** 0.5
    assert abs((noise**4).mean() - 3) < 4 * (96 / count) ** 0.5
    assert len(np.unique(noise)) > 0.99 * count


class Stub:
    """A model that answers with given pictures of a batch."""

    def __init__(self, make):
        self.make = make

    def __call__(self, batch):
        return self.make(batch)

    def predict(self, outputs, batch):
        return outputs.tolist()


def measured(task, make, split="test", size=67):
    """The metrics but the loss, merged over batches."""
    metrics, examples = task.metrics()[1:], task.examples(split)
    parts = [task.collate(examples[start : start + size], seeded()) for start in range(0, len(examples), size)]
    answered = [Answered(Stub(make), part) for part in parts]
    return {metric.name: metric.value(metric.merge([metric.of(one) for one in answered])) for metric in metrics}


def test_real_pictures_have_no_distance_and_the_accuracy_of_the_judge(task):
    found = measured(task, lambda batch: batch.targets)
    real = {
        metric.name: metric.value(state) for metric, state in task.examine(None, "test", batch_size=9, device="cpu")
    }
    assert found["frechet"] == pytest.approx(0, abs=1e-5)
    assert (
        found["conditional_accuracy"] == pytest.approx(real["conditional_accuracy_real"])
        and 0.97 < found["conditional_accuracy"] < 1
    )
    # As many real training pictures of the same classes differ by chance alone, noise by far more.
    assert 0.05 < real["frechet_real"] < 0.6
    noisy = measured(task, lambda batch: torch.rand(batch.targets.shape, generator=seeded()))
    assert noisy["frechet"] > 5 * real["frechet_real"] and noisy["conditional_accuracy"] < 0.3


def test_one_picture_for_each_class_is_what_was_asked_for_but_far_from_real_ones(task):
    train = task.examples("train")
    labels = torch.tensor([one.label for one in train])
    means = torch.stack(
        [torch.stack([one.real for one in train])[labels == digit].float().mean(0) / 255 for digit in range(10)]
    )
    found = measured(task, lambda batch: means[batch.streams["class"].data[:, 0]])
    assert found["conditional_accuracy"] == 1 and found["frechet"] > 1


def test_wrong_classes_are_counted_by_hand(task):
    """What the judge says is compared with what was asked for, not with what the real picture shows."""

    def swapped(batch):  # each asks for the class of the next
        return batch.targets.roll(-1, 0)

    examples = task.examples("test")
    batch = task.collate(examples[:41], seeded())
    said = task.picture_judge(batch.targets.roll(-1, 0)).classes
    right = sum(int(one) == asked.label for one, asked in zip(said, examples[:41], strict=True))
    assert task.metrics()[2].of(Answered(Stub(swapped), batch)) == [float(right), 41.0]


def test_metrics_are_one_for_a_task_and_for_its_class(task):
    assert task.metric in [dataclasses.replace(metric) for metric in task.metrics()]
    assert not task.metric.higher_is_better and [metric.name for metric in task.metrics()] == [
        "loss",
        "frechet",
        "conditional_accuracy",
    ]
    copy = pickle.loads(pickle.dumps(task))
    assert torch.equal(copy.examples("test")[2].noise, task.examples("test")[2].noise)


def test_a_class_is_asked_for_by_its_name_and_a_number_makes_another_picture(task):
    one, again, other = (task.parse({"text": text}) for text in ("7", " 7 #1 ", "7 #2"))
    assert one.label == other.label == 7 and one.real is None
    assert torch.equal(one.noise, again.noise) and not torch.allclose(one.noise, other.noise)
    for wrong in ("seven", "7 2", "#2", "", "12"):
        with pytest.raises(BadValue, match=f"--text: expected the name of a class.*got {wrong!r}"):
            task.parse({"text": wrong})
    with pytest.raises(BadValue, match="--image"):
        task.parse({"image": "x.png"})


def test_files_are_read_as_the_task_images_reads_them(tmp_path):
    task = tasks.build("generate(noise=5)", data=idx_files(tmp_path, train=19))
    assert task.classes == ("0", "1", "2") and dataclasses.astuple(task.problem.answer) == (1, 6, 4)
    plain = tasks.build("images(patch=1)", data=str(tmp_path))
    for split in ("train", "validation", "test"):
        batch = task.collate(task.examples(split)[:], seeded())
        assert torch.equal((batch.targets * 255).byte(), plain.examples(split).pixels)
        assert batch.streams["class"].data[:, 0].tolist() == plain.examples(split).labels.tolist()
    with pytest.raises(BadValue, match="size: only pictures of files"):
        tasks.build("generate(size=9)")


def test_a_restored_task_needs_no_files_to_make_pictures(tmp_path):
    task = tasks.build("generate(size=8)", data=written(tmp_path, members(colour=True)))
    gone = tasks.build("generate(size=8)", json.loads(json.dumps(task.state())), data="/nowhere")
    assert gone.problems() == task.problems() and gone.problem.answer.channels == 3
    assert gone.parse({"text": "dog #4"}).label == 1
    assert torch.equal(gone.parse({"text": "dog #4"}).noise, task.parse({"text": "dog #4"}).noise)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short training of small players."""
    return regard.train(
        "generate",
        model="gan(dim=16)",
        steps=40,
        batch_size=32,
        out=tmp_path_factory.mktemp("generate") / "run",
        quiet=True,
        eval_every=20,
        eval_limit=100,
        device="cpu",
        optim={"warmup": 5},
    )


@pytest.mark.slow
def test_a_short_training_is_judged_beside_real_pictures(run):
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "frechet", "conditional_accuracy"} == set(lines[-1]["validation"])
    found = {one.metric: one for one in regard.evaluate(run, device="cpu", limit=64).metrics}
    assert {one.count for one in found.values()} == {64}, "the limit holds for all of them"
    assert found["conditional_accuracy_real"].value > 0.95 and found["frechet_real"].value < found["frechet"].value


@pytest.mark.slow
def test_a_resumed_training_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    """Weights of both players, estimates of singular values, running statistics and optimiser state."""
    settings = {
        "model": "gan(dim=8)",
        "batch_size": 8,
        "seed": 3,
        "quiet": True,
        "device": "cpu",
        "eval_limit": 8,
        "optim": {"schedule": "constant"},
    }
    whole = regard.train("generate", steps=6, out=tmp_path / "whole", **settings)
    stopped = regard.train("generate", steps=3, out=tmp_path / "part", **settings)
    again = regard.train("generate", steps=6, out=stopped.folder, resume="auto", **settings)
    one, two = (next((run.folder / "checkpoints").glob("step-*6")) for run in (whole, again))
    assert again.steps == 6
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_the_recipe_trains_with_the_papers_rates_of_averages(run):
    text = (run.folder / "config.yaml").read_text()
    assert re.search(r"betas:\s*- 0\.0\s*- 0\.9\s", text)


def test_a_class_is_typed_and_its_picture_is_printed_and_drawn(run, capsys, tmp_path):
    figure = tmp_path / "seven.svg"
    assert main(["predict", str(run.folder), "--text", "7", "--figure", str(figure), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "7  →  a picture of 8 × 8 pixels" and sum("│" in line for line in lines) == 8
    assert figure.read_text().count("<image") == 6  # the picture, and five of its places over where they looked
    assert main(["predict", str(run.folder), "--text", "7", "--json", "--device", "cpu"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    loaded = load(run.folder, device="cpu")
    batch = loaded.task.collate([loaded.task.parse({"text": "7"})], seeded())
    with torch.no_grad(), regard.observe(loaded.model) as seen:
        (expected,) = loaded.model.predict(loaded.model(batch), batch)
    assert np.allclose(found["predicted"], expected, atol=1e-6) and np.allclose(
        found["picture"], expected[0], atol=1e-4
    )
    weights = seen["generator.places.attention"].weights()[0].mean(0)
    assert np.allclose(found["attention"]["weights"], weights, atol=1e-4)
    assert found["attention"]["rows"] == found["attention"]["columns"] == [f"{n // 8},{n % 8}" for n in range(64)]


def test_a_wrong_class_is_refused_and_the_others_go_on(run, capsys):
    assert main(["predict", str(run.folder), "--text", "x", "--text", "3", "--device", "cpu"]) == 2
    shown = capsys.readouterr()
    assert "'x'" in shown.err and "There are: 0, 1, 2" in shown.err and shown.out.lstrip().startswith("3  →")


def test_an_example_is_made_from_the_noise_that_it_is_judged_with(run, capsys):
    assert main(["predict", str(run.folder), "--example", "3", "--json", "--device", "cpu"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    loaded = load(run.folder, device="cpu")
    batch = loaded.task.collate(loaded.task.examples("test")[:9], seeded())
    with torch.no_grad():
        expected = loaded.model.predict(loaded.model(batch), batch)[3]
    assert np.allclose(found["predicted"], expected, atol=1e-5)


def test_the_page_shows_the_made_picture_and_where_each_pixel_looked(run):
    options = ViewOptions(str(run.folder), text="4 #2", device="cpu")
    opened = open_run(options, str(run.folder), None, lambda text: None)
    assert (opened.image["rows"], opened.image["columns"]) == (8, 8) and len(opened.labels["patches"]) == 64
    with regard.observe(opened.model) as seen, torch.no_grad():
        outputs = opened.run()
    assert (
        seen["generator.places.attention"].shape() == seen["discriminator.places.attention"].shape() == (1, 1, 64, 64)
    )
    loaded = load(run.folder, device="cpu")
    request = loaded.task.parse({"text": "4 #2"})
    shown = loaded.task.show(loaded.task.marked(request, outputs.pictures[0].tolist()), None)
    assert np.allclose(shown.picture, outputs.pictures[0, 0], atol=1e-6) and shown.words == "a picture of 4"
    assert opened.input == "“4 #2”"


def test_a_report_shows_the_made_picture_not_the_real_one(run):
    found = inspect_run(run.folder)
    assert [one.source for one in found.attributions] == [
        "where each place of the generator looked",
        "where each place of the discriminator looked",
    ]
    assert found.shown.grid == (8, 8) and found.attributions[0].weights.shape == (64, 64)
    real = tasks.build("generate").examples("validation")[0].real[0].numpy() / 255
    assert not np.allclose(found.shown.picture, real, atol=0.05)


def test_without_self_attention_pictures_are_made_alike(tmp_path, capsys):
    done = regard.train(
        "generate",
        model="gan(dim=8, self_attention=false)",
        steps=2,
        batch_size=8,
        out=tmp_path / "run",
        quiet=True,
        eval_limit=8,
        device="cpu",
    )
    figure = tmp_path / "seven.svg"
    assert main(["predict", str(done.folder), "--text", "7", "--figure", str(figure), "--device", "cpu"]) == 0
    assert "a picture of 8 × 8 pixels" in capsys.readouterr().out and figure.read_text().count("<image") == 1


def test_the_places_that_are_drawn_are_bright_and_far_apart():
    picture = np.zeros((6, 9), np.float32)
    picture[0, 0], picture[5, 8], picture[0, 1], picture[3, 4] = 1.0, 0.9, 0.8, 0.4
    assert spread_places(picture, (6, 9)) == [0, 5 * 9 + 8, 1], "what is less than half as bright shows nothing"
    assert spread_places(picture, (2, 3), count=2) == [0, 5], "the mean of the pixels of a place counts"
    assert grid_over(picture, 54) == (6, 9) and grid_over(np.zeros((28, 28, 3)), 196) == (14, 14)


def test_a_figure_lays_the_weights_of_a_place_over_the_picture_and_frames_it():
    picture = np.zeros((4, 6), np.float32)
    picture[2:, 4:] = 1.0
    weights = np.eye(6)[::-1]  # each of 2 × 3 places looks at the one opposite
    names = [f"{row},{column}" for row in range(2) for column in range(3)]
    figure = looks_figure(picture, "8", weights.tolist(), names)
    plain, over = figure.axes
    assert (plain.get_title(), over.get_title()) == ("8", "1,2 looks at")
    lit = over.images[0].get_array()
    colour = np.array([int(ON_PICTURES[2][at : at + 2], 16) / 255 for at in (1, 3, 5)])
    assert np.allclose(lit[:2, :2], 0.65 * colour, atol=0.01), "the picture is dark where this place looked"
    assert np.allclose(lit[2:, 4:], 0.6) and np.allclose(lit[:2, 2:], 0)
    (frame,) = over.lines
    assert frame.get_xydata().tolist() == [[3.5, 1.5], [5.5, 1.5], [5.5, 3.5], [3.5, 3.5], [3.5, 1.5]]


def test_a_task_draws_nothing_of_where_it_looked_if_that_is_unknown(task):
    picture = np.zeros((1, 8, 8)).tolist()
    request = task.parse({"text": "3"})
    for looked in (None, Looked([[0.5, 0.5]], ["0", "1"])):
        (frame,) = task.draw(picture, request, looked).axes
        assert frame.get_title() == "3"

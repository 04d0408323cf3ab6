"""`video`: what moves is where it should be; both questions are judged apart; training, prediction, what is shown."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.cli.main import main
from regard_workbench.tasks.answers.questions import Questions
from regard_workbench.tasks.generated.moving import MOTIONS, moving
from regard_workbench.tasks.measures.metrics import Answered, observe, values
from regard_workbench.tasks.parts.batch import Batch, Stream
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.tasks.pictures import written_digits
from regard_workbench.training import train
from regard_workbench.viewer.opening.options import ViewOptions
from regard_workbench.viewer.opening.runs import open_run


def test_a_figure_moves_by_its_step_and_may_leave_the_canvas():
    figure = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    for start, step in (((0, 0), (1, 2)), ((4, 4), (-3, 1)), ((5, 0), (0, -1))):
        clip = moving(figure, 7, 5, start, step)
        for frame in range(5):
            expected = np.zeros((7, 7), np.float32)
            for y in range(2):
                for x in range(3):
                    row, column = start[0] + frame * step[0] + y, start[1] + frame * step[1] + x
                    if 0 <= row < 7 and 0 <= column < 7:
                        expected[row, column] = figure[y, x]
            assert np.array_equal(clip[frame], expected)


def test_videos_show_their_digit_and_their_motion():
    task = tasks.build("video(frames=3, speed=3, size=20)")
    pixels, shown = written_digits.images()
    test = {pixels[n].tobytes(): shown[n] for n, split in enumerate(written_digits.split_of()) if split == "test"}
    for index in range(40):
        one = task.examples("test")[index]
        first, second = one.frames[0, 0].numpy(), one.frames[1, 0].numpy()
        places = [(y, x) for y in range(0, 13, 3) for x in range(0, 13, 3)]
        ((y, x),) = [at for at in places if first[at[0] : at[0] + 8, at[1] : at[1] + 8].tobytes() in test]
        figure = first[y : y + 8, x : x + 8]
        assert test[figure.tobytes()] == one.digit and figure.sum() == first.sum()
        down, right = (3 * part for part in list(MOTIONS.values())[one.motion])
        wide = np.pad(first, 3)  # what comes in from outside is empty
        assert np.array_equal(second, wide[3 - down : 23 - down, 3 - right : 23 - right])
    again = tasks.build("video(frames=3, speed=3, size=20)").examples("test")
    assert all(torch.equal(task.examples("test")[n].frames, again[n].frames) for n in range(5))


def test_the_first_frame_does_not_tell_the_motion():
    """Each motion starts at each of the nine places about as often: a table of both has no more than chance."""
    task = tasks.build("video")
    counts = np.zeros((8, 9))
    for one in (task.examples("train")[n] for n in range(3000)):
        first = one.frames[0, 0].numpy()
        places = [(y, x) for y in (0, 4, 8) for x in (0, 4, 8)]
        whole = [first[y : y + 8, x : x + 8].sum() == first.sum() for y, x in places]
        if sum(whole) == 1:  # a narrow digit also lies inside the square beside its own
            counts[one.motion, whole.index(True)] += 1
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 100  # 56 degrees of freedom: above it with p < 0.0003


def test_a_batch_has_both_answers_and_numbers_of_mean_0_and_variance_1():
    task = tasks.build("video")
    examples = [task.examples("validation")[n] for n in range(200)]
    batch = task.collate(examples, torch.Generator())
    assert batch.inputs.shape == (200, task.spec.length, 16) and task.spec.frames == 4
    first = batch.inputs[:, : task.spec.length // 4]  # in later frames, digits have left
    assert abs(float(first.mean())) < 0.05 and abs(float(first.std()) - 1) < 0.05
    assert batch.answers["digit"].data.tolist() == [one.digit for one in examples]
    assert batch.answers["motion"].data.tolist() == [one.motion for one in examples]
    assert task.collate([], torch.Generator()).inputs.shape == (0, task.spec.length, 16)


def test_questions_are_trained_together_and_judged_apart():
    answer = Questions(("digit", "motion"), (10, 8))
    head = answer.head()
    rows = torch.full((3, 18), -20.0)
    for row, (digit, motion) in enumerate(((4, 1), (5, 2), (6, 3))):
        rows[row, digit], rows[row, 10 + motion] = 20.0, 20.0
    right = {"digit": Stream(torch.tensor([4, 5, 0])), "motion": Stream(torch.tensor([1, 7, 3]))}
    batch = Batch({"inputs": Stream(torch.zeros(3, 1, 1))}, right)
    assert head.predict(head(rows, batch), batch) == [[4, 1], [5, 2], [6, 3]]
    total, count = head.loss(head(rows, batch), batch)
    assert float(total) == pytest.approx(80.0, abs=1e-3) and float(count) == 3  # two wrong, each by 40

    class Answering:
        def __call__(self, given):
            return head(rows, given)

        def loss(self, outputs, given, smoothing=0.0):
            return head.loss(outputs, given, smoothing)

    metrics = tasks.build("video").metrics()
    found = values(metrics, observe(metrics, Answered(Answering(), batch)))
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["digit_accuracy"] == found["motion_accuracy"] == pytest.approx(2 / 3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("video") / "run"
    settings = {"steps": 40, "batch_size": 24, "eval_every": 40, "optim": {"lr": 0.004, "warmup": 5}}
    model = "vit(dim=32, layers=1, num_heads=2, dropout=0.0)"
    found = train({"task": "video", "model": model, "out": str(folder), "device": "cpu", **settings}, quiet=True)
    return folder, found


@pytest.mark.slow
def test_a_small_run_begins_to_learn(run):
    evaluated = regard.evaluate(run[0], device="cpu", limit=300)
    assert evaluated["digit_accuracy"] > 0.15 or evaluated["motion_accuracy"] > 0.2


@pytest.mark.slow
def test_an_animated_picture_is_predicted(run, tmp_path, capsys):
    figure = written_digits.images()[0][7].reshape(8, 8)
    frames = [Image.fromarray(np.uint8(255 * frame)) for frame in moving(figure, 16, 4, (4, 4), (0, 4))]
    path = tmp_path / "clip.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100)
    figure = ["--figure", str(tmp_path / "looked.svg")]
    assert main(["predict", str(run[0]), "--image", str(path), "--json", *figure]) == 0
    assert (tmp_path / "looked.svg").read_text().count("<image") == 2
    (found,) = json.loads(capsys.readouterr().out)
    assert found["output"].startswith("a ") and " that moves " in found["output"] and len(found["predicted"]) == 2
    assert len(found["looked_at"]["pieces"]) == 64 and found["looked_at"]["pieces"][17]["piece"] == "1: 0,1"
    frames[0].save(tmp_path / "still.png")
    assert main(["predict", str(run[0]), "--image", str(tmp_path / "still.png")]) != 0
    assert "expected at least 4 frames" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_shows_frames_below_each_other(run):
    opened = open_run(ViewOptions(str(run[0]), device="cpu"), str(run[0]), None, lambda text: None)
    assert (opened.image["rows"], opened.image["columns"]) == (16, 4)
    assert (opened.image["width"], opened.image["height"]) == (16, 64)
    with regard.observe(opened.model) as seen:
        opened.run()
    assert [seen[name].shape()[2:] for name in seen.names()] == [(64, 64), (64, 64)]


def test_wrong_sizes_are_refused():
    wrong = {"size=7": "size", "frames=1": "frames", "patch=5": "patch: expected a side that divides"}
    for options, words in wrong.items():
        with pytest.raises(BadValue, match=words):
            tasks.build(f"video({options})")


def test_the_figure_has_the_frames_side_by_side_and_shades_the_patch_of_its_frame():
    task = tasks.build("video(frames=3)")
    spec, example = task.streams()["inputs"], task.examples("test")[0]
    weights = torch.zeros(3, spec.rows, spec.columns)
    weights[2, 1, 0] = 1.0
    columns = [str(number) for number in range(spec.length)]
    figure = task.draw([8, 0], example, Looked([weights.flatten().tolist()], columns))
    plain, shaded = (frame.images[0].get_array() for frame in figure.axes)
    assert plain.shape == (task.size, 3 * task.size)
    shown = task.show(example, task.collate([example], torch.Generator())).picture
    assert np.array_equal(plain[:, task.size : 2 * task.size], shown[task.size : 2 * task.size])
    coloured = np.argwhere(np.ptp(shaded, axis=-1) > 0.1)
    left = 2 * task.size
    assert coloured.min(0).tolist() == [spec.side, left]
    assert coloured.max(0).tolist() == [2 * spec.side - 1, left + spec.side - 1]
    assert figure.axes[1].get_title().startswith("an 8 that moves")

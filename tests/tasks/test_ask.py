"""ask: files of questions, accuracy of relational and other questions apart, an image with a question answered."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard_workbench import models, tasks
from regard_workbench.cli.main import main
from regard_workbench.tasks.formats.image_files import PicturesRead
from regard_workbench.tasks.measures.metrics import Answered, merged, observe, values
from regard_workbench.training import train
from regard_workbench.viewer.opening.options import ViewOptions
from regard_workbench.viewer.opening.runs import open_run

COLOURS = {"red": (220, 20, 20), "green": (20, 220, 20), "blue": (20, 20, 220)}


def half(path, left, right):
    pixels = np.zeros((24, 24, 3), np.uint8)
    pixels[:, :12], pixels[:, 12:] = COLOURS[left], COLOURS[right]
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of two colours; questions about one side, and whether the sides are alike."""
    made = tmp_path_factory.mktemp("asked")
    (made / "images").mkdir()
    names, lines = list(COLOURS), {"train": [], "val": [], "test": []}
    for number in range(45):
        left, right = names[number % 3], names[(number // 3) % 3]
        split = "train" if number < 27 else "val" if number < 36 else "test"
        image = f"images/{number}.png"
        half(made / image, left, right)
        same = "yes" if left == right else "no"
        for question, answer, kind in (
            ("What is on the left?", left, "side"),
            ("What is on the right?", right, "side"),
            ("Are they alike?", same, "relational"),
        ):
            lines[split].append(json.dumps({"image": image, "question": question, "answer": answer, "kind": kind}))
    for split, part in lines.items():
        (made / f"{split}.jsonl").write_text("\n".join(part) + "\n")
    return made


def test_lines_of_json_beside_the_images_are_read_with_their_splits(folder):
    task = tasks.build("ask(size=24, patch=8)", data=str(folder))
    assert [len(task.examples(split)) for split in ("train", "validation", "test")] == [81, 27, 27]
    first = task.examples("train")[1]
    assert first.question == ("what", "is", "on", "the", "right") and task.fitted.labels[first.answer] == "red"
    assert first.kind == "side" and task.fitted.labels == ["blue", "green", "no", "red", "yes"]
    assert (abs(first.pixels[0, 0].astype(int) - COLOURS["red"]) < 2).all()


def test_one_file_is_split_by_image_so_that_no_image_is_in_two_splits(folder, tmp_path):
    for number in range(12):
        half(tmp_path / f"{number}.png", "red", "blue")
    lines = [
        {"image": f"{number}.png", "question": f"how many {word}", "answer": count}
        for number in range(12)
        for word, count in (("ones", 1), ("twos", 2))
    ]
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, lines)))
    task = tasks.build("ask(size=24)", data=str(tmp_path))
    images = {split: {row.image for row in rows} for split, rows in task.questions.items()}
    assert sum(map(len, images.values())) == 12 == len(set.union(*images.values()))
    assert task.fitted.labels == ["1", "2"], "a number is an answer, too"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", r"train.jsonl:2: not valid JSON"),
        ("[1]", r"train.jsonl:2: expected \{"),
        ('{"image": "a.png", "answer": "b"}', "each a text, got question: 'None'"),
        ('{"image": "../a.png", "question": "b", "answer": "c"}', "no picture '../a.png'"),
        ('{"image": "none.png", "question": "b", "answer": "c"}', "no picture 'none.png'"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_with_its_place(tmp_path, line, why):
    half(tmp_path / "x.png", "red", "red")
    good = '{"image": "x.png", "question": "what", "answer": "red"}'
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.jsonl").write_text(f"{good}\n{line if split == 'train' else good}\n")
    with pytest.raises(regard.RegardError, match=why):
        tasks.build("ask(size=24)", data=str(tmp_path)).examples("train")


def test_questions_about_a_broken_image_are_skipped_where_asked(tmp_path):
    lines = []
    for number in range(20):
        half(tmp_path / f"{number}.png", "red", "blue")
        for side, answer in (("left", "red"), ("right", "blue")):
            lines.append(json.dumps({"image": f"{number}.png", "question": side, "answer": answer}))
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    (tmp_path / "7.png").write_bytes(b"no image")
    splits = ("train", "validation", "test")
    with pytest.raises(regard.RegardError, match=r"7\.png.*--bad-files skip"):
        [tasks.build("ask(size=24)", data=str(tmp_path)).examples(split) for split in splits]
    task = tasks.build("ask(size=24, bad_files=skip)", data=str(tmp_path))
    with pytest.warns(PicturesRead, match=r"7\.png"):
        found = [one for split in splits for one in task.examples(split)]
    assert len(found) == 2 * 19 and all(
        task.fitted.labels[one.answer] == {"left": "red", "right": "blue"}[one.question[0]] for one in found
    )


class Says:
    """A model that gives fixed logits."""

    def __init__(self, chosen, classes):
        self.outputs = torch.nn.functional.one_hot(torch.tensor(chosen), classes).float()

    def __call__(self, batch):
        return self.outputs

    def loss(self, outputs, batch, smoothing=0.0):
        return outputs.sum(), torch.tensor(float(len(outputs)))


def test_relational_questions_and_others_are_measured_apart():
    task = tasks.build("ask")
    examples = [task.examples("test")[n] for n in range(8)]  # relational, other, relational, …
    batch = task.collate(examples, torch.Generator())
    right = [one.answer for one in examples]
    chosen = [right[0], right[1], (right[2] + 1) % 8, right[3], right[4], (right[5] + 1) % 8, right[6], right[7]]
    metrics = task.metrics()
    found = values(metrics, merged(metrics, [observe(metrics, Answered(Says(chosen, 8), batch))]))
    assert found["accuracy"] == 6 / 8 and found["accuracy_relational"] == 3 / 4 and found["accuracy_other"] == 3 / 4
    without = task.collate([one._replace(kind="") for one in examples], torch.Generator())
    assert set(observe(metrics, Answered(Says(chosen, 8), without))) == {"loss", "accuracy"}


def test_batches_state_and_examples_are_as_the_problem_says():
    task = tasks.build("ask")
    assert [len(task.examples(split)) for split in ("train", "validation", "test")] == [100_000, 1000, 2000]
    batch = task.collate([task.examples("train")[n] for n in (0, 7, 99_999)], torch.Generator())
    assert batch.streams["picture"].data.shape == (3, 16, 192) and batch.targets.shape == (3,)
    other = tasks.build("ask", state=json.loads(json.dumps(task.state())))
    assert other.streams() == task.streams() and other.answers() == task.answers()
    empty = task.collate([], torch.Generator())
    assert empty.streams["picture"].data.shape == (0, 16, 192)
    with pytest.raises(regard.RegardError, match="objects: expected 3 to 6"):
        tasks.build("ask(objects=7)")
    with pytest.raises(regard.RegardError, match="figures: there is no 'cats'"):
        tasks.build("ask(figures=cats)")


def test_only_the_chosen_kinds_of_questions_are_asked_half_of_them_relational():
    task = tasks.build("ask(size=24, patch=6, objects=3, kinds='left,nearest,what')")
    kinds = [task.examples("train")[number].kind for number in range(60)]
    assert kinds[::2] == ["relational nearest"] * 30 and set(kinds[1::2]) == {"left", "what"}
    assert sorted(task.fitted.labels) == ["circle", "no", "square", "yes"]
    alone = tasks.build("ask(objects=4, kinds=count)")
    assert {alone.examples("test")[number].kind for number in range(20)} == {"relational count"}
    assert alone.fitted.labels == ["1", "2", "3", "4"]
    colours = {name for number in range(20) for name in (one.colour for one in alone.scene("test", number)[1].figures)}
    assert colours == {"red", "green", "blue", "orange"}  # as many as figures
    with pytest.raises(regard.RegardError, match="kinds: there is no 'why'"):
        tasks.build("ask(kinds='what,why')")


def test_models_that_read_two_streams_serve_the_task():
    problem = tasks.build("ask").problem
    able = {name for name in models.names() if models.fits(models.MODELS[name], problem)}
    assert {"answerer", "co-attention"} <= able and "captioner" not in able


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("ask") / "run"
    settings = {
        "task": "ask(size=24, patch=8)",
        "data": str(folder),
        "model": "answerer(dim=24, hops=2)",
        "steps": 70,
        "batch_size": 27,
        "eval_every": 35,
        "device": "cpu",
        "out": str(out),
        "optim": {"lr": 3e-3, "warmup": 6},
    }
    return out, train(settings, quiet=True)


def test_a_small_answerer_learns_what_is_where(run):
    found = regard.evaluate(run[0], "test")
    assert found["accuracy"] > 0.8 and found["accuracy_other"] > 0.8 and found["accuracy_relational"] > 0.6


def test_an_image_with_questions_is_answered_with_what_was_looked_at(run, tmp_path, capsys):
    half(tmp_path / "x.png", "green", "blue")
    command = ["predict", str(run[0]), "--image", str(tmp_path / "x.png"), "--json"]
    found = []
    for text in ("What is on the left?", "what is on the right", "what is purple"):
        assert main([*command, "--text", text]) == 0
        found += json.loads(capsys.readouterr().out)
    first, second, third = found
    figure = tmp_path / "x.svg"
    assert main([*command, "--text", "what is on the left?", "--figure", str(figure)]) == 0
    assert figure.read_text().count("<image") == 1 + len(first["looked_at"].get("readings", [0]))
    assert "over the patches" in capsys.readouterr().out or "readings" in first["looked_at"]
    assert first["output"] == "green" and second["output"] == "blue"
    assert "purple" in third["notes"][0] and not second["notes"] and len(first["looked_at"]["pieces"]) == 9
    assert main([*command]) == 2 and main([*command[:2], "--text", "what"]) == 2
    assert "Give both: --image FILE --text QUESTION" in str(capsys.readouterr())
    assert main([*command, "--text", "what", "--text", "where"]) == 2
    assert "expected one image and one question, got 2" in str(capsys.readouterr())


def test_the_page_opens_an_image_with_its_question(run, tmp_path):
    half(tmp_path / "x.png", "green", "blue")
    options = ViewOptions(where=str(run[0]), image=str(tmp_path / "x.png"), text="what is on the left")
    opened = open_run(options, str(run[0]), None, print)
    opened.run()
    assert opened.image["rows"] == 3 and opened.labels["question"] == ["what", "is", "on", "the", "left"]
    assert "x.png" in opened.input and "left" in opened.input

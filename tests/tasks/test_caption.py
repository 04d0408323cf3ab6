"""caption: files with lists of splits, references, batches, BLEU of what is written, training to prediction."""

import json
import zipfile

import numpy as np
import pytest
import sacrebleu
import torch
from PIL import Image

import regard
from regard.decoding import Hypothesis
from regard_workbench import models, tasks
from regard_workbench.cli.main import main
from regard_workbench.tasks.caption import plain
from regard_workbench.tasks.formats.image_files import PicturesRead
from regard_workbench.tasks.measures.metrics import Answered, merged, observe, values
from regard_workbench.training import train
from regard_workbench.training.loading import load
from regard_workbench.viewer.opening.options import ViewOptions
from regard_workbench.viewer.opening.runs import open_run

COLOURS = {"red": (220, 20, 20), "green": (20, 220, 20), "blue": (20, 20, 220)}


def image_bytes(path, colour, size=(20, 30)):
    Image.fromarray(np.full((*size, 3), COLOURS[colour], np.uint8)).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of one colour in the form of Flickr8k: archives, captions of all images, lists of the splits."""
    made = tmp_path_factory.mktemp("flickr")
    lines, splits = [], {"train": [], "dev": [], "test": []}
    for number in range(24):
        colour = list(COLOURS)[number % 3]
        split = "train" if number < 18 else "dev" if number < 21 else "test"
        name = f"{number}_{colour}.png"
        splits[split].append(name)
        image_bytes(made / name, colour)
        lines += [f"{name}#0\tA {colour} wall .", f"{name}#1\tThere is a {colour} wall, here!"]
    lines.append("nobody.jpg#0\tAn image in no list .")
    (made / "all.token.txt").write_text("\n".join(lines) + "\n")
    (made / "readme.txt").write_text("Lines about the data.\n")
    for split, names in splits.items():
        (made / f"Some_8k.{split}Images.txt").write_text("\n".join(names) + "\n")
        with zipfile.ZipFile(made / f"images-{split}.zip", "w") as archive:
            for name in names:
                archive.write(made / name, name)
                (made / name).unlink()
    return made


def test_lists_captions_and_archives_are_read_as_flickr8k_has_them(folder):
    task = tasks.build("caption(size=16, patch=4)", data=str(folder))
    assert [len(task.examples(split)) for split in ("train", "validation", "test")] == [36, 6, 6]
    first, second = task.examples("test")[:2]
    assert first.references == ("a red wall", "there is a red wall here") and second.references is None
    assert first.caption == "a red wall" and second.caption == "there is a red wall here"
    assert first.pixels.shape == (16, 16, 3) and (abs(first.pixels.astype(int) - COLOURS["red"]) < 2).all()
    assert all(one.references is None and one.training for one in task.examples("train"))
    assert "nobody" not in str(task.described) and set(task.fitted.vocabulary.entries) == {
        "a",
        "wall",
        "there",
        "is",
        "here",
        *COLOURS,
    }


def test_a_folder_of_images_with_one_file_of_captions_is_split_by_image(tmp_path):
    (tmp_path / "below").mkdir()
    for number in range(20):
        image_bytes(tmp_path / "below" / f"{number}.jpg", "blue", (9, 9))
    lines = [f"{number}.jpg\tblue {word}" for number in range(20) for word in ("one", "two")]
    (tmp_path / "captions.tsv").write_text("\n".join(lines))
    task = tasks.build("caption(size=8, patch=4)", data=str(tmp_path))
    sizes = {split: {one.image for one in part} for split, part in task.described.items()}
    assert {split: len(names) for split, names in sizes.items()} == {"train": 16, "validation": 2, "test": 2}
    assert not sizes["train"] & sizes["test"] and len(task.examples("test")) == 4


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1.jpg no tab", "no file of captions"),
        ("1.jpg\ta\n2.jpg only", r"captions.txt:2: expected image TAB caption"),
        ("1.jpg\ta wall\n2.jpg\tb\n3.jpg\tc", r"no picture '\d.jpg'"),
    ],
)
def test_what_is_wrong_with_files_is_said_with_its_place(tmp_path, line, why):
    (tmp_path / "captions.txt").write_text(line)
    with pytest.raises(regard.RegardError, match=why):
        tasks.build("caption", data=str(tmp_path)).examples("train")


def test_a_broken_image_in_an_archive_is_named_by_the_archive_and_its_name(tmp_path):
    (tmp_path / "captions.txt").write_text("a.jpg\tone\nb.jpg\ttwo\nc.jpg\tthree")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in "abc":
            archive.writestr(f"{name}.jpg", b"no image")
    with pytest.raises(regard.RegardError, match=r"x.zip.*\.jpg.*no image that can be read"):
        tasks.build("caption", data=str(tmp_path)).examples("train")


def test_a_broken_image_is_skipped_with_its_captions_where_asked(tmp_path):
    names = [f"{number}.jpg" for number in range(20)]
    (tmp_path / "captions.txt").write_text("".join(f"{name}#{n}\ttext {n}\n" for name in names for n in (0, 1)))
    for name in names:
        image_bytes(tmp_path / name, "red")
    for name in ("3.jpg", "11.jpg"):
        (tmp_path / name).write_bytes(b"no image")
    splits = ("train", "validation", "test")
    with pytest.raises(regard.RegardError, match=r"(3|11)\.jpg.*--bad-files skip"):
        [tasks.build("caption", data=str(tmp_path)).examples(split) for split in splits]
    task = tasks.build("caption(bad_files=skip)", data=str(tmp_path))
    with pytest.warns(PicturesRead) as warned:
        count = sum(len(task.examples(split)) for split in splits)
    told = " ".join(str(one.message) for one in warned)
    assert count == 2 * 18 and "/3.jpg" in told and "/11.jpg" in told


def test_an_image_of_a_list_without_a_caption_is_named_with_its_line(tmp_path):
    (tmp_path / "captions.txt").write_text("a.jpg\tone\n")
    (tmp_path / "trainImages.txt").write_text("a.jpg\nb.jpg\n")
    with pytest.raises(regard.RegardError, match=r"trainImages.txt:2: the image 'b.jpg' has no caption"):
        tasks.build("caption", data=str(tmp_path)).examples("train")


def test_captions_lose_case_and_punctuation_but_no_words():
    assert plain("A man's T-shirt , (blue) says “Hi” !") == "a man's t-shirt blue says hi"
    assert plain(" . ") == "-"


class Parrot:
    """A model that writes a fixed text for each row."""

    def __init__(self, task, texts):
        self.task, self.texts = task, texts

    def generate(self, batch, **options):
        assert len(self.texts) == batch.size
        return [[Hypothesis([*self.task.fitted.vocabulary.encode(text), 3], 0.0, True)] for text in self.texts]


def test_bleu_counts_only_images_with_references_and_all_of_their_captions(folder):
    task = tasks.build("caption(size=16, patch=4)", data=str(folder))
    batch = task.collate(list(task.examples("test")), torch.Generator())
    texts = ["a red wall", "there is a green wall here", "a wall"]
    model = Parrot(task, texts)
    metrics = [metric for metric in task.metrics() if metric.name.startswith("bleu")]
    found = values(metrics, merged(metrics, [observe(metrics, Answered(model, batch))]))
    references = [one.references for one in task.examples("test") if one.references]
    streams = [list(one) for one in zip(*references, strict=True)]
    own = sacrebleu.corpus_bleu(texts, streams, tokenize="none", force=True)
    assert list(found) == ["bleu_1", "bleu_2", "bleu_3", "bleu"] and found["bleu"] == pytest.approx(own.score)
    assert found["bleu_1"] > found["bleu"] and "nrefs" in task.protocol()["bleu"]


def test_batches_hold_patches_and_captions_and_state_is_restored(folder):
    task = tasks.build("caption(size=16, patch=4)", data=str(folder))
    batch = task.collate(list(task.examples("validation")), torch.Generator())
    assert batch.inputs.shape == (6, 16, 48) and batch.targets.shape == (6, 7)
    other = tasks.build("caption", state=json.loads(json.dumps(task.state())), data="gone")
    assert other.streams() == task.streams() and other.answers() == task.answers()
    again = [task.collate(list(task.examples("train")[:3]), torch.Generator().manual_seed(4)).inputs for _ in range(2)]
    plainly = tasks.build("caption(size=16, patch=4, augment=false)", data=str(folder))
    assert torch.equal(*again)
    assert not torch.equal(again[0], plainly.collate(list(plainly.examples("train")[:3]), torch.Generator()).inputs)
    assert task.collate([], torch.Generator()).inputs.shape == (0, 16, 48)


def test_wrong_sizes_are_refused():
    with pytest.raises(regard.RegardError, match="patch: expected a side that divides the picture's 32 × 32 pixels"):
        tasks.build("caption(patch=5)")
    with pytest.raises(regard.RegardError, match="size: generated scenes have 32 pixels, got 64"):
        tasks.build("caption(size=64)")


def test_models_that_write_from_patches_serve_the_task():
    problem = tasks.build("caption").problem
    able = {name for name in models.names() if models.fits(models.MODELS[name], problem)}
    assert {"captioner", "transformer", "seq2seq"} <= able


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("caption") / "run"
    settings = {
        "task": "caption(size=16, patch=4, augment=false)",
        "data": str(folder),
        "steps": 60,
        "batch_size": 12,
        "model": "captioner(dim=24, dropout=0.0, coverage=0.1)",
        "eval_every": 60,
        "device": "cpu",
        "out": str(out),
        "optim": {"lr": 1e-2, "warmup": 5},
    }
    return out, train(settings, quiet=True)


def test_a_small_captioner_learns_to_name_the_colour(run):
    found = regard.evaluate(run[0], "test")
    assert found["bleu_1"] >= found["bleu_2"] >= found["bleu"] > 60


def test_a_picture_is_described_with_where_each_word_looked(run, tmp_path, capsys):
    image_bytes(tmp_path / "x.png", "green", (50, 40))
    figure = tmp_path / "x.svg"
    command = ["predict", str(run[0]), "--image", str(tmp_path / "x.png")]
    assert main([*command, "--beam", "3", "--figure", str(figure), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert "green" in found["output"] and found["kind"] == "translation"
    seen = found["alignment"]
    assert seen["rows"] == found["output"].split() and seen["columns"][:5] == ["0,0", "0,1", "0,2", "0,3", "1,0"]
    assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in seen["weights"])
    assert figure.read_text().count("<image") == len(seen["rows"]) + 1
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "where each word looked" in told and "┌" not in told  # a picture has too many patches for a map of text
    plain = [row.split() for row in told.splitlines() if row.startswith("  ")]
    words, weights = told.splitlines()[0].partition("  →  ")[2].split(), seen["weights"]
    assert seen["grid"] == [4, 4] and [row[0] for row in plain] == words
    if words == seen["rows"]:
        assert [row[1] for row in plain] == [seen["columns"][int(np.argmax(row))] for row in weights]


def test_the_page_shows_the_picture_with_its_grid_and_the_words(run, tmp_path):
    image_bytes(tmp_path / "x.png", "red")
    opened = open_run(ViewOptions(where=str(run[0]), image=str(tmp_path / "x.png")), str(run[0]), None, print)
    opened.run()
    assert opened.image["rows"] == opened.image["columns"] == 4 and len(opened.labels["patches"]) == 16
    assert "red" in opened.labels["targets"] and opened.input.startswith("the image x.png → “")


def test_an_image_and_a_text_together_are_refused_where_only_one_is_read(run):
    loaded = load(str(run[0]))
    with pytest.raises(regard.RegardError, match="--image: expected --text or --image, not both"):
        ViewOptions(where="x", text="a", image="b").inputs(loaded.task.together)


def test_a_few_steps_of_the_scenes_lower_the_loss_for_hard_attention_too(tmp_path):
    for attention in ("soft", "hard"):
        train(
            {
                "task": "caption",
                "model": f"captioner(dim=16, attention={attention})",
                "steps": 14,
                "batch_size": 8,
                "eval_every": 100,
                "optim": {"lr": 1e-2, "warmup": 2},
                "out": str(tmp_path / attention),
                "device": "cpu",
            },
            quiet=True,
        )
        rows = [json.loads(line) for line in (tmp_path / attention / "metrics.jsonl").read_text().splitlines()]
        losses = [row["loss"] for row in rows if "loss" in row]
        assert losses[-1] < losses[0]

"""A broken image of `ask` and `caption`: training stops at it and names it, or goes on without it and says so."""

import json
import warnings

import pytest
from PIL import Image

import regard
from regard.tasks.formats.bad_files import PicturesRead

SIZES = {"train": 6, "validation": 3, "test": 3}
SPECS = {"ask": "ask(size=24)", "caption": "caption(size=32)"}
MODELS = {"ask": "answerer(dim=8, hops=1, width=2)", "caption": "captioner(dim=8, width=2, blocks=0)"}
both = pytest.mark.parametrize("task", SPECS)


def written(folder, task, broken=()):
    """Red and blue images in three splits, each with a question or a caption; those called `broken` are no images."""
    captions = []
    for split, count in SIZES.items():
        questions = []
        for number in range(count):
            name, colour = f"{split}{number}.png", ("red", "blue")[number % 2]
            if name in broken:
                (folder / name).write_bytes(b"no image")
            else:
                Image.new("RGB", (32, 32), colour).save(folder / name)
            captions.append(f"{name}#0\ta {colour} picture")
            questions.append(json.dumps({"image": name, "question": "which colour", "answer": colour}))
        if task == "ask":
            (folder / f"{split}.jsonl").write_text("\n".join(questions))
        else:
            names = "".join(f"{split}{number}.png\n" for number in range(count))
            (folder / f"{split}Images.txt").write_text(names)
    if task == "caption":
        (folder / "captions.txt").write_text("\n".join(captions))
    return str(folder)


def written_in(folder, task, *broken):
    """The data, and where a run goes."""
    (folder / "data").mkdir()
    return written(folder / "data", task, broken), folder / "run"


def trained(task, data, out, bad_files="stop"):
    spec = SPECS[task].replace(")", f", bad_files={bad_files})")
    return regard.train(
        spec, model=MODELS[task], data=data, out=out, steps=1, batch_size=4, device="cpu", quiet=True
    )


def told(act):
    """What an action warns of about pictures."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in found if issubclass(one.category, PicturesRead)]


@both
@pytest.mark.parametrize("split", ["train", "validation"])
def test_training_stops_before_its_first_step_and_names_the_file(task, split, tmp_path):
    data, out = written_in(tmp_path, task, f"{split}1.png")
    with pytest.raises(regard.RegardError, match=rf"{split}1\.png.*--bad-files skip"):
        trained(task, data, out)
    assert not list(out.rglob("*.safetensors")) and not list(out.rglob("*.pt")), "nothing was trained"


@both
def test_training_skips_a_broken_file_of_each_split_where_asked_and_says_so(task, tmp_path):
    data, out = written_in(tmp_path, task, "train1.png", "validation1.png", "test1.png")
    runs = []
    found = told(lambda: runs.append(trained(task, data, out, "skip")))
    for split in ("train", "validation"):
        assert [f"{split}1.png" in one for one in found].count(True) == 1, "each split is told of once"
    assert all("1 file was skipped" in one for one in found)
    results = []
    found = told(lambda: results.append(regard.evaluate(runs[0], device="cpu")))
    assert len(found) == 1 and "test1.png" in found[0]
    assert results[0].examples == SIZES["test"] - 1


@both
def test_a_broken_file_of_the_test_stops_its_evaluation_alone(task, tmp_path):
    data, out = written_in(tmp_path, task, "test1.png")
    run = trained(task, data, out)
    with pytest.raises(regard.RegardError, match=r"test1\.png.*--bad-files skip"):
        regard.evaluate(run, device="cpu")
    assert regard.evaluate(run, "validation", device="cpu").examples == SIZES["validation"]

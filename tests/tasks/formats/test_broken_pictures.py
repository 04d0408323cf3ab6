"""A broken image of `ask` and `caption`: training stops at it and names it, or goes on without it and says so."""

import io
import json
import os
import struct
import warnings

import numpy as np
import pytest
from PIL import Image

import regard
from regard.errors import BadValue
from regard_workbench.tasks.formats import libtiff
from regard_workbench.tasks.formats.image_files import PicturesRead, decoded, read_picture


def damaged_tiff():
    """One whose packing is broken, of which libtiff says so in the terminal by itself."""
    content = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (61, 67, 3), np.uint8)
    Image.fromarray(pixels).save(content, "TIFF", compression="tiff_lzw")
    damaged = bytearray(content.getvalue())
    damaged[200:700:7] = bytes(byte ^ 0xFF for byte in damaged[200:700:7])
    return bytes(damaged)


def test_a_damaged_tiff_is_refused_without_libtiffs_own_words(capfd):
    with pytest.raises(BadValue, match=r"data: 'a\.tif' cannot be read: "):
        decoded(damaged_tiff(), "a.tif")
    assert capfd.readouterr().err == ""


def test_what_pillow_logs_about_a_damaged_tiff_is_not_printed(tmp_path, capfd):
    content = io.BytesIO()
    Image.new("RGB", (5, 7)).save(content, "TIFF")
    entry = struct.pack("<HHI", 277, 3, 1)  # samples per pixel
    damaged = content.getvalue().replace(entry + b"\3", entry + b"\x7f")
    (tmp_path / "a.tif").write_bytes(damaged)
    with pytest.raises(BadValue, match=r"a\.tif' (cannot be read|is no image)"):
        read_picture(tmp_path / "a.tif")
    assert damaged != content.getvalue() and capfd.readouterr().err == ""


def test_what_others_print_while_libtiff_is_silenced_is_printed_afterwards(capfd):
    with libtiff.silenced(), libtiff.silenced():
        os.write(2, b"tempfile.tif: Using code not yet in table.\nLZWDecode: Strip 0 not terminated.\n")
        os.write(2, b"note: the disk is nearly full.\n")
        assert capfd.readouterr().err == ""
    os.write(2, b"behind\n")
    assert capfd.readouterr().err == "note: the disk is nearly full.\nbehind\n"


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
    return regard.train(spec, model=MODELS[task], data=data, out=out, steps=1, batch_size=4, device="cpu", quiet=True)


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

"""match with pictures of digits from files, in the forms that the task `images` reads."""

import gzip

import numpy as np
import pytest
import torch
from PIL import Image

from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.tasks.formats.image_files import PicturesRead
from regard_workbench.tasks.match import INK, SPREAD
from regard_workbench.tasks.pictures import written_digits
from regard_workbench.tasks.pictures.digit_pictures import WORDS
from regard_workbench.training import train

SPLITS = ("train", "val", "test")


def shade(digit):
    """The brightness that a digit is drawn with here, below one half."""
    return 7 + 11 * digit


def folders(home, name=str, paper=False):
    """Three pictures of each digit in each split, all pixels of its shade; on paper, light and dark exchanged."""
    for split in SPLITS:
        for digit in range(10):
            place = home / split / name(digit)
            place.mkdir(parents=True)
            for number in range(3):
                bright = 255 - shade(digit) if paper else shade(digit)
                Image.new("L", (13, 17), bright).save(place / f"{number}.png")
    return home


def idx(numbers, sort=8):
    head = bytes([0, 0, sort, numbers.ndim]) + b"".join(size.to_bytes(4, "big") for size in numbers.shape)
    return gzip.compress(head + numbers.astype(np.uint8).tobytes())


def idx_files(home):
    home.mkdir()
    for split, count in (("train", 900), ("t10k", 40)):
        labels = np.arange(count) % 10
        pixels = np.repeat(shade(labels), 28 * 28).reshape(count, 28, 28)
        # No two are equal, since equal ones are in one split. The first rows reach only the first row of 8 × 8.
        pixels[:, :2] = np.random.default_rng(7).integers(0, 60, (count, 2, 28))
        (home / f"{split}-images-idx3-ubyte.gz").write_bytes(idx(pixels))
        (home / f"{split}-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    return home


def words(digit):
    return WORDS[digit].upper()


@pytest.mark.parametrize("form", ["figures", "words", "paper", "idx"])
def test_a_candidate_is_shown_by_a_picture_of_its_digit_from_the_files(form, tmp_path):
    home = tmp_path / "digits"
    made = {
        "figures": lambda: folders(home),
        "words": lambda: folders(home, words),
        "paper": lambda: folders(home, paper=True),
        "idx": lambda: idx_files(home),
    }[form]()
    task = tasks.build("match", pictures=str(made), kinds="text-image")
    for split in ("train", "validation", "test"):
        examples = [task.examples(split)[number] for number in range(7)]
        shown = task.collate(examples, torch.Generator()).streams["image"].data
        assert shown.shape == (7, 5, 64)
        expected = torch.tensor([[shade(digit) / 255 for digit in one.digits[1]] for one in examples])
        wanted = ((expected - INK) / SPREAD)[..., None].expand(7, 5, 64)
        assert torch.allclose(shown[..., 8:], wanted[..., 8:], atol=1e-5)  # below the first row


def test_without_files_the_built_in_pictures_are_drawn_from_the_split_of_the_example():
    task = tasks.build("match")
    pixels, shown = written_digits.images()
    known = {
        row.tobytes(): (digit, split)
        for row, digit, split in zip(pixels, shown, written_digits.split_of(), strict=True)
    }
    for split in ("train", "validation", "test"):
        one = task.examples(split)[3]
        drawn = task._drawn("image", one, one.digits[1])
        assert [known[row.numpy().tobytes()] for row in drawn] == [(digit, split) for digit in one.digits[1]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda home: (home / "train" / "3").rename(home / "train" / "ten"), "pictures: .*the class 'ten' is no digit"),
        (lambda home: [(home / s / "4").rename(home / s / "5x") for s in ("test",)], "pictures: .*'5x' is no digit"),
        (lambda home: [path.unlink() for path in (home / "val" / "8").iterdir()], "no picture of the digit 8"),
        (lambda home: (home / "train" / "0" / "0.png").write_bytes(b"no picture"), "pictures: .*0.png"),
    ],
    ids=["a class that is no digit", "in the test", "a digit without pictures", "a damaged file"],
)
def test_wrong_pictures_are_refused_with_their_file(wrong, message, tmp_path):
    home = folders(tmp_path / "digits")
    wrong(home)
    with pytest.raises(BadValue, match=message):
        _ = tasks.build("match", pictures=str(home)).drawings


def test_a_folder_that_is_not_there_is_named_as_pictures(tmp_path):
    with pytest.raises(BadValue, match=r"pictures: .*nowhere"):
        _ = tasks.build("match", pictures=str(tmp_path / "nowhere")).drawings


def test_a_run_with_pictures_of_files_trains_by_the_command_line_form_of_the_option(tmp_path):
    home = folders(tmp_path / "digits")
    result = train(
        {
            "task": f"match(pictures='{home}', kinds=text-image)",
            "steps": 2,
            "batch_size": 3,
            "eval_limit": 4,
            "model": "co-attention(dim=16)",
            "device": "cpu",
            "out": str(tmp_path / "run"),
        },
        quiet=True,
    )
    assert result.metrics.keys() >= {"accuracy", "recall_at_1", "mrr"}


def test_a_broken_picture_stops_the_reading_or_is_skipped_and_named(tmp_path):
    home = folders(tmp_path / "digits")
    (home / "train" / "3" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(BadValue, match=r"pictures: .*broken\.png.*--bad-files skip"):
        _ = tasks.build("match", pictures=str(home)).drawings
    with pytest.warns(PicturesRead, match=r"1 file was skipped: .*broken\.png"):
        drawn = tasks.build("match", pictures=str(home), bad_files="skip").drawings
    assert [len(drawn["train"][digit]) for digit in range(10)] == [3] * 10

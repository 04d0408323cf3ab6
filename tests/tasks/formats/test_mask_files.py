from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard_workbench import tasks
from regard_workbench.tasks.formats import mask_files
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.image_files import PicturesRead
from regard_workbench.tasks.pictures.located import Canvas

WIDTH, HEIGHT = 24, 12


def mask_of(number: int) -> np.ndarray:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[:, : 1 + number] = 1 + number % 3
    mask[-1] = 255
    return mask


def written(folder: Path, count: int = 11, mode: str = "L") -> Path:
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for number in range(count):
        mask = mask_of(number)
        Image.fromarray(np.repeat(20 * mask[..., None], 3, 2)).save(folder / "images" / f"p{number}.jpg", quality=95)
        made = Image.fromarray(mask)
        if mode == "P":
            made.putpalette(list(range(255, -1, -1)) * 3)
        made.save(folder / "masks" / f"p{number}.png")
    return folder


@pytest.mark.parametrize("mode", ["L", "P"])
def test_masks_hold_numbers_of_classes_whatever_their_colours(mode: str, tmp_path: Path) -> None:
    task = tasks.build("segment", data=str(written(tmp_path / "set", mode=mode)), side=24, patch=4)
    assert len(task.classes) == 4 and task.streams()["inputs"].channels == 3
    for split, count in {"train": 9, "validation": 1, "test": 1}.items():
        examples = task.examples(split)
        assert len(examples) == count
        for example in examples:
            number = int(example.name[1:-4])
            assert np.array_equal(example.pixels[:HEIGHT], mask_of(number)) and (example.pixels[HEIGHT:] == 255).all()
            batch = task.collate([example], torch.Generator())
            assert int(batch.target_keep.sum()) == WIDTH * (HEIGHT - 1) and int(batch.targets.max()) < 4


def test_larger_pictures_are_scaled_and_predictions_brought_back_to_their_size(tmp_path: Path) -> None:
    task = tasks.build("segment", data=str(written(tmp_path / "set")), side=12, patch=4)
    example = task.parse({"image": str(tmp_path / "set" / "images" / "p7.jpg")})
    assert example.picture.shape == (3, 12, 12) and example.original == (HEIGHT, WIDTH)
    canvas = np.zeros((12, 12), int)
    canvas[:6, :4] = 2
    assert example.to_file(canvas).shape == (HEIGHT, WIDTH)
    assert task.answer_text(canvas.tolist(), example) == "class 0 66.7 %, class 2 33.3 %"


def test_folders_named_by_split(tmp_path: Path) -> None:
    for name, count in (("train", 5), ("val", 3), ("test", 2)):
        written(tmp_path / name, count)
    task = tasks.build("segment", data=str(tmp_path), side=24, patch=4)
    assert [len(task.examples(split)) for split in ("train", "validation", "test")] == [5, 3, 2]


def test_what_is_wrong_is_said_with_the_file(tmp_path: Path) -> None:
    folder = written(tmp_path / "set")
    Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "masks" / "p3.png")
    with pytest.raises(regard.RegardError, match=r"p3\.png: has the mode RGB. Expected one number for each pixel"):
        mask_files.load([folder], 0, BadFiles())
    Image.new("L", (5, 7)).save(folder / "masks" / "p3.png")
    pairs, classes = mask_files.load([folder], 0, BadFiles())
    every = [pair for part in pairs.values() for pair in part]
    (odd,) = [pair for pair in every if pair[1].name == "p3.png"]
    with pytest.raises(regard.RegardError, match=r"p3\.png: has 5 × 7 pixels, its picture 24 × 12"):
        mask_files.MaskReader(classes, Canvas(24))(odd, odd[0].read_bytes())
    (full,) = [pair for pair in every if pair[1].name == "p5.png"]
    with pytest.raises(regard.RegardError, match=r"p5\.png: holds the class 3, expected numbers below 2, or 255"):
        mask_files.MaskReader(2, Canvas(24))(full, full[0].read_bytes())
    (folder / "masks" / "p3.png").write_bytes(b"x")
    with pytest.raises(regard.RegardError, match=r"p3\.png: is no PNG that can be read"):
        mask_files.read_mask(folder / "masks" / "p3.png")
    (folder / "masks" / "p3.png").unlink()
    with pytest.raises(regard.RegardError, match=r"p3\.jpg: has no mask. Expected .*masks.p3\.png"):
        mask_files.load([folder], 0, BadFiles())
    with pytest.raises(regard.RegardError, match="holds no pictures with masks"):
        mask_files.load([tmp_path / "set" / "masks"], 0, BadFiles())


def test_broken_pictures_and_masks_are_skipped_by_name_where_asked(tmp_path: Path) -> None:
    folder = written(tmp_path / "set")
    (folder / "masks" / "p3.png").write_bytes(b"x")
    (folder / "images" / "p7.jpg").write_bytes(b"x")
    with pytest.raises(regard.RegardError, match=r"p3\.png.*--bad-files skip"):
        tasks.build("segment", data=str(folder), side=24, patch=4)
    task = tasks.build("segment(bad_files=skip)", data=str(folder), side=24, patch=4)
    with pytest.warns(PicturesRead, match=r"p3\.png(?s:.*)p7\.jpg|p7\.jpg"):
        names = [one.name for split in ("train", "validation", "test") for one in task.examples(split)]
    assert sorted(names) == sorted(f"p{number}.jpg" for number in range(11) if number not in (3, 7))

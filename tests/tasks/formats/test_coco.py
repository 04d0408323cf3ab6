import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import regard
from regard_workbench import tasks
from regard_workbench.tasks.formats import coco
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.image_files import PicturesRead

WIDTH, HEIGHT = 40, 30


def content(count: int = 23) -> dict:
    """Pictures with one box each, whose category says on which side it lies; the first also has a crowd."""
    images = [{"id": 100 + n, "file_name": f"p{n}.png", "width": WIDTH, "height": HEIGHT} for n in range(count)]
    boxes = [
        {"id": n, "image_id": 100 + n, "category_id": 7 if n % 2 else 3, "bbox": [20.0 * (n % 2), 5.0, 10.0, 20.0]}
        for n in range(count)
    ]
    boxes.append({"id": 99, "image_id": 100, "category_id": 7, "bbox": [0, 0, 40, 30], "iscrowd": 1})
    return {
        "images": images,
        "annotations": boxes,
        "categories": [{"id": 7, "name": "right"}, {"id": 3, "name": "left"}],
    }


def written(folder: Path, whole: object, name: str = "instances.json") -> Path:
    (folder / "images").mkdir(exist_ok=True)
    for number in range(23):
        pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        left = 20 * (number % 2)
        pixels[5:25, left : left + 10] = (255, number, 0)
        Image.fromarray(pixels).save(folder / "images" / f"p{number}.png")
    (folder / name).write_text(json.dumps(whole))
    return folder / name


def test_boxes_are_shares_of_the_longer_side_and_lie_where_the_picture_has_them(tmp_path: Path) -> None:
    written(tmp_path, content())
    task = tasks.build("detect", data=str(tmp_path), side=20, patch=5)
    assert task.classes == ["left", "right"]  # in the order of their ids
    assert {split: len(task.examples(split)) for split in ("train", "validation", "test")} == {
        "train": 19,
        "validation": 2,
        "test": 2,
    }
    seen = set()
    for split in ("train", "validation", "test"):
        for example in task.examples(split):
            seen.add(example.name)
            first = example.boxes[0]
            assert example.picture.shape == (3, 20, 20) and not example.picture[:, 15:].any()
            left, top, right, bottom = (first * 20).round(3).tolist()
            assert (top, bottom) == (2.5, 12.5) and (left, right) == ((10, 15) if example.labels[0] else (0, 5))
            assert example.in_file(first.tolist()) == [int(4 * left / 2), 5, int(4 * left / 2) + 10, 25]
            red = example.picture[0, 3:12, int(left) + 1 : int(right) - 1]
            assert red.min() > 0.9
            assert example.crowd[1:] == ((True,) if example.name == "p0.png" else ())
    assert len(seen) == 23


def test_files_named_by_split_and_a_folder_given_apart(tmp_path: Path) -> None:
    whole = content()
    parts = {"train": slice(0, 15), "val": slice(15, 19), "test": slice(19, 23)}
    for name, part in parts.items():
        ids = {one["id"] for one in whole["images"][part]}
        some = {
            **whole,
            "images": whole["images"][part],
            "annotations": [one for one in whole["annotations"] if one["image_id"] in ids],
        }
        written(tmp_path, some, f"instances_{name}2017.json")
    moved = tmp_path / "elsewhere"
    (tmp_path / "images").rename(moved)
    data = [str(tmp_path / f"instances_{name}2017.json") for name in parts] + [str(moved)]
    task = tasks.build("detect", data=",".join(data), side=20, patch=5)
    assert [len(task.examples(split)) for split in ("train", "validation", "test")] == [15, 4, 4]
    everything = tasks.build("detect", data=",".join(data), side=20, patch=5, whole=True)
    assert len(everything.examples("test")) == 23 and everything.examples("test")[22].name == "p22.png"


def broken(change) -> dict:
    whole = content()
    change(whole)
    return whole


WRONG = {
    "annotations[3]: bbox: expected [left, top, width, height], got '[1, 2, 3]'": lambda w: w["annotations"][3].update(
        bbox=[1, 2, 3]
    ),
    "annotations[4]: bbox: expected a box with an area inside": lambda w: w["annotations"][4].update(
        bbox=[50, 5, 10, 10]
    ),
    "annotations[5]: bbox: expected a box with an area": lambda w: w["annotations"][5].update(bbox=[5, 5, 0, 10]),
    "annotations[6]: bbox: expected [left": lambda w: w["annotations"][6].update(bbox=[5, 5, float("nan"), 10]),
    "annotations[0]: image_id 12 is the id of nothing": lambda w: w["annotations"][0].update(image_id=12),
    "annotations[1]: category_id 5 is the id of nothing": lambda w: w["annotations"][1].update(category_id=5),
    "images[2]: the id 100 stands twice": lambda w: w["images"][2].update(id=100),
    "images[1]: file_name: there is no 'none.png'": lambda w: w["images"][1].update(file_name="none.png"),
    "images[1]: file_name: expected a name below the folder": lambda w: w["images"][1].update(file_name="../p1.png"),
    "images[4]: width: expected a number of pixels, got 'None'": lambda w: w["images"][4].update(width=None),
    "images[5]: id: expected a whole number or a text": lambda w: w["images"][5].pop("id"),
    "categories[1]: the id 7 or the name 'other' stands twice": lambda w: w["categories"][1].update(id=7, name="other"),
    "categories[0]: name: expected a text, got '5'": lambda w: w["categories"][0].update(name=5),
    "expected a list under 'annotations'": lambda w: w.pop("annotations"),
    "images[0]: expected an object": lambda w: w["images"].__setitem__(0, 3),
    "has no images or no categories": lambda w: w.update(images=[], annotations=[]),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_said_with_file_and_entry(message: str, tmp_path: Path) -> None:
    file = written(tmp_path, broken(WRONG[message]))
    with pytest.raises(regard.RegardError) as caught:
        coco.read(file, [tmp_path], BadFiles())
    assert str(caught.value).startswith(f"{file}: {message}")


def test_text_that_is_not_json_and_other_json_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"images": [],\n "annotations" []}')
    with pytest.raises(regard.RegardError, match=r"a\.json:2: not valid JSON: .* column 16"):
        coco.read(file, [], BadFiles())
    file.write_text("[1]")
    with pytest.raises(regard.RegardError, match=r"a\.json: expected an object with images, annotations"):
        coco.read(file, [], BadFiles())
    with pytest.raises(regard.RegardError, match="holds no annotation file"):
        (tmp_path / "empty").mkdir()
        coco.load([tmp_path / "empty"], 0, BadFiles())


def test_a_picture_of_another_size_a_broken_one_and_an_empty_box_stop_or_are_skipped(tmp_path: Path) -> None:
    whole = content()
    written(tmp_path, whole)
    Image.new("RGB", (11, 13)).save(tmp_path / "images" / "p4.png")
    said = {"p4.png": "images[4]: says 40 × 30 pixels, but p4.png has 11 × 13"}
    (tmp_path / "images" / "p5.png").write_bytes(b"no picture")
    said["p5.png"] = "images[5]: "
    splits = ("train", "validation", "test")
    stopped = []
    for split in splits:
        try:
            tasks.build("detect", data=str(tmp_path), side=20, patch=5).examples(split)
        except regard.RegardError as error:
            stopped.append(str(error))
    assert stopped and all(
        any(words in one for words in said.values()) and one.endswith("--bad-files skip.") for one in stopped
    )
    task = tasks.build("detect(bad_files=skip)", data=str(tmp_path), side=20, patch=5)
    with pytest.warns(PicturesRead) as warned:
        names = [one.name for split in splits for one in task.examples(split)]
    told = " ".join(str(one.message) for one in warned)
    assert len(names) == 21 and not {"p4.png", "p5.png"} & set(names)
    assert all(words in told for words in said.values())
    whole["annotations"][6].update(bbox=[5, 5, 0, 10])
    file, bad = written(tmp_path, whole), BadFiles("skip")
    images, _ = coco.read(file, [tmp_path], bad)
    assert sum(len(one.boxes) for one in images) == len(whole["annotations"]) - 1
    assert len(bad.skipped) == 1 and "annotations[6]: bbox: expected a box with an area" in bad.skipped[0]


def test_two_files_must_have_the_same_categories(tmp_path: Path) -> None:
    one = written(tmp_path, content(), "train.json")
    other = written(tmp_path, {**content(), "categories": [{"id": 3, "name": "a"}, {"id": 7, "name": "b"}]}, "val.json")
    with pytest.raises(regard.RegardError, match=r"val\.json: has other categories than .*train\.json"):
        coco.load([one, other, tmp_path], 0, BadFiles())


def test_a_run_refuses_categories_it_was_not_trained_on(tmp_path: Path) -> None:
    written(tmp_path, content())
    task = tasks.TASKS["detect"](data=str(tmp_path), side=20, patch=5)
    task.restore({"classes": ["left", "middle"], "channels": 3})
    with pytest.raises(regard.RegardError, match="has the category 'right', which this run was not trained on"):
        task.examples("test")

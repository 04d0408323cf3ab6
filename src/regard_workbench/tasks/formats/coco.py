"""COCO's annotation files: `images`, `annotations` and `categories` in one JSON object, beside a folder of pictures.

Whatever is wrong with a file is said with the file and the entry: "instances.json: annotations[17]: …".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from regard.errors import BadValue
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.image_files import MOST_PIXELS, decoded
from regard_workbench.tasks.formats.json_values import read_json
from regard_workbench.tasks.formats.reading import excerpt, wrong
from regard_workbench.tasks.formats.splits import complete, folder_split, listed, named_split
from regard_workbench.tasks.pictures.located import Canvas, Located

LISTS = ("images", "annotations", "categories")
FARTHEST = 1e9  # pixels that a box may lie away from its picture; a larger number is damage
PLACES = ("", "images", "train2017", "val2017", "test2017")  # folders of pictures, below the given ones


@dataclass(frozen=True)
class CocoBox:
    """One annotation: the name of its category, its box in pixels, and whether it stands for many."""

    category: str
    box: tuple[float, float, float, float]  # left, top, right, bottom
    crowd: bool


@dataclass(frozen=True)
class CocoImage:
    """One picture with its annotations. The file is opened when the picture is asked for."""

    path: Path
    width: int
    height: int
    boxes: tuple[CocoBox, ...]
    entry: str  # where it is described: file and entry


def path_of(one: CocoImage) -> Path:
    """The file of a picture."""
    return one.path


@dataclass(frozen=True)
class CocoReader:
    """Makes the picture of an annotated image on a canvas."""

    classes: Mapping[str, int]
    canvas: Canvas

    def __call__(self, one: CocoImage, content: bytes) -> tuple[Located, tuple[str, ...]]:
        try:
            image, notes = decoded(content, str(one.path))
        except BadValue as error:
            raise BadValue(f"{one.entry}: {str(error).removeprefix('data: ')}") from None
        if (image.width, image.height) != (one.width, one.height):
            raise BadValue(
                f"{one.entry}: says {one.width} × {one.height} pixels, but {one.path.name} has {image.width} × "
                f"{image.height}. Correct width and height; boxes are measured in these pixels."
            )
        scale = max(one.width, one.height)
        corners = np.array([box.box for box in one.boxes], np.float32).reshape(-1, 4)
        labels = tuple(self.classes[box.category] for box in one.boxes)
        crowd = tuple(box.crowd for box in one.boxes)
        boxes = corners / np.float32(scale)
        located = replace(self.canvas.fit(image), labels=labels, boxes=boxes, crowd=crowd, name=one.path.name)
        return located, notes


@reads_file
def load(paths: Sequence[Path], seed: int, bad: BadFiles) -> tuple[dict[str, list[CocoImage]], list[str]]:
    """The pictures of each split and the names of the categories, in the order of their ids.

    paths: annotation files and folders of pictures, or a folder that holds both. A file whose name says no split,
    and which lies in no folder of that name, is divided by a hash of its pictures' names. `bad` says what happens to
    a box without an area; real sets have a few.
    """
    folders = [path for path in paths if path.is_dir()]
    files = [path for path in paths if not path.is_dir()] or _annotation_files(folders)
    splits: dict[str, list[CocoImage]] = {}
    categories: list[str] | None = None
    for file in files:
        images, names = read(file, folders, bad)
        if categories is not None and names != categories:
            raise wrong(file, None, f"has other categories than {files[0]}. All files of one set must agree.")
        categories = names
        split = named_split(file) or folder_split(file.parent) or "train"
        if split in splits:
            raise wrong(file, None, f"is a second file for {split}. Give one annotation file for each split.")
        splits[split] = images
    assert categories is not None
    if "train" not in splits:
        return splits, categories
    return complete(splits, [image.path.name for image in splits["train"]], seed, files), categories


def _annotation_files(folders: Sequence[Path]) -> list[Path]:
    below = [subfolder for folder in folders for subfolder in sorted(folder.iterdir()) if subfolder.is_dir()]
    files = [file for folder in [*folders, *below] for file in listed(folder, (".json",))]
    if not files:
        raise BadValue(
            f"data: {', '.join(map(str, folders))} holds no annotation file. Expected COCO's form: a .json file with "
            f"{', '.join(LISTS)}, and a folder of pictures."
        )
    return files


@reads_file
def read(file: Path, folders: Sequence[Path], bad: BadFiles) -> tuple[list[CocoImage], list[str]]:
    """The pictures of one annotation file, and the names of its categories."""
    document = _parsed(file)
    names: dict[Any, str] = {}
    used_names: set[str] = set()
    for number, entry in enumerate(document["categories"]):
        where = f"categories[{number}]"
        key, name = _id(file, where, entry, "id"), _text(file, where, entry, "name")
        if key in names or name in used_names:
            raise wrong(file, None, f"{where}: the id {key!r} or the name {excerpt(name)} stands twice.")
        names[key] = name
        used_names.add(name)
    images: dict[Any, tuple[Mapping[str, Any], str]] = {}
    for number, entry in enumerate(document["images"]):
        where = f"images[{number}]"
        key = _id(file, where, entry, "id")
        if key in images:
            raise wrong(file, None, f"{where}: the id {key!r} stands twice.")
        images[key] = (entry, where)
    boxes: dict[Any, list[CocoBox]] = {key: [] for key in images}
    for number, entry in enumerate(document["annotations"]):
        where = f"annotations[{number}]"
        image, category = (_id(file, where, entry, name) for name in ("image_id", "category_id"))
        for name, key, declared in (("image_id", image, images), ("category_id", category, names)):
            if key not in declared:
                raise wrong(file, None, f"{where}: {name} {key!r} is the id of nothing in this file.")
        height, width = _size(file, *reversed(images[image]))
        box = _box(file, where, entry, width, height)
        if box[2] <= box[0] or box[3] <= box[1]:
            bad.met(
                wrong(
                    file,
                    None,
                    f"{where}: bbox: expected a box with an area inside the picture's {width} × {height} pixels, got "
                    f"{excerpt(repr(entry['bbox']))}. Correct it, or remove the annotation.",
                )
            )
            continue
        boxes[image].append(CocoBox(names[category], box, bool(entry.get("iscrowd", 0))))
    pictures = []
    for key, (entry, where) in images.items():
        height, width = _size(file, where, entry)
        path = _picture(file, where, _text(file, where, entry, "file_name"), folders)
        pictures.append(CocoImage(path, width, height, tuple(boxes[key]), f"{file}: {where}"))
    if not pictures or not names:
        raise wrong(file, None, "has no images or no categories. Expected at least one of each.")
    return pictures, [names[key] for key in sorted(names, key=lambda key: (isinstance(key, str), key))]


def _parsed(file: Path) -> dict[str, Any]:
    document = read_json(file)
    if not isinstance(document, dict):
        raise wrong(file, None, f"expected an object with {', '.join(LISTS)}, got a {type(document).__name__}.")
    for name in LISTS:
        if not isinstance(document.get(name), list):
            raise wrong(file, None, f"expected a list under {name!r}. An annotation file has {', '.join(LISTS)}.")
        for number, entry in enumerate(document[name]):
            if not isinstance(entry, dict):
                raise wrong(file, None, f"{name}[{number}]: expected an object, got {excerpt(repr(entry))}.")
    return document


def _id(file: Path, where: str, entry: Mapping[str, Any], name: str) -> int | str:
    identifier = entry.get(name)
    if isinstance(identifier, bool) or not isinstance(identifier, (int, str)):
        raise wrong(file, None, f"{where}: {name}: expected a whole number or a text, got {excerpt(repr(identifier))}.")
    return identifier


def _text(file: Path, where: str, entry: Mapping[str, Any], name: str) -> str:
    text = entry.get(name)
    if not isinstance(text, str) or not text:
        raise wrong(file, None, f"{where}: {name}: expected a text, got {excerpt(repr(text))}.")
    return text


def _size(file: Path, where: str, entry: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width."""
    for name in ("height", "width"):
        size = entry.get(name)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST_PIXELS:
            raise wrong(file, None, f"{where}: {name}: expected a number of pixels, got {excerpt(repr(size))}.")
    return entry["height"], entry["width"]


def _box(
    file: Path, where: str, entry: Mapping[str, Any], width: int, height: int
) -> tuple[float, float, float, float]:
    """Left, top, right, bottom; what stands out of the picture is cut off. Without area where nothing is left."""
    numbers = entry.get("bbox")
    plain = isinstance(numbers, list) and len(numbers) == 4 and all(_is_number(number) for number in numbers)
    if not plain:
        raise wrong(file, None, f"{where}: bbox: expected [left, top, width, height], got {excerpt(repr(numbers))}.")
    assert isinstance(numbers, list)
    x, y, wide, high = (float(number) for number in numbers)
    box = (max(0.0, x), max(0.0, y), min(float(width), x + wide), min(float(height), y + high))
    return box


def _is_number(given: object) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and abs(given) <= FARTHEST


def _picture(file: Path, where: str, name: str, folders: Sequence[Path]) -> Path:
    """The file of a picture, below the given folders or beside the annotation file, and never outside of them."""
    plain = PurePosixPath(name)
    if plain.is_absolute() or ".." in plain.parts or "\0" in name:
        raise wrong(file, None, f"{where}: file_name: expected a name below the folder, got {excerpt(name)}.")
    roots = [*folders, file.parent, file.parent.parent]
    for root in roots:
        for place in PLACES:
            if (root / place / plain).is_file():
                return root / place / plain
    raise wrong(
        file,
        None,
        f"{where}: file_name: there is no {excerpt(name)} in {', '.join(dict.fromkeys(str(r) for r in roots))}. "
        f"Name the folder of the pictures: --data {file.name},FOLDER.",
    )

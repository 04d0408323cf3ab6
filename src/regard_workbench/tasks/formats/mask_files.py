"""Pictures with a mask each: `images/x.jpg` and `masks/x.png`, whose pixels are numbers of classes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench import files
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.image_files import ENDINGS, MOST_BYTES, MOST_PIXELS, decoded
from regard_workbench.tasks.formats.reading import wrong
from regard_workbench.tasks.formats.splits import complete, folder_split, listed
from regard_workbench.tasks.pictures.located import UNCOUNTED, Canvas, Located

IMAGES, MASKS = "images", "masks"


def path_of(pair: tuple[Path, Path]) -> Path:
    """The file of the picture."""
    return pair[0]


@dataclass(frozen=True)
class MaskReader:
    """Makes a picture on a canvas with the class of each pixel, from the files of both."""

    classes: int
    canvas: Canvas

    def __call__(self, pair: tuple[Path, Path], content: bytes) -> tuple[Located, tuple[str, ...]]:
        picture, mask = pair
        image, notes = decoded(content, str(picture))
        classes = read_mask(mask)
        if classes.shape != (image.height, image.width):
            high, wide = classes.shape
            raise wrong(
                mask, None, f"has {wide} × {high} pixels, its picture {image.width} × {image.height}. Make them equal."
            )
        above = classes[(classes >= self.classes) & (classes != UNCOUNTED)]
        if len(above):
            raise wrong(
                mask,
                None,
                f"holds the class {int(above[0])}, expected numbers below {self.classes}, or {UNCOUNTED} for pixels "
                "that do not count.",
            )
        located = replace(self.canvas.fit(image), pixels=self.canvas.fit_pixels(classes), name=picture.name)
        return located, notes


@reads_file
def load(
    paths: Sequence[Path], seed: int, bad: BadFiles, classes: int | None = None
) -> tuple[dict[str, list[tuple[Path, Path]]], int]:
    """The pairs of picture and mask of each split, and the number of classes: one more than the largest number.

    paths: a folder with `images` and `masks`, or folders that hold these for each split. `classes`: how many there
    are, where that is known; no mask is read then. `bad` says what happens to masks that cannot be read.
    """
    splits: dict[str, list[tuple[Path, Path]]] = {}
    for folder in _folders(paths):
        split = folder_split(folder) or "train"
        if split in splits:
            raise wrong(folder, None, f"is a second folder for {split}. Give one for each split.")
        splits[split] = _pairs(folder)
    if classes is None:
        largest = {split: _largest_of_each(pairs, bad) for split, pairs in splits.items()}
        splits = {split: list(numbers) for split, numbers in largest.items() if numbers}
        if not splits:
            raise BadValue("data: none of the masks can be read.")
        classes = 1 + max(max(numbers.values()) for numbers in largest.values() if numbers)
    if "train" in splits:
        splits = complete(splits, [picture.name for picture, _ in splits["train"]], seed, paths)
    return splits, classes


def _largest_of_each(part: Sequence[tuple[Path, Path]], bad: BadFiles) -> dict[tuple[Path, Path], int]:
    """The largest number of each mask that can be read."""

    def largest(pair: tuple[Path, Path], content: bytes) -> int:
        classes = _decoded_mask(pair[1], content)
        return int(classes[classes != UNCOUNTED].max(initial=0))

    return dict(bad.each(part, lambda pair: files.read_bytes(pair[1], "data", MOST_BYTES), largest))


def _folders(paths: Sequence[Path]) -> list[Path]:
    folders = []
    for path in paths:
        below = sorted(folder for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else []
        folders += [folder for folder in [path, *below] if (folder / IMAGES).is_dir() and (folder / MASKS).is_dir()]
    if not folders:
        raise BadValue(
            f"data: {', '.join(map(str, paths))} holds no pictures with masks. Expected a folder with {IMAGES}/x.jpg "
            f"and {MASKS}/x.png, or train, val and test folders of these."
        )
    return folders


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    masks = {path.stem: path for path in listed(folder / MASKS, (".png",))}
    pictures = listed(folder / IMAGES, ENDINGS)
    if not pictures:
        raise wrong(folder / IMAGES, None, f"holds no picture. Known: {', '.join(ENDINGS)}.")
    for picture in pictures:
        if picture.stem not in masks:
            raise wrong(picture, None, f"has no mask. Expected {folder / MASKS / (picture.stem + '.png')}.")
    return [(picture, masks[picture.stem]) for picture in pictures]


@reads_file
def read_mask(path: Path) -> NDArray[np.int64]:
    """The numbers of a PNG, grey or with a palette, (height,width): of a palette the indices count, not the colours."""
    return _decoded_mask(path, files.read_bytes(path, "data", MOST_BYTES))


def _decoded_mask(path: Path, content: bytes) -> NDArray[np.int64]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise wrong(path, None, f"has more than {MOST_PIXELS // 10**6} million pixels. Make it smaller.")
            if opened.mode not in ("1", "L", "P", "I", "I;16"):
                raise wrong(
                    path,
                    None,
                    f"has the mode {opened.mode}. Expected one number for each pixel: a grey PNG, or one with a "
                    "palette.",
                )
            mask: Any = np.asarray(opened).astype(np.int64)
    except (UnidentifiedImageError, Image.DecompressionBombError):
        raise wrong(path, None, "is no PNG that can be read.") from None
    except (OSError, SyntaxError, ValueError) as trouble:
        if isinstance(trouble, BadValue):
            raise
        raise wrong(path, None, f"cannot be read: {trouble}.") from None
    return mask  # type: ignore[no-any-return]

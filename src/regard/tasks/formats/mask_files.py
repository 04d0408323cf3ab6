"""Pictures with a mask each: `images/x.jpg` and `masks/x.png`, whose pixels are numbers of classes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.core import files
from regard.errors import BadValue
from regard.tasks.formats.image_files import ENDINGS, MOST_BYTES, MOST_PIXELS, read_picture
from regard.tasks.formats.reading import wrong
from regard.tasks.formats.splits import complete, folder_split, listed
from regard.tasks.pictures.located import UNCOUNTED, Canvas, Located

IMAGES, MASKS = "images", "masks"


@dataclass(frozen=True)
class MaskedPictures:
    """The pictures of a split on a canvas, with the class of each pixel, read one at a time."""

    pairs: Sequence[tuple[Path, Path]]
    classes: int
    canvas: Canvas

    def __call__(self, number: int) -> Located:
        picture, mask = self.pairs[number]
        image = read_picture(picture, "data").image
        classes = read_mask(mask)
        if classes.shape != (image.height, image.width):
            high, wide = classes.shape
            raise wrong(
                mask,
                None,
                f"has {wide} × {high} pixels, its picture {image.width} × {image.height}. Make them equal.",
            )
        above = classes[(classes >= self.classes) & (classes != UNCOUNTED)]
        if len(above):
            raise wrong(
                mask,
                None,
                f"holds the class {int(above[0])}, expected numbers below {self.classes}, or {UNCOUNTED} for pixels "
                "that do not count.",
            )
        return replace(self.canvas.fit(image), pixels=self.canvas.fit_pixels(classes), name=picture.name)


def load(
    paths: Sequence[Path], seed: int, classes: int | None = None
) -> tuple[dict[str, list[tuple[Path, Path]]], int]:
    """The pairs of picture and mask of each split, and the number of classes: one more than the largest number.

    paths: a folder with `images` and `masks`, or folders that hold these for each split. `classes`: how many there
    are, where that is known; no mask is read then.
    """
    parts: dict[str, list[tuple[Path, Path]]] = {}
    for folder in _folders(paths):
        split = folder_split(folder) or "train"
        if split in parts:
            raise wrong(folder, None, f"is a second folder for {split}. Give one for each split.")
        parts[split] = _pairs(folder)
    if classes is None:
        classes = 1 + max(_largest(read_mask(mask)) for part in parts.values() for _, mask in part)
    if "train" in parts:
        parts = complete(parts, [picture.name for picture, _ in parts["train"]], seed)
    return parts, classes


def _largest(classes: NDArray[np.int64]) -> int:
    return int(classes[classes != UNCOUNTED].max(initial=0))


def _folders(paths: Sequence[Path]) -> list[Path]:
    found = []
    for path in paths:
        below = sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
        found += [one for one in [path, *below] if (one / IMAGES).is_dir() and (one / MASKS).is_dir()]
    if not found:
        raise BadValue(
            f"data: {', '.join(map(str, paths))} holds no pictures with masks. Expected a folder with {IMAGES}/x.jpg "
            f"and {MASKS}/x.png, or train, val and test folders of these."
        )
    return found


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    masks = {path.stem: path for path in listed(folder / MASKS, (".png",))}
    pictures = listed(folder / IMAGES, ENDINGS)
    if not pictures:
        raise wrong(folder / IMAGES, None, f"holds no picture. Known: {', '.join(ENDINGS)}.")
    for picture in pictures:
        if picture.stem not in masks:
            raise wrong(picture, None, f"has no mask. Expected {folder / MASKS / (picture.stem + '.png')}.")
    return [(picture, masks[picture.stem]) for picture in pictures]


def read_mask(path: Path) -> NDArray[np.int64]:
    """The numbers of a PNG, grey or with a palette, (height,width): of a palette the indices count, not the colours."""
    from PIL import Image, UnidentifiedImageError

    raw = files.read_bytes(path, "data", MOST_BYTES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images: they are refused below
            with Image.open(io.BytesIO(raw), formats=("PNG",)) as opened:
                if opened.width * opened.height > MOST_PIXELS:
                    raise wrong(
                        path, None, f"has more than {MOST_PIXELS // 10**6} million pixels. Make it smaller."
                    )
                if opened.mode not in ("1", "L", "P", "I", "I;16"):
                    raise wrong(
                        path,
                        None,
                        f"has the mode {opened.mode}. Expected one number for each pixel: a grey PNG, or one with a "
                        "palette.",
                    )
                found: Any = np.asarray(opened).astype(np.int64)
    except (UnidentifiedImageError, Image.DecompressionBombError):
        raise wrong(path, None, "is no PNG that can be read.") from None
    except (OSError, SyntaxError, ValueError) as trouble:
        if isinstance(trouble, BadValue):
            raise
        raise wrong(path, None, f"cannot be read: {trouble}.") from None
    return found  # type: ignore[no-any-return]

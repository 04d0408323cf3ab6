"""Pictures of digits in a user's files, as small squares of numbers from 0 to 1, light on dark."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.class_folders import load_pictures
from regard_workbench.tasks.formats.reading import Data

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
BRIGHT = 0.5  # the mean above which a picture is dark writing on light paper

Drawings = dict[str, dict[int, list[NDArray[np.float32]]]]  # by split and digit, each (side · side,)


def light_on_dark(pixels: NDArray[Any]) -> NDArray[np.float32]:
    """A picture from 0 to 1 as light writing on a dark ground."""
    return np.asarray(1 - pixels if pixels.mean() > BRIGHT else pixels, np.float32).copy()


def digit_pictures(data: Data, side: int, bad: BadFiles, seed: int = 0) -> Drawings:
    """The pictures of each digit in each split, from files of the task `images` whose classes are digits."""
    drawings: Drawings = {}
    try:
        splits = load_pictures(data, side, bad=bad, seed=seed)
    except BadValue as trouble:  # which names the argument of the task `images`
        raise BadValue(f"pictures: {str(trouble).removeprefix('data: ')}") from None
    bad.tell()
    for split, pictures in splits.items():
        for picture in pictures:
            pixels = np.asarray(picture.pixels, np.float32).mean(0).reshape(-1) / 255
            shown = drawings.setdefault(split, {}).setdefault(_digit(picture.label, picture.name), [])
            shown.append(light_on_dark(pixels))
    for split in ("train", "validation", "test"):
        missing = [digit for digit in range(len(WORDS)) if digit not in drawings.get(split, {})]
        if missing:
            raise BadValue(f"pictures: {split} has no picture of the digit {missing[0]}. Expected some of each.")
    return drawings


def _digit(label: str, name: str) -> int:
    """A digit from the name of its class: a figure or an English word."""
    names = [*map(str, range(len(WORDS))), *WORDS]
    if label.lower() not in names:
        raise BadValue(
            f"pictures: {name}: the class {label!r} is no digit. Expected folders 0 to 9 or zero to nine, or IDX files."
        )
    return names.index(label.lower()) % len(WORDS)

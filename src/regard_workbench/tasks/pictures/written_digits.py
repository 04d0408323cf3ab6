"""The data of the tasks on handwritten digits: scikit-learn's 1,797 real images of 8 × 8, and their splits."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard_workbench.tasks.formats.image_files import read_image
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.draws import rank
from regard_workbench.tasks.pictures.digit_pictures import light_on_dark

SIDE, CLASSES, WHITE = 8, 10, 16.0


@functools.cache
def images() -> tuple[NDArray[np.float32], tuple[int, ...]]:
    """All images (1797, 64) from 0 to 1, and their digits."""
    # Loaded late: scikit-learn takes a second.
    from sklearn.datasets import load_digits

    data = load_digits()
    return (data.data / WHITE).astype(np.float32), tuple(int(digit) for digit in data.target)


@functools.cache
def split_of() -> tuple[str, ...]:
    """The split of each image: of every digit the first 15 % by a hash of the image's number are for the test, the
    next 15 % for validation. Always the same.
    """
    _, digits = images()
    splits = ["train"] * len(digits)
    for digit in range(CLASSES):
        order = sorted((n for n, d in enumerate(digits) if d == digit), key=lambda n: rank("digits", n))
        share = round(0.15 * len(order))
        for place, number in enumerate(order[: 2 * share]):
            splits[number] = "test" if place < share else "validation"
    return tuple(splits)


@functools.cache
def numbers_of(split: str) -> tuple[int, ...]:
    """The numbers of the images of a split, in the order of the data set."""
    return tuple(number for number, theirs in enumerate(split_of()) if theirs == checked_split(split))


@functools.cache
def figures(split: str) -> tuple[NDArray[np.uint8], tuple[int, ...]]:
    """The images of a split as bytes (n,8,8), to be placed into scenes, and their digits."""
    pixels, digits = images()
    chosen = list(numbers_of(split))
    grey = np.rint(255 * pixels[chosen]).astype(np.uint8).reshape(-1, SIDE, SIDE)
    return grey, tuple(digits[number] for number in chosen)


def typed(path: str) -> Tensor:
    """The pixels (8,8) of a user's picture, from 0 to 1: light writing on a dark ground."""
    pixels = np.asarray(read_image(path).convert("L").resize((SIDE, SIDE)), np.float32) / 255
    return torch.from_numpy(light_on_dark(pixels))

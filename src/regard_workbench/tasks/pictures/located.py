"""A picture with what lies where on it: boxes, or a class for each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.generated.draws import Draws
from regard_workbench.tasks.generated.scenes import Scene, compose

UNCOUNTED = 255  # the class of pixels that are not judged, as in PASCAL VOC
BACKGROUND = 0


@dataclass(frozen=True)
class Located:
    """A square picture, and what is known of it. Where a user gave it, nothing is."""

    picture: NDArray[np.float32]  # (channels,side,side), from 0 to 1
    labels: tuple[int, ...] = ()  # the class of each box
    boxes: NDArray[np.float32] | None = None  # (n,4): left, top, right, bottom as shares of the side
    crowd: tuple[bool, ...] = ()  # which boxes are crowds; empty: none
    pixels: NDArray[np.int64] | None = None  # (side,side): the class of each pixel
    original: tuple[int, int] | None = None  # height and width of the file; it fills the canvas's upper left part
    name: str = "a scene"
    found: Any = None  # what a model predicted for it, where that is to be shown

    def in_file(self, box: Sequence[float]) -> list[int]:
        """A box in pixels of the file: left, top, right, bottom."""
        side = self.picture.shape[-1]
        height, width = self.original or (side, side)
        scale = max(height, width)
        limits = (width, height, width, height)
        return [min(most, max(0, round(value * scale))) for value, most in zip(box, limits, strict=True)]

    def to_file(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """A picture of the canvas (side,side) in the size of the file, without interpolation."""
        side = len(pixels)
        height, width = self.original or (side, side)
        scale = side / max(height, width)
        rows = np.minimum((np.arange(height) + 0.5) * scale, side - 1).astype(int)
        columns = np.minimum((np.arange(width) + 0.5) * scale, side - 1).astype(int)
        nearest: NDArray[Any] = pixels[rows][:, columns]
        return nearest


@dataclass(frozen=True)
class Canvas:
    """The square that all pictures of a task are brought to: larger and smaller ones are scaled, the rest is black."""

    side: int
    channels: int = 3

    def fit(self, image: Any) -> Located:
        """A Pillow image on the canvas."""
        from PIL import Image

        scale = self.side / max(image.width, image.height)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        scaled = image.convert("RGB" if self.channels == 3 else "L").resize(size, Image.Resampling.BILINEAR)
        pixels = np.asarray(scaled, np.float32).reshape(size[1], size[0], self.channels) / 255
        picture = np.zeros((self.channels, self.side, self.side), np.float32)
        picture[:, : size[1], : size[0]] = pixels.transpose(2, 0, 1)
        return Located(picture, original=(image.height, image.width))

    def fit_pixels(self, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The class of each pixel of a file on the canvas; what is outside the file is not judged."""
        height, width = classes.shape
        scale = max(height, width) / self.side
        high, wide = (max(1, round(length / scale)) for length in (height, width))
        rows = np.minimum((np.arange(high) + 0.5) * scale, height - 1).astype(int)
        columns = np.minimum((np.arange(wide) + 0.5) * scale, width - 1).astype(int)
        canvas = np.full((self.side, self.side), UNCOUNTED, np.int64)
        canvas[:high, :wide] = classes[rows][:, columns]
        return canvas


@dataclass(frozen=True)
class FigureScenes:
    """Scenes that are composed of figures when they are asked for, the same on every machine."""

    figures: NDArray[np.uint8]  # grey, (n,h,w)
    labels: Sequence[int]
    side: int
    most: int  # figures in a scene
    sizes: tuple[int, int]  # the smallest and the largest height of a figure
    overlap: float
    clutter: int
    key: tuple[object, ...]

    def __call__(self, number: int) -> Located:
        draws = Draws(*self.key, number)
        chosen = draws.several(len(self.figures), 1 + draws.below(self.most))
        figures = [self.figures[index].astype(np.float32) / 255 for index in chosen]
        labels = [self.labels[index] for index in chosen]
        scene = compose(
            figures, labels, self.side, self.side, draws, sizes=self.sizes, overlap=self.overlap, clutter=self.clutter
        )
        return from_scene(scene)


def from_scene(scene: Scene) -> Located:
    """A scene as an example; class 0 of the pixels is the background."""
    side = scene.picture.shape[-1]
    pixels = np.full((side, side), BACKGROUND, np.int64)
    for label, mask in zip(scene.labels, scene.masks, strict=True):
        pixels[mask] = label + 1
    return Located(scene.picture, tuple(scene.labels), scene.boxes / side, pixels=pixels)


def named(located: Located, name: str) -> Located:
    """The same picture under another name."""
    return replace(located, name=name)

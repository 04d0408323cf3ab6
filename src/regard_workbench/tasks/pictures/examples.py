"""Pictures of one size with their classes, held as bytes, and what a model must know of those it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import BadValue
from regard_workbench.tasks.parts.data import Fitted

SAMPLE = 10_000  # pictures from which mean and spread are taken
BRIGHTNESS = np.array([0.299, 0.587, 0.114])  # of red, green and blue (ITU-R BT.601)


class LabelledPicture(NamedTuple):
    """A picture as bytes (channels,height,width), the name of its class, and where it comes from."""

    pixels: NDArray[np.uint8]
    label: str
    name: str


class PictureExample(NamedTuple):
    """One picture of a split, or one that a user gave."""

    pixels: Tensor  # (channels,height,width), bytes
    label: int | None  # None where a user gave the picture
    training: bool = False  # whether it may be changed at random
    notes: tuple[str, ...] = ()  # what is to be said about how it was read


@dataclass(frozen=True)
class PictureSet(Sequence[PictureExample]):
    """Pictures side by side, so that a batch of them is one indexing."""

    pixels: Tensor  # (n,channels,height,width), bytes
    labels: Tensor  # (n,)
    training: bool = False
    even: ClassVar[bool] = True  # all of one length

    def __len__(self) -> int:
        return len(self.labels)

    @overload
    def __getitem__(self, index: int) -> PictureExample: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PictureExample]: ...

    def __getitem__(self, index: int | slice) -> PictureExample | Sequence[PictureExample]:
        if isinstance(index, slice):
            return PictureSet(self.pixels[index], self.labels[index], self.training)
        place = range(len(self))[index]  # counts from the end, refuses what is outside
        return PictureExample(self.pixels[place], int(self.labels[place]), self.training)


@dataclass(frozen=True)
class PictureFacts(Fitted):
    """Classes, sizes, and the mean and standard deviation of each channel in numbers from 0 to 1."""

    classes: tuple[str, ...]
    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    spread: tuple[float, ...]

    @classmethod
    def of(cls, pictures: Sequence[LabelledPicture]) -> Self:
        """Those of a training set. Classes are in the order of their names, or of their numbers."""
        labels = {picture.label for picture in pictures}
        numbers = all(label.isdecimal() for label in labels)
        classes = tuple(sorted(labels, key=int) if numbers else sorted(labels))
        channels = max(len(picture.pixels) for picture in pictures)
        height, width = pictures[0].pixels.shape[1:]
        plain = cls(classes, channels, height, width, (0.0,) * channels, (1.0,) * channels)
        pixels = plain.collected(pictures[:SAMPLE]).pixels.double().div(255).transpose(0, 1).flatten(1)
        spread = pixels.std(1, correction=0).clamp(min=1e-3)
        return cls(classes, channels, height, width, tuple(pixels.mean(1).tolist()), tuple(spread.tolist()))

    @classmethod
    def restored(cls, state: Mapping[str, Any], task: Any) -> Self:
        """From plain data."""
        fields: dict[str, Any] = {
            name: tuple(field) if isinstance(field, list) else field for name, field in state.items()
        }
        return cls(**fields)

    def state(self) -> dict[str, Any]:
        """Plain data, as JSON holds it."""
        return {name: list(field) if isinstance(field, tuple) else field for name, field in asdict(self).items()}

    def collected(self, pictures: Sequence[LabelledPicture], training: bool = False) -> PictureSet:
        """Pictures side by side; refused where one has another size or an unknown class."""
        places = {name: number for number, name in enumerate(self.classes)}
        pixels = np.empty((len(pictures), self.channels, self.height, self.width), np.uint8)
        labels = []
        for number, picture in enumerate(pictures):
            if picture.label not in places:
                raise BadValue(
                    f"data: {picture.name}: the class {picture.label!r} is not among those of training: "
                    f"{', '.join(self.classes[:10])}{', …' if len(self.classes) > 10 else ''}."
                )
            if picture.pixels.shape[1:] != (self.height, self.width):
                sizes = " × ".join(str(side) for side in picture.pixels.shape[1:])
                raise BadValue(
                    f"data: {picture.name} has {sizes} pixels, expected {self.height} × {self.width}. Give size=."
                )
            pixels[number] = self.channelled(picture.pixels)
            labels.append(places[picture.label])
        return PictureSet(torch.from_numpy(pixels), torch.tensor(labels, dtype=torch.long), training)

    def channelled(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A picture with the number of channels that is expected: grey three times, or colours as grey."""
        if len(pixels) == self.channels:
            return pixels
        if len(pixels) == 1:
            return np.repeat(pixels, self.channels, 0)
        return np.rint(brightness(pixels))[None].astype(np.uint8)

    def normalized(self, pixels: Tensor) -> Tensor:
        """Bytes (…,channels,height,width) as numbers with mean 0 and variance 1."""
        mean, spread = self._columns()
        return (pixels.float() / 255 - mean) / spread

    def visible(self, numbers: Tensor) -> NDArray[np.float32]:
        """A normalised picture (channels,height,width) for people: (height,width[,3]) from 0 to 1."""
        mean, spread = self._columns()
        picture = (numbers.cpu().float() * spread + mean).clamp(0, 1)
        return np.asarray(picture[0] if len(picture) == 1 else picture.permute(1, 2, 0).numpy(), np.float32)

    def _columns(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.mean)[:, None, None], torch.tensor(self.spread)[:, None, None]


def brightness(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The brightness of each pixel of a picture (channels,height,width), from 0 to 255: (height,width)."""
    numbers = pixels.astype(np.float64)
    return numbers[0] if len(numbers) == 1 else np.tensordot(BRIGHTNESS, numbers, 1)

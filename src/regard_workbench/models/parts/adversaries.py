"""Two players: a generator that makes pictures of a class, and a discriminator that tells made ones from real ones."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from regard_workbench.models.parts.picture_memory_format import for_convolutions
from regard_workbench.models.parts.place_attention import PlaceAttention

SMALLEST = 4  # pixels of the coarsest maps' shorter side, at least
MOST_PLACES = 16 * 16  # that attend to each other

Side = tuple[int, int]  # height and width
Layer = TypeVar("Layer", bound=nn.Module)


def scales(height: int, width: int) -> list[Side]:
    """The sizes of the maps, the picture's first: each half as high and wide as the one before."""
    sizes = [(height, width)]
    while not (height % 2 or width % 2) and min(height, width) >= 2 * SMALLEST:
        height, width = height // 2, width // 2
        sizes.append((height, width))
    return sizes


def attending(sizes: list[Side]) -> int:
    """Which of the sizes has self-attention: the largest of at most 16 × 16 places, or the smallest of all."""
    fitting = (number for number, (height, width) in enumerate(sizes) if height * width <= MOST_PLACES)
    return next(fitting, len(sizes) - 1)


def widths(sizes: list[Side], dim: int) -> list[int]:
    """The channels at each size: `dim` where places attend and below, half as many at each larger size."""
    return [max(1, dim >> max(0, attending(sizes) - number)) for number in range(len(sizes))]


def spectral(layer: Layer) -> Layer:
    """The layer, its weight divided by an estimate of its largest singular value (Miyato et al. 2018)."""
    spectral_norm(layer)
    return layer


def convolution(before: int, after: int, size: int = 3) -> nn.Conv2d:
    """A convolution that keeps the size of maps, with spectral normalisation."""
    return spectral(nn.Conv2d(before, after, size, padding=size // 2))


def place_attention(dim: int, attention: str | None) -> PlaceAttention:
    """Self-attention whose linear maps have spectral normalisation, as all others of both players."""
    self_attention = PlaceAttention(dim, attention)
    for layer in self_attention.attention.modules():
        if isinstance(layer, nn.Linear):
            spectral(layer)
    return self_attention


class ClassNorm(nn.Module):
    """Each channel normalised over a batch, then with a gain and a shift that depend on the class.

    Paper: Ioffe & Szegedy 2015; de Vries et al. 2017 (conditional).
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width, affine=False)
        self.gain, self.shift = nn.Embedding(classes, width), nn.Embedding(classes, width)
        nn.init.ones_(self.gain.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, maps: Tensor, labels: Tensor) -> Tensor:
        gain, shift = self.gain(labels)[..., None, None], self.shift(labels)[..., None, None]
        normalized: Tensor = gain * self.norm(maps) + shift
        return normalized


class GeneratorBlock(nn.Module):
    """A residual block of the generator, whose maps are twice as high and wide as those that come in."""

    def __init__(self, before: int, after: int, classes: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([ClassNorm(before, classes), ClassNorm(after, classes)])
        self.first, self.second = convolution(before, after), convolution(after, after)
        self.shortcut = convolution(before, after, 1)

    def forward(self, maps: Tensor, labels: Tensor) -> Tensor:
        inside = self.first(doubled(torch.relu(self.norms[0](maps, labels))))
        inside = self.second(torch.relu(self.norms[1](inside, labels)))
        outside: Tensor = inside + doubled(self.shortcut(maps))
        return outside


class DiscriminatorBlock(nn.Module):
    """A residual block of the discriminator. `halves`: its maps are half as high and wide as those that come in.

    `first`: it reads a picture, of which nothing must be cut off below 0.
    """

    def __init__(self, before: int, after: int, *, halves: bool = False, first: bool = False) -> None:
        super().__init__()
        self.halves, self.starts = halves, first
        self.first, self.second = convolution(before, after), convolution(after, after)
        self.shortcut = convolution(before, after, 1)

    def forward(self, maps: Tensor) -> Tensor:
        inside = self.second(torch.relu(self.first(maps if self.starts else torch.relu(maps))))
        if self.halves:
            inside, maps = F.avg_pool2d(inside, 2), F.avg_pool2d(maps, 2)
        outside: Tensor = inside + self.shortcut(maps)
        return outside


def doubled(maps: Tensor) -> Tensor:
    """Maps in which each place is four."""
    return F.interpolate(maps, scale_factor=2.0, mode="nearest")


class Generator(nn.Module):
    """Noise and a class → a picture from −1 to 1, from the coarsest maps to the finest."""

    def __init__(
        self, sizes: list[Side], channels: int, noise: int, classes: int, dim: int, places: PlaceAttention | None
    ) -> None:
        super().__init__()
        self.coarsest, self.attends = sizes[-1], len(sizes) - 1 - attending(sizes)
        wide = widths(sizes, dim)[::-1]
        self.first = spectral(nn.Linear(noise, wide[0] * self.coarsest[0] * self.coarsest[1]))
        self.blocks = nn.ModuleList(GeneratorBlock(*pair, classes) for pair in pairwise(wide))
        self.places = places
        self.norm = ClassNorm(wide[-1], classes)
        self.last = convolution(wide[-1], channels)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        maps = for_convolutions(self.first(noise).unflatten(1, (-1, *self.coarsest)))
        for number in range(len(self.blocks) + 1):
            if self.places is not None and number == self.attends:
                maps = self.places(maps)
            if number < len(self.blocks):
                maps = self.blocks[number](maps, labels)
        picture: Tensor = torch.tanh(self.last(torch.relu(self.norm(maps, labels))))
        return picture


class Discriminator(nn.Module):
    """A picture from −1 to 1 and a class → a score: positive for a real picture of this class.

        score = w·h + e_class·h + b,    h = Σ over places of relu(maps)

    Paper: Miyato & Koyama 2018 (the projection e_class·h).
    """

    def __init__(self, sizes: list[Side], channels: int, classes: int, dim: int, places: PlaceAttention | None) -> None:
        super().__init__()
        self.attends, wide = attending(sizes), widths(sizes, dim)
        self.first = DiscriminatorBlock(channels, wide[0], first=True)
        self.blocks = nn.ModuleList(DiscriminatorBlock(*pair, halves=True) for pair in pairwise(wide))
        self.places = places
        self.last = DiscriminatorBlock(wide[-1], wide[-1])
        self.score = spectral(nn.Linear(wide[-1], 1))
        self.classes = spectral(nn.Embedding(classes, wide[-1]))

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """(b,channels,height,width) → (b,)."""
        maps = self.first(for_convolutions(pictures))
        for number in range(len(self.blocks) + 1):
            if self.places is not None and number == self.attends:
                maps = self.places(maps)
            if number < len(self.blocks):
                maps = self.blocks[number](maps)
        summed = torch.relu(self.last(maps)).sum((2, 3))
        score: Tensor = self.score(summed)[:, 0] + (self.classes(labels) * summed).sum(1)
        return score

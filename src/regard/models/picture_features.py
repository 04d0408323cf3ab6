"""Features of a picture: convolutions down to one row for each patch, then a Transformer encoder over these rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard.models.stack import Stack
from regard.tasks.pictures.patches import fold
from regard.tasks.streams import Patches

GROUPS = 8  # of channels that are normalised together, at most


def waves(points: Tensor, dim: int) -> Tensor:
    """Sines and cosines of points (…,2) from 0 to 1, as rows (…,dim): half of the columns for each coordinate.

    The longest wave is twice the picture, each further one shorter, the shortest a 32nd of it.
    """
    count = dim // 4
    rates = math.pi * 64.0 ** (torch.arange(count, device=points.device) / max(1, count - 1))
    angles = points[..., None].float() * rates  # (…,2,count)
    found = torch.cat([angles.sin(), angles.cos()], -1).flatten(-2)
    return torch.nn.functional.pad(found, (0, dim - found.shape[-1])).to(points.dtype)


def cell_centres(rows: int, columns: int, device: torch.device | str | None = None) -> Tensor:
    """The centres (x, y) of the cells of a grid over a picture, row by row, (rows·columns,2), from 0 to 1."""
    y = (torch.arange(rows, device=device) + 0.5) / rows
    x = (torch.arange(columns, device=device) + 0.5) / columns
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).flatten(0, 1)


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution with normalisation and GELU; with stride 1 the picture keeps its size."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2 if stride == 1 else 0, bias=False),
        nn.GroupNorm(math.gcd(GROUPS, outputs), outputs),
        nn.GELU(),
    )


def factors(number: int) -> list[int]:
    """The prime factors of a number, the smallest first."""
    found, at = [], 2
    while number > 1:
        while number % at == 0:
            found.append(at)
            number //= at
        at += 1
    return found


class PictureFeatures(nn.Module):
    """Patches (b,n,width) → rows (b,n,dim), one for each patch, and the maps of the convolutions on the way.

    Convolutions see across the borders of patches: the picture is put together again, and each prime factor of the
    patch's side is one stage, which makes the picture that much smaller. Then `layers` encoder layers attend among the
    rows, which carry their place on the picture.
    """

    places: Tensor  # (n,dim)

    def __init__(
        self, spec: Patches, dim: int, layers: int, attention: str, width: int, num_heads: int, dropout: float
    ) -> None:
        super().__init__()
        if dim % 4:
            raise BadValue(f"dim: expected a multiple of 4, for places on a picture, got {dim}.")
        self.spec = spec
        steps = factors(spec.side)
        widths = [min(dim, width * 2**number) for number in range(len(steps))] or [width]
        self.widths = widths  # of the map before each stage
        self.first = convolution(spec.channels, widths[0])
        self.stages = nn.ModuleList()
        for number, step in enumerate(steps):
            after = widths[number + 1] if number + 1 < len(steps) else dim
            self.stages.append(
                nn.Sequential(convolution(widths[number], after, step, step), convolution(after, after))
            )
        if not steps:
            self.stages.append(convolution(width, dim))
        self.encoder = None
        if layers:
            self.encoder = Stack(dim, layers, attention, num_heads=num_heads, dropout=dropout)
        self.register_buffer("places", waves(cell_centres(spec.rows, spec.columns), dim), persistent=False)

    def forward(self, data: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The rows, and the maps before each stage, (b,width,height,width), the largest first."""
        picture = fold(data.to(next(self.parameters()).dtype), self.spec)
        maps = [self.first(2 * picture - 1)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        rows = maps.pop().flatten(2).transpose(1, 2) + self.places
        if self.encoder is not None:
            rows = self.encoder(rows)
        return rows, maps

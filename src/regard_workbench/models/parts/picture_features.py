"""Features of a picture: convolutions down to one row for each patch, then encoder layers over these rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.support.arguments import whole_number
from regard_workbench.models.cnn_attention import ResidualBlock
from regard_workbench.models.parts.channel_norm import channel_norm
from regard_workbench.models.parts.picture_memory_format import for_convolutions
from regard_workbench.models.parts.stack import Stack
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.pictures.patches import fold


def waves(points: Tensor, dim: int) -> Tensor:
    """Sines and cosines of points (…,2) from 0 to 1, as rows (…,dim): half of the columns for each coordinate.

    The longest wave is twice the picture, each further one shorter, the shortest a 32nd of it. Columns beyond a
    multiple of 4 are 0.
    """
    count = dim // 4
    rates = math.pi * 64.0 ** (torch.arange(count, device=points.device) / max(1, count - 1))
    angles = points[..., None].float() * rates  # (…,2,count)
    features = torch.cat([angles.sin(), angles.cos()], -1).flatten(-2)
    return torch.nn.functional.pad(features, (0, dim - features.shape[-1])).to(points.dtype)


def cell_centres(rows: int, columns: int, device: torch.device | str | None = None) -> Tensor:
    """The centres (x, y) of the cells of a grid over a picture, row by row, (rows·columns,2), from 0 to 1."""
    y = (torch.arange(rows, device=device) + 0.5) / rows
    x = (torch.arange(columns, device=device) + 0.5) / columns
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).flatten(0, 1)


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1, norm: str = "group") -> nn.Sequential:
    """A convolution with normalisation and GELU; with stride 1 the picture keeps its size."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2 if stride == 1 else 0, bias=False),
        channel_norm(norm, outputs),
        nn.GELU(),
    )


def factors(number: int) -> list[int]:
    """The prime factors of a number, the smallest first."""
    primes, at = [], 2
    while number > 1:
        while number % at == 0:
            primes.append(at)
            number //= at
        at += 1
    return primes


class PictureFeatures(nn.Module):
    """Patches (b,n,width) → rows (b,n,dim), one for each patch, and the maps of the convolutions on the way.

    Convolutions see across the borders of patches: the picture is put together again, and each prime factor of the
    patch's side is one stage, which makes the picture that much smaller and ends in `blocks` residual blocks. So rows
    and patches are the same positions, and weights over rows can be drawn over the picture. The rows carry their place
    on the picture; then `layers` encoder layers attend among them.
    """

    places: Tensor  # (n,dim)

    def __init__(
        self,
        spec: Patches,
        dim: int,
        *,
        width: int,
        blocks: int = 0,
        layers: int = 0,
        attention: str = "multihead",
        num_heads: int = 4,
        dropout: float = 0.0,
        norm: str = "group",
    ) -> None:
        super().__init__()
        self.spec = spec
        whole_number("blocks", blocks, 0)
        steps = factors(spec.side)
        widths = [min(dim, whole_number("width", width, 1) * 2**number) for number in range(len(steps) or 1)]
        self.widths = widths  # of the map before each stage
        self.first = convolution(spec.channels, widths[0], norm=norm)
        self.stages = nn.ModuleList()
        for number, step in enumerate(steps):
            after = widths[number + 1] if number + 1 < len(steps) else dim
            convolutions = [convolution(widths[number], after, step, step, norm), convolution(after, after, norm=norm)]
            self.stages.append(nn.Sequential(*convolutions, *(_block(after, norm) for _ in range(blocks))))
        if not steps:
            self.stages.append(
                nn.Sequential(convolution(widths[0], dim, norm=norm), *(_block(dim, norm) for _ in range(blocks)))
            )
        self.encoder = None
        if whole_number("layers", layers, 0):
            self.encoder = Stack(dim, layers, attention, num_heads=num_heads, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("places", waves(cell_centres(spec.rows, spec.columns), dim), persistent=False)

    @staticmethod
    def refusal(spec: Patches) -> str:
        """Why such patches cannot be read; empty if they can."""
        return "reads one picture, not the frames of a video" if spec.frames > 1 else ""

    def forward(self, data: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The rows, and the maps before each stage, (b,width,height,width), the largest first."""
        picture = for_convolutions(fold(data.to(next(self.parameters()).dtype), self.spec))
        maps = [self.first(2 * picture - 1)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        rows = self.dropout(maps.pop().flatten(2).transpose(1, 2)) + self.places
        if self.encoder is not None:
            rows = self.encoder(rows)
        return rows, maps


def _block(width: int, norm: str) -> ResidualBlock:
    """A residual block without attention of its own, which begins by changing nothing.

    From the usual start, two blocks on the way made digits in scenes several times as slow to learn.
    """
    block = ResidualBlock(width, width, 1, channel=False, spatial=False, reduction=1, dropout=0.0, norm=norm)
    last = block.norms[-1]
    assert isinstance(last, nn.GroupNorm | nn.BatchNorm2d)
    nn.init.zeros_(last.weight)
    return block

"""The glimpse sensor: a part of a picture, sharp at its centre and coarse around it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.support.arguments import whole_number
from regard_workbench.tasks.parts.streams import Patches


class Retina(nn.Module):
    """Squares around the centre of a patch, each twice as wide as the one before, all averaged to `side` × `side`.

    What lies outside of the picture is 0. Paper: Mnih et al. 2014, section 3.1.

    >>> import torch
    >>> from regard_workbench.tasks.parts.streams import Patches
    >>> retina = Retina(Patches.of(channels=1, height=24, width=24, side=4), side=6, scales=2)
    >>> retina(torch.rand(5, 1, 24, 24), torch.tensor([0, 7, 14, 21, 35])).shape
    torch.Size([5, 2, 1, 6, 6])
    """

    def __init__(self, spec: Patches, side: int = 8, scales: int = 3) -> None:
        super().__init__()
        self.spec, self.side = spec, whole_number("side", side, 1)
        self.scales = whole_number("scales", scales, 1)
        self.margin = side * 2 ** (scales - 1)  # enough for the widest square around any patch

    def padded(self, pictures: Tensor) -> Tensor:
        """Pictures (b,channels,height,width) with zeros around them, as `look` takes them."""
        return F.pad(pictures, [self.margin] * 4)

    def look(self, padded: Tensor, index: Tensor) -> Tensor:
        """A glimpse (b,scales,channels,side,side) at one patch of each picture, by its number (b,)."""
        batch, step = torch.arange(len(padded), device=padded.device), self.spec.side
        row, column = index // self.spec.columns, index % self.spec.columns
        scales = []
        for scale in range(self.scales):
            wide = self.side << scale
            first = self.margin + step // 2 - wide // 2  # where the square around patch 0 begins
            squares = padded[..., first:, first:].unfold(2, wide, step).unfold(3, wide, step)  # a view
            scales.append(F.avg_pool2d(squares[batch, :, row, column], 1 << scale))
        return torch.stack(scales, 1)

    def forward(self, pictures: Tensor, index: Tensor) -> Tensor:
        """A glimpse at one patch of each picture."""
        return self.look(self.padded(pictures), index)

    def extra_repr(self) -> str:
        return f"side={self.side}, scales={self.scales}"

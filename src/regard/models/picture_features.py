"""Rows of features of a picture, one for each of its patches, by a small residual convolutional network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.arguments import whole_number
from regard.models.cnn_attention import GROUPS, ResidualBlock
from regard.tasks.pictures.patches import fold
from regard.tasks.streams import Patches

NARROWEST = 32  # channels


def _block(before: int, width: int, stride: int = 1) -> ResidualBlock:
    """A residual block without attention of its own; `stride` 2 halves height and width."""
    return ResidualBlock(before, width, stride, channel=False, spatial=False, reduction=1, dropout=0.0)


class PictureFeatures(nn.Module):
    """Patches of a picture (b,n,width) as rows (b,n,dim), each seeing its patch and what lies around it.

    Patches are folded back into the picture. Each layer halves its height and width until one place is left for each
    patch; so rows and patches are the same positions, and weights over rows can be drawn over the picture. Rows know
    where they are: vectors for the row and the column of their patch are added.
    """

    def __init__(self, spec: Patches, dim: int, *, blocks: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        whole_number("blocks", blocks, 1)
        self.spec = spec
        halvings = spec.side.bit_length() - 1
        assert spec.side == 2**halvings, "`refusal` says so before anything is built"
        widths = [_width(dim, halvings - 1 - number) for number in range(halvings)] or [_width(dim, 0)]
        stem = nn.Conv2d(spec.channels, widths[0], 3, 2 if halvings else 1, padding=1, bias=False)
        layers: list[nn.Module] = [stem, nn.GroupNorm(GROUPS, widths[0]), nn.ReLU()]
        for number, inside in enumerate(widths):  # the stem halves once, each layer but the last once more
            outside = widths[min(number + 1, len(widths) - 1)]
            layers.append(_block(inside, outside, 2 if number + 1 < len(widths) else 1))
            layers += [_block(outside, outside) for _ in range(blocks - 1)]
        self.layers = nn.Sequential(*layers)
        self.widen = nn.Linear(widths[-1], dim)
        self.rows = nn.Parameter(torch.randn(spec.rows, 1, dim) * 0.5)  # about as large as features
        self.columns = nn.Parameter(torch.randn(1, spec.columns, dim) * 0.5)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def refusal(spec: Patches) -> str:
        """Why such patches cannot be read; empty if they can."""
        if spec.frames > 1:
            return "reads one picture, not the frames of a video"
        if spec.side & (spec.side - 1):
            return f"reads patches whose side is a power of two, not {spec.side} pixels"
        return ""

    def forward(self, data: Tensor) -> Tensor:
        """(b,n,width) numbers from 0 to 1 → (b,n,dim)."""
        pictures = fold(data.to(self.widen.weight.dtype), self.spec)
        maps = self.layers(2 * pictures - 1)
        rows = self.widen(maps.permute(0, 2, 3, 1)) + self.rows + self.columns
        found: Tensor = self.dropout(rows.flatten(1, 2))
        return found


def _width(dim: int, halvings: int) -> int:
    """The channels of a layer after which so many halvings follow: fewer where pictures are larger."""
    return max(NARROWEST, (dim >> halvings) // GROUPS * GROUPS)

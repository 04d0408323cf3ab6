"""`cnn-attention`: a residual CNN with attention over channels, over places and among places, each of which can be
left out."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard.nn import positions as encodings
from regard.nn.parts.blocks import EncoderLayer
from regard.nn.parts.gates import ChannelAttention, SpatialAttention
from regard.support.arguments import whole_number
from regard_workbench.models.parts.channel_norm import channel_norm
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.picture_memory_format import for_convolutions
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.pictures.patches import fold, names

HALVINGS = 2  # between the three stages: a place of the last one is 4 × 4 pixels


class ResidualBlock(nn.Module):
    """Two convolutions, then attention over channels and places, around which the input is added."""

    def __init__(
        self,
        before: int,
        width: int,
        stride: int,
        channel: bool,
        spatial: bool,
        reduction: int,
        dropout: float,
        norm: str = "group",
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(channel_norm(norm, width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.channel = ChannelAttention(width, reduction) if channel else nn.Identity()
        self.spatial = SpatialAttention() if spatial else nn.Identity()
        same = before == width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        inside = torch.relu(self.norms[0](self.first(maps)))
        inside = self.norms[1](self.second(self.dropout(inside)))
        outputs: Tensor = torch.relu(self.shortcut(maps) + self.spatial(self.channel(inside)))
        return outputs


class FoldedPictures(nn.Module):
    """Patches as pictures. `rows` is where gradients with respect to patches are read off."""

    def __init__(self, spec: Patches) -> None:
        super().__init__()
        self.spec, self.rows = spec, nn.Identity()

    def forward(self, data: Tensor) -> Tensor:
        """(b,n,width) → (b,frames · channels,height,width)."""
        return for_convolutions(fold(self.rows(data), self.spec).reshape(data.shape[0], -1, *self.sides()))

    def sides(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.spec.rows * self.spec.side, self.spec.columns * self.spec.side


@model("cnn-attention", gives=("pooled",), reads=(Patches,))
class CnnAttention(Model):
    """A residual CNN of three stages with three kinds of attention; without all three it is a plain residual CNN.

    Channel attention weighs the feature maps, spatial attention the places, in each block; self-attention lets the
    places of the last stage attend to each other. By default normalisation is over groups of channels, so that an
    example does not depend on the others of its batch. The frames of a video are read as channels.

    Paper: He et al. 2016; Hu et al. 2018 (channel), Woo et al. 2018 (spatial), Bello et al. 2019 (self-attention);
    Wu & He 2018 (group normalisation).

    Args:
        dim: channels of the last stage; the stages before it have a quarter and a half of them
        blocks: residual blocks of each stage
        channel: whether blocks have channel attention
        spatial: whether blocks have spatial attention
        self_attention: whether the last stage has self-attention
        reduction: how many times fewer numbers channel attention squeezes the channels to
        norm: what normalises the channels of a convolution: group (of one picture) or batch (over a training batch)
    """

    takes_attention: ClassVar[str] = "the self-attention among the places of the last stage"
    attention_default: ClassVar[str] = "multihead"

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        blocks: int = 1,
        num_heads: int = 4,
        attention: str | None = None,
        channel: bool = True,
        spatial: bool = True,
        self_attention: bool = True,
        reduction: int = 8,
        dropout: float = 0.1,
        norm: str = "group",
    ) -> None:
        super().__init__(problem)
        dim, blocks = whole_number("dim", dim, 4), whole_number("blocks", blocks, 1)
        if attention is not None and not self_attention:
            raise BadValue("attention: there is no self-attention to build from it with self_attention=false.")
        assert isinstance(problem.inputs, Patches)
        self.embedding = FoldedPictures(problem.inputs)
        height, width = (math.ceil(side / 2**HALVINGS) for side in self.embedding.sides())
        self.grid = (height, width)
        widths = [max(1, dim // 4), max(1, dim // 2), dim]
        before = problem.inputs.channels * problem.inputs.frames
        self.stem = nn.Conv2d(before, widths[0], 3, 1, 1, bias=False)
        self.stem_norm = channel_norm(norm, widths[0])
        residual_blocks: list[nn.Module] = []
        before = widths[0]
        reduction = whole_number("reduction", reduction, 1)
        for stage, wide in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                residual_blocks.append(ResidualBlock(before, wide, stride, channel, spatial, reduction, dropout, norm))
                before = wide
        self.blocks = nn.ModuleList(residual_blocks)
        self.places = encodings.build("learned", dim, height * width) if self_attention else None
        self.layer = (
            EncoderLayer(dim, attention or self.attention_default, num_heads=num_heads, dropout=dropout, hidden=2 * dim)
            if self_attention
            else None
        )
        self.head = problem.answer.head(dim)

    def features(self, batch: Batch) -> Tensor:
        """The maps of the last block, (b,dim,h,w)."""
        data = batch.inputs.to(self.stem.weight.dtype)
        maps = torch.relu(self.stem_norm(self.stem(self.embedding(data))))
        for block in self.blocks:
            maps = block(maps)
        return maps

    def forward(self, batch: Batch) -> Any:
        rows = self.features(batch).flatten(2).transpose(1, 2)
        if self.layer is not None and self.places is not None:
            rows = self.layer(self.places(rows))
        return self.head(rows.mean(1), batch)

    def relabel(self, shown: Shown) -> Shown:
        """The names of the places of the last stage, among which self-attention attends."""
        height, width = self.grid
        last_stage = Patches(1, height * width, height, width)
        return dataclasses.replace(
            shown, pieces=names(last_stage), grid=self.grid if shown.picture is not None else None
        )

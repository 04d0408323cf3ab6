"""`segmenter`: each class attends to the features of a picture, and its row is compared with every pixel."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.nn.parts.blocks import DecoderLayer
from regard.nn.parts.building import build
from regard.support.arguments import whole_number
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.picture_features import PictureFeatures, convolution
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Patches


@model("segmenter", gives=("pixels",), reads=(Patches,))
class Segmenter(Model):
    """Each class attends to the patches of a picture; its row, times the features of a pixel, scores that pixel.

        features   convolutions down to one row for each patch, then encoder layers, with the places of the patches
        class c    attends to the classes and to the features: a row that knows what c looks like on this picture
        pixels     features brought back to the size of the picture, with the maps of the convolutions on the way
        score(pixel, c) = patch of the pixel · U row of c / √dim  +  pixel · V row of c / √width

    The patch knows what is around it, the pixel where the edges are.

    Paper: Strudel et al. 2021 (classes as queries, masks as products); Cheng et al. 2021 (features of pixels).

    Args:
        layers: encoder layers over the patches; 0: convolutions alone
        decoder_layers: how often the classes look
        width: channels of the first convolution; each stage has twice as many
        norm: what normalises the channels of a convolution: group (of one picture) or batch (over a training batch)
    """

    takes_attention: ClassVar[str] = "each encoder layer's attention among the patches"
    attention_default: ClassVar[str] = "multihead"
    shows: ClassVar[dict[str, str]] = {"decoder.-1.cross": "each class's attention to the patches, in the last layer"}
    sides = MappingProxyType({"decoder.-1.cross": ("classes", "patches")})

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 64,
        layers: int = 0,
        decoder_layers: int = 1,
        num_heads: int = 4,
        width: int = 16,
        attention: str | None = None,
        dropout: float = 0.0,
        norm: str = "group",
    ) -> None:
        super().__init__(problem)
        spec: Any = problem.inputs
        self.spec: Patches = spec
        self.features = PictureFeatures(
            spec,
            dim,
            width=width,
            layers=layers,
            attention=attention or self.attention_default,
            num_heads=num_heads,
            dropout=dropout,
            norm=norm,
        )
        self.rise = Rise(dim, self.features.widths)
        self.classes = nn.Parameter(torch.randn(problem.answer.outputs, dim) * dim**-0.5)
        self.decoder = nn.ModuleList(
            DecoderLayer(
                dim,
                build("multihead", dim, num_heads=num_heads),
                build("multihead", dim, num_heads=num_heads),
                dropout=dropout,
            )
            for _ in range(whole_number("decoder_layers", decoder_layers, 1))
        )
        self.norm = nn.LayerNorm(dim)
        self.of_patches = nn.Linear(dim, dim)
        self.of_pixels = nn.Linear(dim, self.features.widths[0])
        self.head = problem.answer.head()

    def forward(self, batch: Batch) -> Any:
        source, maps = self.features(batch.inputs)
        rows = self.classes.expand(len(source), -1, -1).to(source.dtype)
        for layer in self.decoder:
            rows = layer(rows, source)
        rows = self.norm(rows)
        grid = source.transpose(1, 2).unflatten(2, (self.spec.rows, self.spec.columns))
        pixels = self.rise(grid, maps)  # (b,width,height,width)
        coarse = products(grid, self.of_patches(rows))
        scores = nn.functional.interpolate(coarse, size=pixels.shape[-2:], mode="bilinear")
        scores = (scores + products(pixels, self.of_pixels(rows))).permute(0, 2, 3, 1)
        return self.head(scores, batch)


def products(places: Tensor, rows: Tensor) -> Tensor:
    """The scaled products of the features of places (b,dim,y,x) with rows (b,c,dim): (b,c,y,x)."""
    scaled: Tensor = torch.einsum("bdyx,bcd->bcyx", places, rows) * rows.shape[-1] ** -0.5
    return scaled


class Rise(nn.Module):
    """Features of patches brought back to the size of the picture, stage by stage, each with the map of that size.

    Paper: Ronneberger et al. 2015.
    """

    def __init__(self, dim: int, widths: list[int]) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        before = dim
        for width in reversed(widths):
            self.stages.append(convolution(before + width, width))
            before = width

    def forward(self, grid: Tensor, maps: list[Tensor]) -> Tensor:
        """(b,dim,rows,columns) and maps (b,width,·,·), the largest first → (b,width,height,width)."""
        for stage, beside in zip(self.stages, reversed(maps), strict=True):
            grown = nn.functional.interpolate(grid, size=beside.shape[-2:], mode="nearest")
            grid = stage(torch.cat([grown, beside], 1))
        return grid

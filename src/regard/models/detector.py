"""`detector`: object queries attend to the features of a picture, and each finds one thing or nothing."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.core.arguments import whole_number
from regard.models.model import Model, model
from regard.models.picture_features import PictureFeatures, cell_centres, waves
from regard.nn.blocks import DecoderLayer
from regard.nn.building import build
from regard.tasks.batch import Batch
from regard.tasks.problem import Problem
from regard.tasks.streams import Patches

FIRST_SIZE = 0.3  # of the box that a query begins with, as a share of the picture


@model("detector", gives=("boxes",), reads=(Patches,))
class Detector(Model):
    """Object queries attend to each other and to the features of a picture; each says a class and a box, or nothing.

        features   convolutions down to one row for each patch, then encoder layers, with the places of the patches
        query q    begins at a learned place with a box around it
        a layer    q ← attention among queries, attention to the features, feed-forward
                   box ← box + what q says; class ← what q says

    Each layer answers, and learns from the set loss; the next one looks from the place and size that it found.

    Paper: Carion et al. 2020 (queries, matching, set loss); Liu et al. 2022 (queries are boxes that layers refine).

    Args:
        layers: encoder layers over the patches; 0: convolutions alone
        decoder_layers: how often the queries look
        queries: how many things can be found on one picture
        width: channels of the first convolution; each stage has twice as many
    """

    takes_attention: ClassVar[str] = "each encoder layer's attention among the patches"
    attention_default: ClassVar[str] = "multihead"
    shows: ClassVar[dict[str, str]] = {
        "decoder.-1.cross": "each query's attention to the patches, in the last layer",
    }
    sides: ClassVar[dict[str, tuple[str, str]]] = {"decoder.-1.cross": ("queries", "patches")}

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 64,
        layers: int = 1,
        decoder_layers: int = 3,
        queries: int = 16,
        num_heads: int = 4,
        width: int = 16,
        attention: str | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(problem)
        spec: Any = problem.inputs
        self.features = PictureFeatures(
            spec, dim, whole_number("layers", layers, 0), attention or self.attention_default, width, num_heads,
            dropout,
        )  # fmt: skip
        count = whole_number("queries", queries, 1)
        self.queries = nn.Parameter(torch.randn(count, dim) * dim**-0.5)
        self.boxes = nn.Parameter(_first_boxes(count))  # centre and size before the sigmoid
        self.extent = nn.Linear(dim, dim)
        self.decoder = nn.ModuleList(
            DecoderLayer(
                dim,
                build("multihead", dim, num_heads=num_heads),
                build("multihead", dim, num_heads=num_heads),
                dropout=dropout,
            )
            for _ in range(whole_number("decoder_layers", decoder_layers, 1))
        )
        with torch.no_grad():
            for layer in self.decoder:  # so that a query attends first to what is like it: to its own place
                layer.cross.key_map.weight.copy_(2 * layer.cross.query_map.weight)  # type: ignore[union-attr]
        self.norm = nn.LayerNorm(dim)
        self.classes = nn.Linear(dim, problem.answer.outputs - 4)
        self.moves = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 4))
        nn.init.zeros_(self.moves[-1].weight)  # type: ignore[arg-type]  # so that boxes begin where they were put
        nn.init.zeros_(self.moves[-1].bias)  # type: ignore[arg-type]
        self.dim = dim
        self.head = problem.answer.head()

    def forward(self, batch: Batch) -> Any:
        source, _ = self.features(batch.inputs)
        size = len(source)
        source = source + self.features.places
        rows = self.queries.expand(size, -1, -1).to(source.dtype)
        boxes = self.boxes.expand(size, -1, -1)
        found = []
        for layer in self.decoder:
            around = boxes.sigmoid().to(source.dtype)
            where = waves(around[..., :2], self.dim) + self.extent(waves(around[..., 2:], self.dim))
            rows = layer(rows + where, source)
            said = self.norm(rows)
            moved = boxes + self.moves(said).float()
            found.append(torch.cat([self.classes(said).float(), moved.sigmoid()], -1))
            boxes = moved.detach()  # each layer answers for its own move
        return self.head(torch.stack(found, 1), batch)


def _first_boxes(count: int) -> Tensor:
    """Boxes of one size spread over the picture, (count,4): centre and size before the sigmoid."""
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    centres = cell_centres(rows, columns)[:count]
    boxes = torch.cat([centres, torch.full_like(centres, FIRST_SIZE)], -1)
    return torch.logit(boxes)

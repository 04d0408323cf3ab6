"""`detector`: object queries attend to the features of a picture, and each finds one thing or nothing."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.formula.formula import widened
from regard.nn.parts.blocks import DecoderLayer
from regard.nn.parts.building import build
from regard.support.arguments import whole_number
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.picture_features import PictureFeatures, cell_centres, waves
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Patches

FIRST_SIZE = 0.3  # of the box that a patch begins with, as a share of the picture


@model("detector", gives=("boxes",), reads=(Patches,))
class Detector(Model):
    """Object queries attend to each other and to the features of a picture; each says a class and a box, or nothing.

        features   convolutions down to one row for each patch, then encoder layers, with the places of the patches
        proposals  each patch says a class and a box around itself; the rows of the surest patches are the queries
        a layer    query ← attention among queries, attention to the features from its place, feed-forward
                   box ← box + what the query says; class ← what the query says

    Proposals and every layer answer, and learn from the set loss; the next layer looks from the place and size that the
    one before found.

    Paper: Carion et al. 2020 (queries, matching, set loss); Zhu et al. 2021 (proposals; layers refine boxes).

    Args:
        layers: encoder layers over the patches; 0: convolutions alone
        decoder_layers: how often the queries look
        queries: how many things can be found on one picture; at most one for each patch
        width: channels of the first convolution; each stage has twice as many
        norm: what normalises the channels of a convolution: group (of one picture) or batch (over a training batch)
    """

    takes_attention: ClassVar[str] = "each encoder layer's attention among the patches"
    attention_default: ClassVar[str] = "multihead"
    shows: ClassVar[dict[str, str]] = {"decoder.-1.cross": "each query's attention to the patches, in the last layer"}
    sides = MappingProxyType({"decoder.-1.cross": ("queries", "patches")})

    anchors: Tensor  # (n,4): the box that each patch begins with, before the sigmoid

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 64,
        layers: int = 0,
        decoder_layers: int = 1,
        queries: int = 16,
        num_heads: int = 4,
        width: int = 16,
        attention: str | None = None,
        dropout: float = 0.0,
        norm: str = "group",
    ) -> None:
        super().__init__(problem)
        spec: Any = problem.inputs
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
        self.queries = min(whole_number("queries", queries, 1), spec.rows * spec.columns)
        self.dim, self.scores = dim, problem.answer.outputs - 4
        centres = cell_centres(spec.rows, spec.columns)
        first = torch.cat([centres, torch.full_like(centres, FIRST_SIZE)], -1)
        self.register_buffer("anchors", torch.logit(first), persistent=False)
        self.extent = nn.Linear(dim, dim)
        self.decoder = nn.ModuleList()
        for _ in range(whole_number("decoder_layers", decoder_layers, 1)):
            cross = build("multihead", dim, num_heads=num_heads)
            with torch.no_grad():  # so that a query attends first to what is like it: to its own place
                cross.key_map.weight.copy_(2 * cross.query_map.weight)
            self_attention = build("multihead", dim, num_heads=num_heads)
            self.decoder.append(DecoderLayer(dim, self_attention, cross, dropout=dropout))
        self.says = nn.ModuleList(Says(dim, self.scores) for _ in range(1 + len(self.decoder)))
        self.head = problem.answer.head()

    def forward(self, batch: Batch) -> Any:
        source, _ = self.features(batch.inputs)
        proposals, boxes = self.says[0](source, self.anchors.expand(len(source), -1, -1))
        answers = [proposals]
        # The surest patches, by their likeliest class; "no object" is the last of the scores.
        sure = proposals[..., : self.scores].detach().softmax(-1)[..., :-1].amax(-1)
        chosen = sure.topk(self.queries, dim=1).indices[..., None]
        rows = source.gather(1, chosen.expand(-1, -1, self.dim))
        boxes = boxes.gather(1, chosen.expand(-1, -1, 4))
        source = source + self.features.places
        for layer, says in zip(self.decoder, list(self.says)[1:], strict=True):
            around = boxes.sigmoid().to(source.dtype)
            where = waves(around[..., :2], self.dim) + self.extent(waves(around[..., 2:], self.dim))
            rows = layer(rows + where, source)
            answer, boxes = says(rows, boxes)
            answers.append(answer)
        return self.head(tuple(answers), batch)


class Says(nn.Module):
    """What rows say of the boxes they begin with: scores of the classes, and the boxes moved."""

    def __init__(self, dim: int, scores: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.classes = nn.Linear(dim, scores)
        self.rise, self.moves = nn.Linear(dim, dim), nn.Linear(dim, 4)
        nn.init.zeros_(self.moves.weight)  # so that boxes begin where they were put
        nn.init.zeros_(self.moves.bias)

    def forward(self, rows: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (b,n,dim) and boxes (b,n,4) before the sigmoid → the answer (b,n,scores + 4), and the moved boxes.

        No gradient goes through the moved boxes: each layer answers for its own move.
        """
        rows = self.norm(rows)
        moved = boxes + widened(self.moves(nn.functional.gelu(self.rise(rows))))
        return torch.cat([widened(self.classes(rows)), moved.sigmoid()], -1), moved.detach()

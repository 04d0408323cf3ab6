"""`vit`: a Transformer over patches of a picture; over a video, attention to other frames and to other places apart."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard import masks
from regard.errors import BadValue
from regard.masks import Mask
from regard.nn import positions as encodings
from regard.nn.parts.blocks import EncoderLayer, Residual, mechanism_of
from regard.nn.parts.building import build_bidirectional
from regard.support.arguments import whole_number
from regard_workbench.models.parts.embedding import StreamEmbedding
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.picture_features import PictureFeatures
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.pictures.patches import cut, fold, names

POOLS = ("mean", "class")
OVER_TIME = ("divided", "joint")
CLASS = "CLS"  # what the class token is called


class DividedLayer(EncoderLayer):
    """A layer for videos: each patch attends to its place in all frames, then to all places of its frame.

        x ← x + time(norm(x)),  x ← x + space(norm(x)),  x ← x + feed_forward(norm(x))

    Paper: Bertasius et al. 2021, section 3 (divided space-time attention). Both attentions run over all positions with
    a mask, so that an observer sees patches × patches. A class token, before the patches, takes no part in the first.
    """

    frame: Tensor  # (n,): the frame of each position; the class token has a number of its own

    def __init__(self, dim: int, attention: str, spec: Patches, token: bool, **options: Any) -> None:
        super().__init__(dim, attention, **options)
        common = {"num_heads": options["num_heads"], "dropout": options["attention_dropout"]}
        self.time = mechanism_of("attention", attention, dim, build_bidirectional, common)
        self.around_time = Residual(dim, "pre", options["dropout"])
        self.first, self.places = int(token), spec.rows * spec.columns
        frames = torch.arange(spec.frames).repeat_interleave(self.places)
        frames = torch.cat([torch.tensor([spec.frames] * self.first, dtype=torch.long), frames])
        self.register_buffer("frame", frames, persistent=False)

    def forward(self, x: Tensor, *, mask: Any = None, state: Any = None) -> Any:
        """(b,n,dim) → (b,n,dim): the class token, where there is one, then the patches, frame by frame."""
        among = x[:, self.first :]
        same_place = masks.dilated(self.places)
        patches = self.around_time.leave(among, self.time(self.around_time.enter(among), mask=same_place))
        same_frame: Mask = masks.blocks(self.places)
        if self.first:
            same_frame = masks.documents(self.frame) | masks.global_tokens([0])
        return super().forward(torch.cat([x[:, : self.first], patches], 1), mask=same_frame)


class ConvolutionStem(nn.Module):
    """Patches (b,n,width) → rows (b,n,dim) by convolutions over each picture or frame.

    Paper: Xiao et al. 2021, Early convolutions help Transformers see better.
    """

    def __init__(self, spec: Patches, dim: int, width: int) -> None:
        super().__init__()
        self.frames = spec.frames
        still = dataclasses.replace(spec, length=spec.rows * spec.columns, frames=1)
        self.features = PictureFeatures(still, dim, width=width, norm="batch")
        self.rows = nn.Identity()  # where gradients with respect to patches are read off

    def forward(self, data: Tensor) -> Tensor:
        size, count, width = data.shape
        rows, _ = self.features(data.reshape(size * self.frames, count // self.frames, width))
        embedded: Tensor = self.rows(rows.reshape(size, count, -1))
        return embedded


@model("vit", gives=("pooled", "rows"), reads=(Patches,))
class Vit(Model):
    """A Transformer encoder over patches with learned positions; it answers from their mean or from a class token.

    Paper: Dosovitskiy et al. 2021; over a video Bertasius et al. 2021: each layer attends over time, then over space.

    Args:
        patch: pixels of a patch's side; None: as the task cuts them
        pool: mean (over patches), or class (a token of its own)
        over_time: for a video: divided (time, then space), or joint (all patches of all frames at once)
        positions: what is added to patches: learned, sinusoidal, half-wave or none
        stem: channels of the first of a few convolutions that read the patches; 0: a linear map reads each
    """

    takes_attention: ClassVar[str] = "each layer's attention among the patches"
    attention_default: ClassVar[str] = "multihead"
    shows: ClassVar[dict[str, str]] = {"layers.-1.attention": "{name} of the last layer"}

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        layers: int = 4,
        num_heads: int = 4,
        attention: str | None = None,
        patch: int | None = None,
        pool: str = "mean",
        over_time: str = "divided",
        positions: str = "learned",
        stem: int = 0,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        hidden: int | None = None,
    ) -> None:
        super().__init__(problem)
        for option, choice, choices in (("pool", pool, POOLS), ("over_time", over_time, OVER_TIME)):
            if choice not in choices:
                raise BadValue(f"{option}: expected {' or '.join(choices)}, got {choice!r}.")
        assert isinstance(problem.inputs, Patches)
        self.given = problem.inputs
        self.spec = self.given if patch is None else _recut(self.given, patch)
        if problem.answer.needs == "rows" and self.spec != self.given:
            raise BadValue("patch: the task asks for a row for each of its own patches. Leave patch= out.")
        count = self.spec.rows * self.spec.columns
        self.embedding: nn.Module = (
            ConvolutionStem(self.spec, dim, stem)
            if whole_number("stem", stem, 0)
            else StreamEmbedding(self.spec, dim, positions="none")
        )
        self.places = encodings.build(positions, dim, count)
        self.times = encodings.build(positions, dim, self.spec.frames) if self.spec.frames > 1 else None
        self.dropout = nn.Dropout(dropout)
        self.token = nn.Parameter(torch.randn(dim) * 0.02) if pool == "class" else None
        mechanism = attention or self.attention_default
        options: dict[str, Any] = {
            "num_heads": num_heads,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "hidden": hidden,
        }
        divided = self.spec.frames > 1 and over_time == "divided"
        self.layers = nn.ModuleList(
            DividedLayer(dim, mechanism, self.spec, self.token is not None, **options)
            if divided
            else EncoderLayer(dim, mechanism, **options)
            for _ in range(whole_number("layers", layers, 1))
        )
        self.norm = nn.LayerNorm(dim)
        self.head = problem.answer.head(dim)

    def forward(self, batch: Batch) -> Any:
        rows = self.rows(batch)
        if self.problem.answer.needs == "rows":
            return self.head(rows if self.token is None else rows[:, 1:], batch)
        return self.head(rows.mean(1) if self.token is None else rows[:, 0], batch)

    def rows(self, batch: Batch) -> Tensor:
        """The row of the class token, where there is one, and those of the patches, (b,n,dim)."""
        data = batch.inputs if self.spec == self.given else cut(fold(batch.inputs, self.given), self.spec)
        rows = self.embedding(data)
        size, count, dim = rows.shape
        frames = rows.reshape(size * self.spec.frames, count // self.spec.frames, dim)
        rows = self.places(frames).reshape(size, count, dim)
        if self.times is not None:  # the same for all places of a frame
            still = rows.new_zeros(1, self.spec.frames, dim)
            rows = rows + self.times(still).repeat_interleave(count // self.spec.frames, 1)
        if self.token is not None:
            rows = torch.cat([self.token.to(rows.dtype).expand(size, 1, dim), rows], 1)
        rows = self.dropout(rows)
        for layer in self.layers:
            rows = layer(rows)
        normalized: Tensor = self.norm(rows)
        return normalized

    def relabel(self, shown: Shown) -> Shown:
        """The names of the class token and of its own patches."""
        pieces = shown.pieces if self.spec == self.given else names(self.spec)
        grid = (self.spec.frames * self.spec.rows, self.spec.columns)
        first = [] if self.token is None else [CLASS]
        return dataclasses.replace(shown, pieces=[*first, *pieces], grid=grid if shown.grid else None)


def _recut(spec: Patches, side: int) -> Patches:
    """The patches of the same pictures with another side."""
    side = whole_number("patch", side, 1)
    return Patches.of(spec.channels, spec.rows * spec.side, spec.columns * spec.side, side, spec.frames)

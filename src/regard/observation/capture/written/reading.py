"""Readings of written-out attention: the module's own softmax, recomputed for the rows that are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regard.core.attention as core
from regard.core.attention import Rows
from regard.core.grid import Sizes
from regard.observation.capture.edits import Edit, edit_mixed
from regard.observation.capture.interception import Adapter, CallEvent, Function
from regard.observation.capture.reading import GradientInputs, How, Reading, Side, UnreadableCall, chosen
from regard.observation.capture.written.layout import WeightLayout, layout_of
from regard.observation.capture.written.replay import NotReplayable, ReplayGraph
from regard.observation.capture.written.tape import Node, OperationTape, shown

CLOSE = 1e-3  # tolerance relative to the largest weight; covers half precision


@dataclass
class WrittenOut(Reading):
    """One softmax that mixed values, and the graph that recomputes it."""

    replay: ReplayGraph
    layout: WeightLayout
    sizes: Sizes
    dtype: torch.dtype  # of the weights that were multiplied with values
    evidence: Tensor | None
    mixed: bool  # whether a product of these weights with values was seen
    rows: Side = "position"
    columns: Side = "source"
    graph: GradientInputs | None = None
    _agrees: bool | None = None

    @property
    def device(self) -> torch.device:
        return self.replay.leaves[0].tensor.device if self.replay.leaves else torch.device("cpu")

    @property
    def how(self) -> How:
        """Exact where the stored slice of the model's weights agrees with the recomputed ones."""
        return "exact" if self.mixed and self.agrees else "unverified"

    @property
    def agrees(self) -> bool:
        """Whether the recomputed weights agree with the stored slice."""
        if self._agrees is None:
            if self.evidence is None:
                self._agrees = False
            elif not self.evidence.numel():
                self._agrees = True
            else:
                last = [self.replay.shape[-2] - 1]
                ours = (
                    self.replay.run(last) if self.replay.by_rows else self.replay.run().narrow(-2, last[0], 1)
                )
                apart = (
                    (ours.select(-2, 0).to(self.evidence) - self.evidence)
                    .abs()
                    .nan_to_num(0, posinf=torch.inf)
                )
                same = torch.equal(ours.select(-2, 0).isnan(), self.evidence.isnan())
                self._agrees = same and bool(apart.amax() <= CLOSE * self.evidence.nan_to_num().abs().amax())
        return self._agrees

    @torch.no_grad()
    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        queries = self.sizes[2]
        part = core.selection("rows", rows, queries, self.device)
        if part is None or not self._sliceable:
            return chosen(self.layout.apply(self.replay.run()), rows, heads).to(self.dtype)
        index = torch.arange(queries, device=self.device)[part]
        return chosen(self.layout.apply(self.replay.run(index)), None, heads).to(self.dtype)

    @property
    def _sliceable(self) -> bool:
        return self.replay.by_rows and self.layout.keys == -1 and self.sizes[2] == self.replay.shape[-2]

    @torch.no_grad()
    def strips(self, heads: Rows = None) -> Iterator[tuple[slice, Tensor]]:
        if self._sliceable:
            yield from super().strips(heads)
        else:
            yield slice(0, self.sizes[2]), self.weights(heads=heads)


class SoftmaxAdapter(Adapter):
    """The product with which a module mixes values, and its weights."""

    kind = "softmax"

    def __init__(self, tape: OperationTape, node: Node, mixed: bool) -> None:
        self.tape, self.node, self.mixed, self.dtype = tape, shown(node), mixed, node.dtype
        assert node.source is not None
        # Weights projected from each position alone (a dynamic convolution) are not attention over pairs.
        self.within = "" if node.source.scored else "mixing"
        self.layout = layout_of(self.node, node.source, tape.module)
        self.sizes = self.layout.sizes(self.node.shape)

    def reading(self, event: CallEvent) -> Reading:
        """Store what the weights are computed from, not the weights."""
        try:
            replay = ReplayGraph(self.node, self.tape.module, event.keep)
        except NotReplayable as why:
            return UnreadableCall(
                f"softmax: the weights of this call cannot be recomputed, because {why}.", self.sizes
            )
        return WrittenOut(
            replay,
            self.layout,
            self.sizes,
            self.dtype,
            self.node.evidence,
            self.mixed,
            graph=self._slopes(event),
        )

    def _slopes(self, event: CallEvent) -> GradientInputs | None:
        """What gradient × attention needs; only for products (b,h,q,k) × (b,h,k,v)."""
        if not (event.gradients and self.mixed and self.layout.plain and len(event.args) == 2):
            return None
        weights, value = event.args
        usual = isinstance(weights, Tensor) and weights.shape == self.node.shape and value.dim() == 4
        if not usual or not event.result.requires_grad:
            return None
        return GradientInputs(value.detach(), event.result)

    def edited(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], edit: Edit) -> Any:
        """The product of weights and values is edited; queries and keys are no arguments of one function here."""
        result: Tensor = original(*args, **kwargs)
        batch, count = self.sizes[:2]
        if type(edit).rows is not Edit.rows:
            raise NotImplementedError("queries, keys and values of written-out attention cannot be changed.")
        if result.dim() == 3 and result.shape[0] == batch * count:  # (b·h, q, v)
            return edit.mixed(result.unflatten(0, (batch, count))).flatten(0, 1)
        if result.dim() >= 4 and result.shape[-3] == count:
            return edit_mixed(edit, result, -3)
        if result.dim() == 4 and result.shape[2] == count:  # (b,q,h,v)
            return edit_mixed(edit, result, 2)
        raise NotImplementedError(
            f"heads of a product of shape {tuple(result.shape)} cannot be changed individually."
        )

"""Readings of written-out attention: the module's own softmax, recomputed for the rows that are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regard.dispatch.attention as dispatch
from regard.dispatch.attention import Rows
from regard.observation.capture.edits import Edit
from regard.observation.capture.interception import Adapter, CallEvent, Function
from regard.observation.capture.proof import Proof
from regard.observation.capture.reading import GradientInputs, Reading, Side, UnreadableCall, chosen
from regard.observation.capture.storage import Storage, StoredKeys, StoredTensor
from regard.observation.capture.written.layout import WeightLayout, arranged, put_back
from regard.observation.capture.written.mixing import Mixing, shown, unmixed
from regard.observation.capture.written.replay import NotReplayable, ReplayGraph
from regard.observation.capture.written.tape import DROPOUT, Node, OperationTape
from regard.values.grid import Sizes


@dataclass
class WrittenOut(Reading):
    """Weights that mixed values, and the graph that recomputes them."""

    replay: ReplayGraph
    layout: WeightLayout
    sizes: Sizes
    dtype: torch.dtype  # of the weights that were multiplied with values
    proof: Proof | None  # None: no product of these weights with values was found
    rows: Side = "position"
    columns: Side = "source"
    graph: GradientInputs | None = None
    _proven: bool | None = None

    @property
    def device(self) -> torch.device:
        return self.replay.leaves[0].tensor.device if self.replay.leaves else torch.device("cpu")

    def is_doubtful(self) -> bool:
        """Whether the recomputed weights do not reproduce the output."""
        if self._proven is None:
            last = [self.sizes[2] - 1]
            self._proven = self.proof is not None and (
                not all(self.sizes) or self.proof.holds(self.weights(last)[0, :, 0])
            )
        return not self._proven

    @torch.no_grad()
    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        queries = self.sizes[2]
        selected = dispatch.selection("rows", rows, queries, self.device)
        if selected is None or not self._sliceable:
            return chosen(self.layout.apply(self.replay.run()), rows, heads).to(self.dtype)
        index = torch.arange(queries, device=self.device)[selected]
        return chosen(self.layout.apply(self.replay.run(index)), None, heads).to(self.dtype)

    @property
    def _sliceable(self) -> bool:
        return self.layout.by_rows and self.replay.by_rows

    @torch.no_grad()
    def strips(self, heads: Rows = None) -> Iterator[tuple[slice, Tensor]]:
        if self._sliceable:
            yield from super().strips(heads)
        else:
            yield slice(0, self.sizes[2]), self.weights(heads=heads)


class SoftmaxAdapter(Adapter):
    """The product with which a module mixes values, and its weights."""

    kind = "softmax"

    def __init__(self, tape: OperationTape, weights: Node, mixing: Mixing | None) -> None:
        self.tape, self.used, self.mixing = tape, weights, mixing
        # Weights projected from each position alone (a dynamic convolution) are not attention over pairs.
        self.within = "mixing" if mixing is not None and mixing.alone else ""
        self.node = weights if mixing is None else shown(weights)
        self.layout = unmixed(weights) if mixing is None else mixing.layout

    def reading(self, event: CallEvent) -> Reading:
        """Store what the weights are computed from, not the weights."""
        sizes = self.layout.sizes
        try:
            replay = ReplayGraph(self.node, self.tape.owned, event.keep)
        except NotReplayable as why:
            return UnreadableCall(f"softmax: the weights of this call cannot be recomputed, because {why}.", sizes)
        proof = None if self.mixing is None else self._proof(self.mixing, event.result, event.keep)
        graph = self._slopes(event) if event.gradients else None
        return WrittenOut(replay, self.layout, sizes, self.used.dtype, proof, graph=graph)

    def _proof(self, mixing: Mixing, result: Tensor, keep: Storage) -> Proof | None:
        """One column of the last row of the first example, and of its values."""
        value, scale = mixing.value.alive(), _dropout_scale(self.used)
        if value is None or scale is None or not mixing.complete:
            return None
        batch, heads, queries, keys = mixing.layout.groups
        # Whether each query has its own values.
        per_query = any(factor in queries for axis in mixing.value_axes for factor in axis)
        columns, axes = _one_of(value.detach(), mixing.value_axes, mixing.channels)
        columns = arranged(columns, axes, (batch, heads, queries if per_query else (), keys))[:1, :, -1, :, None]
        output, axes = _one_of(result.detach(), mixing.result_axes, mixing.channels)
        output = arranged(output, axes, (batch, heads, queries))[:1, :, -1].squeeze(0)[:, None]
        kept = None
        if scale != 1:
            used = self.used.alive()
            if used is None:
                return None
            kept = (arranged(used.detach(), mixing.axes, mixing.layout.groups)[0, :, -1] != 0) * scale
        narrow = keep.dtype is not None and keep.dtype.itemsize < output.dtype.itemsize
        output = output.to(keep.device, keep.dtype if narrow else output.dtype, copy=True)
        columns = columns.to(keep.device, columns.dtype, copy=True)
        stored = StoredTensor(columns, None, columns.dtype, "the value")
        return Proof(StoredKeys(stored, None), output, columns.shape[2], kept)

    def _slopes(self, event: CallEvent) -> GradientInputs | None:
        """What gradient × attention needs; only for products (b,h,q,k) × (b,h,k,v)."""
        if self.mixing is None or not (self.layout.plain and len(event.args) == 2):
            return None
        weights, value = event.args
        usual = isinstance(weights, Tensor) and weights.shape == self.node.shape and value.dim() == 4
        if not usual or not event.result.requires_grad:
            return None
        return GradientInputs(value.detach(), event.result)

    def edited(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], edit: Edit) -> Any:
        """The product of weights and values is edited; queries and keys are no arguments of one function here."""
        if type(edit).rows is not Edit.rows:
            raise NotImplementedError("queries, keys and values of written-out attention cannot be changed.")
        result: Tensor = original(*args, **kwargs)
        if self.mixing is None or not self.mixing.complete:
            raise NotImplementedError("heads of a product that sums over them cannot be changed individually.")
        axes, groups = self.mixing.result_axes, self.mixing.result_groups
        return put_back(edit.mixed(arranged(result, axes, groups)), axes, groups)


def _dropout_scale(node: Node) -> float | None:
    """What weights that are kept were multiplied with by dropout; None where that is unknown."""
    scale = 1.0
    while node.softmax_axis is None:
        if node.name in DROPOUT:
            arguments = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
            probability = arguments.get("p", 0.5)
            if arguments.get("training", arguments.get("train", True)) and probability:
                if node.name not in ("dropout", "dropout_") or probability >= 1:
                    return None
                scale /= 1 - probability
        before = [operand for operand in node.inputs() if operand.kind == node.kind]
        if not before:
            break
        node = before[0]
    return scale


def _one_of(tensor: Tensor, axes: Any, channels: Any) -> tuple[Tensor, Any]:
    """The middle channel of a tensor, and its axes without their channels."""
    for at, axis in enumerate(axes):
        if axis and axis[0] in channels:
            tensor = tensor.narrow(at, tensor.shape[at] // 2, 1)
    return tensor, tuple(() if axis and axis[0] in channels else axis for axis in axes)

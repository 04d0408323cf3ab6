"""Graph attention of PyTorch Geometric: a softmax over the edges that reach a node.

Weights are stored per edge and head, and shown as a map of target nodes × source nodes; pairs without an edge are zero.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

import regard.dispatch.attention as dispatch
from regard.dispatch.attention import Rows
from regard.observation.capture.interception import Adapter, CallEvent, Function
from regard.observation.capture.reading import Reading, Side, UnreadableCall
from regard.observation.capture.storage import StoredTensor
from regard.values.grid import Sizes


@dataclass
class EdgeReading(Reading):
    """The weights of edges (E,h), from sources to targets."""

    weight: StoredTensor  # (E,h)
    sources: StoredTensor  # (E,)
    targets: StoredTensor  # (E,)
    sizes: Sizes
    rows: Side = "position"
    columns: Side = "source"

    @property
    def device(self) -> torch.device:
        return self.weight.tensor.device

    @torch.no_grad()
    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        _, count, nodes, sources = self.sizes
        selected = dispatch.selection("rows", rows, nodes, self.device)
        chosen = dispatch.selection("heads", heads, count, self.device)
        index = torch.arange(nodes, device=self.device)[slice(None) if selected is None else selected]
        weight = self.weight.get()[:, slice(None) if chosen is None else chosen]  # (E, heads)
        weights = weight.new_zeros(weight.shape[1], len(index), sources)
        # Where each node is among the chosen rows; −1: it is not.
        row_of = torch.full((nodes,), -1, device=self.device)
        row_of[index] = torch.arange(len(index), device=self.device)
        rows_of = row_of[self.targets.get()]
        kept = rows_of >= 0
        cells = rows_of[kept] * sources + self.sources.get()[kept]
        weights.flatten(1).index_add_(1, cells, weight[kept].mT.contiguous())
        if len(index.unique()) < len(index):  # a row chosen twice: the last copy holds the weights
            weights = weights[:, row_of[index]]
        return weights[None]


class EdgeSoftmax(Adapter):
    """`torch_geometric.utils.softmax`, where a convolution calls it for its edges."""

    kind = "edge softmax"

    def reading(self, event: CallEvent) -> Reading:
        """The weights, and the edges they belong to, read from the local variables of the calling convolution."""
        weight = event.result
        arguments = dict(zip(("src", "index", "ptr", "num_nodes", "dim"), event.args, strict=False)) | event.kwargs
        edges, size = _edges(len(weight), arguments.get("index"))
        if edges is None:
            return UnreadableCall(
                "edge softmax: the weights were captured, but the edges they belong to were not found."
            )
        sources, targets = edges
        nodes = arguments.get("num_nodes")
        nodes = int(targets.max()) + 1 if not isinstance(nodes, int) else nodes
        source_count = size if size is not None else max(nodes, int(sources.max()) + 1 if len(sources) else 0)
        weight = weight.reshape(len(weight), -1)
        return EdgeReading(
            event.keep.activation(weight, "the weights"),
            event.keep.activation(sources, "the edges"),
            event.keep.activation(targets, "the edges"),
            (1, weight.shape[1], nodes, source_count),
        )

    def silent(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], heads: Sequence[int]) -> Any:
        weight = original(*args, **kwargs)
        keep = torch.ones(weight.shape[1] if weight.dim() > 1 else 1, dtype=weight.dtype, device=weight.device)
        keep[list(heads)] = 0
        return weight * keep.view(-1, *(1,) * (weight.dim() - 2)) if weight.dim() > 1 else weight * keep


def _edges(count: int, index: Tensor | None) -> tuple[tuple[Tensor, Tensor] | None, int | None]:
    """Sources and targets of the edges of a call, found in the frames above it, and the number of source nodes."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        edges = frame.f_locals.get("edge_index")
        if isinstance(edges, Tensor) and edges.dim() == 2 and edges.shape == (2, count):
            size = frame.f_locals.get("size")
            sources, targets = edges[0], edges[1]
            backwards = index is not None and not torch.equal(index, targets) and torch.equal(index, sources)
            if backwards:  # flow="target_to_source"
                sources, targets = targets, sources
            source_count = size[int(backwards)] if isinstance(size, (list, tuple)) and len(size) == 2 else None
            return (sources, targets), source_count if isinstance(source_count, int) else None
        frame = frame.f_back
    return None, None

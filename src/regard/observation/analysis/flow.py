"""Attention flow: the maximum flow from a position of the last layer to a position of the input.

Abnar and Zuidema, 2020, "Quantifying attention flow in transformers", section 3: the layers are a flow network
whose capacities are the weights. An encoder and a decoder are one network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor

from regard.errors import BadValue
from regard.observation.analysis.both_sides import BothSides, both_sides, passed_over
from regard.observation.analysis.layers import Heads, put_together, share_of_residual, stack
from regard.observation.analysis.sites import Rows, SeenLike, SiteLike, blocks, chosen

Edges = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]  # starts, ends, capacities
SCALE = 1 << 29  # capacities are whole numbers of 1/SCALE: the flow is exact for these, in 32 bits
MOST = 1 << 22  # edges


def flow(
    seen: SeenLike,
    rows: Rows = None,
    keys: Rows = None,
    *,
    layers: str | Sequence[str] | None = None,
    heads: Heads = "mean",
    residual: float = 0.5,
    call: int | None = -1,
    batch: int = 0,
) -> Tensor:
    """The largest flow from positions of the last layer to input positions, (rows, keys).

    The capacity from position i of one layer to j of the layer below is Â_ij = r·1 + (1 − r)·A_ij as in `rollout`,
    rounded to 2⁻²⁹. Of an encoder-decoder the columns are those of `rollout`. Each entry is a maximum flow of its own,
    so a row need not sum to 1. Args as for `rollout`;
    `keys` are the positions of the input.
    """
    residual = share_of_residual(residual)
    sides = both_sides(seen, call) if layers is None else None
    if sides is not None:
        ends = chosen(keys, sides.targets + sides.sources)
        return _flow_down(sides, chosen(rows, sides.targets), ends, heads, residual, batch)
    sites, which = stack(seen, layers, call)
    length = sites[0].shape(which)[3]
    if len(sites) * length * length > MOST:
        raise BadValue(
            f"seen: expected a network of at most {MOST} weights, got {len(sites)} layers of {length} × {length}. "
            "Try fewer layers, a shorter input, or rollout, which takes any length."
        )
    edges: list[Edges] = []
    for number, site in enumerate(reversed(sites)):  # node l · length + i is position i after l layers
        edges.append(_edges(_whole(site, heads, residual, which, batch), number * length, (number + 1) * length))
    graph = _graph(edges, (len(sites) + 1) * length)
    starts, ends = chosen(rows, length), chosen(keys, length)
    return _largest(graph, starts, ends, lambda end: len(sites) * length + end)


def _flow_down(sides: BothSides, starts: Tensor, ends: Tensor, heads: str, residual: float, batch: int) -> Tensor:
    """The largest flows from positions of the decoder's last layer to what decoder and encoder read."""
    size = len(sides.decoder) * sides.targets * max(sides.targets, sides.sources)
    size += len(sides.encoder) * sides.sources**2
    if size > MOST:
        raise BadValue(
            f"seen: expected a network of at most {MOST} weights, got about {size}. Try a shorter input, or rollout, "
            "which takes any length."
        )
    graph, targets_end, sources_end = _network(sides, heads, residual, batch)
    targets = sides.targets
    return _largest(
        graph, starts, ends, lambda end: targets_end + end if end < targets else sources_end + end - targets
    )


def _network(sides: BothSides, heads: str, residual: float, batch: int) -> tuple[csr_array, int, int]:
    """All layers as one network, and the first nodes of what decoder and encoder read.

    The decoder's positions after each of its sites come first, from the last site down, then those of the encoder.
    """
    steps, count = len(sides.decoder), sides.targets
    first_source = (steps + 1) * count
    edges: list[Edges] = []
    for number, site in enumerate(reversed(sides.decoder)):
        start, below = number * count, (number + 1) * count
        if sides.crosses(site):
            rows = torch.arange(count)
            over = torch.cat([passed_over(w, heads, residual) for _, w in blocks(site, rows, sides.call, batch)])
            edges.append(_edges(over, start, first_source))
            edges.append(_edges(torch.diag(1 - over.sum(1)), start, below))
        else:
            edges.append(_edges(_whole(site, heads, residual, sides.call, batch), start, below))
    for number, site in enumerate(reversed(sides.encoder)):
        start = first_source + number * sides.sources
        edges.append(_edges(_whole(site, heads, residual, -1, batch), start, start + sides.sources))
    sources_end = first_source + len(sides.encoder) * sides.sources
    return _graph(edges, sources_end + sides.sources), steps * count, sources_end


def _whole(site: SiteLike, heads: str, residual: float, call: int, batch: int) -> Tensor:
    """What one layer passes on, (positions, positions below)."""
    every = torch.arange(site.shape(call)[2])
    return torch.cat([put_together(w, heads, residual, rows) for rows, w in blocks(site, every, call, batch)])


def _edges(table: Tensor, start: int, end: int) -> Edges:
    """The edges from nodes that begin at `start` to nodes that begin at `end`."""
    capacities = (table * SCALE).round().numpy().astype(np.int32)
    rows, columns = np.nonzero(capacities)
    return (rows + start).astype(np.int32), (columns + end).astype(np.int32), capacities[rows, columns]


def _graph(edges: list[Edges], nodes: int) -> csr_array:
    starts, ends, capacities = (np.concatenate(columns) for columns in zip(*edges, strict=True))
    return csr_array((capacities, (starts, ends)), shape=(nodes, nodes), dtype=np.int32)


def _largest(graph: csr_array, starts: Tensor, ends: Tensor, node: Callable[[int], int]) -> Tensor:
    """The largest flow from each start to the node of each end."""
    flows = torch.zeros(len(starts), len(ends), dtype=torch.float64)
    for i, start in enumerate(starts.tolist()):
        for j, end in enumerate(ends.tolist()):
            flows[i, j] = maximum_flow(graph, start, node(end)).flow_value / SCALE
    return flows

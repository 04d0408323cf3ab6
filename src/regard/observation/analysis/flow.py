"""Attention flow: the maximum flow from a position of the last layer to a position of the input.

Abnar and Zuidema, 2020, "Quantifying attention flow in transformers", section 3: the layers are a flow network
whose capacities are the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor

from regard.errors import BadValue
from regard.observation.analysis.both_sides import both_sides
from regard.observation.analysis.flow_both_sides import flow_down
from regard.observation.analysis.layers import Heads, put_together, share_of_residual, stack
from regard.observation.analysis.sites import Rows, SeenLike, SiteLike, blocks, chosen

Capacities = NDArray[np.int32]
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
        return flow_down(sides, chosen(rows, sides.targets), ends, heads, residual, batch)
    sites, which = stack(seen, layers, call)
    length = sites[0].shape(which)[3]
    if len(sites) * length * length > MOST:
        raise BadValue(
            f"seen: expected a network of at most {MOST} weights, got {len(sites)} layers of {length} × {length}. "
            "Try fewer layers, a shorter input, or rollout, which takes any length."
        )
    starts, ends = chosen(rows, length), chosen(keys, length)
    graph = _graph([_capacities(site, heads, residual, which, batch) for site in reversed(sites)])
    found = torch.zeros(len(starts), len(ends), dtype=torch.float64)
    for i, start in enumerate(starts.tolist()):
        for j, end in enumerate(ends.tolist()):
            found[i, j] = maximum_flow(graph, start, len(sites) * length + end).flow_value / SCALE
    return found


def _capacities(site: SiteLike, heads: str, residual: float, call: int, batch: int) -> Capacities:
    """One layer's capacities (positions, positions below) as integers."""
    every = torch.arange(site.shape(call)[2])
    parts = [put_together(weights, heads, residual, rows) for rows, weights in blocks(site, every, call, batch)]
    return (torch.cat(parts) * SCALE).round().numpy().astype(np.int32)


def _graph(layers: list[Capacities]) -> csr_array:
    """All layers, from the last down: node l · length + i is position i after l layers."""
    length = len(layers[0])
    starts, ends, widths = [], [], []
    for number, table in enumerate(layers):
        start, end = np.nonzero(table)
        starts.append(start + number * length)
        ends.append(end + (number + 1) * length)
        widths.append(table[start, end])
    nodes = (len(layers) + 1) * length
    edges = (np.concatenate(starts).astype(np.int32), np.concatenate(ends).astype(np.int32))
    return csr_array((np.concatenate(widths), edges), shape=(nodes, nodes), dtype=np.int32)

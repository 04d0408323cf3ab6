"""The largest flows through an encoder and a decoder as one network."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor

from regard.errors import BadValue
from regard.observation.analysis.both_sides import BothSides, passed_over
from regard.observation.analysis.layers import put_together
from regard.observation.analysis.sites import SiteLike, blocks

SCALE = 1 << 29  # capacities of a flow are whole numbers of 1/SCALE
MOST = 1 << 22  # edges of a flow


def flow_down(sides: BothSides, starts: Tensor, ends: Tensor, heads: str, residual: float, batch: int) -> Tensor:
    """The largest flows from positions of the decoder's last layer to what decoder and encoder read."""
    size = len(sides.decoder) * sides.targets * max(sides.targets, sides.sources)
    size += len(sides.encoder) * sides.sources**2
    if size > MOST:
        raise BadValue(
            f"seen: expected a network of at most {MOST} weights, got about {size}. Try a shorter input, or rollout, "
            "which takes any length."
        )
    graph, targets_end, sources_end = _network(sides, heads, residual, batch)
    found = torch.zeros(len(starts), len(ends), dtype=torch.float64)
    for i, start in enumerate(starts.tolist()):
        for j, end in enumerate(ends.tolist()):
            node = targets_end + end if end < sides.targets else sources_end + end - sides.targets
            found[i, j] = maximum_flow(graph, start, node).flow_value / SCALE
    return found


def _network(sides: BothSides, heads: str, residual: float, batch: int) -> tuple[csr_array, int, int]:
    """All layers as one network, and the first nodes of what decoder and encoder read.

    The decoder's positions after each of its sites come first, from the last site down, then those of the encoder.
    """
    steps, count = len(sides.decoder), sides.targets
    targets_end = steps * count
    first_source = (steps + 1) * count
    edges: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for number, site in enumerate(reversed(sides.decoder)):
        here, below = number * count, (number + 1) * count
        rows = torch.arange(count)
        if sides.crosses(site):
            over = torch.cat([passed_over(w, heads, residual) for _, w in blocks(site, rows, sides.call, batch)])
            edges.append(_edges(over, here, first_source))
            edges.append(_edges(torch.diag(1 - over.sum(1)), here, below))
        else:
            edges.append(_edges(_whole(site, heads, residual, sides.call, batch), here, below))
    for number, site in enumerate(reversed(sides.encoder)):
        here = first_source + number * sides.sources
        edges.append(_edges(_whole(site, heads, residual, -1, batch), here, here + sides.sources))
    sources_end = first_source + len(sides.encoder) * sides.sources
    nodes = sources_end + sides.sources
    starts, ends, widths = (np.concatenate(part) for part in zip(*edges, strict=True))
    graph = csr_array((widths, (starts, ends)), shape=(nodes, nodes), dtype=np.int32)
    return graph, targets_end, sources_end


def _whole(site: SiteLike, heads: str, residual: float, call: int, batch: int) -> Tensor:
    every = torch.arange(site.shape(call)[2])
    return torch.cat([put_together(w, heads, residual, rows) for rows, w in blocks(site, every, call, batch)])


def _edges(table: Tensor, start: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    widths = (table * SCALE).round().numpy().astype(np.int32)
    rows, columns = np.nonzero(widths)
    return (rows + start).astype(np.int32), (columns + end).astype(np.int32), widths[rows, columns]

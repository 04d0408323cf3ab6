"""The edges of a graph, sorted so that the edges into a node, and those out of a node, are each one range."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import BadType, BadValue
from regard.support.arguments import INTEGERS, described, whole_number


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges from source nodes to target nodes, each once, in the order of their targets.

    A target attends to its sources. `Edges.of` builds one; build it once where many calls share a graph.
    """

    sources: Tensor  # (e,)
    targets: Tensor  # (e,), rising
    into: Tensor  # (n + 1,): the edges into node i are into[i] … into[i + 1] − 1
    by_source: Tensor  # (e,): the edges in the order of their sources
    out_of: Tensor  # (m + 1,): the edges out of node j are by_source[out_of[j] … out_of[j + 1] − 1]

    @classmethod
    def of(cls, pairs: Tensor, nodes: int, sources: int | None = None, loops: bool = False) -> Edges:
        """Edges from pairs (2,e) of nodes (from, to).

        An edge that is given twice counts once.

        Args:
            nodes: the number of target nodes.
            sources: the number of source nodes; None: sources and targets are the same nodes.
            loops: also add an edge from each node to itself.
        """
        if not isinstance(pairs, Tensor) or pairs.dtype not in INTEGERS:
            raise BadType(f"edges: expected whole numbers (2,e), got {described(pairs)}.")
        if pairs.dim() != 2 or pairs.shape[0] != 2:
            hint = " Transpose it." if pairs.dim() == 2 and pairs.shape[1] == 2 else ""
            raise BadValue(f"edges: expected pairs (2,e) of nodes (from, to), got {described(pairs)}.{hint}")
        nodes = whole_number("nodes", nodes, 0)
        source_count = nodes if sources is None else whole_number("sources", sources, 0)
        if loops and source_count != nodes:
            raise BadValue(f"loops: {source_count} source nodes and {nodes} target nodes are not the same nodes.")
        start, end = pairs.long()
        for name, ends, count in (("from", start, source_count), ("to", end, nodes)):
            if len(ends) and not (int(ends.min()) >= 0 and int(ends.max()) < count):
                wrong = int(((ends < 0) | (ends >= count)).nonzero()[0])
                raise BadValue(
                    f"edges: edge {wrong} goes {name} node {int(ends[wrong])}, but nodes are 0 to {count - 1}. "
                    "Remove the edge, or add the node."
                )
        if loops:
            every = torch.arange(nodes, device=pairs.device)
            start, end = torch.cat([start, every]), torch.cat([end, every])
        codes = torch.unique(end * max(1, source_count) + start)  # sorted
        start, end = codes % max(1, source_count), codes // max(1, source_count)
        order = torch.argsort(start, stable=True)
        return cls(start, end, _begins(end, nodes), order, _begins(start[order], source_count))

    @property
    def nodes(self) -> int:
        """The number of target nodes."""
        return len(self.into) - 1

    @property
    def source_nodes(self) -> int:
        """The number of source nodes."""
        return len(self.out_of) - 1

    def __len__(self) -> int:
        return len(self.sources)

    def pairs(self) -> Tensor:
        """(2,e): from, to, in the order in which weights of edges are returned."""
        return torch.stack([self.sources, self.targets])

    def to(self, device: torch.device | str) -> Edges:
        """The same edges on another device."""
        tensors = (self.sources, self.targets, self.into, self.by_source, self.out_of)
        return Edges(*(tensor.to(device) for tensor in tensors))


def _begins(rising: Tensor, count: int) -> Tensor:
    """Where the run of each of 0 … count − 1 begins in sorted numbers, and the end, (count + 1,)."""
    return torch.searchsorted(rising, torch.arange(count + 1, device=rising.device))

"""How the oracle finds a softmax over the edges of a graph: exponentials divided by their sums at each node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from tests.architectures.oracle import Marks, Oracle

SCATTERS = {
    "scatter_add",
    "scatter_add_",
    "index_add",
    "index_add_",
    "scatter_reduce",
    "scatter_reduce_",
    "segment_reduce",
    "_segment_reduce",
}


def follow(oracle: Oracle, name: str, found: list[Marks], outputs: list[Tensor], after: Marks) -> Any:
    """Follow exponentials through an operation; returns a call where a softmax is complete.

    Weights of edges that are multiplied with what the edges carry and then summed over each node have mixed.
    """
    if name in SCATTERS:
        after.sums = frozenset().union(*(mark.exponents for mark in found))
        oracle.count(after.weighted, name)
        after.weighted = frozenset()
        return None
    if name == "exp":
        oracle.exponentials += 1
        after.exponents = frozenset([oracle.exponentials])
        return None
    after.exponents = frozenset().union(*(mark.exponents for mark in found))
    after.sums = frozenset().union(*(mark.sums for mark in found))
    if name in ("div", "true_divide") and len(found) == 2 and found[0].exponents & found[1].sums:
        after.exponents = after.sums = frozenset()
        return oracle.call("written out", "softmax over edges", tuple(outputs[0].shape), 0)
    return None

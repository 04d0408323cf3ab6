"""Attention along the edges of a graph, in memory linear in edges and nodes: `attend_edges` and `edge_weights`."""

from __future__ import annotations

from torch import Tensor

from regard.errors import BadType, BadValue, Unsupported, unknown_name
from regard.formula.dropout import draw_seed
from regard.formula.edges import Edges
from regard.formula.formula import accumulation_dtype
from regard.implementations import HAS_TRITON
from regard.implementations import edges as plain
from regard.support.arguments import described, finite_number, float_tensor
from regard.support.autocast import without_autocast
from regard.support.differentiate import needs_plain_torch

NAMES = ("auto", "reference", "torch", "triton")


def attend_edges(
    left: Tensor,
    right: Tensor,
    value: Tensor,
    edges: Edges,
    *,
    weight: Tensor | None = None,
    slope: float = 0.2,
    dropout: float = 0.0,
    impl: str = "auto",
) -> Tensor:
    """Each node attends to the nodes from which an edge leads to it: (n,h,c).

        s_ij = weight · LeakyReLU(left_i + right_j),   o_i = Σ_j softmax_j(s_ij) value_j,   j → i an edge

    A node without edges gets zeros. Nothing of edges × width is stored.

    Args:
        left: (n,h,a), the part of the target nodes in the score.
        right: (m,h,a), the part of the source nodes.
        value: (m,h,c), what the source nodes contribute.
        edges: which nodes attend to which.
        weight: (h,a); None: the sum over a.
        slope: of the LeakyReLU for negative numbers.
        dropout: the share of weights to drop; acts whenever it is above 0.
        impl: auto, reference (the formula on all edges at once), torch (in pieces) or triton (kernels of ours).

    >>> import torch
    >>> from regard.formula.edges import Edges
    >>> pairs = torch.tensor([[1, 2, 2], [0, 0, 1]])
    >>> nothing, value = torch.zeros(3, 1, 1), torch.tensor([[[1.0]], [[2.0]], [[4.0]]])
    >>> attend_edges(nothing, nothing, value, Edges.of(pairs, 3)).flatten()
    tensor([3., 4., 0.])
    """
    _check(left, right, value, weight, edges)
    slope = finite_number("slope", slope)
    if impl not in NAMES:
        raise unknown_name("impl", impl, NAMES)
    dtype = accumulation_dtype(left.dtype)
    with without_autocast(left.device):
        ends = left.to(dtype), right.to(dtype), value.to(dtype)
        heads = None if weight is None else weight.to(dtype)
        seed = draw_seed(left.device) if dropout > 0 else None
        compared = plain.Compared(*ends, heads, slope, edges, dropout, seed)
        chosen = _chosen(impl, left)
        if chosen == "reference":
            return plain.reference(compared).to(left.dtype)
        if chosen == "torch":
            return plain.run(compared, plain.IN_PIECES).to(left.dtype)
        from regard.implementations.triton import edges as kernels

        return plain.run(compared, kernels.KERNELS).to(left.dtype)


def edge_weights(
    left: Tensor, right: Tensor, edges: Edges, *, weight: Tensor | None = None, slope: float = 0.2
) -> Tensor:
    """The weight of each edge and head, (e,h), in the order of `edges`, before dropout; differentiable."""
    _check(left, right, right, weight, edges)
    dtype = accumulation_dtype(left.dtype)
    with without_autocast(left.device):
        heads = None if weight is None else weight.to(dtype)
        scored = plain.scores(left.to(dtype), right.to(dtype), heads, slope, edges)
        return plain.normalized(scored, edges).to(left.dtype)


def _chosen(impl: str, left: Tensor) -> str:
    """The implementation that runs."""
    if impl == "auto":
        if needs_plain_torch():
            return "reference"
        return "triton" if left.device.type == "cuda" and HAS_TRITON else "torch"
    if impl == "triton" and not HAS_TRITON:
        raise Unsupported("impl='triton' cannot run: Triton is not installed; impl='auto' runs everywhere.")
    if impl != "reference" and needs_plain_torch():
        raise Unsupported(
            f"impl={impl!r} has no rule for transforms of torch.func and forward-mode differentiation. "
            "impl='reference' has."
        )
    return impl


def _check(left: Tensor, right: Tensor, value: Tensor, weight: Tensor | None, edges: Edges) -> None:
    named = {"left": left, "right": right, "value": value}
    shapes = {name: tuple(float_tensor(name, tensor).shape) for name, tensor in named.items()}
    if not isinstance(edges, Edges):
        raise BadType(f"edges: expected Edges, got {described(edges)}. Edges.of(pairs, nodes) makes them.")
    rows = {"left": edges.nodes, "right": edges.source_nodes, "value": edges.source_nodes}
    for name, shape in shapes.items():
        if len(shape) != 3 or shape[:2] != (rows[name], shapes["left"][1 % len(shapes["left"])]):
            raise BadValue(
                f"{name}: expected (nodes, heads, width) with {rows[name]} nodes and the heads of left, got {shape}."
            )
        if named[name].dtype != left.dtype:
            raise BadType(f"{name}: expected the dtype of left, {left.dtype}, got {named[name].dtype}.")
    if shapes["right"] != (edges.source_nodes, *shapes["left"][1:]):
        raise BadValue(f"right: expected the heads and width of left {shapes['left']}, got {shapes['right']}.")
    if weight is not None and tuple(float_tensor("weight", weight).shape) != shapes["left"][1:]:
        raise BadValue(f"weight: expected (heads, width) = {shapes['left'][1:]}, got {tuple(weight.shape)}.")

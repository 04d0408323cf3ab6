"""Attention over the edges of a graph in plain torch: a softmax over the edges into each node.

    s_e = weight · LeakyReLU(left_t + right_s),   w_e = softmax over the edges into t,   o_t = Σ_e w_e value_s

for each edge e from s to t. No array of edges × width is ever whole: what is a function of pairs of rows goes in pieces
of edges through two buffers, and the sum over the edges into a node is torch's `embedding_bag`, which reads the rows of
`value` in place. What remains for the backward pass is one number for each edge and head. Every sum is taken in the
order of the edges, so equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.formula.dropout import kept_factors
from regard.formula.edges import Edges
from regard.formula.formula import zeros_with_infinite_slope
from regard.support.arguments import readable
from regard.support.batched_gradients import for_one_gradient
from regard.support.differentiate import fresh_views, gradients, recorded, summation_dtype

_CELLS = 1 << 18  # numbers in a buffer of a piece: about a megabyte of float32, which stays in the cache of a core
_MORE = 16  # times as many on a GPU, where a piece must occupy the device


def scores(left: Tensor, right: Tensor, weight: Tensor | None, slope: float, edges: Edges) -> Tensor:
    """The score of each edge, (e,h), in plain differentiable torch."""
    compared = left.index_select(0, edges.targets) + right.index_select(0, edges.sources)
    return _weighed(F.leaky_relu(compared, slope), weight)


def normalized(scored: Tensor, edges: Edges) -> Tensor:
    """Softmax of scores (e,h) over the edges into each node, in plain differentiable torch."""
    index = edges.targets[:, None].expand_as(scored)
    top = scored.new_full((edges.nodes, scored.shape[1]), -torch.inf)
    top = top.scatter_reduce(0, index, scored.detach(), "amax")
    powers = (scored - top.index_select(0, edges.targets)).exp()
    total = powers.new_zeros(top.shape).index_add(0, edges.targets, powers)
    return powers / total.index_select(0, edges.targets)


class Compared(NamedTuple):
    """What an attention along edges computes with."""

    left: Tensor  # (n,h,a)
    right: Tensor  # (m,h,a)
    value: Tensor  # (m,h,c)
    weight: Tensor | None  # (h,a)
    slope: float
    edges: Edges
    dropout: float
    seed: Tensor | None

    def kept(self) -> Tensor | None:
        """What the weights are multiplied by, (e,h): 0 where one is dropped; None without dropout."""
        edges = self.edges
        return kept_factors(edges.targets, edges.sources, self.left.shape[1], self.seed, self.dropout, self.left.dtype)


def reference(compared: Compared) -> Tensor:
    """The formula on whole arrays of edges. It defines the result, and can be differentiated any number of times.

    As in `formula.RowWeights`, the recorded output of a node that is not finite is that of finite numbers, so that no
    0 · NaN reaches the gradients of others.
    """
    left, right, value, weight, slope, edges, *_ = compared
    kept = compared.kept()

    def output(sums: Tensor, value: Tensor) -> Tensor:
        weights = normalized(_weighed(F.leaky_relu(sums, slope), weight), edges)
        return _into_nodes(
            (weights if kept is None else weights * kept)[..., None] * value.index_select(0, edges.sources), edges
        )

    sums = left.index_select(0, edges.targets) + right.index_select(0, edges.sources)
    exact = output(sums, value)
    if not recorded():
        return exact
    lost = ~exact.detach().isfinite().all(-1, keepdim=True)  # (n,h,1)
    if readable(lost) and not bool(lost.any()):
        return exact
    clean = output(sums.masked_fill(lost.index_select(0, edges.targets), 0), _finite(value))
    slopes = [zeros_with_infinite_slope(_finite(rows)) for rows in (left, right, value)]
    of_targets, of_sources = slopes[0].sum(-1, keepdim=True), slopes[1].sum(-1, keepdim=True) + slopes[2]
    poison = of_targets.index_select(0, edges.targets) + of_sources.index_select(0, edges.sources)
    if weight is not None:
        poison = poison + zeros_with_infinite_slope(_finite(weight)).sum(-1, keepdim=True)
    return torch.where(lost, exact.detach(), clean) + torch.where(lost, _into_nodes(poison, edges), 0)


def _into_nodes(rows: Tensor, edges: Edges) -> Tensor:
    """Rows of edges (e,h,c), summed for each target, (n,h,c)."""
    return rows.new_zeros(edges.nodes, *rows.shape[1:]).index_add(0, edges.targets, rows)


def _finite(rows: Tensor) -> Tensor:
    return rows.masked_fill(~rows.detach().isfinite(), 0)


class Passes(NamedTuple):
    """How the output and the gradients are computed: by plain torch, or by kernels."""

    # The output (n,h,c), and what the backward pass needs besides.
    forward: Callable[[Compared], tuple[Tensor, list[Tensor | None]]]
    # From the gradient of the output, the output and the rest: the gradients of left, right, value and weight.
    backward: Callable[[Compared, Tensor, Tensor, list[Tensor | None]], Sequence[Tensor | None]]


def run(compared: Compared, passes: Passes) -> Tensor:
    """The numbers of `reference` in memory linear in edges + nodes × width."""
    left, right, value, weight, *edge_lists = compared
    output: Tensor = EdgeAttention.apply(passes, edge_lists, left, right, value, weight)
    return output


class EdgeAttention(torch.autograd.Function):
    """Attention along edges by one of the `Passes`; by the formula where the backward pass is itself recorded."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, rest: Sequence[Any], *inputs: Any) -> Tensor:
        compared = Compared(*inputs, *rest)
        output, needed = passes.forward(compared)
        ctx.passes, ctx.rest = passes, rest
        ctx.save_for_backward(*inputs, output, *needed)
        return output

    @staticmethod
    @for_one_gradient
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        inputs, (output, *needed) = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        if torch.is_grad_enabled():
            views: list[Any] = fresh_views(inputs)
            again = reference(Compared(*views, *ctx.rest))
            return (None, None, *gradients([(again, grad)], views, again=True))
        return (None, None, *ctx.passes.backward(Compared(*inputs, *ctx.rest), grad.contiguous(), output, needed))


def _forward(compared: Compared) -> tuple[Tensor, list[Tensor | None]]:
    left, right, value, weight, slope, edges, *_ = compared
    weights, kept = _softmax(_scores(left, right, weight, slope, edges), edges), compared.kept()
    used = weights if kept is None else weights * kept
    return _sum(used, value, edges.sources, edges.into), [weights, kept]


def _backward(
    compared: Compared, grad: Tensor, output: Tensor, needed: list[Tensor | None]
) -> tuple[Tensor | None, ...]:
    left, right, value, weight, slope, edges, *_ = compared
    weights, kept = needed
    assert weights is not None
    wanted_edges = _asked(grad, weights, output, edges)
    weights = weights if wanted_edges is None else torch.where(wanted_edges, weights, 0)
    used = weights if kept is None else weights * kept
    grad_value = _sum(used.index_select(0, edges.by_source), grad, edges.targets[edges.by_source], edges.out_of)
    slopes = _dots(grad, value, edges)
    slopes = slopes if kept is None else slopes.mul_(kept)
    past = (grad * output).sum(-1).index_select(0, edges.targets)
    slopes = slopes.sub_(past).mul_(weights)  # of the scores, (e,h)
    slopes = slopes if wanted_edges is None else torch.where(wanted_edges, slopes, 0)
    grad_left, grad_right, grad_weight = _score_gradients(left, right, weight, slope, edges, slopes, wanted_edges)
    return grad_left, grad_right, grad_value, grad_weight


IN_PIECES = Passes(_forward, _backward)


def _asked(grad: Tensor, found: Tensor, output: Tensor, edges: Edges) -> Tensor | None:
    """Whether the target of each edge has a gradient, (e,h); None where that makes no difference.

    A row whose gradient is zero contributes nothing, even where its weights or values are NaN: 0 · NaN would be NaN.
    """
    if readable(found) and bool(found.isfinite().all()) and bool(output.isfinite().all()):
        return None
    return (grad != 0).any(-1).index_select(0, edges.targets)


def _scores(left: Tensor, right: Tensor, weight: Tensor | None, slope: float, edges: Edges) -> Tensor:
    """`scores`, piece by piece."""
    edge_scores = left.new_empty(len(edges), left.shape[1])
    for piece, targets, sources in _pieces(left, right, edges):
        torch.sum(_times(F.leaky_relu_(targets.add_(sources), slope), weight), -1, out=edge_scores[piece])
    return edge_scores


def _softmax(scored: Tensor, edges: Edges) -> Tensor:
    """`normalized` in place."""
    if not len(edges):
        return scored
    top = torch.segment_reduce(scored, "max", offsets=edges.into, axis=0)
    powers = scored.sub_(top.index_select(0, edges.targets)).exp_()
    total = torch.segment_reduce(powers, "sum", offsets=edges.into, axis=0)
    return powers.div_(total.index_select(0, edges.targets))


def _sum(weights: Tensor, rows: Tensor, index: Tensor, begins: Tensor) -> Tensor:
    """Σ over the edges of each range of weights (e,h) times rows (n,h,c), those that `index` names: (ranges,h,c)."""
    sums = rows.new_zeros(len(begins) - 1, *rows.shape[1:])
    if len(index):
        for head in range(rows.shape[1]):
            sums[:, head] = F.embedding_bag(
                index,
                rows[:, head].contiguous(),
                begins,
                mode="sum",
                per_sample_weights=weights[:, head].contiguous(),
                include_last_offset=True,
            )
    return sums


def _dots(targets: Tensor, sources: Tensor, edges: Edges) -> Tensor:
    """The dot product of the target's and the source's row for each edge, (e,h)."""
    dots = targets.new_empty(len(edges), targets.shape[1])
    for piece, target, source in _pieces(targets, sources, edges):
        torch.sum(target.mul_(source), -1, out=dots[piece])
    return dots


def _score_gradients(
    left: Tensor, right: Tensor, weight: Tensor | None, slope: float, edges: Edges, slopes: Tensor, asked: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of left, right and weight, given those of the scores."""
    if weight is None and left.shape[2] == 1 and len(edges):  # arrays of one number for each edge and head
        steep = _steep(_scores(left, right, None, 1.0, edges), slopes, slope, asked)
        ordered = steep.index_select(0, edges.by_source)
        ends = ((steep, edges.into), (ordered, edges.out_of))
        by_end = [torch.segment_reduce(slopes_by_end, "sum", offsets=begins, axis=0) for slopes_by_end, begins in ends]
        return by_end[0][..., None], by_end[1][..., None], None
    grad_left, grad_right = torch.zeros_like(left), torch.zeros_like(right)
    of_weight = None if weight is None else torch.zeros_like(weight, dtype=summation_dtype(weight))
    for piece, targets, sources in _pieces(left, right, edges):
        compared, edge_slopes = targets.add_(sources), slopes[piece][..., None]
        pull = edge_slopes if weight is None else torch.mul(edge_slopes, weight, out=sources)
        steep = _steep(compared, pull, slope, None if asked is None else asked[piece][..., None])
        if of_weight is not None:
            of_weight += (F.leaky_relu_(compared, slope) * edge_slopes).sum(0, dtype=of_weight.dtype)
        grad_left.index_add_(0, edges.targets[piece], steep)
        grad_right.index_add_(0, edges.sources[piece], steep)
    return grad_left, grad_right, None if weight is None else of_weight.to(weight.dtype)  # type: ignore[union-attr]


def _steep(compared: Tensor, grad: Tensor, slope: float, asked: Tensor | None) -> Tensor:
    """The gradient through the LeakyReLU of `compared`, which is set to 0 where it is not asked for."""
    if asked is not None:
        compared.masked_fill_(~asked, 0)
    gradient: Tensor = torch.ops.aten.leaky_relu_backward(grad, compared, slope, False)
    return gradient


def _pieces(left: Tensor, right: Tensor, edges: Edges) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Pieces of the edges, with the rows of their targets and of their sources in buffers that may be written to."""
    width = max(1, left.shape[1] * left.shape[2])
    most = max(1, _CELLS * (1 if left.device.type == "cpu" else _MORE) // width)
    most = min(most, max(1, len(edges)))
    buffers = left.new_empty(2, most, *left.shape[1:])
    for begin in range(0, len(edges), most):
        piece = slice(begin, min(begin + most, len(edges)))
        targets, sources = buffers[:, : piece.stop - begin]
        torch.index_select(left, 0, edges.targets[piece], out=targets)
        torch.index_select(right, 0, edges.sources[piece], out=sources)
        yield piece, targets, sources


def _weighed(compared: Tensor, weight: Tensor | None) -> Tensor:
    """(e,h,a) times weights (h,a), summed over a."""
    return _times(compared, weight).sum(-1)


def _times(compared: Tensor, weight: Tensor | None) -> Tensor:
    return compared if weight is None else compared * weight

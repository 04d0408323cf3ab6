"""Attention over the edges of a graph by kernels: one program for each node and block of heads.

The forward kernel goes over the edges into a node, with an online softmax. The backward pass goes over the edges into
each node once more (gradients of `left` and `weight`), and over the edges out of each node (gradients of `right` and
`value`). Nothing is stored for an edge, and no sum is shared between programs: equal inputs give equal bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.implementations.edges import Compared, Passes
from regard.implementations.lowering import constant
from regard.implementations.triton.launch.device_functions import dropout_keeps, row_state
from regard.implementations.triton.launch.launching import launch
from regard.support.differentiate import summation_dtype

_TILE = 2048  # numbers of a piece of edges in one program
_DATA = ["heads", "threshold"]  # whole numbers; NUMBERS holds slope and factor in the dtype of the rows


@triton.jit
def _weighed(compared, weight, slope, WEIGHTED: tl.constexpr):
    """The scores (e,h) of compared rows (e,h,a)."""
    found = tl.where(compared > 0, compared, compared * slope)
    if WEIGHTED:
        found = found * weight
    return tl.sum(found, 2)


@triton.jit
def _rows(START, index, head, across, heads, real, WIDTH: tl.constexpr):
    """The rows (e,h,width) of some nodes; zeros where `real` (e,) is False, beyond the heads and beyond the width."""
    at = START + (index[:, None] * heads + head[None, :])[:, :, None] * WIDTH + across[None, None, :]
    inside = (real[:, None] & (head < heads)[None, :])[:, :, None] & (across < WIDTH)[None, None, :]
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _own_rows(START, node, head, across, heads, WIDTH: tl.constexpr):
    """The rows (1,h,width) of one node."""
    return _rows(START, node + tl.zeros([1], tl.int64), head, across, heads, tl.full([1], 1, tl.int1), WIDTH)


@triton.jit
def _begun(
    OWN, WEIGHT, FIRST, heads, A: tl.constexpr, HEADS: tl.constexpr, ACROSS: tl.constexpr, WEIGHTED: tl.constexpr
):
    """What each program begins with: its node, heads and range of edges, the node's own row and the weight (1,h,a).

    OWN: the rows that the node is compared by. FIRST: the first edge of each node, and the end of the last one's.
    """
    node = tl.program_id(0).to(tl.int64)
    head, a = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, ACROSS)
    own = _own_rows(OWN, node, head, a, heads, A)
    weight = own
    if WEIGHTED:
        weight = _own_rows(WEIGHT, node * 0, head, a, heads, A)
    return node, head, own, weight, tl.load(FIRST + node), tl.load(FIRST + node + 1)


@triton.jit(do_not_specialize=_DATA)
def _forward(
    LEFT, RIGHT, VALUE, WEIGHT, SOURCES, INTO, SEED, OUT, LSE, NUMBERS, heads, threshold,
    A: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr, ACROSS: tl.constexpr, WIDE: tl.constexpr,
    EDGES: tl.constexpr, WEIGHTED: tl.constexpr, DROPS: tl.constexpr,
):
    node, head, left, weight, start, stop = _begun(LEFT, WEIGHT, INTO, heads, A, HEADS, ACROSS, WEIGHTED)
    slope, keep = tl.load(NUMBERS), tl.load(NUMBERS + 1)
    a, c = tl.arange(0, ACROSS), tl.arange(0, WIDE)
    top = tl.full([HEADS], float("-inf"), left.dtype)
    total, sums = tl.zeros([HEADS], left.dtype), tl.zeros([HEADS, WIDE], left.dtype)
    for begin in range(start, stop, EDGES):
        edge = begin + tl.arange(0, EDGES)
        real = edge < stop
        source = tl.load(SOURCES + edge, mask=real, other=0)
        scores = _weighed(left + _rows(RIGHT, source, head, a, heads, real, A), weight, slope, WEIGHTED)
        scores = tl.where(real[:, None], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 0))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights, fade = tl.exp(scores - shift[None, :]), tl.exp(top - shift)
        total = total * fade + tl.sum(weights, 0)
        if DROPS:
            state = row_state(tl.load(SEED), node * 0, head, node)
            kept = dropout_keeps(state[None, :], source[:, None], threshold)
            weights = tl.where(kept, weights * keep, 0.0)
        value = _rows(VALUE, source, head, c, heads, real, C)
        sums = sums * fade[:, None] + tl.sum(weights[:, :, None] * value, 0)
        top = higher
    total = tl.where(total == 0.0, 1.0, total)  # a node without edges
    place = node * heads + head
    tl.store(LSE + place, top + tl.log(total), mask=head < heads)
    inside = (head < heads)[:, None] & (c < C)[None, :]
    tl.store(OUT + place[:, None] * C + c[None, :], sums / total[:, None], mask=inside)


@triton.jit(do_not_specialize=_DATA)
def _by_target(
    LEFT, RIGHT, VALUE, WEIGHT, SOURCES, INTO, SEED, LSE, GRAD, PAST, GRAD_LEFT, PARTS, NUMBERS, heads, threshold,
    A: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr, ACROSS: tl.constexpr, WIDE: tl.constexpr,
    EDGES: tl.constexpr, WEIGHTED: tl.constexpr, DROPS: tl.constexpr,
):
    """The gradient of `left`, and each node's part in that of `weight`."""
    node, head, left, weight, start, stop = _begun(LEFT, WEIGHT, INTO, heads, A, HEADS, ACROSS, WEIGHTED)
    slope, keep = tl.load(NUMBERS), tl.load(NUMBERS + 1)
    a, c = tl.arange(0, ACROSS), tl.arange(0, WIDE)
    grad = _own_rows(GRAD, node, head, c, heads, C)  # (1,h,c)
    place = node * heads + head
    lse = tl.load(LSE + place, mask=head < heads, other=0.0)
    past = tl.load(PAST + place, mask=head < heads, other=0.0)
    asked = tl.sum(tl.where(grad != 0.0, 1, 0), 2) > 0  # (1,h): 0 · NaN must stay 0
    found, part = tl.zeros([HEADS, ACROSS], left.dtype), tl.zeros([HEADS, ACROSS], left.dtype)
    for begin in range(start, stop, EDGES):
        edge = begin + tl.arange(0, EDGES)
        real = edge < stop
        source = tl.load(SOURCES + edge, mask=real, other=0)
        compared = left + _rows(RIGHT, source, head, a, heads, real, A)
        weights = tl.exp(_weighed(compared, weight, slope, WEIGHTED) - lse[None, :])
        slopes = tl.sum(grad * _rows(VALUE, source, head, c, heads, real, C), 2)
        if DROPS:
            state = row_state(tl.load(SEED), node * 0, head, node)
            kept = dropout_keeps(state[None, :], source[:, None], threshold)
            slopes = tl.where(kept, slopes * keep, 0.0)
        counts = real[:, None] & asked
        slopes = tl.where(counts, weights * (slopes - past[None, :]), 0.0)[:, :, None]
        steep = tl.where(compared > 0, slopes, slopes * slope)
        if WEIGHTED:
            steep = steep * weight
            shown = tl.where(compared > 0, compared, compared * slope)
            part += tl.sum(slopes * tl.where(counts[:, :, None], shown, 0.0), 0)
        found += tl.sum(steep, 0)
    inside = (head < heads)[:, None] & (a < A)[None, :]
    tl.store(GRAD_LEFT + place[:, None] * A + a[None, :], found, mask=inside)
    if WEIGHTED:
        tl.store(PARTS + place[:, None] * A + a[None, :], part, mask=inside)


@triton.jit(do_not_specialize=_DATA)
def _by_source(
    LEFT, RIGHT, VALUE, WEIGHT, TARGETS, OUT_OF, SEED, LSE, GRAD, PAST, GRAD_RIGHT, GRAD_VALUE,
    NUMBERS, heads, threshold,
    A: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr, ACROSS: tl.constexpr, WIDE: tl.constexpr,
    EDGES: tl.constexpr, WEIGHTED: tl.constexpr, DROPS: tl.constexpr,
):
    """The gradients of `right` and `value`."""
    node, head, right, weight, start, stop = _begun(RIGHT, WEIGHT, OUT_OF, heads, A, HEADS, ACROSS, WEIGHTED)
    slope, keep = tl.load(NUMBERS), tl.load(NUMBERS + 1)
    a, c = tl.arange(0, ACROSS), tl.arange(0, WIDE)
    value = _own_rows(VALUE, node, head, c, heads, C)
    of_right, of_value = tl.zeros([HEADS, ACROSS], right.dtype), tl.zeros([HEADS, WIDE], right.dtype)
    for begin in range(start, stop, EDGES):
        edge = begin + tl.arange(0, EDGES)
        real = edge < stop
        target = tl.load(TARGETS + edge, mask=real, other=0)
        at = target[:, None] * heads + head[None, :]
        inside = real[:, None] & (head < heads)[None, :]
        lse = tl.load(LSE + at, mask=inside, other=0.0)
        past = tl.load(PAST + at, mask=inside, other=0.0)
        grad = _rows(GRAD, target, head, c, heads, real, C)
        counts = inside & (tl.sum(tl.where(grad != 0.0, 1, 0), 2) > 0)
        compared = right + _rows(LEFT, target, head, a, heads, real, A)
        weights = tl.exp(_weighed(compared, weight, slope, WEIGHTED) - lse)
        weights = tl.where(counts, weights, 0.0)
        slopes, used = tl.sum(grad * value, 2), weights
        if DROPS:
            state = row_state(tl.load(SEED), target[:, None] * 0, head[None, :], target[:, None])
            kept = dropout_keeps(state, node, threshold)
            slopes, used = tl.where(kept, slopes * keep, 0.0), tl.where(kept, weights * keep, 0.0)
        of_value += tl.sum(used[:, :, None] * grad, 0)
        slopes = tl.where(counts, weights * (slopes - past), 0.0)[:, :, None]
        steep = tl.where(compared > 0, slopes, slopes * slope)
        if WEIGHTED:
            steep = steep * weight
        of_right += tl.sum(steep, 0)
    place = (node * heads + head)[:, None]
    inside = (head < heads)[:, None]
    tl.store(GRAD_RIGHT + place * A + a[None, :], of_right, mask=inside & (a < A)[None, :])
    tl.store(GRAD_VALUE + place * C + c[None, :], of_value, mask=inside & (c < C)[None, :])


def _compute(compared: Compared) -> tuple[Tensor, list[Tensor | None]]:
    """The output (n,h,c), and the log-sum-exp of each node and head, for tensors of one dtype, float32 or float64."""
    edges, left = compared.edges, compared.left
    tensors, seed, options, blocks = _arguments(compared)
    output = compared.value.new_empty(edges.nodes, *compared.value.shape[1:])
    lse = left.new_empty(left.shape[:2])
    if output.numel():
        launch(_forward, (edges.nodes, blocks), *tensors, edges.sources, edges.into, seed, output, lse, **options)
    return output, [lse]


def _gradients(
    compared: Compared, grad: Tensor, output: Tensor, needed: list[Tensor | None]
) -> tuple[Tensor | None, ...]:
    edges, weight, (lse,) = compared.edges, compared.weight, needed
    tensors, seed, options, blocks = _arguments(compared)
    past = (grad * output).sum(-1)
    left, right, value = tensors[:3]
    grad_left, grad_right, grad_value = (torch.zeros_like(part) for part in (left, right, value))
    parts = grad_left if weight is None else torch.zeros_like(left)
    if left.numel() and len(edges):
        launch(
            _by_target, (edges.nodes, blocks), *tensors, edges.sources, edges.into, seed, lse, grad, past, grad_left,
            parts, **options,
        )
        ends = edges.targets[edges.by_source]
        launch(
            _by_source, (edges.source_nodes, blocks), *tensors, ends, edges.out_of, seed, lse, grad, past, grad_right,
            grad_value, **options,
        )
    grad_weight = None if weight is None else parts.sum(0, dtype=summation_dtype(parts)).to(weight.dtype)
    return grad_left, grad_right, grad_value, grad_weight


KERNELS = Passes(_compute, _gradients)


def _arguments(compared: Compared) -> tuple[list[Tensor], Tensor, dict[str, Any], int]:
    """The rows and the weight, the seed, the numbers and sizes of a launch, and how many blocks of heads there are."""
    left, right, value = (part.contiguous() for part in compared[:3])
    weight = None if compared.weight is None else compared.weight.contiguous()
    options = _options(left, value, weight, compared.slope, compared.dropout)
    blocks = triton.cdiv(left.shape[1], options["HEADS"])
    seed = compared.edges.into if compared.seed is None else compared.seed  # unused without dropout
    return [left, right, value, left if weight is None else weight], seed, options, blocks


def _options(left: Tensor, value: Tensor, weight: Tensor | None, slope: float, dropout: float) -> dict[str, Any]:
    """The numbers and sizes of a launch."""
    heads, width, wide = left.shape[1], left.shape[2], value.shape[2]
    across, column = triton.next_power_of_2(max(1, width)), triton.next_power_of_2(max(1, wide))
    largest = max(across, column)
    together = max(1, min(triton.next_power_of_2(max(1, heads)), _TILE // (2 * largest)))
    edges = max(2, min(16, _TILE // (together * largest)))
    factor = 1 / (1 - dropout) if dropout < 1 else 0.0
    return {
        "NUMBERS": constant((slope, factor), left.dtype, left.device),  # as arguments they would become float32
        "heads": heads, "threshold": round(dropout * (1 << 32)) - (1 << 31) if dropout < 1 else (1 << 31) - 1,
        "A": width, "C": wide, "HEADS": together, "ACROSS": across, "WIDE": column, "EDGES": edges,
        "WEIGHTED": weight is not None, "DROPS": dropout > 0,
        "num_warps": 1 if edges * together * largest <= 1024 else 2,
    }

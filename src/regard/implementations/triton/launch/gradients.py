"""The gradient of each tensor of a request, from the results of the backward kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.biases import Bias, DenseBias, GaussianBias, RelativeBias, SumBias, T5Bias
from regard.implementations.lowering import by_distance
from regard.implementations.triton.additive.backward import run_backward
from regard.implementations.triton.dot.launches import Backward
from regard.implementations.triton.launch.kernel_work import KernelWork
from regard.support.differentiate import vjp

# Of the query, the key, the value, the sink and the tensors of all values, in order.
Gradients = list[Tensor | None]


def of_additive(
    backward: Backward, bias: Bias | None, first: int, needed: list[bool], found: Gradients, kept: Tensor | None
) -> None:
    """Additive scores, `kept` or not: their weight is the first tensor, those of the bias begin at `first`."""
    wants_bias = any(needed[4 + first :])
    gradients = run_backward(backward, bias if wants_bias else None, (*needed[:3], needed[4]), kept)
    found[:3] = gradients.query, gradients.key, gradients.value
    found[4] = gradients.weight
    if wants_bias:
        found[4 + first : 4 + first + len(gradients.bias)] = gradients.bias


def of_dot(backward: Backward, bias: Bias | None, first: int, needed: list[bool], found: Gradients) -> None:
    """Dot products, capped or not; only gradients that are needed are computed."""
    if needed[1] or needed[2]:
        found[1], found[2] = backward.keys()
    wanted = _wanted(bias, needed[4 + first :])
    gaussian, dense = _first(wanted, GaussianBias), _first(wanted, DenseBias)
    if needed[0] or gaussian or dense:
        into = None if dense is None else _zeros_of_four_axes(dense[0].tensor)
        found[0], pull = backward.queries(None if gaussian is None else _centers(gaussian[0], backward.query), into)
        if gaussian is not None:
            assert pull is not None
            center, index = gaussian[0].center, gaussian[1]
            pull = (pull / gaussian[0].sigma ** 2).masked_fill(~center.isfinite().expand_as(pull), 0)
            found[4 + first + index] = pull.sum_to_size(center.shape)
        if dense is not None:
            assert into is not None
            found[4 + first + dense[1]] = into.view(dense[0].tensor.shape)
    tables = [(leaf, index) for leaf, index in wanted if isinstance(leaf, (RelativeBias, T5Bias))]
    if tables:
        along = backward.distances()
        for leaf, index in tables:
            found[4 + first + index] = _to_table(leaf, backward.work, along)


def _first(wanted: list[tuple[Any, int]], kind: type) -> tuple[Any, int] | None:
    return next(((leaf, index) for leaf, index in wanted if isinstance(leaf, kind)), None)


def _zeros_of_four_axes(tensor: Tensor) -> Tensor:
    """Zeros of four axes into which the gradient of a dense bias is summed."""
    return torch.zeros((1,) * (4 - tensor.dim()) + tuple(tensor.shape), dtype=torch.float32, device=tensor.device)


def _centers(gaussian: GaussianBias, query: Tensor) -> Tensor:
    centers = gaussian.center.float().expand(query.shape[:3]).contiguous()
    return centers.masked_fill(~centers.isfinite(), 0)


def _to_table(bias: Bias, work: KernelWork, along: Tensor) -> Tensor:
    """From the gradient for each distance (h, q+k−1) to that of the table the distances were looked up in."""

    def look_up(table: Tensor) -> Tensor:
        values = by_distance(bias.with_tensors((table,)), work.prepared.sizes, table.device)[0, :, 0]
        return values.expand(along.shape)

    return vjp(look_up, bias.tensors, along)[0]


def _wanted(bias: Bias | None, needed: list[bool]) -> list[tuple[Bias, int]]:
    """The parts of a bias whose tensor needs a gradient, and the index of that tensor."""
    if bias is None:
        return []
    if isinstance(bias, SumBias):
        split = len(bias.left.tensors)
        right = _wanted(bias.right, needed[split:])
        return [*_wanted(bias.left, needed[:split]), *[(leaf, index + split) for leaf, index in right]]
    return [(bias, 0)] if bias.tensors and needed[0] else []

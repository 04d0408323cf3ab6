"""Partial results over some keys each, joined to the result over all of them.

Softmax over keys that come in parts: the output is Σ_c exp(lse_c − lse) · output_c with lse = log Σ_c exp(lse_c). Under
sigmoid, which looks at each pair alone, it is the plain sum. No part needs to know of the others until then.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Merged:
    """The output (b,h,n,v) and log-sum-exp (b,h,n) over the parts that were added, in the dtype of accumulation."""

    def __init__(self, query: Tensor, width: int, dtype: torch.dtype, weighted: bool) -> None:
        self.output = query.new_zeros(*query.shape[:3], width, dtype=dtype)
        self.logsumexp = query.new_full(query.shape[:3], -torch.inf, dtype=dtype)
        self.weighted = weighted  # False: outputs add up (sigmoid)

    def add(self, rows: slice, output: Tensor, logsumexp: Tensor) -> None:
        """Add a part over further keys for the queries `rows`."""
        total, so_far = self.output[:, :, rows], self.logsumexp[:, :, rows]
        joined = torch.logaddexp(so_far, logsumexp)
        if self.weighted:
            total *= share(so_far, joined)[..., None]
            total += output.to(total.dtype) * share(logsumexp, joined)[..., None]
        else:
            total += output
        so_far.copy_(joined)


def share(logsumexp: Tensor, joined: Tensor) -> Tensor:
    """exp(logsumexp − joined): the weight of a part; 0 where it sees nothing, also if no part does."""
    return torch.exp(logsumexp - joined).masked_fill_(logsumexp == -torch.inf, 0)


class Upstream(NamedTuple):
    """What the backward pass of some rows starts from: gradients and results over all parts."""

    grad: Tensor  # of the output, (b,h,n,v)
    grad_logsumexp: Tensor  # (b,h,n)
    output: Tensor  # (b,h,n,v)
    logsumexp: Tensor  # (b,h,n)


def part_gradients(
    grad: Tensor,
    grad_logsumexp: Tensor,
    merged: Tensor,
    all_logsumexp: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    weighted: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of a part's output and log-sum-exp, from those of the merged ones.

    A row that is not finite takes the gradient as it is: its weight is NaN, and 0 · NaN would reach the gradients of
    other rows. What a gradient above zero does to such a row is then up to the part, as in one process.
    """
    finite = all_logsumexp.isfinite()
    attending = (all_logsumexp != -torch.inf).to(all_logsumexp.dtype)
    weight = torch.where(finite, share(logsumexp, all_logsumexp), attending)
    if not weighted:
        return grad, (weight * grad_logsumexp).masked_fill(~finite, 0)
    apart = _inner(grad, output.to(grad.dtype)) - _inner(grad, merged)
    return grad * weight[..., None], (weight * (apart + grad_logsumexp)).masked_fill(~finite, 0)


def _inner(grad: Tensor, output: Tensor) -> Tensor:
    """grad · output of each row, (b,h,n); a gradient of zero takes nothing of a number that is not finite."""
    return (grad * output).masked_fill(grad == 0, 0).sum(-1)

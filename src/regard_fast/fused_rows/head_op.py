"""The end of a model as one operator: last normalisation, map to logits and the sum of the cross-entropies.

Its forward pass already computes the gradients of that sum (`head_kernels.py`); backward multiplies them by one number.
The mean of what counts is a result, too.
With one target for each row the logits are those of the rows; with one for each example, those of the mean of its rows
(`pooled_kernels.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.implementations.triton.launch import block_sizes
from regard.support.batched_gradients import take_one_by_one
from regard.support.differentiate import fresh_views, gradients
from regard_fast.fused_rows import op, plain
from regard_fast.fused_rows.head_layout import HeadStage
from regard_fast.fused_rows.layout import sizes
from regard_fast.fused_rows.short_attention import triton_dtype
from regard_fast.fused_rows.weight_copies import copies

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_OPTIONS = "float eps, float smoothing, ScalarType dtype"
_LIBRARY.define(
    f"fused_head(Tensor x, Tensor targets, Tensor? keep, Tensor[] weights, {_OPTIONS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "fused_head_backward(Tensor pull, Tensor? count, Tensor x, Tensor kept, Tensor sums, Tensor[] weights, "
    "bool pooled) -> Tensor"
)


@dataclass(frozen=True)
class HeadOptions:
    """The arguments of the operator after its tensors."""

    eps: float
    smoothing: float
    dtype: torch.dtype  # of products

    def listed(self) -> tuple[Any, ...]:
        """In the order of the operator."""
        return self.eps, self.smoothing, self.dtype


def stage(weights: Sequence[Tensor]) -> HeadStage:
    """The sizes of a head with these weights: gain and shift of the normalisation, weight and maybe bias of the map."""
    outputs, dim = weights[2].shape
    return HeadStage(dim, outputs, len(weights) > 3)


def run(
    x: Tensor, targets: Tensor, keep: Tensor | None, weights: list[Tensor], options: HeadOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of the cross-entropies of rows (b,n,dim), or of their means, where they count, how many do, and the mean.

    Targets are (b,n), or (b,) for means.
    """
    totals = torch.ops.regard.fused_head.default(x, targets, keep, weights, *options.listed())
    return totals[0], totals[1], totals[2]


def pulled(d_total: Tensor | None, d_mean: Tensor | None, count: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """What the gradients of the sum are multiplied by, and the count that they are divided by; None: nothing is asked.

    The kernel of the weights' gradients does both, so that a mean costs no division of its own.
    """
    if d_mean is None:
        return None if d_total is None else (d_total, None)
    return (d_mean if d_total is None else d_mean + d_total * count.clamp(min=1.0)), count


def pulled_by(rows: Tensor, pull: Tensor, count: Tensor | None) -> Tensor:
    """The gradient of rows from that of the sum."""
    return rows * (pull if count is None else pull / count.clamp(min=1.0))


def _forward(
    x: Tensor, targets: Tensor, keep: Tensor | None, weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from regard_fast.fused_rows.head_kernels import add_parts

    options, head = HeadOptions(*given), stage(weights)
    x, targets = x.contiguous(), targets.contiguous()
    buffers = _forward_shapes(x, targets, keep, weights, *given)
    total, count, mean, d_rows, kept, sums = buffers
    partial_sums = sums.new_empty((sums.shape[0], 2))
    wide = triton_dtype(sums.dtype)
    gain, shift, weight, *bias = weights
    tensors = (
        x, targets, targets if keep is None else keep.contiguous().view(torch.uint8), gain, shift, copies(weight),
        bias[0] if bias else x, partial_sums, d_rows, kept, sums,
    )
    constants: dict[str, Any] = {
        "SMOOTHING": options.smoothing, "PITCH": head.pitch, "VECTORS": head.vectors, "D": head.dim,
        "V": head.outputs, "HAS_BIAS": head.bias, "HAS_KEEP": keep is not None, "DT": triton_dtype(options.dtype),
        "WIDE": wide,
    }
    (_by_examples if targets.dim() == 1 else _by_rows)(tensors, constants, head, options.eps)
    launch = {} if block_sizes.INTERPRETED else {"num_warps": 1}
    add_parts[(1,)](partial_sums, total, count, mean, sums.shape[0], WIDE=wide, BLOCK=128, **launch)
    return buffers


def _by_rows(tensors: tuple[Tensor, ...], constants: dict[str, Any], head: HeadStage, eps: float) -> None:
    from regard_fast.fused_rows.head_kernels import head_loss

    launch = {} if block_sizes.INTERPRETED else {"num_warps": op.TUNING.warps_of(head.dim)}
    *_, kept, sums = tensors
    head_loss[(sums.shape[0],)](
        *tensors, kept.shape[0], eps, **constants, PADDED=head.padded, R=op.TUNING.rows, TILE=head.tile,
        STAGES=op.TUNING.stages, **launch,
    )


def _by_examples(tensors: tuple[Tensor, ...], constants: dict[str, Any], head: HeadStage, eps: float) -> None:
    from regard_fast.fused_rows.pooled_kernels import pooled_loss

    launch = {} if block_sizes.INTERPRETED else {"num_warps": 4}
    batch, length, _ = tensors[0].shape
    pooled_loss[(batch,)](
        *tensors, length, eps, **constants, J=min(block_sizes.padded(length), 32),
        TILE=min(block_sizes.padded(head.outputs), 32), **launch,
    )


def _forward_shapes(
    x: Tensor, targets: Tensor, keep: Tensor | None, weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    options, head = HeadOptions(*given), stage(weights)
    wide = op._wide(options.dtype)
    factors = op.Factors([head], x, options.dtype, pooled=targets.dim() == 1)
    d_rows = torch.empty_like(x, dtype=wide, memory_format=torch.contiguous_format)
    total, count, mean = (x.new_empty((), dtype=wide) for _ in range(3))
    return total, count, mean, d_rows, factors.kept, factors.sums


def _backward(
    pull: Tensor, count: Tensor | None, x: Tensor, kept: Tensor, sums: Tensor, weights: list[Tensor], pooled: bool
) -> Tensor:
    grads = _backward_shapes(pull, count, x, kept, sums, weights, pooled)
    factors = op.Factors([stage(weights)], x, kept.dtype, (kept, sums), pooled)
    factors.weight_gradients(grads, pull, count)
    return grads


def _backward_shapes(
    pull: Tensor, count: Tensor | None, x: Tensor, kept: Tensor, sums: Tensor, weights: list[Tensor], pooled: bool
) -> Tensor:
    return kept.new_empty(sum(sizes(stage(weights).shapes())), dtype=weights[0].dtype)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, targets, keep, weights, *ctx.given = inputs
    _, count, _, d_rows, kept, sums = output
    ctx.save_for_backward(x, targets, keep, count, d_rows, kept, sums, *weights)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, d_total: Tensor | None, d_count: None, d_mean: Tensor | None, *unused: Any
) -> tuple[Any, ...]:
    x, targets, keep, count, d_rows, kept, sums, *weights = ctx.saved_tensors
    none = [None] * len(ctx.given)
    pulls = pulled(d_total, d_mean, count)
    if pulls is None:
        return None, None, None, [None] * len(weights), *none
    if torch.is_grad_enabled():
        d_inputs = _recorded(
            x, targets, keep, weights, HeadOptions(*ctx.given), pulled_by(torch.ones_like(count), *pulls)
        )
        return d_inputs[0], None, None, d_inputs[1:], *none
    grads = torch.ops.regard.fused_head_backward.default(*pulls, x, kept, sums, weights, targets.dim() == 1)
    return pulled_by(d_rows, *pulls).to(x.dtype), None, None, split(grads, stage(weights)), *none


def split(grads: Tensor, head: HeadStage) -> list[Tensor]:
    """The gradient of each weight."""
    shapes = head.shapes()
    of_weights = [gradient.view(shape) for gradient, shape in zip(grads.split(sizes(shapes)), shapes, strict=True)]
    return head.real(of_weights)


def _recorded(
    x: Tensor, targets: Tensor, keep: Tensor | None, weights: list[Tensor], options: HeadOptions, d_total: Tensor
) -> list[Tensor | None]:
    """The same gradients with an autograd graph, from the formula in plain torch."""
    views = fresh_views([x, *weights])
    rows, *trained = [view for view in views if view is not None]
    total, _, _ = plain.head(rows, targets, keep, trained, options.eps, options.smoothing)
    return gradients([(total, d_total)], views, again=True)


_LIBRARY.impl("fused_head", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_head_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_head", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_head_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::fused_head", _differentiate, setup_context=_remember, lib=_LIBRARY)
take_one_by_one("fused_head_backward", _LIBRARY)

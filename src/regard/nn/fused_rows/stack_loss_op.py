"""A stack of layers and the end of the model as one operator, from rows to the sum of their cross-entropies.

The gradients of all weights are then one launch (`stack_op.py` says why). The way back starts from the gradients of the
sum, which `head_op.py` has computed forward; everything on it is linear, so what backward is given, one number, is
multiplied with the results.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.core.differentiate import fresh_views, gradients
from regard.nn.fused_rows import head_op, op, plain, stack_op
from regard.nn.fused_rows.head_op import HeadOptions
from regard.nn.fused_rows.layout import sizes
from regard.nn.fused_rows.stack_op import StackOptions

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_OPTIONS = f"float last_eps, float smoothing, {stack_op._OPTIONS}"
_LIBRARY.define(
    "fused_stack_loss(Tensor x, Tensor? seed, Tensor targets, Tensor? keep, Tensor[] weights, Tensor[] head, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor[])"
)
_LIBRARY.define(
    "fused_stack_loss_backward(Tensor d_total, Tensor x, Tensor? seed, Tensor[] kept, Tensor[] weights, Tensor[] head, "
    f"{_OPTIONS}) -> (Tensor, Tensor)"
)
OF_HEAD = (
    4  # kept tensors at the end: rows after the layers, and of the head: gradient of the rows, factors, sums
)


def run(
    x: Tensor, seed: Tensor | None, targets: Tensor, keep: Tensor | None, weights: list[Tensor], head: list[Tensor],
    stack: StackOptions, end: HeadOptions,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The sum of the cross-entropies of rows (b,n,dim) after all layers where they count, and how many do."""
    given = (end.eps, end.smoothing, *stack.listed())
    found = torch.ops.regard.fused_stack_loss.default(x, seed, targets, keep, weights, head, *given)
    return found[0], found[1]


def _options(last_eps: float, smoothing: float, *given: Any) -> tuple[StackOptions, HeadOptions]:
    stack = StackOptions(*given)
    return stack, HeadOptions(last_eps, smoothing, stack.dtype)


def _forward(
    x: Tensor, seed: Tensor | None, targets: Tensor, keep: Tensor | None, weights: list[Tensor], head: list[Tensor],
    *given: Any,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    stack, end = _options(*given)
    last, kept = stack_op._forward(x, seed, weights, *stack.listed())
    total, count, *found = head_op._forward(last, targets, keep, head, *end.listed())
    return total, count, [*kept, last, *found]


def _forward_shapes(
    x: Tensor, seed: Tensor | None, targets: Tensor, keep: Tensor | None, weights: list[Tensor], head: list[Tensor],
    *given: Any,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    stack, end = _options(*given)
    last, kept = stack_op._forward_shapes(x, seed, weights, *stack.listed())
    total, count, *found = head_op._forward_shapes(last, targets, keep, head, *end.listed())
    return total, count, [*kept, last, *found]


def _backward(
    d_total: Tensor, x: Tensor, seed: Tensor | None, kept: list[Tensor], weights: list[Tensor], head: list[Tensor],
    *given: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    stack, _ = _options(*given)
    _, grads = _backward_shapes(d_total, x, seed, kept, weights, head, *given)
    last, d_last, *of_head = kept[-OF_HEAD:]
    d_x, factors = stack_op.rows_back(d_last, x, seed, last, kept[:-OF_HEAD], weights, stack)
    end = op.Factors([head_op.stage(head)], x, stack.dtype, (of_head[0], of_head[1]))
    factors.weight_gradients(grads, scale=d_total, head=end)
    return d_x, grads


def _backward_shapes(
    d_total: Tensor, x: Tensor, seed: Tensor | None, kept: list[Tensor], weights: list[Tensor], head: list[Tensor],
    *given: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    total = sum(weight.numel() for weight in weights) + sum(sizes(head_op.stage(head).shapes()))
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return d_x, x.new_empty(total, dtype=weights[0].dtype)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, seed, targets, keep, weights, head, *ctx.given = inputs
    kept = output[2]
    ctx.counts = len(kept), len(weights)
    ctx.save_for_backward(x, seed, targets, keep, *kept, *weights, *head)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_total: Tensor | None, *unused: Any) -> tuple[Any, ...]:
    x, seed, targets, keep, *rest = ctx.saved_tensors
    held, count = ctx.counts
    kept, weights, head = rest[:held], rest[held : held + count], rest[held + count :]
    none = [None] * len(ctx.given)
    if d_total is None:
        return None, None, None, None, [None] * len(weights), [None] * len(head), *none
    stack, end = _options(*ctx.given)
    if torch.is_grad_enabled():
        views = fresh_views([x, *weights, *head])
        rows, *trained = [one for one in views if one is not None]
        last = stack_op.plain_stack(rows, seed, trained[:count], stack)
        total, _ = plain.head(last, targets, keep, trained[count:], end.eps, end.smoothing)
        found = gradients([(total, d_total)], views, again=True)
        return found[0], None, None, None, found[1 : count + 1], found[count + 1 :], *none
    d_x, grads = torch.ops.regard.fused_stack_loss_backward.default(
        d_total, x, seed, kept, weights, head, *ctx.given
    )
    last_stage = head_op.stage(head)
    parts = grads.split([grads.shape[0] - sum(sizes(last_stage.shapes())), sum(sizes(last_stage.shapes()))])
    of_stack, of_head = stack.parts(parts[0], x, weights), head_op.split(parts[1], last_stage)
    return d_x * d_total, None, None, None, of_stack, of_head, *none


_LIBRARY.impl("fused_stack_loss", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_stack_loss_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_stack_loss", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_stack_loss_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd(
    "regard::fused_stack_loss", _differentiate, setup_context=_remember, lib=_LIBRARY
)

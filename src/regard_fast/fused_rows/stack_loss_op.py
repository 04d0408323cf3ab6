"""A stack of layers and the end of the model as one operator, from rows to the sum of their cross-entropies.

The gradients of all weights are then one launch (`stack_op.py` says why). The way back starts from the gradients of the
sum, which `head_op.py` has computed forward; everything on it is linear, so what backward is given, one number, is
multiplied with the results. Rows of tokens may be made here, too, by the first kernel of the layers: then the gradient
of their table is in that launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.support.batched_gradients import take_one_by_one
from regard.support.differentiate import fresh_views, gradients
from regard_fast.fused_rows import head_op, op, plain, stack_op
from regard_fast.fused_rows.head_op import HeadOptions
from regard_fast.fused_rows.layout import RowPiece, sizes
from regard_fast.fused_rows.stack_op import StackOptions
from regard_fast.fused_rows.tokens import EmbeddedTokens

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_ROWS = "Tensor? x, Tensor? ids, Tensor? table, Tensor? seed"
_OPTIONS = f"float table_scale, float table_rate, bool waves, float last_eps, float smoothing, {stack_op._OPTIONS}"
_LIBRARY.define(
    f"fused_stack_loss({_ROWS}, Tensor targets, Tensor? keep, Tensor[] weights, Tensor[] head, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor[])"
)
_LIBRARY.define(
    f"fused_stack_loss_backward(Tensor pull, Tensor? count, {_ROWS}, Tensor[] kept, Tensor[] weights, Tensor[] head, "
    f"{_OPTIONS}) -> (Tensor, Tensor)"
)
OF_HEAD = 4  # kept tensors at the end: rows after the layers, and of the head: gradient of the rows, factors, sums
_NO_TOKENS = (1.0, 0.0, False)


@dataclass(frozen=True)
class StackLoss:
    """What the operator takes instead of tensors, and its rows: given, or those of tokens."""

    tokens: EmbeddedTokens | None
    stack: StackOptions
    end: HeadOptions

    @classmethod
    def of(
        cls, ids: Tensor | None, table: Tensor | None, scale: float, rate: float, waves: bool, last_eps: float,
        smoothing: float, *given: Any,
    ) -> StackLoss:
        """From the arguments of the operator."""
        stack = StackOptions(*given)
        tokens = None if ids is None or table is None else EmbeddedTokens(ids, table, scale, rate, waves)
        return cls(tokens, stack, HeadOptions(last_eps, smoothing, stack.dtype))

    def listed(self) -> tuple[Any, ...]:
        """In the order of the operator."""
        tokens = self.tokens
        first = _NO_TOKENS if tokens is None else (tokens.scale, tokens.rate, tokens.waves)
        return *first, self.end.eps, self.end.smoothing, *self.stack.listed()

    def pieces(self, x: Tensor, weights: list[Tensor], head: list[Tensor]) -> list[list[RowPiece]]:
        """The layers, the table and the head, whose gradients lie one after the other."""
        table: list[RowPiece] = [] if self.tokens is None else [self.tokens.stage()]
        return [[*self.stack.split(x, weights)[0]], table, [head_op.stage(head)]]


def run(
    x: Tensor | EmbeddedTokens, seed: Tensor | None, targets: Tensor, keep: Tensor | None, weights: list[Tensor],
    head: list[Tensor], stack: StackOptions, end: HeadOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of the cross-entropies of rows (b,n,dim) after all layers where they count, how many do, and the mean."""
    tokens = x if isinstance(x, EmbeddedTokens) else None
    rows = (x, None, None) if tokens is None else (None, tokens.ids, tokens.table)
    settings = StackLoss(tokens, stack, end).listed()
    totals = torch.ops.regard.fused_stack_loss.default(*rows, seed, targets, keep, weights, head, *settings)
    return totals[0], totals[1], totals[2]


def _forward(
    x: Tensor | None, ids: Tensor | None, table: Tensor | None, seed: Tensor | None, targets: Tensor,
    keep: Tensor | None, weights: list[Tensor], head: list[Tensor], *given: Any,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    loss = StackLoss.of(ids, table, *given)
    embedded = [] if loss.tokens is None else [loss.tokens.like()]
    rows = embedded[0] if x is None else x
    last, kept = stack_op.rows_ahead(rows, seed, weights, loss.stack, loss.tokens)
    total, count, mean, *saved = head_op._forward(last, targets, keep, head, *loss.end.listed())
    return total, count, mean, [*embedded, *kept, last, *saved]


def _forward_shapes(
    x: Tensor | None, ids: Tensor | None, table: Tensor | None, seed: Tensor | None, targets: Tensor,
    keep: Tensor | None, weights: list[Tensor], head: list[Tensor], *given: Any,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    loss = StackLoss.of(ids, table, *given)
    embedded = [] if loss.tokens is None else [loss.tokens.like()]
    rows = embedded[0] if x is None else x
    last, kept = stack_op._forward_shapes(rows, seed, weights, *loss.stack.listed())
    total, count, mean, *saved = head_op._forward_shapes(last, targets, keep, head, *loss.end.listed())
    return total, count, mean, [*embedded, *kept, last, *saved]


def _backward(
    pull: Tensor, count: Tensor | None, x: Tensor | None, ids: Tensor | None, table: Tensor | None, seed: Tensor | None,
    kept: list[Tensor], weights: list[Tensor], head: list[Tensor], *given: Any,
) -> tuple[Tensor, Tensor]:
    loss = StackLoss.of(ids, table, *given)
    _, grads = _backward_shapes(pull, count, x, ids, table, seed, kept, weights, head, *given)
    rows = kept[0] if x is None else x
    layer_kept = kept if loss.tokens is None else kept[1:]
    last, d_last, *of_head = layer_kept[-OF_HEAD:]
    d_x, factors = stack_op.rows_back(d_last, rows, seed, last, layer_kept[:-OF_HEAD], weights, loss.stack, loss.tokens)
    end = op.Factors([head_op.stage(head)], rows, loss.stack.dtype, (of_head[0], of_head[1]))
    factors.weight_gradients(grads, pull, count, end)
    return d_x, grads


def _backward_shapes(
    pull: Tensor, count: Tensor | None, x: Tensor | None, ids: Tensor | None, table: Tensor | None, seed: Tensor | None,
    kept: list[Tensor], weights: list[Tensor], head: list[Tensor], *given: Any,
) -> tuple[Tensor, Tensor]:
    pieces = StackLoss.of(ids, table, *given).pieces(kept[0] if x is None else x, weights, head)
    total = sum(sum(sizes(piece.shapes())) for group in pieces for piece in group)
    like = torch.empty_like(x, memory_format=torch.contiguous_format) if x is not None else kept[0].new_empty(0)
    return like, pull.new_empty(total, dtype=weights[0].dtype)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, ids, table, seed, targets, keep, weights, head, *ctx.given = inputs
    _, count, _, kept = output
    ctx.counts = len(kept), len(weights)
    ctx.save_for_backward(x, ids, table, seed, targets, keep, count, *kept, *weights, *head)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, d_total: Tensor | None, d_count: None, d_mean: Tensor | None, *unused: Any
) -> tuple[Any, ...]:
    x, ids, table, seed, targets, keep, count, *tensors = ctx.saved_tensors
    kept_count, weight_count = ctx.counts
    kept, weights, head = (
        tensors[:kept_count],
        tensors[kept_count : kept_count + weight_count],
        tensors[kept_count + weight_count :],
    )
    none = [None] * len(ctx.given)
    pulls = head_op.pulled(d_total, d_mean, count)
    if pulls is None:
        return *[None] * 6, [None] * len(weights), [None] * len(head), *none
    loss = StackLoss.of(ids, table, *ctx.given)
    if torch.is_grad_enabled():
        pull = head_op.pulled_by(torch.ones_like(count), *pulls)
        d_x, d_table, *d_inputs = _recorded(x, seed, targets, keep, weights, head, loss, pull)
        return d_x, None, d_table, None, None, None, d_inputs[:weight_count], d_inputs[weight_count:], *none
    d_x, grads = torch.ops.regard.fused_stack_loss_backward.default(
        *pulls, x, ids, table, seed, kept, weights, head, *ctx.given
    )
    pieces = loss.pieces(kept[0] if x is None else x, weights, head)
    flat_gradients = grads.split([sum(sum(sizes(piece.shapes())) for piece in group) for group in pieces])
    of_stack = loss.stack.parts(flat_gradients[0], kept[0] if x is None else x, weights)
    d_table = None if table is None else flat_gradients[1].view(-1, table.shape[1])[: table.shape[0]]
    of_head = head_op.split(flat_gradients[2], head_op.stage(head))
    d_rows = None if x is None else head_op.pulled_by(d_x, *pulls)
    return d_rows, None, d_table, None, None, None, of_stack, of_head, *none


def _recorded(
    x: Tensor | None, seed: Tensor | None, targets: Tensor, keep: Tensor | None, weights: list[Tensor],
    head: list[Tensor], whole: StackLoss, d_total: Tensor,
) -> list[Tensor | None]:
    """The same gradients with an autograd graph, from the stages in plain torch."""
    tokens = whole.tokens
    views = fresh_views([x, None if tokens is None else tokens.table, *weights, *head])
    rows, table, *views_of_weights = views
    trained = [view for view in views_of_weights if view is not None]
    if tokens is not None and table is not None:
        rows = tokens.plain(seed, table)
    assert rows is not None
    last = stack_op.plain_stack(rows, seed, trained[: len(weights)], whole.stack)
    end = whole.end
    total, _, _ = plain.head(last, targets, keep, trained[len(weights) :], end.eps, end.smoothing)
    return gradients([(total, d_total)], views, again=True)


_LIBRARY.impl("fused_stack_loss", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_stack_loss_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_stack_loss", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_stack_loss_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::fused_stack_loss", _differentiate, setup_context=_remember, lib=_LIBRARY)
take_one_by_one("fused_stack_loss_backward", _LIBRARY)

"""A stack of layers and the end of the model as one operator, from rows to the sum of their cross-entropies.

The gradients of all weights are then one launch (`stack_op.py` says why). The way back starts from the gradients of the
sum, which `head_op.py` has computed forward; everything on it is linear, so what backward is given, one number, is
multiplied with the results. Rows of tokens may be made here, too: then the gradient of their table is in that launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.core.differentiate import fresh_views, gradients
from regard.nn.fused_rows import head_op, op, plain, stack_op
from regard.nn.fused_rows.head_op import HeadOptions
from regard.nn.fused_rows.layout import RowPiece, sizes
from regard.nn.fused_rows.stack_op import StackOptions
from regard.nn.fused_rows.tokens import EmbeddedTokens, TableStage

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_ROWS = "Tensor? x, Tensor? ids, Tensor? table, Tensor? seed"
_OPTIONS = (
    f"float table_scale, float table_rate, bool waves, float last_eps, float smoothing, {stack_op._OPTIONS}"
)
_LIBRARY.define(
    f"fused_stack_loss({_ROWS}, Tensor targets, Tensor? keep, Tensor[] weights, Tensor[] head, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor[])"
)
_LIBRARY.define(
    f"fused_stack_loss_backward(Tensor d_total, {_ROWS}, Tensor[] kept, Tensor[] weights, Tensor[] head, "
    f"{_OPTIONS}) -> (Tensor, Tensor)"
)
OF_HEAD = (
    4  # kept tensors at the end: rows after the layers, and of the head: gradient of the rows, factors, sums
)
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
    ) -> StackLoss:  # fmt: skip
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
        """The layers, the head and the table, whose gradients lie one after the other."""
        found: list[list[RowPiece]] = [[*self.stack.split(x, weights)[0]], [head_op.stage(head)]]
        if self.tokens is not None:
            count, dim = self.tokens.table.shape
            found.append([TableStage(dim, count)])
        return found


def run(
    x: Tensor | EmbeddedTokens, seed: Tensor | None, targets: Tensor, keep: Tensor | None, weights: list[Tensor],
    head: list[Tensor], stack: StackOptions, end: HeadOptions,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The sum of the cross-entropies of rows (b,n,dim) after all layers where they count, and how many do."""
    tokens = x if isinstance(x, EmbeddedTokens) else None
    rows = (x, None, None) if tokens is None else (None, tokens.ids, tokens.table)
    given = StackLoss(tokens, stack, end).listed()
    found = torch.ops.regard.fused_stack_loss.default(*rows, seed, targets, keep, weights, head, *given)
    return found[0], found[1]


def _forward(
    x: Tensor | None, ids: Tensor | None, table: Tensor | None, seed: Tensor | None, targets: Tensor,
    keep: Tensor | None, weights: list[Tensor], head: list[Tensor], *given: Any,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    whole = StackLoss.of(ids, table, *given)
    made = [] if whole.tokens is None else whole.tokens.run(seed)
    rows = made[0] if x is None else x
    last, kept = stack_op._forward(rows, seed, weights, *whole.stack.listed())
    total, count, *found = head_op._forward(last, targets, keep, head, *whole.end.listed())
    return total, count, [*made, *kept, last, *found]


def _forward_shapes(
    x: Tensor | None, ids: Tensor | None, table: Tensor | None, seed: Tensor | None, targets: Tensor,
    keep: Tensor | None, weights: list[Tensor], head: list[Tensor], *given: Any,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    whole = StackLoss.of(ids, table, *given)
    made = [] if whole.tokens is None else whole.tokens.shapes()
    rows = made[0] if x is None else x
    last, kept = stack_op._forward_shapes(rows, seed, weights, *whole.stack.listed())
    total, count, *found = head_op._forward_shapes(last, targets, keep, head, *whole.end.listed())
    return total, count, [*made, *kept, last, *found]


def _backward(
    d_total: Tensor, x: Tensor | None, ids: Tensor | None, table: Tensor | None, seed: Tensor | None,
    kept: list[Tensor], weights: list[Tensor], head: list[Tensor], *given: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    whole = StackLoss.of(ids, table, *given)
    _, grads = _backward_shapes(d_total, x, ids, table, seed, kept, weights, head, *given)
    tokens, read = whole.tokens, None
    held = 0 if tokens is None else len(tokens.shapes())
    made, kept = kept[:held], kept[held:]
    rows = made[0] if x is None else x
    last, d_last, *of_head = kept[-OF_HEAD:]
    d_x, factors = stack_op.rows_back(d_last, rows, seed, last, kept[:-OF_HEAD], weights, whole.stack)
    end = op.Factors([head_op.stage(head)], rows, whole.stack.dtype, (of_head[0], of_head[1]))
    if tokens is not None:
        read = op.TableFactors(
            whole.pieces(rows, weights, head)[2][0], tokens.ids.contiguous(), d_x, made[1] if tokens.rate else None,
            tokens.scale / (1 - tokens.rate),
        )  # fmt: skip
    factors.weight_gradients(grads, scale=d_total, head=end, table=read)
    return d_x if tokens is None else d_x.new_empty(0), grads


def _backward_shapes(
    d_total: Tensor, x: Tensor | None, ids: Tensor | None, table: Tensor | None, seed: Tensor | None,
    kept: list[Tensor], weights: list[Tensor], head: list[Tensor], *given: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    pieces = StackLoss.of(ids, table, *given).pieces(kept[0] if x is None else x, weights, head)
    total = sum(sum(sizes(one.shapes())) for group in pieces for one in group)
    like = (
        torch.empty_like(x, memory_format=torch.contiguous_format) if x is not None else kept[0].new_empty(0)
    )
    return like, d_total.new_empty(total, dtype=weights[0].dtype)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, ids, table, seed, targets, keep, weights, head, *ctx.given = inputs
    kept = output[2]
    ctx.counts = len(kept), len(weights)
    ctx.save_for_backward(x, ids, table, seed, targets, keep, *kept, *weights, *head)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_total: Tensor | None, *unused: Any) -> tuple[Any, ...]:
    x, ids, table, seed, targets, keep, *rest = ctx.saved_tensors
    held, count = ctx.counts
    kept, weights, head = rest[:held], rest[held : held + count], rest[held + count :]
    none = [None] * len(ctx.given)
    if d_total is None:
        return *[None] * 6, [None] * len(weights), [None] * len(head), *none
    whole = StackLoss.of(ids, table, *ctx.given)
    if torch.is_grad_enabled():
        d_x, d_table, *found = _recorded(x, seed, targets, keep, weights, head, whole, d_total)
        return d_x, None, d_table, None, None, None, found[:count], found[count:], *none
    d_x, grads = torch.ops.regard.fused_stack_loss_backward.default(
        d_total, x, ids, table, seed, kept, weights, head, *ctx.given
    )
    pieces = whole.pieces(kept[0] if x is None else x, weights, head)
    parts = grads.split([sum(sum(sizes(one.shapes())) for one in group) for group in pieces])
    of_stack = whole.stack.parts(parts[0], kept[0] if x is None else x, weights)
    of_head = head_op.split(parts[1], head_op.stage(head))
    d_table = None if table is None else parts[2].view(-1, table.shape[1])[: table.shape[0]]
    return None if x is None else d_x * d_total, None, d_table, None, None, None, of_stack, of_head, *none


def _recorded(
    x: Tensor | None, seed: Tensor | None, targets: Tensor, keep: Tensor | None, weights: list[Tensor],
    head: list[Tensor], whole: StackLoss, d_total: Tensor,
) -> list[Tensor | None]:  # fmt: skip
    """The same gradients with an autograd graph, from the stages in plain torch."""
    tokens = whole.tokens
    views = fresh_views([x, None if tokens is None else tokens.table, *weights, *head])
    rows, table, *rest = views
    trained = [one for one in rest if one is not None]
    if tokens is not None and table is not None:
        rows = tokens.plain(seed, table)
    assert rows is not None
    last = stack_op.plain_stack(rows, seed, trained[: len(weights)], whole.stack)
    end = whole.end
    total, _ = plain.head(last, targets, keep, trained[len(weights) :], end.eps, end.smoothing)
    return gradients([(total, d_total)], views, again=True)


_LIBRARY.impl("fused_stack_loss", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_stack_loss_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_stack_loss", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_stack_loss_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd(
    "regard::fused_stack_loss", _differentiate, setup_context=_remember, lib=_LIBRARY
)

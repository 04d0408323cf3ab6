"""A stack of layers with plain attention as one operator: weights of all layers get their gradients in one launch.

Between two operators of `op.py` autograd wants the gradients of the first one's weights before the second one runs.
Each launch for them is shorter than it takes to fill a GPU; here they are one, after the last rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.support.batched_gradients import take_one_by_one
from regard.support.differentiate import fresh_views, gradients
from regard_fast.fused_rows import op, plain, short_attention
from regard_fast.fused_rows.layout import Stages, sizes

if TYPE_CHECKING:
    from regard_fast.fused_rows.tokens import EmbeddedTokens

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_OPTIONS = "str activation, float[] rates, float[] eps, int heads, bool causal, float scale, ScalarType dtype"
_LIBRARY.define(f"fused_stack(Tensor x, Tensor? seed, Tensor[] weights, {_OPTIONS}) -> (Tensor, Tensor[])")
_LIBRARY.define(
    "fused_stack_backward(Tensor d_last, Tensor x, Tensor? seed, Tensor last, Tensor[] kept, Tensor[] weights, "
    f"{_OPTIONS}) -> (Tensor, Tensor)"
)
PER_LAYER = 6  # kept tensors: queries, keys, values, mixed heads, rows after the attention, rows after the layer


@dataclass(frozen=True)
class StackOptions:
    """The arguments of the operator after its tensors."""

    activation: str
    rates: Sequence[float]  # three for each layer
    eps: Sequence[float]  # two for each layer: of the normalisations before attention and feed-forward part
    heads: int
    causal: bool
    scale: float
    dtype: torch.dtype  # of products

    def listed(self) -> tuple[Any, ...]:
        """In the order of the operator."""
        numbers = (self.heads, self.causal, self.scale)
        return (self.activation, list(self.rates), list(self.eps), *numbers, self.dtype)

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.eps) // 2

    def pieces(self, maps: int = 3) -> list[op.RowOptions]:
        """The calls of the row-wise kernels: before the first attention, between two, and after the last."""
        eps, count = list(self.eps), self.layers
        calls = [
            op.RowOptions(False, False, maps, self.activation, [0.0] * 3, [0.0, eps[0]], 0, self.heads, self.dtype)
        ]
        for number in range(count):
            last = number + 1 == count
            calls.append(op.RowOptions(
                True, True, 0 if last else maps, self.activation, self.rates[3 * number : 3 * number + 3],
                [eps[2 * number + 1], 0.0 if last else eps[2 * number + 2]], number, 1 if last else self.heads,
                self.dtype,
            ))
        return calls

    def split(self, x: Tensor, weights: Sequence[Tensor]) -> tuple[list[Stages], list[list[Tensor]]]:
        """The stages of each call with their sizes, and its weights."""
        hidden = weights[8 + 4].shape[0]  # after norm, three maps and biases; then out, norm, rise
        stages, groups, start = [], [], 0
        for piece in self.pieces():
            stages.append(Stages(piece.out, piece.feed, piece.maps, x.shape[2], hidden if piece.feed else 0))
            count = len(stages[-1].shapes())
            groups.append(list(weights[start : start + count]))
            start += count
        return stages, groups

    def parts(self, grads: Tensor, x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
        """Split `grads`, the gradients of all weights in one row, into the gradient of each weight."""
        shapes = [shape for stages in self.split(x, weights)[0] for shape in stages.shapes()]
        return [gradient.view(shape) for gradient, shape in zip(grads.split(sizes(shapes)), shapes, strict=True)]


def run(x: Tensor, seed: Tensor | None, weights: list[Tensor], options: StackOptions) -> Tensor:
    """The rows after all layers; the weights are those of the calls of `op.run`, one after the other."""
    rows: Tensor = torch.ops.regard.fused_stack.default(x, seed, weights, *options.listed())[0]
    return rows


def _forward(x: Tensor, seed: Tensor | None, weights: list[Tensor], *given: Any) -> tuple[Tensor, list[Tensor]]:
    return rows_ahead(x, seed, weights, StackOptions(*given))


def rows_ahead(
    x: Tensor, seed: Tensor | None, weights: list[Tensor], options: StackOptions, tokens: EmbeddedTokens | None = None
) -> tuple[Tensor, list[Tensor]]:
    """What the operator returns. `tokens`: the rows are made from them, and written to x."""
    _, groups = options.split(x, weights)
    first, *later = options.pieces()
    _, _, heads = op.rows_ahead(x, None, seed, groups[0], first, tokens)
    rows, kept = x, []
    for piece, part_weights in zip(later, groups[1:], strict=True):
        query, key, value = heads
        mixed = short_attention._forward(query, key, value, options.causal, options.scale)
        rows, middle, after = op._forward(rows, mixed, seed, part_weights, *piece.listed())
        kept += [*heads, mixed, middle, rows]
        heads = after
    return rows, kept[:-1]  # the last rows are the result


def _forward_shapes(x: Tensor, seed: Tensor | None, weights: list[Tensor], *given: Any) -> tuple[Tensor, list[Tensor]]:
    options = StackOptions(*given)
    batch, length, dim = x.shape
    shape = (batch, options.heads, length, dim // options.heads)

    def like() -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    narrow = x.new_empty(0, dtype=options.dtype)
    kept = []
    for _ in range(options.layers):
        kept += [*(short_attention.as_rows(shape, narrow) for _ in range(4)), like(), like()]
    return like(), kept[:-1]


def _backward(
    d_last: Tensor, x: Tensor, seed: Tensor | None, last: Tensor, kept: list[Tensor], weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor]:
    _, grads = _backward_shapes(d_last, x, seed, last, kept, weights, *given)
    d_x, factors = rows_back(d_last, x, seed, last, kept, weights, StackOptions(*given))
    factors.weight_gradients(grads)
    return d_x, grads


def rows_back(
    d_last: Tensor, x: Tensor, seed: Tensor | None, last: Tensor, kept: list[Tensor], weights: list[Tensor],
    options: StackOptions, tokens: EmbeddedTokens | None = None,
) -> tuple[Tensor, op.Factors]:
    """The gradient of the rows before all layers, and what those of the weights are made from.

    With `tokens`, that of their table follows those of the weights, and the rows have none.
    """
    stages, groups = options.split(x, weights)
    first, *later = options.pieces()
    factors = op.Factors([*stages, *([] if tokens is None else [tokens.stage()])], x, options.dtype)
    d_rows: Tensor | None = d_last
    d_heads: list[Tensor] = []
    saved = [*kept, last]
    for number in reversed(range(options.layers)):
        query, key, value, mixed, middle, after = saved[PER_LAYER * number : PER_LAYER * (number + 1)]
        before = x if number == 0 else saved[PER_LAYER * number - 1]
        d_rows, d_mixed = op.rows_back(
            d_rows, d_heads, before, mixed, seed, middle, after, groups[number + 1], later[number], factors, number + 1
        )
        d_heads = list(short_attention._backward(d_mixed, query, key, value, options.causal, options.scale))
    d_x, _ = op.rows_back(d_rows, d_heads, x, None, seed, x, x, groups[0], first, factors, 0, tokens)
    return d_x, factors


def _backward_shapes(
    d_last: Tensor, x: Tensor, seed: Tensor | None, last: Tensor, kept: list[Tensor], weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor]:
    total = sum(weight.numel() for weight in weights)
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return d_x, x.new_empty(total, dtype=weights[0].dtype)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, seed, weights, *ctx.given = inputs
    last, kept = output
    ctx.count = len(kept)
    ctx.save_for_backward(x, seed, last, *kept, *weights)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_last: Tensor | None, d_kept: Any) -> tuple[Any, ...]:
    x, seed, last, *tensors = ctx.saved_tensors
    kept, weights = tensors[: ctx.count], tensors[ctx.count :]
    none = [None] * len(ctx.given)
    if d_last is None:
        return None, None, [None] * len(weights), *none
    options = StackOptions(*ctx.given)
    if torch.is_grad_enabled():
        d_inputs = _recorded(x, seed, weights, options, d_last)
        return d_inputs[0], None, d_inputs[1:], *none
    d_x, grads = torch.ops.regard.fused_stack_backward.default(d_last, x, seed, last, kept, weights, *ctx.given)
    return d_x, None, options.parts(grads, x, weights), *none


def _recorded(
    x: Tensor, seed: Tensor | None, weights: list[Tensor], options: StackOptions, d_last: Tensor
) -> list[Tensor | None]:
    """The same gradients with an autograd graph, from the stages in plain torch."""
    views = fresh_views([x, *weights])
    rows, *trained = [view for view in views if view is not None]
    return gradients([(plain_stack(rows, seed, trained, options), d_last)], views, again=True)


def plain_stack(rows: Tensor, seed: Tensor | None, weights: list[Tensor], options: StackOptions) -> Tensor:
    """The rows after all layers in plain torch."""
    stages, groups = options.split(rows, weights)
    heads: list[Tensor] = []
    for number, piece in enumerate(options.pieces()):
        mixed = None
        if number:
            query, key, value = heads
            mixed = short_attention.plain(query, key, value, options.causal, options.scale)
        rows_and_heads = plain.rows(
            rows, mixed, seed, groups[number], stages[number], piece.activation, piece.rates, piece.eps, piece.salt,
            [piece.heads] * piece.maps,
        )
        if number:
            rows, *heads = rows_and_heads
        else:
            heads = rows_and_heads
    return rows


_LIBRARY.impl("fused_stack", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_stack_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_stack", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_stack_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::fused_stack", _differentiate, setup_context=_remember, lib=_LIBRARY)
take_one_by_one("fused_stack_backward", _LIBRARY)

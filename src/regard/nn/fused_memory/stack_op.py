"""A stack of layers with dynamic memories as one operator, so that all weights get their gradients in one launch.

As `fused_rows/stack_op.py`, with a memory between the maps of rows where that has softmax attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.core.differentiate import fresh_views, gradients
from regard.nn.fused_memory import op, plain
from regard.nn.fused_memory.factors import Piece, SlotFactors
from regard.nn.fused_memory.layout import MemorySizes
from regard.nn.fused_rows import op as rows_op
from regard.nn.fused_rows import plain as plain_rows
from regard.nn.fused_rows.layout import Stages, sizes
from regard.nn.fused_rows.short_attention import as_rows
from regard.nn.fused_rows.stack_op import StackOptions, _backward_shapes, _remember

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_OPTIONS = (
    "str activation, float[] rates, float[] eps, int heads, bool causal, float scale, ScalarType dtype, int sides, "
    "int segment, float memory_eps"
)
_LIBRARY.define(
    f"fused_memory_stack(Tensor x, Tensor? seed, Tensor[] weights, {_OPTIONS}) -> (Tensor, Tensor[])"
)
_LIBRARY.define(
    "fused_memory_stack_backward(Tensor d_last, Tensor x, Tensor? seed, Tensor last, Tensor[] kept, Tensor[] weights, "
    f"{_OPTIONS}) -> (Tensor, Tensor)"
)
MAPS = 5  # queries, keys and values of the reader, keys and values of the writer
PER_LAYER = 11  # kept tensors: heads, mixed heads, memory, its keys and values, rows after the attention and the layer


@dataclass(frozen=True)
class MemoryStackOptions:
    """The arguments of the operator after its tensors."""

    stack: StackOptions
    memory: op.FusedMemoryOptions
    sides: int  # directions

    def listed(self) -> tuple[Any, ...]:
        """In the order of the operator."""
        return *self.stack.listed(), self.sides, self.memory.segment, self.memory.eps

    @classmethod
    def of(cls, given: Sequence[Any]) -> MemoryStackOptions:
        """From the arguments."""
        *first, sides, segment, eps = given
        stack = StackOptions(*first)
        return cls(stack, op.FusedMemoryOptions(sides == 1, segment, stack.scale, eps), sides)

    def pieces(self) -> list[rows_op.RowOptions]:
        """The calls of the row-wise kernels."""
        return self.stack.pieces(MAPS)

    def split(self, x: Tensor, weights: Sequence[Tensor]) -> tuple[list[Piece], list[list[Tensor]]]:
        """Row-wise calls and memories in turn, with the weights of each."""
        dim, pieces = x.shape[2], self.pieces()
        start = len(Stages(False, False, MAPS, dim).shapes())
        slots = weights[start].shape[0]
        gated = weights[start + self.sides + 8].dim() == 2  # after the maps: a weight, or a gain
        memory = MemorySizes(self.sides, slots, dim, gated)
        hidden = weights[start + len(memory.shapes()) + 4].shape[0]  # after out and norm: rise
        order: list[Piece] = []
        for number, piece in enumerate(pieces):
            if number:
                order.append(memory)
            order.append(Stages(piece.out, piece.feed, piece.maps, dim, hidden if piece.feed else 0))
        own, start = [], 0
        for one in order:
            count = len(one.shapes())
            own.append(list(weights[start : start + count]))
            start += count
        return order, own

    def halves(self, weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The slots and the weights of a memory."""
        return weights[: self.sides], weights[self.sides :]


def run(x: Tensor, seed: Tensor | None, weights: list[Tensor], options: MemoryStackOptions) -> Tensor:
    """The rows after all layers; the weights are those of rows and memories, one after the other."""
    found: Tensor = torch.ops.regard.fused_memory_stack.default(x, seed, weights, *options.listed())[0]
    return found


def _forward(
    x: Tensor, seed: Tensor | None, weights: list[Tensor], *given: Any
) -> tuple[Tensor, list[Tensor]]:
    options = MemoryStackOptions.of(given)
    _, own = options.split(x, weights)
    first, *others = options.pieces()
    _, _, heads = rows_op._forward(x, None, None, own[0], *first.listed())
    rows, kept = x, []
    for number, piece in enumerate(others):
        starts, maps = options.halves(own[2 * number + 1])
        mixed, memory, keys, values = op._forward(heads, starts, maps, *options.memory.listed())
        rows, middle, after = rows_op._forward(rows, mixed, seed, own[2 * number + 2], *piece.listed())
        kept += [*heads, mixed, memory, keys, values, middle, rows]
        heads = after
    return rows, kept[:-1]  # the last rows are the result


def _forward_shapes(
    x: Tensor, seed: Tensor | None, weights: list[Tensor], *given: Any
) -> tuple[Tensor, list[Tensor]]:
    options = MemoryStackOptions.of(given)
    _, own = options.split(x, weights)
    batch, length, dim = x.shape
    heads = options.stack.heads
    narrow = x.new_empty(0, dtype=options.stack.dtype)

    def like() -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    kept: list[Tensor] = []
    for number in range(options.stack.layers):
        maps = [as_rows((batch, heads, length, dim // heads), narrow) for _ in range(MAPS)]
        found = op._forward_shapes(maps, *options.halves(own[2 * number + 1]), *options.memory.listed())
        kept += [*maps, *found, like(), like()]
    return like(), kept[:-1]


def _backward(
    d_last: Tensor, x: Tensor, seed: Tensor | None, last: Tensor, kept: list[Tensor], weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor]:  # fmt: skip
    options = MemoryStackOptions.of(given)
    order, own = options.split(x, weights)
    first, *others = options.pieces()
    _, grads = _backward_shapes(d_last, x, seed, last, kept, weights, *given)
    factors = rows_op.Factors([one for one in order if isinstance(one, Stages)], x, options.stack.dtype)
    memories = [one for one in order if isinstance(one, MemorySizes)]
    slots = SlotFactors(memories, kept[MAPS + 1], kept[MAPS + 2])
    d_rows: Tensor | None = d_last
    d_heads: list[Tensor] = []
    whole = [*kept, last]
    for number in reversed(range(options.stack.layers)):
        begin = PER_LAYER * number
        *heads, mixed, memory, keys, values, middle, after = whole[begin : begin + PER_LAYER]
        before = x if number == 0 else whole[begin - 1]
        d_rows, d_mixed = rows_op.rows_back(
            d_rows, d_heads, before, mixed, seed, middle, after, own[2 * number + 2], others[number], factors,
            number + 1,
        )  # fmt: skip
        _, maps = options.halves(own[2 * number + 1])
        own_sizes = slots.pieces[number]
        d_heads = op.heads_back(
            d_mixed, heads, maps, (memory, keys, values), options.memory, own_sizes, slots, number
        )
    d_x, _ = rows_op.rows_back(d_rows, d_heads, x, None, None, x, x, own[0], first, factors, 0)
    slots.weight_gradients(grads, tuple(order), factors)
    return d_x, grads


def _differentiate(ctx: Any, d_last: Tensor | None, d_kept: Any) -> tuple[Any, ...]:
    x, seed, last, *rest = ctx.saved_tensors
    kept, weights = rest[: ctx.count], rest[ctx.count :]
    none = [None] * len(ctx.given)
    if d_last is None:
        return None, None, [None] * len(weights), *none
    if torch.is_grad_enabled():
        found = _recorded(x, seed, weights, MemoryStackOptions.of(ctx.given), d_last)
        return found[0], None, found[1:], *none
    d_x, grads = torch.ops.regard.fused_memory_stack_backward.default(
        d_last, x, seed, last, kept, weights, *ctx.given
    )
    shapes = [tuple(one.shape) for one in weights]
    parts = [part.view(shape) for part, shape in zip(grads.split(sizes(shapes)), shapes, strict=True)]
    return d_x, None, parts, *none


def _recorded(
    x: Tensor, seed: Tensor | None, weights: list[Tensor], options: MemoryStackOptions, d_last: Tensor
) -> list[Tensor | None]:
    """The same gradients with an autograd graph, from the stages in plain torch."""
    views = fresh_views([x, *weights])
    rows, *trained = [one for one in views if one is not None]
    order, own = options.split(x, trained)
    heads: list[Tensor] = []
    for number, piece in enumerate(options.pieces()):
        mixed, stages = None, order[2 * number]
        assert isinstance(stages, Stages)
        if number:
            mixed = plain.mixed(heads, *options.halves(own[2 * number - 1]), *options.memory.listed())
        found = plain_rows.rows(
            rows, mixed, seed, own[2 * number], stages, piece.activation, piece.rates, piece.eps, piece.salt,
            [piece.heads] * piece.maps,
        )  # fmt: skip
        if number:
            rows, *heads = found
        else:
            heads = found
    return gradients([(rows, d_last)], views, again=True)


_LIBRARY.impl("fused_memory_stack", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_memory_stack_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_memory_stack", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_memory_stack_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd(
    "regard::fused_memory_stack", _differentiate, setup_context=_remember, lib=_LIBRARY
)

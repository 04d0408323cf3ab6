"""A stack of layers with memories as one operator, so that all weights get their gradients in one launch.

As `fused_rows/stack_op.py`, with a memory (`kinds.py`) between the maps of rows where that has softmax attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.support.batched_gradients import take_one_by_one
from regard.support.differentiate import fresh_views, gradients
from regard_fast.fused_memory.factors import Memory, Piece, SlotFactors
from regard_fast.fused_memory.kinds import MemoryKind, kind
from regard_fast.fused_rows import op as rows_op
from regard_fast.fused_rows import plain as plain_rows
from regard_fast.fused_rows.layout import Stages, sizes
from regard_fast.fused_rows.short_attention import as_rows
from regard_fast.fused_rows.stack_op import StackOptions, _backward_shapes, _remember

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_OPTIONS = (
    "str activation, float[] rates, float[] eps, int heads, bool causal, float scale, ScalarType dtype, int sides, "
    "int segment, float memory_eps"
)
_LIBRARY.define(f"fused_memory_stack(Tensor x, Tensor? seed, Tensor[] weights, {_OPTIONS}) -> (Tensor, Tensor[])")
_LIBRARY.define(
    "fused_memory_stack_backward(Tensor d_last, Tensor x, Tensor? seed, Tensor last, Tensor[] kept, Tensor[] weights, "
    f"{_OPTIONS}) -> (Tensor, Tensor)"
)
ROWS_KEPT = 3  # tensors of a layer besides heads and memory: mixed heads, rows after the attention and the layer


@dataclass(frozen=True)
class MemoryStackOptions:
    """The arguments of the operator after its tensors."""

    stack: StackOptions
    memory: MemoryKind

    def listed(self) -> tuple[Any, ...]:
        """In the order of the operator."""
        return *self.stack.listed(), *self.memory.listed()

    @classmethod
    def of(cls, given: Sequence[Any]) -> MemoryStackOptions:
        """From the arguments."""
        *first, sides, segment, eps = given
        stack = StackOptions(*first)
        return cls(stack, kind(stack.scale, sides, segment, eps))

    @property
    def per_layer(self) -> int:
        """The number of tensors that a layer keeps."""
        return self.memory.maps + self.memory.held + ROWS_KEPT

    def pieces(self) -> list[rows_op.RowOptions]:
        """The calls of the row-wise kernels."""
        return self.stack.pieces(self.memory.maps)

    def split(self, x: Tensor, weights: Sequence[Tensor]) -> tuple[list[Piece], list[list[Tensor]]]:
        """Row-wise calls and memories in turn, with the weights of each."""
        dim, pieces = x.shape[2], self.pieces()
        start = len(Stages(False, False, self.memory.maps, dim).shapes())
        memory = self.memory.sizes(weights[start:])
        borrowed = self.memory.borrowed
        hidden = weights[start + len(memory.shapes()) - len(borrowed) + 4].shape[0]  # after out and norm: rise
        order: list[Piece] = []
        for number, piece in enumerate(pieces):
            if number:
                order.append(memory)
            order.append(Stages(piece.out, piece.feed, piece.maps, dim, hidden if piece.feed else 0))
        groups: list[list[Tensor]] = []
        remaining = iter(weights)
        for call in order:
            lent = {}
            if not isinstance(call, Stages):
                maps = groups[-1][-2 - 2 * self.memory.maps :]
                lent = {number: maps[place] for number, place in borrowed.items()}
            numbers = range(len(call.shapes()))
            groups.append([lent[number] if number in lent else next(remaining) for number in numbers])
        return order, groups


def run(x: Tensor, seed: Tensor | None, weights: list[Tensor], options: MemoryStackOptions) -> Tensor:
    """The rows after all layers; the weights are those of rows and memories, one after the other."""
    rows: Tensor = torch.ops.regard.fused_memory_stack.default(x, seed, weights, *options.listed())[0]
    return rows


def _forward(x: Tensor, seed: Tensor | None, weights: list[Tensor], *given: Any) -> tuple[Tensor, list[Tensor]]:
    options = MemoryStackOptions.of(given)
    _, groups = options.split(x, weights)
    first, *later = options.pieces()
    _, _, heads = rows_op._forward(x, None, None, groups[0], *first.listed())
    rows, kept = x, []
    for number, piece in enumerate(later):
        mixed, *memory = options.memory.forward(heads, groups[2 * number + 1])
        rows, middle, after = rows_op._forward(rows, mixed, seed, groups[2 * number + 2], *piece.listed())
        kept += [*heads, mixed, *memory, middle, rows]
        heads = after
    return rows, kept[:-1]  # the last rows are the result


def _forward_shapes(x: Tensor, seed: Tensor | None, weights: list[Tensor], *given: Any) -> tuple[Tensor, list[Tensor]]:
    options = MemoryStackOptions.of(given)
    _, groups = options.split(x, weights)
    batch, length, dim = x.shape
    heads = options.stack.heads
    narrow = x.new_empty(0, dtype=options.stack.dtype)

    def like() -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    kept: list[Tensor] = []
    for number in range(options.stack.layers):
        maps = [as_rows((batch, heads, length, dim // heads), narrow) for _ in range(options.memory.maps)]
        memory = options.memory.shapes(maps, groups[2 * number + 1])
        kept += [*maps, *memory, like(), like()]
    return like(), kept[:-1]


def _backward(
    d_last: Tensor, x: Tensor, seed: Tensor | None, last: Tensor, kept: list[Tensor], weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor]:
    options = MemoryStackOptions.of(given)
    order, groups = options.split(x, weights)
    first, *later = options.pieces()
    _, grads = _backward_shapes(d_last, x, seed, last, kept, weights, *given)
    factors = rows_op.Factors([piece for piece in order if isinstance(piece, Stages)], x, options.stack.dtype)
    memories: list[Memory] = [piece for piece in order if not isinstance(piece, Stages)]
    maps, per_layer = options.memory.maps, options.per_layer
    slots = SlotFactors(memories, kept[maps + 1], kept[maps + 2])
    d_rows: Tensor | None = d_last
    d_heads: list[Tensor] = []
    saved = [*kept, last]
    for number in reversed(range(options.stack.layers)):
        begin = per_layer * number
        own_kept = saved[begin : begin + per_layer]
        heads, mixed, memory, (middle, after) = (
            own_kept[:maps],
            own_kept[maps],
            own_kept[maps + 1 : -2],
            own_kept[-2:],
        )
        before = x if number == 0 else saved[begin - 1]
        d_rows, d_mixed = rows_op.rows_back(
            d_rows, d_heads, before, mixed, seed, middle, after, groups[2 * number + 2], later[number], factors,
            number + 1,
        )
        d_heads = options.memory.heads_back(d_mixed, heads, groups[2 * number + 1], memory, slots, number)
    d_x, _ = rows_op.rows_back(d_rows, d_heads, x, None, None, x, x, groups[0], first, factors, 0)
    slots.weight_gradients(grads, tuple(order), factors, options.memory.borrowed)
    return d_x, grads


def _differentiate(ctx: Any, d_last: Tensor | None, d_kept: Any) -> tuple[Any, ...]:
    x, seed, last, *tensors = ctx.saved_tensors
    kept, weights = tensors[: ctx.count], tensors[ctx.count :]
    none = [None] * len(ctx.given)
    if d_last is None:
        return None, None, [None] * len(weights), *none
    if torch.is_grad_enabled():
        d_inputs = _recorded(x, seed, weights, MemoryStackOptions.of(ctx.given), d_last)
        return d_inputs[0], None, d_inputs[1:], *none
    d_x, grads = torch.ops.regard.fused_memory_stack_backward.default(d_last, x, seed, last, kept, weights, *ctx.given)
    shapes = [tuple(weight.shape) for weight in weights]
    of_weights = [gradient.view(shape) for gradient, shape in zip(grads.split(sizes(shapes)), shapes, strict=True)]
    return d_x, None, of_weights, *none


def _recorded(
    x: Tensor, seed: Tensor | None, weights: list[Tensor], options: MemoryStackOptions, d_last: Tensor
) -> list[Tensor | None]:
    """The same gradients with an autograd graph, from the stages in plain torch."""
    views = fresh_views([x, *weights])
    rows, *trained = [view for view in views if view is not None]
    order, groups = options.split(x, trained)
    heads: list[Tensor] = []
    for number, piece in enumerate(options.pieces()):
        mixed, stages = None, order[2 * number]
        assert isinstance(stages, Stages)
        if number:
            mixed = options.memory.plain(heads, groups[2 * number - 1])
        rows_and_heads = plain_rows.rows(
            rows, mixed, seed, groups[2 * number], stages, piece.activation, piece.rates, piece.eps, piece.salt,
            [piece.heads] * piece.maps,
        )
        if number:
            rows, *heads = rows_and_heads
        else:
            heads = rows_and_heads
    return gradients([(rows, d_last)], views, again=True)


_LIBRARY.impl("fused_memory_stack", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_memory_stack_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_memory_stack", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_memory_stack_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::fused_memory_stack", _differentiate, setup_context=_remember, lib=_LIBRARY)
take_one_by_one("fused_memory_stack_backward", _LIBRARY)

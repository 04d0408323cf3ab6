"""A dynamic memory between projected rows as one custom operator: two kernels forward, three backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.implementations.triton.launch import block_sizes
from regard.support.batched_gradients import take_one_by_one
from regard.support.differentiate import fresh_views, gradients
from regard_fast.fused_memory import plain
from regard_fast.fused_memory.factors import SlotFactors
from regard_fast.fused_memory.layout import MemorySizes
from regard_fast.fused_rows import op as rows_op
from regard_fast.fused_rows.layout import sizes
from regard_fast.fused_rows.short_attention import as_rows, strides, triton_dtype
from regard_fast.fused_rows.weight_copies import copies

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_OPTIONS = "bool causal, int segment, float scale, float eps"
_LIBRARY.define(
    f"fused_memory(Tensor[] heads, Tensor[] starts, Tensor[] weights, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "fused_memory_backward(Tensor grad, Tensor[] heads, Tensor[] starts, Tensor[] weights, Tensor memory, Tensor keys, "
    f"Tensor values, {_OPTIONS}) -> (Tensor[], Tensor)"
)


@dataclass
class MemoryTuning:
    """Warps of the kernels that write and read, rows of a tile of weights, and tiles in flight."""

    write_warps: int = 4
    back_warps: int = 8
    read_warps: int = 1
    tile: int = 32
    stages: int = 2


TUNING = MemoryTuning()


@dataclass(frozen=True)
class FusedMemoryOptions:
    """The arguments of the operator after its tensors."""

    causal: bool  # whether an element sees only earlier ones of its segment
    segment: int
    scale: float  # of all scores
    eps: float  # of the normalisation after a write

    def listed(self) -> tuple[Any, ...]:
        """In the order of the operator."""
        return self.causal, self.segment, self.scale, self.eps

    def segments(self, length: int) -> int:
        """The number of segments of a sequence of `length` rows."""
        return -(-length // self.segment)


def run(heads: list[Tensor], starts: list[Tensor], weights: list[Tensor], options: FusedMemoryOptions) -> Tensor:
    """What the elements read, (b,h,n,d); the arguments are those of `plain.mixed`."""
    mixed: Tensor = torch.ops.regard.fused_memory.default(heads, starts, weights, *options.listed())[0]
    return mixed


def sizes_of(starts: Sequence[Tensor], weights: Sequence[Tensor]) -> MemorySizes:
    """The sizes of a call."""
    slots, dim = starts[0].shape
    return MemorySizes(len(starts), slots, dim, gated=len(weights) == 12)


def _constants(heads: Sequence[Tensor], made: MemorySizes, options: FusedMemoryOptions) -> dict[str, Any]:
    """The constants that all kernels take."""
    count, width = heads[0].shape[1], heads[0].shape[3]
    return {
        "SLOTS": made.slots, "DIRECTIONS": made.directions, "SEGMENT": options.segment, "HEADS": count, "HEAD": width,
        "D": made.dim, "J": block_sizes.padded(options.segment), "DT": triton_dtype(heads[0].dtype),
    }


def head_stages(width: int) -> int:
    """Loads in flight of the weights of heads: two tiles of wide heads do not fit at once."""
    return TUNING.stages if width <= 32 else 1


def _of_writing(heads: Sequence[Tensor], made: MemorySizes, warps: int) -> dict[str, Any]:
    wide = triton_dtype(rows_op._wide(heads[0].dtype))
    constants: dict[str, Any] = {
        "R": block_sizes.padded(made.slots), "GATED": made.gated, "WIDE": wide, "TILE": min(TUNING.tile, made.dim),
        "STAGES": TUNING.stages, "HEAD_STAGES": head_stages(heads[0].shape[3]),
    }
    return constants if block_sizes.INTERPRETED else {**constants, "num_warps": warps}


def _of_reading(made: MemorySizes, options: FusedMemoryOptions) -> dict[str, Any]:
    lines = block_sizes.padded(made.directions * made.slots)
    constants: dict[str, Any] = {"U": lines, "CAUSAL": options.causal}
    warps = TUNING.read_warps * (2 if lines > 32 else 1)
    return constants if block_sizes.INTERPRETED else {**constants, "num_warps": warps}


def _groups(weights: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Query map, output map, maps for reading, update, each in bfloat16 where there is a copy."""
    narrow = [copies(weight) for weight in weights]
    return [tuple(narrow[:2]), tuple(narrow[2:4]), tuple(narrow[4:8]), tuple(narrow[8:])]


def _forward(
    heads: list[Tensor], starts: list[Tensor], weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from regard_fast.fused_memory.read_kernels import read_forward
    from regard_fast.fused_memory.write_kernels import write_forward

    options, layout = FusedMemoryOptions(*given), sizes_of(starts, weights)
    heads = rows_op._alike(heads)
    query, key, value, written_key, written_value = heads
    batch, count, length, _ = query.shape
    mixed, memory, keys, values = _forward_shapes(heads, starts, weights, *given)
    segments, shared = options.segments(length), _constants(heads, layout, options)
    starts = [start.contiguous() for start in starts]
    write_forward[(batch * layout.directions,)](
        written_key, written_value, tuple(starts), memory, keys, values, *_groups(weights), length, segments,
        options.scale, options.eps, *strides(written_key), **shared, **_of_writing(heads, layout, TUNING.write_warps),
    )
    read_forward[(batch * segments * count,)](
        query, key, value, keys, values, mixed, length, segments, batch, options.scale, *strides(query),
        *strides(mixed), **shared, **_of_reading(layout, options),
    )
    return mixed, memory, keys, values


def _forward_shapes(
    heads: list[Tensor], starts: list[Tensor], weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options, layout, query = FusedMemoryOptions(*given), sizes_of(starts, weights), heads[0]
    batch, _, length, _ = query.shape
    shape = (options.segments(length), batch, layout.directions, layout.slots, layout.dim)
    memory = query.new_empty(shape, dtype=rows_op._wide(query.dtype))
    return as_rows(query.shape, query), memory, query.new_empty(shape), query.new_empty(shape)


def _backward(
    grad: Tensor, heads: list[Tensor], starts: list[Tensor], weights: list[Tensor], memory: Tensor, keys: Tensor,
    values: Tensor, *given: Any,
) -> tuple[list[Tensor], Tensor]:
    layout = sizes_of(starts, weights)
    factors = SlotFactors([layout], memory, keys)
    d_heads = heads_back(
        grad, heads, weights, (memory, keys, values), FusedMemoryOptions(*given), layout, factors, number=0
    )
    grads = starts[0].new_empty(sum(sizes(layout.shapes())))
    factors.weight_gradients(grads, (layout,))
    return d_heads, grads


def heads_back(
    grad: Tensor, heads: list[Tensor], weights: list[Tensor], kept: tuple[Tensor, Tensor, Tensor],
    options: FusedMemoryOptions, made: MemorySizes, factors: SlotFactors, number: int,
) -> list[Tensor]:
    """The gradients of the heads; `factors` gets what those of the weights are made from."""
    from regard_fast.fused_memory.read_kernels import read_backward
    from regard_fast.fused_memory.write_kernels import write_backward

    heads, (grad,), (memory, keys, values) = rows_op._alike(heads), rows_op._alike([grad]), kept
    query, key, value, written_key, written_value = heads
    batch, count, length, _ = query.shape
    segments, shared = options.segments(length), _constants(heads, made, options)
    d_heads = [as_rows(query.shape, query) for _ in range(3)]
    lines, sums = factors.of(number)
    read_backward[(batch * segments * count,)](
        query, key, value, keys, values, grad, *d_heads, lines, length, segments, batch, options.scale, *strides(query),
        *strides(grad), *strides(d_heads[0]), PITCH=factors.pitch, **shared, **_of_reading(made, options),
    )
    alone = made.directions == 1 or segments == 2  # whether each segment is written in one direction at most
    shape = (1 if alone else 2, batch, length, made.dim)
    written = [query.new_empty(shape) for _ in range(2)]
    scratch = memory.new_empty((factors.programs, 2, made.slots, made.dim))
    write_backward[(factors.programs,)](
        written_key, written_value, *written, memory, lines, sums, scratch, *_groups(weights), length, segments,
        options.scale, options.eps, *strides(written_key), 0 if alone else written[0].stride(0), written[0].stride(1),
        PITCH=factors.pitch, VECTORS=factors.vectors, SHARED=alone and made.directions == 2, **shared,
        **_of_writing(heads, made, TUNING.back_warps),
    )
    joined = [gradient[0] if alone else gradient.sum(0) for gradient in written]
    return [*d_heads, *(gradient.unflatten(2, (count, -1)).transpose(1, 2) for gradient in joined)]


def _backward_shapes(
    grad: Tensor, heads: list[Tensor], starts: list[Tensor], weights: list[Tensor], memory: Tensor, keys: Tensor,
    values: Tensor, *given: Any,
) -> tuple[list[Tensor], Tensor]:
    total = sum(sizes(sizes_of(starts, weights).shapes()))
    return [as_rows(rows.shape, rows) for rows in heads], starts[0].new_empty(total)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    heads, starts, weights, *ctx.given = inputs
    ctx.starts = len(starts)
    ctx.save_for_backward(*output[1:], *heads, *starts, *weights)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor | None, *others: Any) -> tuple[Any, ...]:
    memory, keys, values, *tensors = ctx.saved_tensors
    heads, starts, weights = tensors[:5], tensors[5 : 5 + ctx.starts], tensors[5 + ctx.starts :]
    none = [None] * len(ctx.given)
    if grad is None:
        return [None] * 5, [None] * len(starts), [None] * len(weights), *none
    if torch.is_grad_enabled():
        d_inputs = _recorded(grad, tensors, ctx.starts, ctx.given)
        return d_inputs[:5], d_inputs[5 : 5 + ctx.starts], d_inputs[5 + ctx.starts :], *none
    d_heads, grads = torch.ops.regard.fused_memory_backward.default(
        grad, heads, starts, weights, memory, keys, values, *ctx.given
    )
    shapes = sizes_of(starts, weights).shapes()
    of_weights = [gradient.view(shape) for gradient, shape in zip(grads.split(sizes(shapes)), shapes, strict=True)]
    return d_heads, of_weights[: ctx.starts], of_weights[ctx.starts :], *none


def _recorded(grad: Tensor, tensors: Sequence[Tensor], starts: int, given: Any) -> list[Tensor | None]:
    """The same gradients with an autograd graph, from plain torch."""
    views = fresh_views(tensors)
    given_views = [view for view in views if view is not None]
    mixed = plain.mixed(given_views[:5], given_views[5 : 5 + starts], given_views[5 + starts :], *given)
    return gradients([(mixed, grad)], views, again=True)


_LIBRARY.impl("fused_memory", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_memory_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_memory", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_memory_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::fused_memory", _differentiate, setup_context=_remember, lib=_LIBRARY)
take_one_by_one("fused_memory_backward", _LIBRARY)

"""A static memory between maps of rows: the calls of its kernels, its readable twin, and when they can run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.implementations.gpu import is_off, may_transpose_wrongly
from regard.implementations.triton.launch import block_sizes
from regard.nn.parts.heads import join_heads, split_heads
from regard.support.tracing import constant_when_traced
from regard_fast.fused_memory import refusal as memories
from regard_fast.fused_memory.factors import SlotFactors
from regard_fast.fused_memory.layout import StaticSizes
from regard_fast.fused_memory.op import TUNING, _groups, head_stages
from regard_fast.fused_rows import op as rows_op
from regard_fast.fused_rows.multihead import plain_attention
from regard_fast.fused_rows.short_attention import as_rows, plain, strides, triton_dtype

if TYPE_CHECKING:
    from regard.nn.static_memory import StaticMemory


@dataclass(frozen=True)
class StaticOptions:
    """What the kernels are told besides tensors: the factor of all scores, and eps of the normalisation."""

    scale: float
    eps: float


def refusal(layer: StaticMemory, batch: int, length: int, layers: int = 1) -> str:
    """Why the kernels cannot run the memory between maps of rows; empty if they can. As `refusal.refusal`."""
    from regard_fast.fused_rows.layers import hooked

    reader, writer = layer.reader, layer.writer
    attention = plain_attention(reader)
    if why := memories.refused_sizes(layer):
        return why
    if attention is None or attention != plain_attention(writer) or attention.causal:
        return "the attention is not a plain softmax over all keys (dropout of weights?)"
    count, width = len(layer.slots), layer.dim // layer.num_heads
    if why := attention.refusal(count, length, width):
        return why
    blocks = block_sizes.padded(length), block_sizes.padded(count)
    if may_transpose_wrongly(*blocks) and _is_wrong(*blocks, layer.dim, width):
        return f"this Triton computes the gradients of {length} rows and {count} slots wrongly on this GPU"
    linear_maps = [writer.query_map, writer.output_map, reader.key_map, reader.value_map]
    if any(type(linear) is not nn.Linear or linear.bias is None for linear in linear_maps):
        return "a linear map is not a plain nn.Linear with a bias"
    if any(getattr(layer.norm, name) is None for name in ("weight", "bias")):
        return "the normalisation has no gain and shift"
    if any(hooked(module) for module in (reader, writer, layer.norm, *linear_maps)):
        return "a module has hooks"
    lines = layers * batch * len(layer.slots)
    if lines * StaticSizes(len(layer.slots), layer.dim).pitch > memories.MOST_FACTORS:
        return "the gradients of weights would be made from too many numbers"
    return ""


def tensors_of(layer: StaticMemory) -> list[Tensor]:
    """Slots and weights in the order of `layout.StaticSizes.shapes`."""
    reader, writer = layer.reader, layer.writer
    maps = (writer.query_map, writer.output_map, reader.key_map, reader.value_map)
    both = [tensor for linear in maps for tensor in (linear.weight, linear.bias)]
    return [layer.slots, *both, layer.norm.weight, layer.norm.bias]


def options_of(layer: StaticMemory) -> StaticOptions:
    """What the kernels are told."""
    attention = plain_attention(layer.reader)
    assert attention is not None
    return StaticOptions(attention.scale, layer.norm.eps)


def sizes_of(weights: Sequence[Tensor]) -> StaticSizes:
    """The sizes of a memory with these slots and weights."""
    return StaticSizes(*weights[0].shape)


def _constants(heads: Sequence[Tensor], made: StaticSizes, warps: int) -> dict[str, Any]:
    _, count, length, width = heads[0].shape
    constants: dict[str, Any] = {
        "COUNT": made.slots, "HEADS": count, "HEAD": width, "D": made.dim, "R": block_sizes.padded(made.slots),
        "J": block_sizes.padded(length), "DT": triton_dtype(heads[0].dtype),
        "WIDE": triton_dtype(rows_op._wide(heads[0].dtype)), "STAGES": head_stages(width),
    }
    return constants if block_sizes.INTERPRETED else {**constants, "num_warps": warps}


def forward(heads: list[Tensor], weights: list[Tensor], options: StaticOptions) -> tuple[Tensor, ...]:
    """What the rows read (b,h,n,d), slots with what was written to them, and mixed values, both (b,slots,dim)."""
    from regard_fast.fused_memory.static_kernels import static_forward

    heads = rows_op._alike(heads)
    read, total, mixed = shapes(heads, weights)
    static_forward[(total.shape[0],)](
        *heads, weights[0].contiguous(), read, total, mixed, *_groups(weights[1:]), heads[0].shape[2], options.scale,
        options.eps, *strides(heads[0]), *strides(read), **_constants(heads, sizes_of(weights), TUNING.write_warps),
    )
    return read, total, mixed


def shapes(heads: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The results of `forward`, without values."""
    query = heads[0]
    shape = (query.shape[0], *weights[0].shape)
    wide = query.new_empty(shape, dtype=rows_op._wide(query.dtype))
    return as_rows(query.shape, query), wide, query.new_empty(shape)


def heads_back(
    grad: Tensor, heads: list[Tensor], weights: list[Tensor], kept: tuple[Tensor, Tensor], options: StaticOptions,
    factors: SlotFactors, number: int,
) -> list[Tensor]:
    """The gradients of the heads; `factors` gets what those of the weights are made from."""
    from regard_fast.fused_memory.static_kernels import static_backward

    heads, (grad,) = rows_op._alike(heads), rows_op._alike([grad])
    d_heads = [as_rows(rows.shape, rows) for rows in heads]
    lines, sums = factors.of(number)
    static_backward[(factors.programs,)](
        *heads, grad, weights[0].contiguous(), *kept, *d_heads, lines, sums, *_groups(weights[1:]), heads[0].shape[2],
        options.scale, options.eps, *strides(heads[0]), *strides(grad), *strides(d_heads[0]), PITCH=factors.pitch,
        VECTORS=factors.vectors, **_constants(heads, sizes_of(weights), TUNING.back_warps),
    )
    return d_heads


def mixed(heads: Sequence[Tensor], weights: Sequence[Tensor], options: StaticOptions) -> Tensor:
    """What the rows read, in plain torch."""
    query, key, value = heads
    width, scale = query.shape[3], options.scale
    slots, ask, ask_bias, out, out_bias, to_key, key_bias, to_value, value_bias, gain, shift = weights
    ask_heads = split_heads(F.linear(slots[None], ask, ask_bias), width)
    written = F.linear(join_heads(plain(ask_heads, key, value, False, scale)), out, out_bias)
    memory = F.layer_norm(slots + written, slots.shape[1:], gain, shift, options.eps)
    maps = ((to_key, key_bias), (to_value, value_bias))
    slot_key, slot_value = (split_heads(F.linear(memory, *linear), width) for linear in maps)
    return plain(query, slot_key, slot_value, False, scale)


@constant_when_traced
@cache
def _is_wrong(length: int, slots: int, dim: int, width: int) -> bool:
    """Whether the backward kernel is compiled wrongly for blocks of these sizes: run once, and compared."""
    source = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source).cuda()

    maps = [tensor for _ in range(4) for tensor in (drawn(dim, dim) * dim**-0.5, drawn(dim))]
    weights = [drawn(slots, dim), *maps, drawn(dim), drawn(dim)]
    pull, *heads = (drawn(1, dim // width, length, width).bfloat16() for _ in range(4))
    options = StaticOptions(width**-0.5, 1e-5)
    with torch.no_grad():
        _, *kept = forward(heads, weights, options)
        factors = SlotFactors([sizes_of(weights)], *kept)
        mine = heads_back(pull, heads, weights, (kept[0], kept[1]), options, factors, 0)
    with torch.enable_grad():
        exact = [rows.double().requires_grad_() for rows in heads]
        right = torch.autograd.grad(mixed(exact, [param.double() for param in weights], options), exact, pull.double())
    return is_off(mine, right)

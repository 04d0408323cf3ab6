"""Whether the kernels can run a `dynamic-memory` between fused rows, and its call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from regard_fast import fused_memory
from regard_fast.fused_rows.multihead import plain_attention

if TYPE_CHECKING:
    from regard.nn.dynamic_memory import DynamicMemory
    from regard.nn.static_memory import StaticMemory
    from regard_fast.fused_memory.op import FusedMemoryOptions

WIDEST = 128  # of a slot: a square weight must fit into shared memory
MOST_SLOTS = 32  # of a direction, which are in the registers of one program
LONGEST = 32  # rows of a segment
WIDTHS = (16, 32, 64, 128)  # of a head
MOST_FACTORS = 2**25  # numbers that the backward pass keeps for the gradients of weights: 64 MiB


def refusal(layer: DynamicMemory, batch: int, length: int, layers: int = 1) -> str:
    """Why the plain layer must run between maps of rows without padding, state or source; empty if kernels can.

    The layer is one whose maps of rows are known (`mechanisms.py`), and `fused_rows.layers.refusal` was empty: no hooks
    on these maps, weights in float32. `layers`: how many such layers keep factors at the same time.
    """
    from regard_fast.fused_rows.layers import hooked

    if why := refused_sizes(layer):
        return why
    if layer.segment > LONGEST:
        return f"segments of {layer.segment}; known are {LONGEST} at most"
    slots = len(layer.slots)
    attentions = [plain_attention(layer.reader), plain_attention(layer.writer)]
    if None in attentions or attentions[0] != attentions[1]:
        return "the attention is not a plain softmax (dropout of weights?)"
    linear_maps = [layer.writer.query_map, layer.writer.output_map]
    if any(type(linear) is not nn.Linear or linear.bias is None for linear in linear_maps):
        return "a linear map is not a plain nn.Linear with a bias"
    update = layer.norm if layer.gate is None else layer.gate
    if type(update) is nn.LayerNorm:
        is_plain = update.weight is not None and update.bias is not None
    else:
        is_plain = type(update) is nn.GRUCell and update.bias
    if not is_plain:
        return "the update is not a plain LayerNorm or GRUCell with biases"
    if any(hooked(module) for module in (layer.reader, layer.writer, *linear_maps, update)):  # type: ignore[arg-type]
        return "a module has hooks"
    lines = batch * (2 if layer.bidirectional else 1) * layer._segments(length) * slots
    if layers * lines * layer.dim * 12 > MOST_FACTORS:
        return "the gradients of weights would be made from too many numbers"
    return ""


def refused_sizes(layer: DynamicMemory | StaticMemory) -> str:
    """Why the kernels know no memory of this size; empty if they do."""
    width, slots = layer.dim // layer.num_heads, len(layer.slots)
    if not fused_memory.enabled:
        return "fused memories are switched off (regard_fast.fused_memory.enabled)"
    if layer.dim > WIDEST or width not in WIDTHS:
        return f"slots are {layer.dim} wide and heads {width}; known are {WIDEST} at most, and {WIDTHS}"
    return f"{slots} slots; known are {MOST_SLOTS} at most" if slots > MOST_SLOTS else ""


def run(layer: DynamicMemory, heads: list[Tensor]) -> Tensor:
    """What the elements read, (b,h,n,d), before the output map; `refusal` must have been empty."""
    from regard_fast.fused_memory import op

    starts, weights = tensors_of(layer)
    return op.run(heads, starts, weights, options_of(layer))


def tensors_of(layer: DynamicMemory) -> tuple[list[Tensor], list[Tensor]]:
    """The slots of each direction, and the weights in the order of `layout.MemorySizes.shapes`."""
    reader, writer = layer.reader, layer.writer
    starts: list[Tensor] = [layer.slots] if layer.later_slots is None else [layer.slots, layer.later_slots]
    maps = (writer.query_map, writer.output_map, reader.key_map, reader.value_map)
    weights: list[Tensor] = [tensor for linear in maps for tensor in (linear.weight, linear.bias)]
    if layer.gate is not None:
        gate = layer.gate
        return starts, [*weights, gate.weight_ih, gate.weight_hh, gate.bias_ih, gate.bias_hh]
    assert layer.norm is not None
    return starts, [*weights, layer.norm.weight, layer.norm.bias]


def all_tensors(layer: DynamicMemory) -> list[Tensor]:
    """Slots and weights in the order of `layout.MemorySizes.shapes`."""
    starts, weights = tensors_of(layer)
    return starts + weights


def options_of(layer: DynamicMemory) -> FusedMemoryOptions:
    """The options of the operator."""
    from regard_fast.fused_memory.op import FusedMemoryOptions

    plain = plain_attention(layer.reader)
    assert plain is not None
    eps = 0.0 if layer.norm is None else layer.norm.eps
    return FusedMemoryOptions(not layer.bidirectional, layer.segment, plain.scale, eps)

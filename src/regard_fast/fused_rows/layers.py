"""A stack of pre-norm encoder layers with everything between two attentions in one call of the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

import regard.dispatch.attention as dispatch
from regard.formula.dropout import draw_seed
from regard.implementations import HAS_TRITON, gpu
from regard.nn import sharing
from regard.support.autocast import autocasts
from regard.support.differentiate import needs_plain_torch
from regard.support.tracing import exporting
from regard_fast import fused_rows
from regard_fast.fused_rows.row_maps import RowMaps
from regard_fast.fused_rows.short_attention import PlainAttention

if TYPE_CHECKING:
    from regard.nn.parts.blocks import EncoderLayer
    from regard_fast.fused_memory.stack_op import MemoryStackOptions
    from regard_fast.fused_rows.stack_op import StackOptions

NARROWEST, WIDEST = 16, 256  # a block of rows, and tiles of weights, must fit on one multiprocessor
MOST_ROWS = 4096  # the kernels are for steps bound by launches; above this, torch's products were not compared with
MOST_FACTORS = 2**25  # numbers that one operator for a whole stack keeps for the gradients of weights: 64 MiB
ACTIVATIONS = ("relu", "gelu", "silu")
LEAST_SHARED = 168 * 1024  # bytes of shared memory of a program; the largest, of an LSTM, takes 164 KiB
_ATTEND = dispatch.attend  # while a model is observed, another function is in its place


def refusal(layers: Sequence[nn.Module], rows: Tensor, mask: Any, source: Any = None) -> str:
    """Why the modules of these layers must be called; empty if the kernels can run them."""
    if mask is not None or source:
        return "there is a mask (of padding, or of the caller) or a source"
    if why := circumstances(rows):
        return why
    for number, layer in enumerate(layers):
        if why := _refused_layer(layer, rows, rows.shape[2]):
            return f"layer {number}: {why}"
    return ""


def refused_place(tensor: Tensor) -> str:
    """Why no kernel for small models can run where this tensor is; empty if one may."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if _has_any_global_hook():
        return "hooks of all modules are registered"
    if not (tensor.is_cuda or fused_rows.on_cpu):
        return "the rows are not on a CUDA device"
    if tensor.is_cuda and (room := gpu.shared_memory(tensor.device)) < LEAST_SHARED:
        return f"the GPU gives a program {room >> 10} KiB of shared memory, not {LEAST_SHARED >> 10}"
    if tensor.is_cuda and not (autocasts(tensor.device) and torch.get_autocast_dtype("cuda") == torch.bfloat16):
        return "autocast to bfloat16 is off"
    return ""


def refused_rows(rows: Tensor) -> str:
    """Why no kernel for small models can run on these rows; empty if one may."""
    if why := refused_place(rows):
        return why
    if rows.is_cuda and rows.dtype not in (torch.float32, torch.bfloat16):
        return f"the rows are {rows.dtype}, not float32 or bfloat16"
    return ""


def circumstances(rows: Tensor, width: int | None = None) -> str:
    """Why no row-wise kernel can take these rows here and now, or make rows of this width; empty if one can."""
    if why := refused_rows(rows):
        return why
    if needs_plain_torch() or exporting() or sharing.current() is not None or dispatch.attend is not _ATTEND:
        return "the model is exported, observed, transformed or shared between ranks"
    if rows.shape[0] * rows.shape[1] > MOST_ROWS:
        return f"there are more than {MOST_ROWS} rows"
    width = rows.shape[2] if width is None else width
    if not (NARROWEST <= width <= WIDEST) or width & (width - 1):
        return f"the width is {width}, not a power of two from {NARROWEST} to {WIDEST}"
    return ""


def _refused_layer(layer: Any, rows: Tensor, width: int) -> str:
    from regard.nn.parts.blocks import EncoderLayer
    from regard_fast.mechanisms import row_maps

    if type(layer) is not EncoderLayer:
        return f"a {type(layer).__name__} is not a plain encoder layer"
    around, feed = (layer.around_attention, layer.around_feed_forward), layer.feed_forward
    for block in around:
        if not block.before or not block.residual:
            return "only norm=pre with residual connections is known"
        if type(block.norm) is not nn.LayerNorm or block.norm.weight is None or block.norm.bias is None:
            return "only a LayerNorm with gain and shift is known"
    if feed.gate is not None:
        return "the feed-forward part is gated"
    if feed.activation not in ACTIVATIONS:
        return f"the activation is {feed.activation}; known are {', '.join(ACTIVATIONS)}"
    hidden = feed.rise.weight.shape[0]
    if hidden % min(64, width):
        return f"the feed-forward part is {hidden} wide, not a multiple of {min(64, width)}"
    maps = row_maps(layer.attention)
    if maps is None:
        return "the attention is not made of linear maps of rows without options"
    if rows.shape[1] < maps.shortest:
        return f"there are fewer than {maps.shortest} rows, so that the attention does not use all its maps"
    linear = [feed.rise, feed.fall, maps.out, *maps.maps]
    for linear_map in linear:
        if type(linear_map) is not nn.Linear or linear_map.bias is None:
            return "a linear map is not a plain nn.Linear with a bias"
    if any(tuple(linear_map.weight.shape) != (width, width) for linear_map in (maps.out, *maps.maps)):
        return f"a map of the attention is not {width} × {width}"
    modules = [layer, *around, feed, *linear, layer.attention, *(block.norm for block in around)]
    if any(hooked(module) for module in modules):
        return "a module has hooks"
    if any(linear_map.weight.dtype != torch.float32 and not fused_rows.on_cpu for linear_map in linear):
        return "weights are not float32"
    return ""


def hooked(module: nn.Module) -> bool:
    """Whether somebody sees, or has replaced, what the module is given or returns."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
    )


def run(layers: Iterable[EncoderLayer], rows: Tensor) -> Tensor:
    """The rows after all layers; `refusal` must have been empty.

    Rows that autocast made bfloat16 (a linear embedding of vectors) are added up in float32.
    """
    if (stack := whole(layers, rows)) is not None:
        from regard_fast.fused_rows import stack_op

        rows, drops, weights, layered = stack
        return stack_op.run(rows, draw_seed(rows.device) if drops else None, weights, layered)
    listed = list(layers)
    rows = _wide(rows)
    seed = draw_seed(rows.device) if _drops(listed) else None
    heads = [_row_maps(layer) for layer in listed]
    if (memories := _memories_as_one(listed, heads, rows)) is not None:
        from regard_fast.fused_memory import stack_op as memory_stack

        options, between = memories
        return memory_stack.run(rows, seed, _all_weights(listed, heads, between), options)
    rows, heads_of_rows = begin(rows, listed[0].around_attention.norm, heads[0].maps, heads[0].heads)  # type: ignore[arg-type]
    for number, (layer, maps) in enumerate(zip(listed, heads, strict=True)):
        last = number + 1 == len(listed)
        rows, heads_of_rows = _between(
            rows, maps.mix(heads_of_rows), seed, layer, number,
            None if last else listed[number + 1], None if last else heads[number + 1],
        )
    return rows


def whole(layers: Iterable[EncoderLayer], rows: Tensor) -> tuple[Tensor, bool, list[Tensor], StackOptions] | None:
    """The arguments of one operator for all layers: rows, whether it needs a seed, weights, options.

    None: there is an operator for each layer.
    """
    listed, rows = list(layers), _wide(rows)
    heads = [_row_maps(layer) for layer in listed]
    options = _as_one(listed, heads, rows)
    return None if options is None else (rows, _drops(listed), _all_weights(listed, heads), options)


def _wide(rows: Tensor) -> Tensor:
    return rows.float() if rows.dtype == torch.bfloat16 else rows


def _drops(layers: list[EncoderLayer]) -> bool:
    return any(_rates(layer) != [0.0, 0.0, 0.0] for layer in layers)


def _as_one(layers: list[EncoderLayer], maps: list[RowMaps], rows: Tensor) -> StackOptions | None:
    """The options of one operator for the whole stack; None: one for each layer.

    Each attention must be a softmax over few keys, and the layers few enough to keep what their weights' gradients
    are made from until the end.
    """
    plain, heads = maps[0].plain, maps[0].heads
    length, width = rows.shape[1], rows.shape[2] // heads
    if plain is None or plain.refusal(length, length, width):
        return None
    for layer_maps in maps:
        softmax = layer_maps.plain
        if softmax is None or (layer_maps.heads, softmax.causal, softmax.scale) != (heads, plain.causal, plain.scale):
            return None
    options = _alike(layers, heads, plain, rows)
    factors = 8 * rows.shape[2] + 2 * layers[0].feed_forward.rise.weight.shape[0]  # of a row in a layer
    return None if rows.shape[0] * length * len(layers) * factors > MOST_FACTORS else options


def _alike(layers: list[EncoderLayer], heads: int, plain: PlainAttention, rows: Tensor) -> StackOptions | None:
    """The options of a stack whose feed-forward parts are alike; None if they are not."""
    from regard_fast.fused_rows.stack_op import StackOptions

    first = layers[0].feed_forward
    for feed in (layer.feed_forward for layer in layers):
        if feed.activation != first.activation or feed.rise.weight.shape != first.rise.weight.shape:
            return None
    norms: list[Any] = [block.norm for layer in layers for block in _around(layer)]
    return StackOptions(
        first.activation,
        [rate for layer in layers for rate in _rates(layer)],
        [norm.eps for norm in norms],
        heads,
        plain.causal,
        plain.scale,
        _dtype(rows),
    )


def _memories_as_one(
    layers: list[EncoderLayer], maps: list[RowMaps], rows: Tensor
) -> tuple[MemoryStackOptions, list[list[Tensor]]] | None:
    """The options of one operator for a stack of memories that are alike, and the slots and weights of each memory.

    None: one operator for each layer.
    """
    from regard_fast.fused_memory.kinds import kind_of
    from regard_fast.fused_memory.stack_op import MemoryStackOptions

    batch, length, dim = rows.shape
    memory_kinds = [kind_of(layer.attention, batch, length, len(layers)) for layer in layers]
    memories = [kind_and_weights for kind_and_weights in memory_kinds if kind_and_weights is not None]
    if len(memories) < len(memory_kinds):
        return None
    (kind, first), heads = memories[0], maps[0].heads
    for (other_kind, tensors), layer_maps in zip(memories, maps, strict=True):
        if type(other_kind) is not type(kind) or len(tensors) != len(first) or layer_maps.heads != heads:
            return None
        if any(tensor.shape != same.shape for tensor, same in zip(tensors, first, strict=True)):
            return None
        if other_kind.listed() != kind.listed() or other_kind.options.scale != kind.options.scale:
            return None
    options = _alike(layers, heads, PlainAttention(False, kind.options.scale), rows)
    factors = (5 + kind.maps) * dim + 2 * layers[0].feed_forward.rise.weight.shape[0]  # of a row in a layer
    if options is None or batch * length * len(layers) * factors > MOST_FACTORS:
        return None
    return MemoryStackOptions(options, kind), [tensors for _, tensors in memories]


def _around(layer: EncoderLayer) -> tuple[Any, Any]:
    return layer.around_attention, layer.around_feed_forward


def _all_weights(layers: list[EncoderLayer], maps: list[RowMaps], between: Sequence[list[Tensor]] = ()) -> list[Tensor]:
    """The weights of all calls, one after the other; `between`: those of each attention, after its maps."""
    weights: list[Tensor] = []
    for number, (layer, layer_maps) in enumerate(zip(layers, maps, strict=True)):
        norm: Any = layer.around_attention.norm
        if number == 0:
            weights += _after(norm, layer_maps.maps)
        weights += between[number] if between else []
        weights += _own_weights(layer, layer_maps)
        if number + 1 < len(layers):
            following: Any = layers[number + 1].around_attention.norm
            weights += _after(following, maps[number + 1].maps)
    return weights


def _own_weights(layer: EncoderLayer, own: RowMaps) -> list[Tensor]:
    """The weights of the stages "out" and "feed" of a layer."""
    norm: Any = layer.around_feed_forward.norm
    feed = layer.feed_forward
    return [
        own.out.weight, own.out.bias, norm.weight, norm.bias, feed.rise.weight, feed.rise.bias, feed.fall.weight,
        feed.fall.bias,
    ]


def begin(rows: Tensor, norm: nn.LayerNorm, maps: Sequence[nn.Linear], heads: int) -> tuple[Tensor, list[Tensor]]:
    """Normalised rows through linear maps, as heads (b,h,n,·)."""
    from regard_fast.fused_rows import op

    options = op.RowOptions(False, False, len(maps), "gelu", [0.0] * 3, [0.0, norm.eps], 0, heads, _dtype(rows))
    return op.run(rows, None, None, _after(norm, maps), options)


def join(
    rows: Tensor, mixed: Tensor, out: nn.Linear, norm: nn.LayerNorm, maps: Sequence[nn.Linear], heads: int
) -> list[Tensor]:
    """maps(norm(rows + out(mixed))) as heads."""
    from regard_fast.fused_rows import op

    options = op.RowOptions(True, False, len(maps), "gelu", [0.0] * 3, [0.0, norm.eps], 0, heads, _dtype(rows))
    weights = [out.weight, out.bias, *_after(norm, maps)]
    return op.run(rows, mixed, None, weights, options)[1]


def _between(
    rows: Tensor, mixed: Tensor, seed: Tensor | None, layer: EncoderLayer, number: int, after: EncoderLayer | None,
    maps: RowMaps | None,
) -> tuple[Tensor, list[Tensor]]:
    """From the attention of one layer to that of the next, or to the end of the stack."""
    from regard_fast.fused_rows import op

    layer_maps, feed = _row_maps(layer), layer.feed_forward
    norm: Any = layer.around_feed_forward.norm
    weights = _own_weights(layer, layer_maps)
    eps, count, heads = [norm.eps, 0.0], 0, 1
    if after is not None and maps is not None:
        following: Any = after.around_attention.norm
        weights += _after(following, maps.maps)
        eps, count, heads = [norm.eps, following.eps], len(maps.maps), maps.heads
    options = op.RowOptions(True, True, count, feed.activation, _rates(layer), eps, number, heads, _dtype(rows))
    return op.run(rows, mixed, seed, weights, options)


def _row_maps(layer: EncoderLayer) -> RowMaps:
    from regard_fast.mechanisms import row_maps

    maps = row_maps(layer.attention)
    assert maps is not None  # `refusal` has asked before
    return maps


def _after(norm: nn.LayerNorm, maps: Sequence[nn.Linear]) -> list[Tensor]:
    return [norm.weight, norm.bias, *(linear.weight for linear in maps), *(linear.bias for linear in maps)]


def _rates(layer: EncoderLayer) -> list[float]:
    """Dropout after the attention, inside and after the feed-forward part."""
    dropouts = (layer.around_attention.dropout, layer.feed_forward.dropout, layer.around_feed_forward.dropout)
    return [float(dropout.p) if layer.training else 0.0 for dropout in dropouts]


def _dtype(rows: Tensor) -> torch.dtype:
    return torch.bfloat16 if rows.is_cuda or fused_rows.rehearsed else rows.dtype

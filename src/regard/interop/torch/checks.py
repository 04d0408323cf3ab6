"""Checks of the arguments of `MultiheadAttention`. Messages begin with the words that torch uses, which tests match."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.errors import BadType, BadValue
from regard.support.arguments import described

if TYPE_CHECKING:
    from regard.interop.torch.multihead_attention import MultiheadAttention


class TorchMisuse(BadValue, AssertionError, RuntimeError):
    """A wrong argument of a layer that replaces torch's, which raises AssertionError or RuntimeError for it."""


def check_tensors(query: object, key: object, value: object) -> None:
    """Raise unless the three inputs are floating-point tensors."""
    for name, argument in (("query", query), ("key", key), ("value", value)):
        if not isinstance(argument, Tensor) or not argument.is_floating_point():
            advice = ""
            if isinstance(argument, Tensor) and argument.is_quantized:
                advice = " Static quantisation knows torch's own layer: call restore(model) before prepare(model)."
            raise BadType(f"{name}: expected a floating-point tensor, got {described(argument)}.{advice}")


def check_axes(
    query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
) -> bool:
    """Raise unless every argument has the number of axes that goes with the query's; return whether it is batched."""
    axes = query.dim()
    if axes not in (2, 3):
        raise TorchMisuse(
            f"query should be unbatched 2D or batched 3D tensor but received {axes}-D query tensor. Expected "
            f"(length, embed_dim), with a batch axis before or after the length."
        )
    kind = "batched (3-D)" if axes == 3 else "unbatched (2-D)"
    if key.dim() != axes or value.dim() != axes:
        raise TorchMisuse(
            f"For {kind} `query`, expected `key` and `value` to be {axes}-D but found {key.dim()}-D and "
            f"{value.dim()}-D tensors respectively."
        )
    for name, mask in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
        if mask is None:
            continue
        if not isinstance(mask, Tensor):
            raise BadType(f"{name}: expected a bool or floating-point tensor or None, got {described(mask)}.")
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise TorchMisuse(
                f"only bool and floating types of {name} are supported, got {mask.dtype}. "
                f"Where 1 means hidden, pass {name}.bool()."
            )
    if key_padding_mask is not None and key_padding_mask.dim() != axes - 1:
        raise TorchMisuse(
            f"For {kind} `query`, expected `key_padding_mask` to be `None` or {axes - 1}-D but found "
            f"{key_padding_mask.dim()}-D tensor instead."
        )
    if attn_mask is not None and attn_mask.dim() not in (2, 3):
        raise TorchMisuse(
            f"For {kind} `query`, expected `attn_mask` to be `None`, 2-D or 3-D but found {attn_mask.dim()}-D "
            f"tensor instead."
        )
    return axes == 3


def check_sizes(
    layer: MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    batch_axis: int | None,
) -> None:
    """Raise unless widths, lengths and batch sizes fit the layer and each other. `batch_axis` None: unbatched."""
    if query.shape[-1] != layer.embed_dim:
        raise TorchMisuse(f"query: was expecting embedding dimension of {layer.embed_dim}, but got {query.shape[-1]}.")
    for name, rows, width in (("key", key, layer.kdim), ("value", value, layer.vdim)):
        if rows.shape[-1] != width:
            raise TorchMisuse(f"{name}: was expecting a width of {width} ({name[0]}dim), but got {rows.shape[-1]}.")
    if key.shape[:-1] != value.shape[:-1]:
        raise TorchMisuse(
            f"key shape {tuple(key.shape)} does not match value shape {tuple(value.shape)}: expected one value for "
            f"each key."
        )
    batch = 1 if batch_axis is None else query.shape[batch_axis]
    if batch_axis is not None and key.shape[batch_axis] != batch:
        layout = "(batch, length, dim)" if batch_axis == 0 else "(length, batch, dim)"
        raise TorchMisuse(
            f"key: expected the query's batch of {batch}, got query {tuple(query.shape)} and key {tuple(key.shape)} "
            f"in the layout {layout}. batch_first={not batch_axis} decides which axis is the batch."
        )
    length_axis = 1 if batch_axis == 0 else 0
    queries, keys = query.shape[length_axis], key.shape[length_axis]
    if key_padding_mask is not None:
        expected: tuple[int, ...] = (keys,) if batch_axis is None else (batch, keys)
        for axis, size in enumerate(expected):
            if key_padding_mask.shape[axis] != size:
                raise TorchMisuse(
                    f"Expected key_padded_mask.shape[{axis}] to be {size}, but got {key_padding_mask.shape[axis]}: "
                    f"key_padding_mask has shape {tuple(key_padding_mask.shape)}, expected {expected}."
                )
    if attn_mask is not None:
        _check_attn_mask(attn_mask, (batch * layer.num_heads, queries, keys))


def _check_attn_mask(attn_mask: Tensor, shape: tuple[int, int, int]) -> None:
    if attn_mask.dim() == 2 and tuple(attn_mask.shape) != shape[1:]:
        raise TorchMisuse(f"The shape of the 2D attn_mask is {attn_mask.shape}, but should be {shape[1:]}.")
    if attn_mask.dim() == 3 and tuple(attn_mask.shape) != shape:
        raise TorchMisuse(
            f"Expected `attn_mask` shape to be {shape} but got {tuple(attn_mask.shape)}: a 3-D mask has one layer for "
            f"each head of each batch entry."
        )


def check_causal(attn_mask: Tensor | None, is_causal: bool) -> None:
    """Raise for the hint `is_causal` without the mask that it describes."""
    if is_causal and attn_mask is None:
        raise TorchMisuse(
            "Need attn_mask if specifying the is_causal hint. It says that attn_mask is the causal mask, so pass that, "
            "too: torch.nn.Transformer.generate_square_subsequent_mask(length)."
        )

"""`multihead` and its presets as the kernels see them: three maps of rows, attention between heads, an output map."""

from __future__ import annotations

from torch import Tensor

from regard import masks
from regard.nn.multihead import Multihead
from regard.nn.parts import masking
from regard.nn.parts.attention import Attention, AttentionInputs
from regard.nn.parts.multihead_positions import IgnoredPositions
from regard_fast.fused_rows.row_maps import RowMaps
from regard_fast.fused_rows.short_attention import PlainAttention


def is_plain(layer: Multihead) -> bool:
    """Whether it is three linear maps, `attend` and one more linear map, with as many key heads as query heads."""
    return (
        layer.shares_sequences  # neither it nor a subclass does more in any step
        and type(layer.positions) is IgnoredPositions
        and layer.query_norm is None
        and layer.kv_heads == layer.num_heads
        and layer.value_dim == layer.head_dim
    )


def row_maps(layer: Multihead) -> RowMaps | None:
    """The layer as linear maps around an attention between heads; None if it is more than that."""
    if not is_plain(layer):
        return None

    def mix(heads: list[Tensor]) -> Tensor:
        return mixed_heads(layer, heads)

    maps = (layer.query_map, layer.key_map, layer.value_map)
    return RowMaps(maps, mix, layer.output_map, layer.num_heads, plain_attention(layer))


def plain_attention(layer: Multihead) -> PlainAttention | None:
    """What `mixed_heads` computes, if it is softmax attention without dropout, to all keys or to earlier ones."""
    extras = layer.normalize != "softmax" or layer.sink is not None or layer.window is not None
    if extras or layer.weights_dropout or type(layer).own_mask is not Attention.own_mask:
        return None
    return PlainAttention(layer.causal, layer.head_dim**-0.5 if layer.scale is None else layer.scale)


def mixed_heads(layer: Multihead, heads: list[Tensor], causal: bool = False) -> Tensor:
    """Let projected queries attend to projected keys and values, all (b,h,·,d), without a mask of the caller.

    `causal`: the last query is at the last key, and each sees its own position and earlier ones.
    """
    query, key, value = heads
    plain = plain_attention(layer)
    if plain is not None and causal:
        plain = PlainAttention(True, plain.scale)
    if plain is not None and not plain.refusal(query.shape[2], key.shape[2], query.shape[3]):
        return plain.run(query, key, value)
    mask = masking.joined(layer.own_mask(), masks.causal() if causal else None)
    return layer.mix(AttentionInputs(query, key, value, mask, query, 0, None))

"""Torch's own attention: scaled_dot_product_attention, MultiheadAttention, and the fast paths of nn.Transformer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import masks
from regard.masks import Mask
from regard.observation.capture.edits import Edit, edit_mixed, edit_rows, edited_fused_calls
from regard.observation.capture.interception import Adapter, CallEvent, Function
from regard.observation.capture.proof import proof_of
from regard.observation.capture.reading import DeferredPairs, GradientInputs, Pairs, Reading, UnreadableCall, top_left
from regard.observation.capture.storage import Storage, StoredKeys, StoredTensor
from regard.support.autocast import autocast_dtype

# Types of tensors that do not replace the function.
PLAIN = (Tensor, nn.Parameter, nn.Buffer)


def _causal_bias() -> type | None:
    """Torch's `CausalBias`, or None while it is not imported: importing it loads the compiler, which takes a second."""
    return getattr(sys.modules.get("torch.nn.attention.bias"), "CausalBias", None)


def _is_plain(given: tuple[Any, ...]) -> bool:
    plain = (*PLAIN, _causal_bias())
    return all(type(argument) in plain for argument in given if isinstance(argument, Tensor))


def four_axes(tensor: Tensor) -> Tensor:
    """(…, length, width) as (b,h,length,width): fewer axes mean one head, more are all batch."""
    if tensor.dim() < 4:
        return tensor.reshape((1,) * (3 - tensor.dim()) + tensor.shape).unsqueeze(1)
    return tensor if tensor.dim() == 4 else tensor.flatten(0, -4)


def mask_and_bias(
    given: Tensor | None, leading: Sequence[int], keep: Storage, sampled: bool = True
) -> tuple[StoredTensor | None, StoredTensor | None]:
    """A mask as torch's functions take it, for queries (*leading, q, d): bool = may attend, float = added."""
    if given is None:
        return None, None
    given = given.reshape((1,) * (len(leading) + 2 - given.dim()) + given.shape)
    batch = given.shape[:-3]
    if len(batch) > 1 and batch.numel() > 1:  # as many batches as the queries have, once they are one axis
        given = given.expand(*leading[:-1], *given.shape[-3:])
    kept = keep.pairwise(four_axes(given), "the mask", sampled)
    return (kept, None) if given.dtype == torch.bool else (None, kept)


def as_computed(tensor: Tensor) -> Tensor:
    """A tensor in the precision its attention is computed in: autocast has its inputs rounded first."""
    return tensor.to(autocast_dtype(tensor))


def rows_seen(mask: Tensor | None, keys: int) -> Tensor | None:
    """Which keys (k,) a mask (…,k) lets any query see; None: all, or a mask of several rows."""
    if mask is None or mask.shape[-1] != keys or mask.shape[-2] > 1:
        return None
    visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    return visible.flatten(0, -2).any(0)


class ScaledDotProduct(Adapter):
    """`F.scaled_dot_product_attention`, from any caller."""

    kind = "scaled_dot_product_attention"

    def reading(self, event: CallEvent) -> Reading:
        """The queries and keys that were passed, rotary positions and caches included."""
        return self._read(event, *event.args, **event.kwargs)

    def _read(
        self,
        event: CallEvent,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Reading:
        if query.is_nested or key.is_nested:
            return UnreadableCall("scaled_dot_product_attention: nested tensors have no rectangular weights to show.")
        if not enable_gqa and query.shape[:-2] != key.shape[:-2]:  # then torch broadcasts them
            leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
            query, key = query.expand(*leading, *query.shape[-2:]), key.expand(*leading, *key.shape[-2:])
        query, key = as_computed(query), as_computed(key)
        sizes = (*four_axes(query).shape[:3], key.shape[-2])
        aligned: Any = None
        kind = _causal_bias()
        if kind is not None and isinstance(attn_mask, kind):
            aligned, attn_mask = attn_mask, None
        rows, proof = rows_seen(attn_mask, key.shape[-2]), None
        if not dropout_p and event.result is not None:
            proof = proof_of(event.keep, four_axes(value), four_axes(event.result), rows)
        sampled = proof is None
        mask, bias = mask_and_bias(attn_mask, query.shape[:-2], event.keep, sampled)
        visible: StoredTensor | Mask | None = top_left() if is_causal else mask
        if aligned is not None:  # only its alignment counts; its values are not used
            upper = aligned.variant.name == "UPPER_LEFT" or aligned.seq_len_q == aligned.seq_len_kv
            visible = top_left() if upper else masks.causal()
        graph = None
        if event.gradients and event.result.requires_grad and query.dim() == 4:
            graph = GradientInputs(value.detach(), event.result)
        arguments = (*event.args, *event.kwargs.values())
        return Pairs(
            event.keep.activation(four_axes(query), "the query", sampled),
            StoredKeys(event.keep.activation(four_axes(key), "the key", sampled), rows),
            sizes,
            mask=visible,
            bias=bias,
            scale=scale,
            graph=graph,
            proof=proof,
            is_known=not torch.overrides.has_torch_function(arguments) or _is_plain(arguments),
        )

    def edited(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], edit: Edit) -> Any:
        args, kwargs = edit_rows(edit, args, kwargs)
        return edit_mixed(edit, original(*args, **kwargs), -3)


class MultiheadFunction(Adapter):
    """`F.multi_head_attention_forward` with need_weights: it then computes the weights itself.

    Otherwise it calls `scaled_dot_product_attention`, which is captured instead.
    """

    kind = "multi_head_attention_forward"
    signature = inspect.signature(F.multi_head_attention_forward)

    def wants(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        needs: bool = kwargs["need_weights"] if "need_weights" in kwargs else args[15] if len(args) > 15 else True
        return needs

    def reading(self, event: CallEvent) -> Reading:
        """Queries and keys are projected again when weights are asked for."""
        bound = self.signature.bind(*event.args, **event.kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        names = (
            "query",
            "key",
            "key_padding_mask",
            "attn_mask",
            "in_proj_weight",
            "in_proj_bias",
            "q_proj_weight",
            "k_proj_weight",
            "bias_k",
            "static_k",
        )
        owned = ("in_proj", "q_proj", "k_proj", "bias_k")
        kept = {
            name: (event.keep.parameter if name.startswith(owned) else event.keep.activation)(arguments[name], name)
            for name in names
            if arguments[name] is not None
        }
        batched, heads, causal = arguments["query"].dim() == 3, arguments["num_heads"], arguments["is_causal"]
        separate, zero = arguments["use_separate_proj_weight"], arguments["add_zero_attn"]
        queries, batch = arguments["query"].shape[0], arguments["query"].shape[1] if batched else 1
        source = arguments["static_k"].shape[1] if arguments["static_k"] is not None else arguments["key"].shape[0]
        keys = source + (arguments["bias_k"] is not None) + zero

        def make() -> Pairs:
            have = {name: tensor.get() for name, tensor in kept.items()}
            weight, bias = have.get("in_proj_weight"), have.get("in_proj_bias")
            if separate:
                query_weight, key_weight = have["q_proj_weight"], have["k_proj_weight"]
            else:
                assert weight is not None
                query_weight, key_weight, _ = weight.chunk(3)
            query_bias, key_bias, _ = (None, None, None) if bias is None else bias.chunk(3)

            def rows(name: str, by: Tensor, plus: Tensor | None, more: Tensor | None) -> Tensor:
                projected = have[name] if batched else have[name].unsqueeze(1)
                projected = F.linear(projected, by, plus)  # (length,b,h·d)
                if more is not None:
                    projected = torch.cat([projected, more.expand(1, batch, -1)])
                split: Tensor = projected.unflatten(-1, (heads, -1))
                return split.permute(1, 2, 0, 3)

            query = rows("query", query_weight, query_bias, None)
            if "static_k" in have:
                key = have["static_k"].unflatten(0, (batch, heads))
            else:
                key = rows("key", key_weight, key_bias, have.get("bias_k"))
            if zero:
                key = F.pad(key, (0, 0, 0, 1))
            return _made(
                query,
                key,
                _hidden(have.get("attn_mask"), have.get("key_padding_mask"), batch, heads, keys),
                masks.causal(align="top-left") if causal and "attn_mask" not in have else None,
            )

        return DeferredPairs(make, (batch, heads, queries, keys))

    def edited(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], edit: Edit) -> Any:
        """Without weights the function calls the fused one, which is edited; its weights come from a second call."""
        bound = self.signature.bind(*args, **kwargs)
        weights = original(*bound.args, **bound.kwargs)[1]
        bound.arguments["need_weights"] = False
        with edited_fused_calls(edit):
            output, _ = original(*bound.args, **bound.kwargs)
        return output, weights


class NativeMultihead(Adapter):
    """The fast path of `nn.MultiheadAttention`, which projects and attends in one call of C++."""

    kind = "_native_multi_head_attention"

    def reading(self, event: CallEvent) -> Reading:
        """Queries and keys are projected again when weights are asked for."""
        query, _, _, _, heads, weight, bias, _, _, mask = event.args[:10]
        kind = event.args[12] if len(event.args) > 12 else event.kwargs.get("mask_type")
        return _projected(event.keep, query, heads, weight, bias, mask, kind, None)

    def silent(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], heads: Sequence[int]) -> Any:
        changed_error = (*args[:7], _without_heads(args[7], heads, args[4]), *args[8:])
        return original(*changed_error, **kwargs)


class NativeEncoderLayer(Adapter):
    """The fast path of `nn.TransformerEncoderLayer`: a whole layer in one call of C++."""

    kind = "_transformer_encoder_layer_fwd"
    within = "self_attn"

    def reading(self, event: CallEvent) -> Reading:
        """Store the layer's input; norm, queries and keys are computed again when weights are asked for."""
        arguments, keep = event.args, event.keep
        source, _, heads, weight, bias = arguments[:5]
        norm = None
        if arguments[8]:  # norm_first
            norm = (
                arguments[9],
                keep.parameter(arguments[10], "norm1.weight"),
                keep.parameter(arguments[11], "norm1.bias"),
            )
        return _projected(keep, source, heads, weight, bias, arguments[18], arguments[19], norm)

    def silent(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], heads: Sequence[int]) -> Any:
        return original(*args[:5], _without_heads(args[5], heads, args[2]), *args[6:], **kwargs)


def _projected(
    keep: Storage,
    source: Tensor,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    kind: int | None,
    norm: tuple[float, StoredTensor, StoredTensor] | None,
) -> Reading:
    kept = keep.activation(source, "the input")
    kept_weight, kept_bias = keep.parameter(weight, "in_proj_weight"), keep.parameter(bias, "in_proj_bias")
    kept_mask = None if mask is None else keep.activation(mask, "the mask")
    if source.is_nested:
        lengths = source._nested_tensor_size()[:, 0]
        batch, length = source.size(0), int(lengths.max()) if len(lengths) else 0
    else:
        batch, length = source.shape[:2]

    def make() -> Pairs:
        rows, hidden = kept.get(), None
        if rows.is_nested:
            lengths = rows._nested_tensor_size()[:, 0]
            rows = torch.nested.to_padded_tensor(rows, 0.0)
            hidden = torch.arange(rows.shape[1]) >= lengths[:, None]
            hidden = hidden[:, None, None].to(rows.device) | hidden[:, None, :, None].to(rows.device)
        elif kept_mask is not None:
            hides = kept_mask.get() != 0  # the C++ code hides wherever the mask is not 0
            hidden = hides[:, None, None] if kind == 1 else hides if kind == 2 else hides[None, None]
        if norm is not None:
            rows = F.layer_norm(rows, rows.shape[-1:], norm[1].get(), norm[2].get(), norm[0])
        projected = F.linear(rows, kept_weight.get(), kept_bias.get()).unflatten(-1, (3, heads, -1))
        query, key, _ = projected.permute(2, 0, 3, 1, 4)
        return _made(query, key, None if hidden is None else ~hidden, None)

    return DeferredPairs(make, (batch, heads, length, length))


def _made(query: Tensor, key: Tensor, given: Tensor | None, mask: Mask | None) -> Pairs:
    """A reading of queries and keys computed now; `given` is a bool mask (may attend) or a float mask (added)."""
    storage = Storage()
    bias = None
    visible: StoredTensor | Mask | None = mask
    if given is not None and given.dtype == torch.bool:
        visible = storage.activation(given, "the mask")
    elif given is not None:
        bias = storage.activation(given, "the mask")
    sizes = (*query.shape[:3], key.shape[2])
    return Pairs(
        storage.activation(query, "the query"),
        StoredKeys(storage.activation(key, "the key"), None),
        sizes,
        visible,
        bias,
    )


def _hidden(mask: Tensor | None, padding: Tensor | None, batch: int, heads: int, keys: int) -> Tensor | None:
    """The masks of `multi_head_attention_forward` (True = hidden, or float) as one (True = may attend, or float)."""
    hiding_masks = []
    if mask is not None:
        hiding_masks.append(mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (batch, heads)))
    if padding is not None:
        hiding_masks.append(padding.reshape(batch, 1, 1, -1))
    if not hiding_masks:
        return None
    hiding_masks = [F.pad(tensor, (0, keys - tensor.shape[-1])) for tensor in hiding_masks]
    if all(tensor.dtype == torch.bool for tensor in hiding_masks):
        hidden = hiding_masks[0] if len(hiding_masks) == 1 else hiding_masks[0] | hiding_masks[1]
        return ~hidden
    floats = [
        torch.zeros(()).masked_fill(tensor, -torch.inf) if tensor.dtype == torch.bool else tensor
        for tensor in hiding_masks
    ]
    return floats[0] if len(floats) == 1 else floats[0] + floats[1]


def _without_heads(weight: Tensor, heads: Sequence[int], count: int) -> Tensor:
    """An output projection with the columns of some heads set to zero."""
    weight = weight.clone()
    weight.unflatten(1, (count, -1))[:, list(heads)] = 0
    return weight

"""The attention function that transformers calls in every layer: its arguments become a call of `attend`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import regard.core.attention as core
from regard import masks, scores
from regard.biases import Bias
from regard.errors import Unsupported
from regard.interop.huggingface.structured_mask import StructuredMask
from regard.masks import Mask


def sink_of(module: nn.Module | None, given: dict[str, Any]) -> Tensor | None:
    """The logits of attention sinks, one for each head (GPT-OSS and similar models)."""
    sink = given.get("s_aux")
    sink = getattr(module, "sinks", None) if sink is None else sink
    return sink if isinstance(sink, Tensor) else None


def attention_function() -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function for `AttentionInterface`."""

    def regard_attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | Tensor | None = None,
        dropout: float = 0.0,
        **given: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The attended values (b,q,h,v) and, if asked for, the weights (b,h,q,k)."""
        if isinstance(scaling, Tensor):
            query, scaling = query * scaling, 1.0
        mask, bias = mask_and_bias(module, query, key, attention_mask, given)
        options: dict[str, Any] = {"mask": mask, "bias": bias, "scale": scaling}
        if given.get("softcap") is not None:
            options["score"] = scores.softcap(given["softcap"])
        sink = sink_of(module, given)
        if sink is not None:
            options["sink"] = sink
        rate = float(dropout) if module.training else 0.0
        output = core.attend(query, key, value, dropout=rate, **options)
        weights = core.weights(query, key, **options) if given.get("output_attentions") else None
        return output.transpose(1, 2).contiguous(), weights

    return regard_attention


def mask_and_bias(
    module: nn.Module, query: Tensor, key: Tensor, given_mask: Tensor | None, given: dict[str, Any]
) -> tuple[Mask | Tensor | None, Bias | Tensor | None]:
    """What may be attended to, and what is added to the scores."""
    if given.get("cache") is not None:
        raise Unsupported(
            "cache: attention over the paged cache of continuous batching is not implemented by "
            "attn_implementation='regard'. Use generate(), or 'sdpa' for continuous batching."
        )
    queries, keys = query.shape[2], key.shape[2]
    mask: Mask | Tensor | None = None
    bias: Tensor | None = given.get("position_bias")
    if given_mask is None:
        mask = _assumed(module, queries, given)
    elif isinstance(given_mask, StructuredMask) and _covers(given_mask, queries, keys):
        mask = given_mask.structure
    else:
        dense = given_mask.written_out() if isinstance(given_mask, StructuredMask) else given_mask
        dense = dense[..., :keys]  # models of transformers 4 leave this to the attention function
        if dense.dtype == torch.bool:
            mask = dense
        else:
            bias = dense if bias is None else bias + dense
    chosen = given.get("indices")
    if chosen is not None:  # sparse attention to the keys that an indexer chose, (b,q,n)
        picked = chosen.new_zeros((*chosen.shape[:2], keys), dtype=torch.bool).scatter(-1, chosen.long(), True)
        mask = _both(mask, picked[:, None])
    if isinstance(bias, Tensor):
        bias = bias[..., :keys].to(query.dtype)
    return mask, bias


def _covers(mask: StructuredMask, queries: int, keys: int) -> bool:
    return mask.structure is not None and (mask.shape[2], mask.shape[3]) == (queries, keys)


def _assumed(module: nn.Module, queries: int, given: dict[str, Any]) -> Mask | None:
    """The mask of a layer that was given none: causal if the layer says so."""
    said = given.get("is_causal")
    if queries == 1 or not (getattr(module, "is_causal", True) if said is None else said):
        return None
    window = given.get("sliding_window")
    return masks.causal() if window is None else masks.window(window - 1, 0)


def _both(mask: Mask | Tensor | None, visible: Tensor) -> Mask | Tensor:
    if mask is None:
        return visible
    return mask & masks.dense(visible) if isinstance(mask, Mask) else mask & visible

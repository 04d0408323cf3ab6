"""The attention function that transformers calls in every layer: its arguments become a call of `attend`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop

import regard.dispatch.attention as dispatch
from regard import masks, scores
from regard.errors import BadValue, Unsupported
from regard.interop.huggingface.choices import chosen_keys, refuse_unread
from regard.interop.huggingface.linear import mix_linear
from regard.interop.huggingface.masking import asked_for_all_keys
from regard.interop.huggingface.mechanisms import MechanismChange, looks_back, summed
from regard.interop.huggingface.structured_mask import StructuredMask
from regard.masks import Mask
from regard.masks.algebra import And
from regard.masks.from_tensors import DocumentsMask
from regard.masks.positional import CausalMask, FullMask


def sink_of(module: nn.Module | None, given: dict[str, Any]) -> Tensor | None:
    """The logits of attention sinks, one for each head (GPT-OSS and similar models)."""
    sink = given.get("s_aux")
    sink = getattr(module, "sinks", None) if sink is None else sink
    return sink if isinstance(sink, Tensor) else None


def attention_function(change: MechanismChange | None = None) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function for `AttentionInterface`; with a change, one that attends by another mechanism."""

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
        if given.get("cache") is not None:
            raise Unsupported(
                "cache: the paged cache of continuous batching is not supported by attn_implementation='regard'. Use "
                "generate(), or attn_implementation='sdpa' for continuous batching."
            )
        refuse_unread(given)
        if isinstance(scaling, Tensor):
            query, scaling = query * scaling, 1.0
        rate = float(dropout) if module.training else 0.0
        mask, bias = mask_and_bias(module, query, key, attention_mask, given)
        if change is None and query.shape[2] == 1 and _is_at_the_last_key(mask):
            mask = None
        if _is_default(scaling, query.shape[3]):
            scaling = None
        options: dict[str, Any] = {"mask": mask, "bias": bias, "scale": scaling}
        if given.get("softcap") is not None:
            options["score"] = scores.softcap(given["softcap"])
        sink = sink_of(module, given)
        if sink is not None:
            options["sink"] = sink
        if change is not None:
            anchor = attention_mask.anchor if isinstance(attention_mask, StructuredMask) else {}
            if change.feature_map is not None:
                _refuse_for_linear(options, given)
                mixed = mix_linear(query, key, value, mask, anchor, change.feature_map)
                return drop(mixed, rate).transpose(1, 2).contiguous(), None
            if not (change.positional and _is_across(module, query, key, mask)):
                causal = looks_back(mask) or bool(getattr(module, "is_causal", False))
                _change(options, change.pieces(module, query, key, value, mask, anchor, causal), query, key, change)
        output = dispatch.attend(query, key, value, dropout=rate, **options)
        weights = dispatch.weights(query, key, **options) if _wants_weights(given) else None
        if given.get("head_mask") is not None:  # transformers 4: a factor for each head
            factor = given["head_mask"].to(output.dtype).view(1, -1, 1, 1)
            output, weights = output * factor, None if weights is None else weights * factor
        return output.transpose(1, 2).contiguous(), weights

    return regard_attention


def _wants_weights(given: dict[str, Any]) -> bool:
    """Whether weights are asked for. Some models do not pass `output_attentions` on, but collect what layers return."""
    if given.get("output_attentions"):
        return True
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    if torch.compiler.is_compiling():  # a tracer cannot read a context variable; a traced model uses this instead
        collected = getattr(collector, "global_var", None)
    else:
        collected = None if collector is None else collector.get()
    return collected is not None and any(name.endswith("attentions") for name in collected)


def mask_and_bias(
    module: nn.Module, query: Tensor, key: Tensor, given_mask: Tensor | None, given: dict[str, Any]
) -> tuple[Mask | Tensor | None, Tensor | None]:
    """What may be attended to, and what is added to the scores."""
    queries, keys = query.shape[2], key.shape[2]
    mask: Mask | Tensor | None = None
    bias: Tensor | None = given.get("position_bias")
    if given_mask is None:
        mask = _assumed(module, queries, given)
    elif isinstance(given_mask, StructuredMask) and given_mask.covers(queries, keys):
        mask = None if isinstance(given_mask.structure, FullMask) else given_mask.structure
    else:
        dense = given_mask.written_out() if isinstance(given_mask, StructuredMask) else given_mask
        dense = dense[..., :keys]  # models of transformers 4 leave this to the attention function
        if dense.dtype == torch.bool:
            mask = dense
        else:
            bias = dense if bias is None else bias + dense
    offsets = given.get("cu_seq_lens_k")
    if offsets is not None and queries == keys and query.shape[0] == 1 and not _has_documents(mask):
        packed = masks.packed(offsets)  # given for flash attention, where no mask says where sequences end
        mask = _both(mask, packed)
    chosen = chosen_keys(module, query, keys, given)
    if chosen is not None:
        mask = _both(mask, chosen)
    if bias is not None:
        bias = bias[..., :keys].to(query.dtype)
    return mask, bias


def _is_at_the_last_key(mask: Mask | Tensor | None) -> bool:
    """Whether a mask hides nothing from a single query: calls without a mask take the shortest way."""
    return isinstance(mask, CausalMask) and mask.offset is None and mask.align == "bottom-right"


def _is_default(scale: float | Tensor | None, width: int) -> bool:
    """Whether a factor is 1/√d, which `attend` takes by itself, the shortest way. Rounding may differ by a bit."""
    return isinstance(scale, float) and not torch.compiler.is_compiling() and abs(scale * scale * width - 1) < 1e-14


def _assumed(module: nn.Module, queries: int, given: dict[str, Any]) -> Mask | None:
    """The mask of a layer that was given none: causal if the layer says so."""
    causal = given.get("is_causal")
    if causal is None:
        # A few layers say that they are causal although they, or their model, are no decoder (Phi-4's for images).
        config = getattr(module, "config", None)
        causal = getattr(module, "is_causal", False) and getattr(module, "is_decoder", True)
        causal = causal and getattr(config, "is_causal", True) and not asked_for_all_keys(config)
    if queries == 1 or not causal:
        return None
    window = given.get("sliding_window")
    return masks.causal() if window is None else masks.window(window - 1, 0)


def _both(mask: Mask | Tensor | None, other: Mask) -> Mask:
    if mask is None:
        return other
    return And(masks.dense(mask) if isinstance(mask, Tensor) else mask, other)


def _has_documents(mask: Mask | Tensor | None) -> bool:
    if isinstance(mask, And):
        return _has_documents(mask.left) or _has_documents(mask.right)
    return isinstance(mask, DocumentsMask)


def _change(
    options: dict[str, Any], pieces: dict[str, Any], query: Tensor, key: Tensor, change: MechanismChange
) -> None:
    """Put the pieces of a mechanism in the place of the model's own."""
    if "score" in pieces:
        if "score" in options:
            raise BadValue(
                f"attn_implementation: the model caps its scores, and {change.text!r} has a score of its own; both "
                f"cannot act. Take a mechanism without a score of its own, such as local."
            )
        options["scale"] = None
    options["bias"] = summed(options["bias"], pieces.pop("bias", None), query, key.shape[2])
    options |= pieces


def _refuse_for_linear(options: dict[str, Any], given: dict[str, Any]) -> None:
    """Raise for what acts on scores or weights, which linear attention does not have."""
    named = {"bias": "a bias or an additive mask", "score": "soft-capping", "sink": "attention sinks"}
    refused = [words for name, words in named.items() if options.get(name) is not None]
    if _wants_weights(given):
        refused.append("output_attentions=True")
    if refused:
        raise BadValue(
            f"attn_implementation: linear attention has no scores and no weights, but the model uses "
            f"{', '.join(refused)}. Take a mechanism that has them, such as local."
        )


def _is_across(module: nn.Module, query: Tensor, key: Tensor, mask: Mask | Tensor | None) -> bool:
    """Whether queries attend to another sequence, in which their positions mean nothing."""
    if "cross" in type(module).__name__.lower() or getattr(module, "is_cross_attention", False):
        return True
    backward = looks_back(mask) or bool(getattr(module, "is_causal", False))
    return not backward and (bool(getattr(module, "is_decoder", False)) or query.shape[2] != key.shape[2])

"""The loss of a model in the kernels: what each kind of model computes before its head, and the loss of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.nn.fast_path import Loss
from regard_fast.fused_rows import head as fused_head
from regard_fast.fused_rows import layers
from regard_fast.fused_rows.head import DeferredLogits
from regard_fast.takers.embeddings import token_rows
from regard_workbench.models.parts.embedding import joined_keep, stream_mask
from regard_workbench.models.parts.model import Model
from regard_workbench.models.parts.reader import Reader
from regard_workbench.models.parts.stack import Stack
from regard_workbench.tasks.answers import Head
from regard_workbench.tasks.parts.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard_workbench.models.dynamic_transformer import DynamicTransformer
    from regard_workbench.models.encoder import Encoder
    from regard_workbench.models.transformer import Transformer


def run(
    outputs_of: Callable[[Any, Batch], Any], model: Model, batch: Batch, smoothing: float, seed: Tensor | None
) -> Loss | None:
    """The loss of a batch, from what a model computes before it; None where its logits are needed."""
    with model.autocast():
        if refusal(model, batch):
            return None
        outputs = outputs_of(model, batch)
    if outputs is None:
        return None
    if isinstance(outputs, DeferredLogits):
        assert batch.targets is not None  # `head.refusal` has asked
        return outputs.loss(batch.targets, batch.target_keep, smoothing, seed)
    # Random numbers were drawn on the way to these logits, so they are used; their loss is computed in full precision.
    logits = outputs.float() if outputs.dtype == torch.bfloat16 else outputs
    return Loss(*model.loss(logits, batch, smoothing))


def refusal(model: Model, batch: Batch) -> str:
    """Why nothing of a model may be left out, before anything is computed; empty if something may."""
    if why := layers.refused_place(batch.inputs):
        return why
    if not torch.is_grad_enabled():
        return "no gradients are wanted"
    if type(model).loss is not Model.loss or "loss" in vars(model) or type(model.head) is not Head:
        return "the loss is not the cross-entropy of plain logits"
    return "the model has hooks" if _hooked(model) else ""


def _hooked(model: Model) -> bool:
    """`layers.hooked`, but for the wrapping of `forward` by Accelerate, whose place `model.autocast` takes."""
    wrapped = getattr(vars(model).get("_original_forward"), "__func__", None) is type(model).forward
    hooks = (model._forward_hooks, model._forward_pre_hooks, model._backward_hooks, model._backward_pre_hooks)
    return any(hooks) or ("forward" in vars(model) and not wrapped)


def reader(model: Reader, batch: Batch) -> Any:
    """Of `decoder`, and of others that answer for each position of one stream."""
    if model.further or type(model).rows is not Reader.rows:
        return None
    if stream_mask(batch.streams.values()) is None:
        tokens = token_rows(model.embedding, batch.inputs)
        if tokens is not None and (logits := _from_tokens(model.stack, model.head, batch, tokens)) is not None:
            return logits
    rows, mask = model.embedded(batch)
    return _behind(model.stack, model.head, batch, rows, mask=mask)


def pooled_reader(model: Reader, batch: Batch) -> Any:
    """Of models that answer from the mean of all rows of an example."""
    if joined_keep(batch.streams.values()) is not None or type(model).rows is not Reader.rows:
        return None
    rows, mask = model.embedded(batch)
    return _behind(model.stack, model.head, batch, rows, pooled=True, mask=mask)


def encoder(model: Encoder, batch: Batch) -> Any:
    """Of `encoder` and `static-transformer`."""
    if type(model.before_head) is not nn.Identity:
        return None
    if model.problem.answer.needs != "pooled":
        return reader(model, batch)
    return pooled_reader(model, batch) if model.pooling == "mean" else None


def dynamic_transformer(model: DynamicTransformer, batch: Batch) -> Any:
    """Of `dynamic-transformer`."""
    return pooled_reader(model, batch) if model.problem.answer.needs == "pooled" else reader(model, batch)


def transformer(model: Transformer, batch: Batch) -> Any:
    """Of `transformer` and `gla`."""
    rows, around = model.before_decoder(batch)
    return _behind(model.decoder, model.head, batch, rows, **around)


def _from_tokens(stack: Stack, head: Head, batch: Batch, tokens: Any) -> DeferredLogits | None:
    """A head's logits, whose loss is one operator from tokens on; None where that cannot be."""
    rows = tokens.like()
    if refused_head(stack, head, batch, rows) or layers.refusal(stack.layers, rows, None):  # type: ignore[arg-type]
        return None
    stack_weights = layers.whole(stack.layers, rows)  # type: ignore[arg-type]
    if stack_weights is None:
        return None
    return DeferredLogits(rows, stack.norm, head.logits, stack_weights, tokens)  # type: ignore[arg-type]


def _behind(
    stack: Stack, head: Head, batch: Batch, rows: Tensor, *, pooled: bool = False, mask: Any = None, **source: Any
) -> Any:
    """A head's logits for rows that a stack reads, left out where only their loss can be computed.

    `pooled`: they are made from the mean of all rows of an example.
    """
    if refused_head(stack, head, batch, rows, pooled):
        rows = stack(rows, mask=mask, **source)
        return head(rows.mean(1) if pooled else rows, batch)
    listed: Any = stack.layers
    is_fusible = not layers.refusal(listed, rows, mask, source)
    stack_weights = layers.whole(listed, rows) if is_fusible and not pooled else None
    if is_fusible and stack_weights is None:
        rows = layers.run(listed, rows)
    elif not is_fusible:
        for layer in listed:
            rows = layer(rows, mask=mask, **source)
    return DeferredLogits(rows, stack.norm, head.logits, stack_weights)  # type: ignore[arg-type]


def refused_head(stack: Stack, head: Head, batch: Batch, rows: Tensor, pooled: bool = False) -> str:
    """Why the logits of a head must be computed; empty if only their loss can be."""
    if head.row_scale != 1.0:
        return "the head multiplies its rows"
    modules = [stack, head]
    return fused_head.refusal(rows, stack.norm, head.logits, modules, batch.targets, batch.target_keep, pooled)

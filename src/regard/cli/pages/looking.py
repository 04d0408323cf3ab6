"""Where a model looked: the weights of its last attention to the input, or, where it has none, what moved its answer.

A mechanism is watched while the model runs as it always does, and is then asked for the exact weights of that call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import models
from regard.models.encoder import Encoder
from regard.models.lstm_attention import LSTMAttention
from regard.models.seq2seq import Seq2seq
from regard.models.transformer import Transformer
from regard.nn.mechanism import Mechanism
from regard.tasks.problem import Batch


@dataclass(frozen=True)
class Looked:
    """Weights over the input, and in words what they are."""

    weights: Tensor  # (t,n): one row for each output; (n,) for a class
    source: str


@torch.no_grad()
def alignment(model: models.Model, batch: Batch) -> Looked | str:
    """How much each target of a single example attended to each input; a text says why there is none."""
    if isinstance(model, Transformer):
        last: nn.Module = model.decoder.layers[-1].cross  # type: ignore[assignment]
        found, told = (
            _watched(model, last, batch),
            "the last decoder layer's attention to the encoder, mean over heads",
        )
        found = None if found is None else found.mean(1)
    elif isinstance(model, Seq2seq):
        last = model.attentions[-1]
        found, told = None, "the decoder's attention to the encoder, mean over heads"
        if callable(getattr(last, "weights", None)):
            found = model.alignments(batch)
    else:
        return f"{model.name} has no alignment: it does not attend to its input step by step."
    if found is None:
        return f"{model.name} has no alignment: {_named(last)}, its attention to the input, has no weights to show."
    return Looked(found[0].float().cpu(), told)


def attended(model: models.Model, batch: Batch, answer: int) -> Looked:
    """What a classifier looked at in a single example, one number for each input; they add up to 1."""
    last: nn.Module | None = None
    told = ""
    if isinstance(model, LSTMAttention):
        last, told = model.attention, "attention over the words, mean over heads"
    elif isinstance(model, Encoder):
        last = model.stack.layers[-1].attention  # type: ignore[assignment]
        told = "attention of the last layer, mean over heads and positions"
    found = None if last is None else _watched(model, last, batch)
    if found is None:
        return Looked(
            _gradient(model, batch, answer), "gradient × input of the class (this attention has no weights)"
        )
    rows = found.mean(1)[0].float().cpu()
    return Looked(_shares(rows.mean(0)), told)


@torch.no_grad()
def _watched(model: models.Model, mechanism: nn.Module, batch: Batch) -> Tensor | None:
    """The weights (b,h,q,n) of the mechanism's last call while the model runs; None where it has none over inputs."""
    offered = getattr(mechanism, "weights", None)
    if not callable(offered):
        return None
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = mechanism.register_forward_pre_hook(
        lambda _, given, named: calls.append((given, named)), with_kwargs=True
    )
    try:
        model(batch)
    finally:
        hook.remove()
    if not calls:
        return None
    given, named = calls[-1]
    try:
        found = offered(*given, **named)
    except NotImplementedError:
        return None
    fits = isinstance(found, Tensor) and found.dim() == 4 and found.shape[-1] == batch.inputs.shape[1]
    return found if fits else None


def _gradient(model: models.Model, batch: Batch, answer: int) -> Tensor:
    """|∂ logit of the class / ∂ embedding · embedding| of each input, as shares."""
    rows: list[Tensor] = []

    def catch(_: nn.Module, __: Any, found: Tensor) -> Tensor:
        rows.append(found.detach().requires_grad_())
        return rows[-1]

    embedding: nn.Module = model.entrance.rows  # type: ignore[assignment, union-attr]
    hook = embedding.register_forward_hook(catch)
    try:
        # Recurrent layers on a GPU only have a backward pass in training mode, which would also drop out.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            logit = model(batch)[0, answer]
            (slope,) = torch.autograd.grad(logit, rows[0])
    finally:
        hook.remove()
    return _shares((slope * rows[0]).sum(-1).abs()[0].detach().float().cpu())


def _shares(numbers: Tensor) -> Tensor:
    total = numbers.sum()
    return numbers / total if float(total) > 0 else numbers


def _named(layer: nn.Module) -> str:
    return (
        layer.entry.name if isinstance(layer, Mechanism) and hasattr(layer, "entry") else type(layer).__name__
    )

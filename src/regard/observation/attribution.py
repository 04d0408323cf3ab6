"""Where a model looked: the weights of its last attention, or, where it has none, what moved its answer.

`look` gives everything worth showing of a single example; `alignment` and `attended` give the one row or table that a
terminal has room for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard import models
from regard.models.encoder import Encoder
from regard.models.lstm_attention import LSTMAttention
from regard.models.ntm import NTMModel
from regard.models.reader import Reader
from regard.models.seq2seq import Seq2seq
from regard.models.transformer import Transformer
from regard.nn.mechanism import Mechanism
from regard.observation.examples import ShownExample
from regard.observation.watching import How, Side, Unseen, Weighed, named, weighed
from regard.tasks.answers import Bits
from regard.tasks.batch import Batch


@dataclass(frozen=True)
class Attribution:
    """Weights over the input or over a memory, and in words what they are."""

    weights: Tensor  # (t,n): one row for each that looked, mean over heads; (n,): one for all
    source: str
    how: How = "exact"
    heads: Tensor | None = None  # (h,t,n), where there is more than one
    rows: list[str] = field(default_factory=list)  # what each row stands for; empty for a single one
    columns: list[str] = field(default_factory=list)
    inputs: bool = True  # whether the columns are the positions of the input, one for one


def attributions(
    model: models.Model, batch: Batch, ground: ShownExample
) -> tuple[list[Attribution], list[str]]:
    """What is worth showing of a single example, most telling first, and why something is missing."""
    found: list[Attribution] = []
    missing: list[str] = []
    if isinstance(model, NTMModel):
        return _machine(model, batch, ground), missing
    over_inputs = False
    for place in _places(model):
        try:
            for part in weighed(lambda: model(batch), place.layer):
                found.append(_shown(place, part, ground))
                over_inputs |= part.columns in ("source", "position")
        except Unseen as why:
            missing.append(f"{place.words}: {why}")
    if not over_inputs:
        try:
            found.append(_moved(model, batch, ground))
        except Unseen as why:
            missing.append(str(why))
    return found, missing


@torch.no_grad()
def alignment(model: models.Model, batch: Batch) -> Attribution | str:
    """How much each target of a single example attended to each input; a text says why there is none."""
    if not isinstance(model, (Transformer, Seq2seq)):
        return f"{model.name} has no alignment: it does not attend to its input step by step."
    place = next(_places(model))
    try:
        (part, *_) = weighed(lambda: model(batch), place.layer)
        if part.how != "exact" or part.columns != "source" or part.heads.shape[2] != batch.inputs.shape[1]:
            raise Unseen("no weights of its own over the input.")
    except Unseen:
        layer = f"{named(place.layer)}, its attention to the input"
        return f"{model.name} has no alignment: {layer}, has no weights to show."
    return Attribution(part.heads.mean(0), f"{place.words}, mean over heads", part.how)


def input_attribution(model: models.Model, batch: Batch, answer: int) -> Attribution:
    """What a classifier looked at in a single example, one number for each input; they add up to 1."""
    over = ""
    if isinstance(model, LSTMAttention):
        over = "attention over the words, mean over heads"
    elif isinstance(model, Encoder):
        over = "attention of the last layer, mean over heads and positions"
    try:
        if not over:
            raise Unseen(f"{model.name} has no attention over all of its input.")
        (part, *_) = weighed(lambda: model(batch), next(_places(model)).layer)
        if part.rows == "slot" or part.columns != "source":
            raise Unseen("the weights are those of a memory.")
    except Unseen:
        words = "gradient × input of the class (this attention has no weights)"
        return Attribution(gradient(model, batch, answer), words, "gradient × input")
    return Attribution(_shares(part.heads.mean((0, 1))), over, part.how)


@dataclass(frozen=True)
class _Place:
    """A layer worth watching, and who looks there."""

    layer: nn.Module
    words: str
    rows: Side = (
        "position"  # "position": the inputs; "source": for a decoder that looks at its inputs, the targets
    )
    crosses: bool = False  # whether it looks from the targets at the inputs


def _places(model: models.Model) -> Iterator[_Place]:
    """The attentions of a model that tell most about its answer, the best first."""
    if isinstance(model, Transformer):
        decoder, encoder = model.decoder.layers[-1], model.encoder.layers[-1]
        yield _Place(decoder.cross, "the last decoder layer's attention to the encoder", crosses=True)  # type: ignore[arg-type]
        yield _Place(encoder.attention, f"{named(encoder.attention)} of the last encoder layer")  # type: ignore[arg-type]
    elif isinstance(model, Seq2seq):
        yield _Place(model.attentions[-1], "the decoder's attention to the encoder", crosses=True)
    elif isinstance(model, LSTMAttention):
        yield _Place(model.attention, f"{named(model.attention)} over the LSTM's rows")
    elif isinstance(model, Reader):
        last = model.stack.layers[-1].attention
        yield _Place(last, f"{named(last)} of the last layer")  # type: ignore[arg-type]
    else:  # a model from outside: its last mechanism that is not part of another
        own = [module for module in model.modules() if isinstance(module, Mechanism)]
        inner = {part for module in own for part in module.modules() if part is not module}
        whole = [module for module in own if module not in inner]
        if whole:
            yield _Place(whole[-1], f"{named(whole[-1])}, the last attention")


def _shown(place: _Place, part: Weighed, ground: ShownExample) -> Attribution:
    heads, rows, columns = part.heads, part.heads.shape[1], part.heads.shape[2]
    asking = ground.targets if place.crosses else ground.inputs
    names: dict[Side, Sequence[str]] = {
        "position": asking, "source": ground.inputs, "slot": slots(columns if part.columns == "slot" else rows)
    }  # fmt: skip
    if part.columns == "memory":
        names["memory"] = [*slots(columns - len(ground.inputs)), *ground.inputs]
    # A model that reads in segments hands over the last one: its rows are the last positions.
    across = list(names[part.columns])[-columns:]
    down = list(names[part.rows])[-rows:] if rows > 1 else []
    words = place.words + (f": {part.part}" if part.part else "")
    mean = heads.mean(0)
    return Attribution(
        mean if down else mean[0], words, part.how, heads if len(heads) > 1 and down else None, down, across,
        inputs=part.columns in ("source", "position") and columns == len(ground.inputs),
    )  # fmt: skip


def _machine(model: NTMModel, batch: Batch, ground: ShownExample) -> list[Attribution]:
    """Where the heads of a Neural Turing Machine were after each step."""
    machine = model.machine
    with torch.no_grad():
        _, _, trace = machine(
            batch.inputs.to(machine.tape.heads.weight.dtype), keep=batch.keep, return_trace=True
        )
    found = []
    for kind, places in (("write", trace.write), ("read", trace.read)):
        heads = places[0].transpose(0, 1).float().cpu()
        if len(heads):
            many = heads if len(heads) > 1 else None
            across = slots(heads.shape[2])
            words = f"the {kind} heads over the memory, step by step"
            found.append(
                Attribution(heads.mean(0), words, "exact", many, list(ground.inputs), across, inputs=False)
            )
    return found


def slots(count: int) -> list[str]:
    """Names for the slots of a memory, counted from 0."""
    return [f"slot {number}" for number in range(count)]


def _moved(model: models.Model, batch: Batch, ground: ShownExample) -> Attribution:
    """Which inputs moved the answer, where no layer has weights over them."""
    needs = model.problem.answer.needs
    if needs == "decoder" or isinstance(model.problem.answer, Bits):
        raise Unseen(f"{model.name} writes many answers, so that there is no one gradient to show.")
    with torch.no_grad():
        logits = model(dataclasses.replace(batch, answers={}))[0]
    place: tuple[int, ...] = ()
    words = "gradient × input of the class"
    if needs != "pooled":
        asked = None if batch.target_keep is None or needs == "past" else batch.target_keep[0].nonzero()
        at = len(logits) - 1 if asked is None or not len(asked) else int(asked[0])
        place, logits = (at,), logits[at]
        words = f"gradient × input of the guess at “{ground.inputs[at]}”"
    return Attribution(
        gradient(model, batch, *place, int(logits.argmax())),
        words,
        "gradient × input",
        columns=list(ground.inputs),
    )


def gradient(model: models.Model, batch: Batch, *logit: int) -> Tensor:
    """|∂ logit / ∂ embedding · embedding| of each input, as shares; `logit` says which of the outputs."""
    embedding = getattr(getattr(model, "embedding", None), "rows", None)
    if not isinstance(embedding, nn.Module):
        raise Unseen(f"{model.name} has no embedding through which gradients could be followed.")
    rows: list[Tensor] = []

    def catch(_: nn.Module, __: Any, found: Tensor) -> Tensor:
        rows.append(found.detach().requires_grad_())
        return rows[-1]

    hook = embedding.register_forward_hook(catch)
    try:
        # Recurrent layers on a GPU only have a backward pass in training mode, which would also drop out.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            (slope,) = torch.autograd.grad(model(batch)[(0, *logit)], rows[0])
    finally:
        hook.remove()
    return _shares((slope * rows[0]).sum(-1).abs()[0].detach().float().cpu())


def _shares(numbers: Tensor) -> Tensor:
    total = numbers.sum()
    return numbers / total if float(total) > 0 else numbers

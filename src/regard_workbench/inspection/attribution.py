"""What an answer was drawn from: attention over the input or a memory, else gradient × input.

A model runs once under observation. Which of its sites are shown, its class says (`Model.shows`). `attributions` gives
everything for a report; `alignment` and `input_attribution` give the one table or row that a terminal has room for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.nn.parts.mechanism import Mechanism
from regard.observation.capture.mechanisms import mechanism_name
from regard.observation.capture.reading import How, Side
from regard.observation.capture.storage import Storage
from regard.observation.observer import Observer, parts_of
from regard.observation.seen import Seen, Site
from regard_workbench import models
from regard_workbench.tasks.answers import Decoded
from regard_workbench.tasks.parts.batch import ASKED, Batch
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Patches


class NotShown(Exception):
    """There are no weights or gradients to show; the text says why."""


@dataclass(frozen=True)
class Attribution:
    """Weights over the input or over a memory, and in words what they are."""

    weights: Tensor  # (t,n): one row for each query, mean over heads; (n,): one row for all
    source: str
    how: How = "exact"
    heads: Tensor | None = None  # (h,t,n), where there is more than one
    rows: list[str] = field(default_factory=list)  # labels of the rows; empty for a single one
    columns: list[str] = field(default_factory=list)
    inputs: bool = True  # whether the columns are the positions of the input, one for one


@dataclass(frozen=True)
class _Layer:
    """A layer of a model, and what was seen of it."""

    name: str  # of its mechanism
    words: str
    crosses: bool  # whether it attends from the target to the input
    sites: list[tuple[str, Site]]  # each with the rest of its path below the layer
    # What its rows and columns are called in `Shown`, or the number of the stream, where the model says so.
    sides: tuple[str | int, str | int] | None = None


def attributions(model: models.Model, batch: Batch, shown: Shown) -> tuple[list[Attribution], list[str]]:
    """What is worth showing of a single example, most telling first, and why something is missing."""
    maps: list[Attribution] = []
    missing: list[str] = []
    over_inputs = False
    for layer in _layers(model, _observed(model, batch)):
        if not layer.sites:
            missing.append(f"{layer.words}: {layer.name} has no weights to show.")
        for path, site in layer.sites:
            try:
                maps.append(_labelled(layer, path, site, shown))
                over_inputs |= site.columns in ("source", "position")
            except RegardError as why:
                missing.append(f"{layer.words}: {why}")
    if not over_inputs:
        try:
            maps.append(_gradient_of_answer(model, batch, shown))
        except NotShown as why:
            missing += [] if maps else [str(why)]
    return maps, missing


def alignment(model: models.Model, batch: Batch) -> Attribution | str:
    """How much each target of a single example attended to each input; a text says why there is none."""
    if "decoder" not in model.gives:
        return f"{model.name} has no alignment: it does not attend to its input step by step."
    layer = next(_layers(model, _observed(model, batch)), None)
    site = None if layer is None else next(iter(layer.sites), ("", None))[1]
    usable = site is not None and site.how == "exact" and site.columns == "source"
    if layer is None or site is None or not usable or site.shape()[3] != batch.inputs.shape[1]:
        name = "its attention" if layer is None else f"{layer.name}, its attention"
        return f"{model.name} has no alignment: {name} to the input, has no weights to show."
    return Attribution(_heads(site).mean(0), f"{layer.words}, mean over heads", site.how)


def continuation(model: models.Model, batch: Batch, count: int) -> Attribution | str:
    """How much the last `count` inputs of a single example, when they were written, attended to all that came before.

    The row that writes an input is that of the position before it. A text says why there is none.
    """
    length = batch.inputs.shape[1]
    for layer in _layers(model, _observed(model, batch)):
        for _, site in layer.sites:
            if site.how == "exact" and site.shape()[2:] == (length, length):
                rows = _heads(site).mean(0)[length - count - 1 : length - 1]
                return Attribution(rows, f"{layer.words}, mean over heads", site.how)
    return f"{model.name}: its attention has no weights over all positions to show."


def input_attribution(model: models.Model, batch: Batch, answer: int) -> Attribution:
    """What a classifier's answer was drawn from in a single example: one number for each input, their sum is 1.

    A model that reads its input several times, one part after another, has a row of weights for each reading.
    """
    length = batch.inputs.shape[1]
    for layer in _layers(model, _observed(model, batch)):
        steps = all(
            path.isdecimal() for path, _ in layer.sites
        )  # a list of parts that read the input one after another
        over = [site for _, site in (layer.sites if steps else layer.sites[:1]) if _over_input(site, length)]
        if len(over) > 1:
            weights = torch.stack([_heads(site).mean((0, 1)) for site in over])
            return Attribution(weights, layer.words, over[0].how, rows=[str(number) for number in range(len(over))])
        for site in over:
            single_row = site.shape()[2] == 1
            over_what = "patches" if isinstance(model.problem.inputs, Patches) else "words"
            words = (
                f"attention over the {over_what}, mean over heads"
                if single_row
                else "attention of the last layer, mean over heads and positions"
            )
            return Attribution(_shares(_heads(site).mean((0, 1))), words, site.how)
    words = "gradient × input of the class (this attention has no weights)"
    return Attribution(gradient(model, batch, answer), words, "gradient × input")


def _over_input(site: Site, length: int) -> bool:
    """Whether a site's columns are the positions of the input."""
    return site.rows == "position" and site.columns == "source" and site.shape()[3] == length


def between(model: models.Model, batch: Batch, shown: Shown) -> Attribution | None:
    """How much each row that is no position of the input (a slot, a word of a reply) attended to each column.

    Of a single example. None where the model names no such rows (`Model.sides`).
    """
    maps = attributions(model, batch, shown)[0] if model.sides else []
    attribution = next((attribution for attribution in maps if attribution.rows), None)
    if attribution is None:
        return None
    rows, columns = _real_length(attribution.rows), _real_length(attribution.columns)
    return dataclasses.replace(
        attribution,
        weights=attribution.weights[:rows, :columns],
        heads=None,
        rows=attribution.rows[:rows],
        columns=attribution.columns[:columns],
    )


def _real_length(names: Sequence[str]) -> int:
    """The number of names up to the last that is not empty: behind it there is only padding."""
    return max((number + 1 for number, name in enumerate(names) if name), default=0)


def looked_at(model: models.Model, batch: Batch, shown: Shown) -> Attribution | None:
    """What the answer for a single example was drawn from: one weight for each position that `shown` names.

    Of an answer about some positions (nodes of a graph) the weights of these; of one about what follows, those of the
    last position; else the mean over positions. None where the model has no such weights.
    """
    follows, positions = model.problem.answer.needs in ("past", "future"), batch.notes.get(ASKED)
    for attribution in attributions(model, batch, shown)[0]:
        if attribution.inputs and attribution.how != "gradient × input":
            rows = attribution.weights if attribution.weights.dim() == 2 else attribution.weights[None]
            words = "of the newest position" if follows and len(rows) > 1 else "mean over positions"
            weights = rows[-1] if follows else rows.mean(0)
            if positions is not None:
                words, weights = "of what was asked for", rows[list(positions[0])].mean(0)
            return Attribution(
                weights, f"{attribution.source}, {words}, mean over heads", attribution.how, columns=attribution.columns
            )
    return None


@torch.no_grad()
def _observed(model: models.Model, batch: Batch) -> Seen:
    """What `observe` sees of a forward pass, without its warning: what is missing is said beside the figures."""
    with Observer(model, Storage(), None, False) as observation:
        model(batch)
    return observation


def _layers(model: models.Model, seen: Seen) -> Iterator[_Layer]:
    """The layers a model shows, the most telling first."""
    paths = parts_of(model)
    writes = isinstance(model.problem.answer, Decoded)
    for number, (declared, words) in enumerate(model.shows.items()):
        module = _module_at(model, declared)
        name = mechanism_name(module)
        sites = _sites_below(seen, paths[module])
        yield _Layer(name, words.format(name=name), writes and number == 0, sites, model.sides.get(declared))
    if not model.shows and len(seen):
        path = _base(seen.names()[-1])
        mechanisms = {at: module for module, at in paths.items() if isinstance(module, Mechanism)}
        outermost = next(
            (at for at in mechanisms if path == at or path.startswith(f"{at}.")), path
        )  # parents come first
        module = mechanisms.get(outermost, seen[seen.names()[-1]].module or model)
        name = mechanism_name(module)
        yield _Layer(name, f"{name}, the last attention", False, _sites_below(seen, outermost))


def _module_at(model: nn.Module, path: str) -> nn.Module:
    module: Any = model
    for step in path.split("."):
        module = list(module)[int(step)] if step.lstrip("-").isdigit() else getattr(module, step)
    submodule: nn.Module = module
    return submodule


def _base(name: str) -> str:
    """A site's name without the number of its call in a forward pass."""
    return name.partition("#")[0]


def _sites_below(seen: Seen, path: str) -> list[tuple[str, Site]]:
    """The sites of a layer, those over its source first; of a layer that is called again, the last call."""
    last = {_base(name): seen[name] for name in seen.names()}
    below = [
        (name.removeprefix(path).removeprefix("."), site)
        for name, site in last.items()
        if name == path or name.startswith(f"{path}.")
    ]
    return sorted(below, key=lambda one: one[1].columns != "source")


def _heads(site: Site) -> Tensor:
    """The weights of the first example, (h,q,k)."""
    return site.weights()[0].float().cpu()


def _labelled(layer: _Layer, rest: str, site: Site, shown: Shown) -> Attribution:
    heads = _heads(site)
    rows, columns = heads.shape[1:]
    queries = shown.target if layer.crosses else shown.pieces
    names: dict[Side, Sequence[str]] = {
        "position": queries,
        "source": shown.pieces,
        "slot": slots(columns if site.columns == "slot" else rows),
        "memory": [*slots(columns - len(shown.pieces)), *shown.pieces],
        "channel": [f"channel {number}" for number in range(columns)],
    }
    label = _part(rest, site, len(layer.sites) > 1)
    across = names[site.columns]
    if layer.sides is not None:
        called: dict[str | int, list[str]] = dict(enumerate([shown.pieces, *shown.streams.values()]))
        called.update(shown.streams)
        called[shown.called] = shown.pieces
        names[site.rows], across = (called.get(side, []) for side in layer.sides)
    down = _last(names[site.rows], rows) if rows > 1 else []
    mean = heads.mean(0)
    return Attribution(
        mean if down else mean[0],
        layer.words + (f": {label}" if label else ""),
        site.how,
        heads if len(heads) > 1 and down else None,
        down,
        _last(across, columns),
        inputs=site.columns in ("source", "position") and columns == len(shown.pieces),
    )


def _part(rest: str, site: Site, several: bool) -> str:
    """What one site of a layer does, in words; empty where a layer without a memory has only one."""
    if site.kind == "tape":
        return f"{rest.rpartition('.')[2]} heads, step by step"
    if site.rows == "slot":
        return "writing the memory"
    if site.columns == "memory":
        return "reading memory and segment"
    if site.columns == "slot":
        return "reading the memory"
    if not several:
        return ""
    return "its own sequence" if site.columns == "position" else rest.replace(".", " ")


def _last(names: Sequence[str], count: int) -> list[str]:
    """The last names: a model that reads in segments shows the last segment. Numbers where there are too few."""
    return list(names[-count:]) if len(names) >= count else [str(number) for number in range(count)]


def slots(count: int) -> list[str]:
    """Names for the slots of a memory, counted from 0."""
    return [f"slot {number}" for number in range(count)]


def _gradient_of_answer(model: models.Model, batch: Batch, shown: Shown) -> Attribution:
    """Which inputs moved the answer, where no layer has weights over them."""
    needs = model.problem.answer.needs
    if isinstance(model.problem.answer, Decoded):
        raise NotShown(f"{model.name} writes many answers, so there is no single gradient to show.")
    with torch.no_grad():
        outputs = model(dataclasses.replace(batch, answers={}))
        prediction = model.predict(outputs, batch)[0]
    index: tuple[int, ...] = ()
    words = "gradient × input of the class"
    if not isinstance(outputs, Tensor):
        raise NotShown(f"{model.name} gives many answers at once, so there is no single gradient to show.")
    if needs != "pooled":
        counts = None if batch.target_keep is None or needs == "past" else batch.target_keep[0].nonzero()
        at = len(prediction) - 1 if counts is None or not len(counts) else int(counts[0])
        index, prediction = (at,), prediction[at]
        words = f"gradient × input of the guess at “{shown.pieces[at]}”"
    if not isinstance(prediction, int):
        raise NotShown(f"{model.name} gives many answers at once, so there is no single gradient to show.")
    share = gradient(model, batch, *index, prediction)
    return Attribution(share, words, "gradient × input", columns=list(shown.pieces))


def gradient(model: models.Model, batch: Batch, *logit: int) -> Tensor:
    """|∂ logit / ∂ embedding · embedding| of each input, as shares; `logit` says which of the outputs."""
    embedding = getattr(getattr(model, "embedding", None), "rows", None)
    if not isinstance(embedding, nn.Module):
        raise NotShown(f"{model.name} has no embedding through which gradients could be followed.")
    rows: list[Tensor] = []

    def record(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        rows.append(output.detach().requires_grad_())
        return rows[-1]

    hook = embedding.register_forward_hook(record)
    try:
        # cuDNN has a backward pass of recurrent layers only in training mode, which would also apply dropout.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            (slope,) = torch.autograd.grad(model(batch)[(0, *logit)], rows[0])
    finally:
        hook.remove()
    return _shares((slope * rows[0]).sum(-1).abs()[0].detach().float().cpu())


def _shares(numbers: Tensor) -> Tensor:
    total = numbers.sum()
    return numbers / total if float(total) > 0 else numbers

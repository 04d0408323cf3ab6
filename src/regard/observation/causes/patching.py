"""Activation patching: parts of one run are put into another, and the answer tells which parts carry it.

The model runs on a corrupted input; the output of one head (or of all heads, or the rows that leave a layer), at one
position or at all, is taken from the run on the clean input:

    recovered = (measure with the patch − measure of corrupted) / (measure of clean − measure of corrupted)

1: the patch restores the answer, 0: it changes nothing. With `into="clean"` the corrupted part is put into the clean
run, and 1 means that the patch destroys all that corruption destroys. Where both inputs have the same answer, or their
measures hardly differ or differ the wrong way round, there are no shares, and `PatchResult.doubt` says why.

Papers: Vig et al. 2020 (causal mediation analysis), Meng et al. 2022 (causal tracing), Wang et al. 2023 (circuits).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue, Unsupported, unknown_name
from regard.observation.causes.copies import ModelCall, model_call
from regard.observation.causes.measures import Answer, Measure, Measured, Words, check_classes, measure_of
from regard.observation.causes.rerun import LayerEdit, Rerun, RunRecording, SiteEdit
from regard.observation.causes.result import PatchResult
from regard.observation.causes.sweep import Edits, SiteChange, Sweep
from regard.observation.seen import Seen
from regard.support.arguments import whole_number

PLACES = ("heads", "attention", "layers")
Positions = str | Sequence[int] | None


def patch(
    seen: Seen,
    clean: Any,
    corrupted: Any,
    *,
    at: str = "heads",
    positions: Positions = None,
    measure: Measured = "logit",
    answer: Answer = None,
    other: Answer = None,
    position: int = -1,
    into: str = "corrupted",
    sites: Sequence[str] | None = None,
    tokens: Sequence[str] | None = None,
    words: Words | None = None,
    together: int | None = None,
) -> PatchResult:
    """Patch every head, all heads of a site, or the rows of every layer, and measure the answer each time.

    Args:
        seen: what was observed of the model.
        clean: what the model is called with: a tensor, a tuple of arguments, a dict of named ones. None: what was
            observed.
        corrupted: the same, with equal shapes, where the answer should be another.
        at: "heads": each head's output, before the output projection; "attention": all heads of a site together;
            "layers": the rows that leave each layer, that is the residual stream.
        positions: "all" together, "each" on its own, or those of a list, each on its own. By default all together for
            heads, each for others.
        measure: "logit" (the answer's, minus that of `other`, where given), "loss" (cross-entropy of the answer),
            "probability", or a function of the model's output that gives a number.
        answer: a class or token, or one for each example. By default what the model says for `clean`.
        other: the class or token to subtract. By default what the model says for `corrupted`, if no answer is given.
        position: of the answer, for models that answer at every position.
        into: the run that is patched: "corrupted" (what restores the answer?) or "clean" (what destroys it?).
        sites: names of sites or layers; all by default.
        tokens: labels of the positions, for figures.
        words: turns the number of a class or token into text, such as `tokenizer.decode`.
        together: the number of copies in one batch; 1: one forward pass for each patch.
    """
    if at not in PLACES:
        raise unknown_name("at", at, PLACES)
    together = None if together is None else whole_number("together", together, 1)
    pair = RunPair(seen, clean, corrupted, into)
    judged = pair.measure(measure, answer, other, position, words)
    sweep = Sweep(pair.rerun, pair.call, judged, together)
    source = pair.donor.layers if at == "layers" else pair.donor.values
    make = layer_patches(source) if at == "layers" else site_patches(source)
    return patch_grid(pair, sweep, make, at, positions, sites, tokens)


def patch_grid(
    pair: RunPair,
    sweep: Sweep,
    edits: Edits,
    at: str,
    positions: Positions,
    sites: Sequence[str] | None,
    tokens: Sequence[str] | None,
    paths: str = "",
) -> PatchResult:
    """Go over sites, heads and positions, and arrange what was measured."""
    source = pair.donor.layers if at == "layers" else pair.donor.values
    if not source:
        raise Unsupported(f"at: this model has no {at} that can be changed. Use at='heads'.")
    names = _chosen(sites, list(source), at)
    lengths = {name: source[name].shape[1 if at == "layers" else 2] for name in names}
    where = _positions(positions, "all" if at == "heads" else "each", max(lengths.values()))
    heads = max(source[name].shape[1] for name in names) if at == "heads" else 0
    shape = (len(names), *((heads,) if heads else ()), *(() if where is None else (len(where),)))
    values = torch.full(shape, torch.nan, dtype=torch.float64)
    changes, cells = [], []
    for row, name in enumerate(names):
        for head in range(source[name].shape[1]) if heads else (None,):
            for column, position in enumerate([None] if where is None else where):
                if position is None or position < lengths[name]:
                    changes.append(SiteChange(name, head, position))
                    cells.append((row, *(() if head is None else (head,)), *(() if where is None else (column,))))
    for cell, value in zip(cells, sweep.run(changes, edits).tolist(), strict=True):
        values[cell] = value
    clean, corrupted = (
        float(sweep.measure.each(pair.outputs[run], 1, pair.call.batch)) for run in ("clean", "corrupted")
    )
    return PatchResult(
        values,
        at,
        names,
        where,
        sweep.measure.words,
        clean,
        corrupted,
        pair.into,
        None if tokens is None else [str(token) for token in tokens],
        sweep.forwards,
        sweep.ways[0],
        paths,
        sweep.measure.doubt(clean, corrupted),
    )


class RunPair:
    """A clean and a corrupted run, recorded; one gives activations, the other receives them."""

    def __init__(self, seen: Seen, clean: Any, corrupted: Any, into: str = "corrupted") -> None:
        if into not in ("corrupted", "clean"):
            raise unknown_name("into", into, ("corrupted", "clean"))
        self.rerun = Rerun(seen)
        calls = {"clean": model_call("clean", clean, seen), "corrupted": model_call("corrupted", corrupted, seen)}
        shapes = {name: call.shapes() for name, call in calls.items()}
        if shapes["clean"] != shapes["corrupted"]:
            raise BadValue(
                f"corrupted: expected tensors of the shapes of clean, {shapes['clean']}, got {shapes['corrupted']}. "
                "Choose texts of as many tokens, so that positions correspond."
            )
        self.recorded: dict[str, RunRecording] = {}
        self.outputs: dict[str, Any] = {}
        for name, call in calls.items():
            recording = RunRecording()
            self.outputs[name] = self.rerun.run(call, recording, recording.layer)
            self.recorded[name] = recording
        missing = [name for name in self.rerun.sites if name not in self.recorded["clean"].values]
        if len(missing) == len(self.rerun.sites):
            raise Unsupported(f"at: no head of this model can be changed on its own ({missing[0]}). Use at='layers'.")
        self.into = into
        self.call: ModelCall = calls[into]
        self.donor = self.recorded["clean" if into == "corrupted" else "corrupted"]
        self.receiver = self.recorded[into]

    def measure(self, measure: Measured, answer: Answer, other: Answer, position: int, words: Words | None) -> Measure:
        """What is measured of the patched run; the two runs say which answers are meant."""
        check_classes(self.rerun.model, measure, answer)
        clean, corrupted = self.outputs["clean"], self.outputs["corrupted"]
        return measure_of(measure, answer, other, position, clean, corrupted, self.call.batch, words)


def _chosen(sites: Sequence[str] | None, known: list[str], at: str) -> list[str]:
    if sites is None:
        return known
    for name in sites:
        if name not in known:
            raise unknown_name("sites", name, known)
    if not sites:
        raise BadValue(f"sites: expected at least one of the {at}, got none.")
    return list(sites)


def _positions(given: Positions, default: str, length: int) -> list[int] | None:
    given = default if given is None else given
    if isinstance(given, str):
        if given not in ("all", "each"):
            raise unknown_name("positions", given, ("all", "each"))
        return None if given == "all" else list(range(length))
    numbers = [whole_number("positions", number) for number in given]
    if not numbers or not all(-length <= number < length for number in numbers):
        raise BadValue(f"positions: expected numbers from {-length} to {length - 1}, got {numbers}.")
    return [number % length for number in numbers]


class CopiedHeads(SiteEdit):
    """Puts mixed values of another run into some copies of a batch."""

    def __init__(self, source: dict[str, Tensor], changes: Sequence[SiteChange], copies: int) -> None:
        self.source, self.copies = source, copies
        self.changes: dict[str, list[tuple[int, SiteChange]]] = {}
        for copy, change in enumerate(changes):
            if change.place:
                self.changes.setdefault(change.place, []).append((copy, change))
        self.sites = self.changes

    def mixed(self, name: str, values: Tensor, start: int) -> Tensor:
        by_copy = values.clone().unflatten(0, (self.copies, -1))  # (copies,b,h,q,v)
        stop = start + values.shape[2]
        for copy, change in self.changes[name]:
            heads = slice(None) if change.head is None else slice(change.head, change.head + 1)
            low, high = (start, stop) if change.position is None else (change.position, change.position + 1)
            low, high = max(low, start), min(high, stop)
            if low < high:
                by_copy[copy, :, heads, low - start : high - start] = self.source[name][:, heads, low:high]
        patched: Tensor = by_copy.flatten(0, 1)
        return patched


def site_patches(source: dict[str, Tensor]) -> Any:
    """How a sweep patches heads."""

    def edits(changes: Sequence[SiteChange], copies: int) -> tuple[SiteEdit, None]:
        return CopiedHeads(source, changes, copies), None

    return edits


def layer_patches(source: dict[str, Tensor]) -> Any:
    """How a sweep patches the rows that leave layers."""

    def edits(changes: Sequence[SiteChange], copies: int) -> tuple[None, LayerEdit]:
        places = {change.place for change in changes}

        def edit(name: str, rows: Tensor) -> Tensor:
            if name not in places:
                return rows
            by_copy = rows.clone().unflatten(0, (copies, -1))  # (copies,b,n,…)
            for copy, change in enumerate(changes):
                if change.place == name:
                    where = slice(None) if change.position is None else slice(change.position, change.position + 1)
                    by_copy[copy, :, where] = source[name][:, where]
            patched: Tensor = by_copy.flatten(0, 1)
            return patched

        return None, edit

    return edits

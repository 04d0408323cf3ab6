"""What an answer of an opened model comes from: what `regard cause` prints and the page draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.errors import BadValue, Unsupported
from regard.observation.ablation import logits_of
from regard.observation.causes.copies import model_call
from regard.observation.causes.input_keys import first_input_keys
from regard.observation.causes.input_rows import InputRows
from regard.observation.causes.maps import grid_of
from regard.observation.causes.measures import answers_with_a_class
from regard.observation.causes.rerun import Rerun, RunRecording
from regard_workbench.viewer.opening.options import OpenedModel

if TYPE_CHECKING:
    from regard.observation.seen import Seen

PAIRS = ("heads", "attention", "layers", "paths")  # what needs a second text
SINGLE = ("lens", "contributions", "inputs", "faithfulness")
POSSIBLE = "possible"  # which of these can be asked about a model


@dataclass(frozen=True)
class CauseRequest:
    """What is asked about an answer."""

    by: str
    answer: str | None = None  # a class or token, by number or text; None: what the model says
    other: str | None = None  # the one to subtract
    position: int | None = None  # of the answer; None: the model's first place, else the last position
    positions: str | None = None  # "each" on its own, or "all" together
    measure: str | None = None


def unrecorded(one: OpenedModel) -> Any:
    """One forward pass without gradients."""
    with torch.no_grad():
        return one.run()


def has_logits(one: OpenedModel, output: Any) -> bool:
    """Whether there is something to split into what each layer and head says: logits of one class among several."""
    try:
        return logits_of(output).dim() in (2, 3) and answers_with_a_class(one.model)
    except BadValue:
        return False


def impossible_causes(one: OpenedModel, seen: Seen) -> dict[str, str]:
    """What cannot be asked about a model, and why, in words for its page."""
    rerun, recording = Rerun(seen), RunRecording()
    output = rerun.run(model_call("inputs", None, seen), recording, recording.layer)
    reasons: dict[str, str] = {}
    if not recording.values:
        reasons |= dict.fromkeys(("heads", "paths"), "none of its heads can be changed on its own")
    if not recording.layers:
        reasons["layers"] = "it has no list of layers"
    reasons |= _impossible_of_inputs(one, seen)
    if not has_logits(one, output):
        return reasons | dict.fromkeys(("lens", "contributions"), "it does not answer with one of several classes")
    if not recording.values:
        reasons["contributions"] = "none of its heads can be changed on its own"
    try:
        seen.lens()
    except Unsupported:
        reasons["lens"] = "its layers do not stand above each other, or it runs step by step"
    return reasons


def _impossible_of_inputs(one: OpenedModel, seen: Seen) -> dict[str, str]:
    try:
        entering = InputRows(one.model, model_call("inputs", None, seen).example(0))
    except Unsupported:
        return dict.fromkeys(("inputs", "faithfulness"), "its inputs enter by no module that gives rows")
    grid = None if entering.picture is None else grid_of(seen, entering.picture)
    length = entering.positions if grid is None else grid[0] * grid[1]
    if first_input_keys(entering, length, grid):
        return {}
    return {"faithfulness": "it has no site whose keys are the inputs"}


def causes_of(asked_for: CauseRequest, one: OpenedModel, seen: Seen, other: Seen | None) -> Any:
    """What was found about an answer; `other`: what was seen of the second text, for `PAIRS`."""
    by = asked_for.by
    output = unrecorded(one)
    classes = logits_of(output).shape[-1] if has_logits(one, output) else None
    words = _words(one)
    tokens = next(iter(one.labels.values()), None)
    read = one.labels.get("read") if one.two_sides else None  # what a decoder read: other positions than its source's
    first = one.places[0][0] if one.places else -1
    position = first if asked_for.position is None else asked_for.position
    settings: dict[str, Any] = {"position": position, "words": words}
    if by != "lens":
        for name in ("answer", "other"):
            if (choice := getattr(asked_for, name)) is not None:
                settings[name] = _class(f"--{name}", choice, classes, words)
    if by in ("lens", "contributions"):
        if classes is None:
            raise BadValue(f"by: this model has no logits, so it has no {by}. Use inputs or faithfulness.")
        if by == "lens":
            return seen.lens(words=words, tokens=read or tokens)
        return seen.contributions(**settings)
    settings["measure"] = asked_for.measure or ("probability" if by == "faithfulness" else "logit")
    if classes is None:
        settings = {"measure": _similarity(output)}
    if by == "faithfulness":
        settings.pop("other", None)
        return seen.faithfulness(**settings)
    if by == "inputs":
        return seen.attributions(tokens=tokens, **settings)
    # Positions of several streams are numbered alike, so the labels of none fit all layers.
    settings |= {"tokens": tokens if len(one.labels) == 1 else None, "positions": asked_for.positions}
    _check_lengths(seen, other)
    return seen.patch_paths(None, other, **settings) if by == "paths" else seen.patch(None, other, at=by, **settings)


def _check_lengths(seen: Seen, other: Seen | None) -> None:
    """Refuse a second text of another number of tokens in the words of who typed it."""
    counts = [
        model_call("against", observation, observation).shapes()[0][1:2]
        for observation in (seen, other)
        if observation is not None
    ]
    if len(set(counts)) > 1:
        expected, got = (count[0] for count in counts)
        raise BadValue(
            f"against: expected a text of as many tokens as this input, {expected}, got {got}. Change words without "
            "changing their number of tokens, so that positions correspond."
        )


def _similarity(clean: Any) -> Any:
    """For models without classes: the cosine of the mean of all rows with that of the run on --text."""

    def row(output: Any) -> Tensor:
        hidden = getattr(output, "last_hidden_state", output)
        rows: Tensor = hidden if isinstance(hidden, Tensor) else output[0]
        return rows.flatten(1, -2).mean(1) if rows.dim() > 2 else rows

    before = row(clean).detach()

    def cosine_of_the_mean_row_with_that_for_this_input(output: Any) -> Tensor:
        return torch.cosine_similarity(row(output), before).mean()

    return cosine_of_the_mean_row_with_that_for_this_input


def _words(one: OpenedModel) -> Any:
    """The text of a class or token; its number where the model has no vocabulary."""
    labels = getattr(getattr(one.model, "config", None), "id2label", None)
    if labels and "Classification" in type(one.model).__name__:
        return lambda number: str(labels.get(number, number))
    return one.piece or str


def _class(argument: str, given: str, classes: int | None, words: Any) -> int:
    """A class or token from its number or its text."""
    if classes is None:
        raise BadValue(f"{argument}: this model has no classes or tokens to answer with. Leave it out.")
    if given.strip().isdecimal() and int(given) < classes:
        return int(given)
    fitting = [number for number in range(classes) if words(number).strip() == given.strip()]
    if not fitting:
        raise BadValue(
            f"{argument}: no single class or token reads {given!r}. Give its number, from 0 to {classes - 1}."
        )
    return fitting[0]

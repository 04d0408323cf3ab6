"""What an answer of an opened model comes from: what `regard cause` prints and the page draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.observation.ablation import logits_of
from regard.viewer.opening.options import OpenedModel

if TYPE_CHECKING:
    from regard.observation.seen import Seen

PAIRS = ("heads", "attention", "layers", "paths")  # what needs a second text
SINGLE = ("lens", "contributions", "inputs", "faithfulness")


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


def has_logits(output: Any) -> bool:
    """Whether there is something to split into what each layer and head says."""
    try:
        return logits_of(output).dim() in (2, 3)
    except BadValue:
        return False


def causes_of(asked_for: CauseRequest, one: OpenedModel, seen: Seen, other: Seen | None) -> Any:
    """What was found about an answer; `other`: what was seen of the second text, for `PAIRS`."""
    by = asked_for.by
    output = unrecorded(one)
    try:
        classes = logits_of(output).shape[-1]
    except BadValue:
        classes = None
    words = _words(one)
    tokens = next(iter(one.labels.values()), None)
    read = (
        one.labels.get("read") if one.two_sides else None
    )  # what a decoder read: other positions than its source's
    first = one.places[0][0] if one.places else -1
    position = first if asked_for.position is None else asked_for.position
    asked: dict[str, Any] = {"position": position, "words": words}
    if by != "lens":
        for name in ("answer", "other"):
            if (given := getattr(asked_for, name)) is not None:
                asked[name] = _class(f"--{name}", given, classes, words)
    if by in ("lens", "contributions"):
        if classes is None:
            raise BadValue(f"by: this model has no logits, so it has no {by}. Use inputs or faithfulness.")
        if by == "lens":
            return seen.lens(words=words, tokens=read or tokens)
        return seen.contributions(**asked)
    asked["measure"] = asked_for.measure or ("probability" if by == "faithfulness" else "logit")
    if classes is None:
        asked = {"measure": _similarity(output)}
    if by == "faithfulness":
        asked.pop("other", None)
        return seen.faithfulness(**asked)
    if by == "inputs":
        return seen.attributions(tokens=tokens, **asked)
    # Positions of several streams are numbered alike, so the labels of none fit all layers.
    asked |= {"tokens": tokens if len(one.labels) == 1 else None, "positions": asked_for.positions}
    return (
        seen.patch_paths(None, other, **asked) if by == "paths" else seen.patch(None, other, at=by, **asked)
    )


def _similarity(clean: Any) -> Any:
    """For models without logits: the cosine of the mean row with that of the run on --text."""

    def row(output: Any) -> Tensor:
        found = getattr(output, "last_hidden_state", None)
        rows: Tensor = found if isinstance(found, Tensor) else output[0]
        return rows.flatten(1, -2).mean(1) if rows.dim() > 2 else rows

    before = row(clean).detach()

    def similarity_to_the_output_for_this_input(output: Any) -> Tensor:
        return torch.cosine_similarity(row(output), before).mean()

    return similarity_to_the_output_for_this_input


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

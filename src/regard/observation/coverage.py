"""Coverage: modules that look like attention and ran, but were not captured."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from regard.errors import BadValue
from regard.observation.capture.written.detection import compiled, should_be_seen

MOST = 6  # modules named in a warning


class PartialView(UserWarning):
    """Only a part of a model's attention was captured."""


@dataclass(frozen=True)
class Unseen:
    """A module whose attention was not captured, and why."""

    path: str
    kind: str  # the name of its class
    why: str

    def __str__(self) -> str:
        return f"{self.path or 'the model itself'} ({self.kind}): {self.why}"


def unseen_parts(
    parts: Mapping[nn.Module, str], ran: Collection[int], noted: Collection[int], missed: Mapping[int, str]
) -> list[Unseen]:
    """Modules that ran and attend, by what they computed or by their name, but were not captured; only the innermost.

    `ran`, `noted`: ids of the modules that were called, and of those whose attention was captured. `missed`: by id of a
    module that was recorded, why nothing was captured.
    """
    hidden_below = [path for module, path in parts.items() if compiled(module)]
    covered = {path for module, path in parts.items() if id(module) in noted}
    unseen: dict[str, Unseen] = {}
    for module, path in parts.items():
        hidden = next((above for above in hidden_below if _any_within([path], above)), None)
        if hidden is None and id(module) not in ran:
            continue
        if _any_within(covered, path) or not (id(module) in missed or should_be_seen(module)):
            continue
        if hidden is not None:
            why = f"{hidden or 'the model'} is compiled, and what a compiled graph computes cannot be seen"
        else:
            why = missed.get(id(module), "its code names neither a known function nor a softmax")
        unseen[path] = Unseen(path, type(module).__name__, why)
    return [module_unseen for path, module_unseen in unseen.items() if not _any_within(unseen.keys() - {path}, path)]


def _any_within(paths: Collection[str], path: str) -> bool:
    return any(candidate == path or candidate.startswith(f"{path}." if path else "") for candidate in paths)


def warn_if_partial(unseen: Sequence[Unseen], seen: int, called: bool) -> None:
    """Warn once about a model that was seen in part or not at all."""
    if seen and not unseen:
        return
    if unseen:
        modules = "; ".join(map(str, unseen[:MOST]))
        more = f"; and {len(unseen) - MOST} more" if len(unseen) > MOST else ""
        much = f"only {seen} sites were" if seen else "nothing was"
        text = f"{much} seen. Not seen: {modules}{more}."
    elif called:
        text = "nothing was seen: no module of this model looks like attention."
    else:
        text = (
            "nothing was seen: the model was not called inside the with block, or another object was called in its "
            "place, such as its compiled copy."
        )
    warnings.warn(f"regard.observe: {text}", PartialView, stacklevel=3)


def refuse_partial(unseen: Sequence[Unseen], what: str, way_out: str) -> None:
    """Refuse an analysis of layers some of which were not seen."""
    if unseen:
        raise BadValue(
            f"{what}: only some of the layers were seen, and the result would leave out the others. Not seen: "
            f"{'; '.join(map(str, unseen[:MOST]))}. {way_out}"
        )


def refuse_nothing(seen: object, what: str) -> None:
    """Refuse an analysis where nothing was seen."""
    names = seen.names() if hasattr(seen, "names") else ()
    if not names:
        unseen: Sequence[Unseen] = getattr(seen, "unseen", ())
        advice = f"Not seen: {'; '.join(map(str, unseen[:MOST]))}." if unseen else "Call the model in the with block."
        raise BadValue(f"{what}: nothing was seen. {advice}")


def label_partial(seen: object, what: str) -> None:
    """Warn that a result covers only the part of the model that was seen."""
    refuse_nothing(seen, what)
    unseen: Sequence[Unseen] = getattr(seen, "unseen", ())
    if unseen:
        modules = "; ".join(map(str, unseen[:MOST]))
        warnings.warn(
            f"{what}: the result covers only the part of the model that was seen. Not seen: {modules}.",
            PartialView,
            stacklevel=3,
        )

"""Path patching: the effect of one head on the answer, or on other heads, along direct paths only.

As in activation patching a head's output is put from one run into another, but every other head keeps the output it
had. The change reaches the end only through residual connections, normalisation and feed-forward layers. With
`receivers` it reaches these heads, and they alone pass it on:

    1. The run is repeated with the sender patched and all heads but the receivers frozen; what the receivers give is
       kept.
    2. The run is repeated with the receivers' outputs from step 1, and nothing frozen.

Paper: Wang et al. 2023, interpretability in the wild (section 3); Goldowsky-Dill et al. 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue, unknown_name
from regard.observation.ablation import checked_heads
from regard.observation.causes.measures import Answer, Measured, Words
from regard.observation.causes.patching import CopiedHeads, Positions, RunPair, patch_grid
from regard.observation.causes.rerun import RowsEdit, SiteEdit
from regard.observation.causes.result import PatchResult
from regard.observation.causes.sweep import SiteChange, Sweep
from regard.observation.seen import Seen
from regard.support.arguments import whole_number

THROUGH = ("query", "key", "value")
Receivers = Mapping[str, Sequence[int]] | Sequence[tuple[str, int]] | None


def patch_paths(
    seen: Seen,
    clean: Any,
    corrupted: Any,
    *,
    receivers: Receivers = None,
    through: str | Sequence[str] = THROUGH,
    positions: Positions = None,
    measure: Measured = "logit",
    answer: Answer = None,
    other: Answer = None,
    position: int = -1,
    into: str = "corrupted",
    tokens: Sequence[str] | None = None,
    words: Words | None = None,
    together: int | None = None,
) -> PatchResult:
    """Patch the paths from every head to the answer, or to some heads. Other options: see `patch`.

    Args:
        seen: what was observed of the model.
        clean: what the model is called with; None: what was observed.
        corrupted: the same, with equal shapes.
        receivers: {site: [head, …]} or [(site, head), …]: where the paths end; None: at the answer itself.
        through: by which of "query", "key", "value" the receivers are reached; all by default.
        positions, measure, answer, other, position, into, tokens, words, together: as in `patch`.
    """
    together = None if together is None else whole_number("together", together, 1)
    ways = [through] if isinstance(through, str) else list(through)
    for way in ways:
        if way not in THROUGH:
            raise unknown_name("through", way, THROUGH)
    if not ways:
        raise BadValue(f"through: expected at least one of {', '.join(THROUGH)}, got none.")
    pair = RunPair(seen, clean, corrupted, into)
    judged = pair.measure(measure, answer, other, position, words)
    ends = {} if receivers is None else checked_heads(seen, receivers, "receivers")
    receiver_values = pair.receiver.values
    rows = _rows_of(pair, ends) if ends and len(set(ways)) < len(THROUGH) else {}

    def edits(changes: Sequence[SiteChange], copies: int) -> tuple[SiteEdit, None]:
        frozen = FrozenHeads(pair.donor.values, receiver_values, changes, copies, ends)
        if not ends:
            return frozen, None
        first: SiteEdit = FrozenRows(frozen, rows, ways, copies) if rows else frozen
        pair.rerun.run(pair.call.times(copies), first)
        return Replaced(frozen.found, ends), None

    sweep = Sweep(pair.rerun, pair.call, judged, together)
    ends_in_words = "the answer"
    if ends:
        ends_in_words = ", ".join(f"{site} head {head}" for site, many in ends.items() for head in many)
        ends_in_words += "" if len(set(ways)) == len(THROUGH) else f" by its {' and '.join(ways)}"
    return patch_grid(pair, sweep, edits, "heads", positions, None, tokens, ends_in_words)


class FrozenHeads(SiteEdit):
    """All heads keep their outputs but the sender of each copy, which is patched; what receivers give is recorded."""

    sites = None

    def __init__(
        self,
        donor: dict[str, Tensor],
        held: dict[str, Tensor],
        changes: Sequence[SiteChange],
        copies: int,
        ends: Mapping[str, Sequence[int]],
    ) -> None:
        self.patches, self.held, self.copies, self.ends = (CopiedHeads(donor, changes, copies), held, copies, ends)
        self.found: dict[str, Tensor] = {}  # the receivers' outputs

    def mixed(self, name: str, values: Tensor, start: int) -> Tensor:
        if name in self.ends:
            kept = values.detach()
            self.found[name] = torch.cat([self.found[name], kept], 2) if start else kept
        if name not in self.held:
            return values
        stop = start + values.shape[2]
        frozen = self.held[name][:, :, start:stop].repeat(self.copies, 1, 1, 1)
        return self.patches.mixed(name, frozen, start) if name in self.patches.changes else frozen


class FrozenRows(RowsEdit):
    """The same, where the receivers are reached by some of queries, keys and values only."""

    sites = None

    def __init__(
        self, frozen: FrozenHeads, rows: Mapping[str, Sequence[Tensor]], ways: Sequence[str], copies: int
    ) -> None:
        self.frozen, self.kept, self.ways, self.copies = frozen, rows, ways, copies

    def mixed(self, name: str, values: Tensor, start: int) -> Tensor:
        return self.frozen.mixed(name, values, start)

    def rows(self, name: str, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        projections = (query, key, value)
        if name not in self.kept:
            return projections
        query, key, value = (
            new if way in self.ways else old.repeat(self.copies, *(1,) * (old.dim() - 1))
            for way, new, old in zip(THROUGH, projections, self.kept[name], strict=True)
        )
        return query, key, value


class Replaced(SiteEdit):
    """Some heads get other outputs, for all copies at once."""

    def __init__(self, values: dict[str, Tensor], heads: Mapping[str, Sequence[int]]) -> None:
        self.values, self.heads = values, heads
        self.sites = values

    def mixed(self, name: str, values: Tensor, start: int) -> Tensor:
        mixed = values.clone()
        heads = list(self.heads[name])
        mixed[:, heads] = self.values[name][:, heads, start : start + values.shape[2]]
        return mixed


class _RowsRecording(RowsEdit):
    """Keeps the queries, keys and values of some sites."""

    def __init__(self, sites: Sequence[str]) -> None:
        self.sites = list(sites)
        self.found: dict[str, Sequence[Tensor]] = {}

    def rows(self, name: str, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if name in self.found:
            raise BadValue(f"through: {name} attends step by step, so its queries cannot be kept apart. Leave it out.")
        self.found[name] = (query.detach().clone(), key.detach().clone(), value.detach().clone())
        return query, key, value


def _rows_of(pair: RunPair, ends: Mapping[str, Sequence[int]]) -> dict[str, Sequence[Tensor]]:
    kept = _RowsRecording(list(ends))
    pair.rerun.run(pair.call, kept)
    return kept.found

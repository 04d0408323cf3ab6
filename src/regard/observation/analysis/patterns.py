"""Named patterns of heads.

All scores but two measure how much weight a row gives to the keys T of a pattern beyond chance, that is beyond the
share of T among the keys V that the row sees:

    score = Σ_rows (weight on T − |T|/|V|)  /  Σ_rows (1 − |T|/|V|),     below 0: 0

so 1 is all of the weight and 0 is chance, for short and for long texts. Rows that do not see T, or see nothing else
(row 0 of a causal map), are left out.

    previous token     T = the position before the row's own
    next token         T = the position after it
    diagonal           T = the row's own position
    first token        T = the first position (a sink)
    one column         T = the other position with the most weight; with tokens, all positions with that token
    induction          T = what followed earlier occurrences of the row's token (needs tokens)
    duplicate token    T = other occurrences of the row's token (needs tokens)
    block              T = the segment of the row, where the map has segments (`segments.py`); times mean distance of
                       attended keys in it / of visible keys in it, if that is below 1
    local              1 − mean distance of attended keys / mean distance of visible keys
    uniform            the overlap with equal weights, Σ min(w, 1/|V|), beyond chance

A head is named by its best pattern of those that name positions, if that reaches `THRESHOLD`; else by the best of
block, local and uniform (if that reaches `EVEN`); else "mixed". Long maps are scored on sampled rows. A name describes
a map; what a head does is tested in `causes.circuits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.errors import BadValue, unknown_name
from regard.observation.analysis.geometry import geometry
from regard.observation.analysis.sites import SeenLike, SiteLike, at, blocks, spread
from regard.observation.analysis.tally import KINDS, Tally

THRESHOLD = 0.5  # half of the possible weight beyond chance
EVEN = 0.8  # for "uniform": at 0.5 a row could have half of its weight on one key
SAMPLED = 128  # rows at most
POINTING = ("previous token", "next token", "diagonal", "first token", "one column", "induction", "duplicate token")
SHAPED = ("block", "local", "uniform")
PATTERNS = (*POINTING, *SHAPED)
MIXED = "mixed"


@dataclass(frozen=True)
class HeadFacts:
    """The pattern of one head, its score for each pattern, and features to compare heads by."""

    site: str
    head: int
    pattern: str
    scores: dict[str, float]  # from 0 to 1; patterns that could not be scored are absent
    entropy: float  # of a row, mean over rows, in nats
    column: int | None  # the position with the most weight, apart from the first
    rows: int  # number of rows that were scored
    sampled: bool  # whether they are a sample
    profile: tuple[float, ...] = field(repr=False)  # weight by distance, by quarter of the keys, and relative entropy


def recognise(
    site: SiteLike, tokens: Sequence[object] | Tensor | None = None, call: int | None = -1, batch: int = 0
) -> list[HeadFacts]:
    """The facts about every head of a site. `tokens`: ids or texts of the keys.

    `call=None` joins a prompt and its decoding steps to one map.
    """
    site, call = at(site, call)
    heads, queries, keys = site.shape(call)[1:]
    ids = None if tokens is None else _numbered(tokens, keys)
    form = geometry(site, call, batch)
    rows = spread(queries, SAMPLED)
    tally = Tally(heads, form, ids)
    for block, weights in blocks(site, rows, call, batch, beside=KINDS):
        tally.add(block, weights)
    facts: list[HeadFacts] = []
    for head in range(heads):
        scores = tally.scores(head)
        scores = {kind: scores[kind] for kind in PATTERNS if kind in scores}
        column, _ = tally.column(head)
        judged, entropy, profile = int(tally.rows[head]), tally.mean_entropy(head), tally.shares(head)
        name, sampled = name_of(scores), len(rows) < queries
        facts.append(HeadFacts(site.name, head, name, scores, entropy, column, judged, sampled, profile))
    return facts


def recognise_all(
    seen: SeenLike, tokens: Sequence[object] | Tensor | None = None, call: int | None = -1, batch: int = 0
) -> list[HeadFacts]:
    """The facts about every head of every site; sites with another number of keys are scored without tokens."""
    facts: list[HeadFacts] = []
    for name in seen.names():
        site, which = at(seen[name], call)
        fitting = tokens is not None and len(tokens) == site.shape(which)[3]
        facts += recognise(site, tokens if fitting else None, which, batch)
    return facts


def rank(facts: Iterable[HeadFacts], by: str) -> list[HeadFacts]:
    """Heads by their score for a pattern, or by `entropy`: the largest first, those without a score last."""
    if by != "entropy" and by not in PATTERNS:
        raise unknown_name("by", by, (*PATTERNS, "entropy"))
    return sorted(facts, key=lambda one: -(one.entropy if by == "entropy" else one.scores.get(by, -1.0)))


def _numbered(tokens: Sequence[object] | Tensor, keys: int) -> Tensor:
    """An integer for each token, equal for equal tokens."""
    token_list = tokens.flatten().tolist() if isinstance(tokens, Tensor) else list(tokens)
    if len(token_list) != keys:
        raise BadValue(f"tokens: expected one for each of the {keys} keys, got {len(token_list)}.")
    numbers: dict[object, int] = {}
    return torch.tensor([numbers.setdefault(token, len(numbers)) for token in token_list], dtype=torch.int64)


def name_of(scores: dict[str, float]) -> str:
    """The name of a head with these scores."""
    for kinds in (POINTING, SHAPED):
        best = max(kinds, key=lambda kind: scores.get(kind, -1.0))
        if scores.get(best, -1.0) >= (EVEN if best == "uniform" else THRESHOLD):
            return best
    return MIXED

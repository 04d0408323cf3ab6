"""Errors of questions of several kinds: the mean over kinds, and how many kinds fail.

Each question counts by its kind, which the batch notes ("kind"). A kind fails if more than 5 % of its answers are
wrong, as in bAbI (Weston et al. 2016).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from regard_workbench.tasks.measures.metrics import SHARE, Answered, Counts

FAILS_ABOVE = 0.05


def _counted(answered: Answered) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for kind, right in zip(answered.batch.notes["kind"], answered.right.tolist(), strict=True):
        counts["asked"] += 1
        counts[f"asked {kind}"] += 1
        counts[f"wrong {kind}"] += not right
    return dict(counts)


def errors(counts: Mapping[str, float]) -> dict[str, float]:
    """The share of wrong answers of each kind."""
    questions = {name.removeprefix("asked "): counts[name] for name in counts if name.startswith("asked ")}
    return {kind: counts.get(f"wrong {kind}", 0.0) / number for kind, number in questions.items() if number}


def mean_error(counts: Mapping[str, float]) -> float:
    """The mean of the errors of all kinds."""
    shares = errors(counts)
    return sum(shares.values()) / len(shares) if shares else math.nan


def failed(counts: Mapping[str, float]) -> float:
    """How many kinds fail."""
    return float(sum(error > FAILS_ABOVE for error in errors(counts).values()))


def _seen(answered: Answered) -> dict[str, float]:
    return answered.once(_counted)


ERROR = Counts(
    "error", higher_is_better=False, unit=SHARE, look=_seen, made=mean_error, total="asked", over="questions"
)
FAILED = Counts("failed_tasks", higher_is_better=False, look=_seen, made=failed, total="asked", over="questions")


def error_of_kind(kind: str) -> Counts:
    """The error of one kind, from the state of `ERROR`."""
    return Counts(
        f"error_{kind}",
        higher_is_better=False,
        unit=SHARE,
        look=_seen,
        over="questions",
        total=f"asked {kind}",
        made=lambda counts: errors(counts).get(kind, math.nan),
    )

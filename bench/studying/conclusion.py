"""What somebody should do who has the job at hand: one paragraph for each question, made from its verdict."""

from __future__ import annotations

from collections.abc import Sequence

from studying import text
from studying.verdict import PARTLY, Verdict

MOST_NAMES = 6


def to_do(verdicts: Sequence[Verdict]) -> str:
    """The section as Markdown; empty where no question has an answer."""
    told = [_one(verdict) for verdict in verdicts if verdict.take is not None]
    return "\n\n".join(["## What to do", "\n".join(f"- {one}" for one in told)]) if told else ""


def _one(verdict: Verdict) -> str:
    assert verdict.take is not None
    job = f"**To {verdict.question.job}**"
    return " ".join(
        part
        for part in (
            f"{job}: start with {text.code(verdict.take.name)}{_how_sure(verdict)}.",
            _simpler(verdict),
            text.faster(verdict) if verdict.comparison.costs else "",
            _struck(verdict),
            _too_early(verdict),
        )
        if part
    )


def _how_sure(verdict: Verdict) -> str:
    rivals = [entry for entry in verdict.racing if entry is not verdict.take]
    if not rivals:
        return ", which beats all others by both tests"
    if len(rivals) == len(verdict.everyone) - 1:
        return "; the tests tell it from none of the others, so take another one if you already have it"
    return f"; {text.listed([entry.name for entry in rivals], MOST_NAMES)} may be as good"


def _simpler(verdict: Verdict) -> str:
    better = [one for one in verdict.unbeaten if not one.guess]
    if not better:
        return ""
    number = text.value(better[0].value, verdict.metric)
    return f"Try {better[0].words} before any of them: it gives {number}, which nobody here reaches."


def _struck(verdict: Verdict) -> str:
    worse = [entry.name for entry in verdict.everyone if entry.label in verdict.struck]
    if not worse:
        return ""
    return f"Behind by both tests, so leave out unless you need what they offer: {text.listed(worse, MOST_NAMES)}."


def _too_early(verdict: Verdict) -> str:
    if verdict.learning <= PARTLY:
        return ""
    return "Most runs were still learning at the end: with a longer budget, ask again."

"""What did not work, told by the numbers: who did not learn, costs more than it gives, or only has another name."""

from __future__ import annotations

from collections.abc import Sequence

from regard.nn.mechanism import MECHANISMS, options_of
from regard.registry import parse

from .entries import Entry
from .sentences import noun
from .verdict import NOT_LEARNT, PARTLY, Verdict
from .wording import code, gap, interval, joined, listed, times, value

QUIET = 1.25  # a ratio of two timings of the same work that is still ordinary


def negative(verdict: Verdict, left_out: Sequence[tuple[str, str]] = ()) -> list[str]:
    """What did not work, costs more than it gives, or could not be asked."""
    said = [
        _unlearnt(verdict),
        _partly(verdict),
        _wasteful(verdict),
        _unsteady(verdict),
        *_failed(verdict),
        *_absent(left_out),
    ]
    return [sentence for sentence in said if sentence]


def _with_numbers(verdict: Verdict, chosen: Sequence[Entry]) -> str:
    return joined([f"{code(entry.name)} ({value(entry.mean, verdict.metric)})" for entry in chosen])


def _unlearnt(verdict: Verdict) -> str:
    chosen = [entry for entry in verdict.everyone if verdict.progress(entry) < NOT_LEARNT]
    if not chosen or verdict.guess is None:
        return ""
    return (
        f"**Did not learn**: {_with_numbers(verdict, chosen)}, where {verdict.guess.words} gives "
        f"{value(verdict.guess.value, verdict.metric)}."
    )


def _partly(verdict: Verdict) -> str:
    chosen = [entry for entry in verdict.everyone if NOT_LEARNT <= verdict.progress(entry) < PARTLY]
    if not chosen:
        return ""
    return f"**Learnt less than half of it**, on the way from guessing to the best: {_with_numbers(verdict, chosen)}."


def _wasteful(verdict: Verdict) -> str:
    chosen, taken = verdict.wasteful, verdict.take
    if not chosen or taken is None:
        return ""

    def behind(entry: Entry) -> tuple[str, str]:
        slower = times(taken.speed / entry.speed)
        return slower, gap(entry.mean, taken.mean, verdict.metric)

    (slower, less), *rest = map(behind, chosen)
    text = (
        f"**Costs more and gives no more** than {code(taken.name)}: {code(chosen[0].name)} takes {slower} as long for "
        f"a step and ends {less} behind"
    )
    also = [f"{code(one.name)} ({a}, {b})" for one, (a, b) in zip(chosen[1:], rest, strict=True)]
    return text + (f"; likewise {joined(also)}." if also else ".")


def _unsteady(verdict: Verdict) -> str:
    told = []
    for entry in verdict.unsteady:
        low, high = min(entry.seeds.values()), max(entry.seeds.values())
        told.append(f"{code(entry.name)} ({interval(low, high, verdict.metric)})")
    if not told:
        return ""
    return f"**Unsteady**, its seeds far apart where others agree: {joined(told)}. A mean says little there."


def _failed(verdict: Verdict) -> list[str]:
    """Runs that broke, and runs that came to their end without a number."""
    runs = verdict.comparison.outcomes
    named = [(code(run.attention or run.model), run) for run in runs]
    return [f"**Failed**: {name} with seed {run.seed}: {run.error}" for name, run in named if run.error] + [
        f"**No number**: {name} with seed {run.seed} ended without a finite {noun(run.metric)}, so it is in no table."
        for name, run in named
        if not run.error and run.metric not in run.test
    ]


def _absent(left_out: Sequence[tuple[str, str]]) -> list[str]:
    """Who could not take part, by reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in left_out:
        reasons.setdefault(why.removeprefix("attention: ").replace(f"{name} ", "it ", 1), []).append(name)
    return [
        f"**Could not take part**: {listed(names)}. Of {'each' if len(names) > 1 else 'it'} the library says: {why}"
        for why, names in reasons.items()
    ]


def check(verdict: Verdict) -> list[str]:
    """Whether what must be one computation came out as one, and what else did."""
    wanted = set(verdict.question.same)
    there = {name for entry in verdict.everyone for name in entry.names} & wanted
    groups = [entry for entry in verdict.everyone if entry.twins]
    said = []
    if len(there) > 1:
        held = next((entry for entry in verdict.everyone if there <= set(entry.names)), None)
        names, why = listed(sorted(there)), verdict.question.why_same
        if held is not None:
            said.append(
                f"{names} are one computation in this place: {why}. They had to come out alike, and did: every metric "
                f"of every seed is the same to the last digit.{_timing(held)}"
            )
        else:
            apart = [f"{code(entry.name)} ({value(entry.mean, verdict.metric)})" for entry in verdict.everyone
                     if set(entry.names) & there]  # fmt: skip
            said.append(
                f"{names} should be one computation in this place: {why}. **They did not come out alike**: "
                f"{joined(apart)}. Until that is explained, read their rows with care."
            )
    for entry in groups:
        own = [name for name in entry.names if name not in wanted]
        if own:
            said.append(f"{listed(entry.names)} came out the same to the last digit{_window(own)}.")
    for group in verdict.alike:
        ones = [entry.name for entry in group]
        said.append(f"{listed(ones)} agree with every seed but for rounding{_window(ones)}.")
    return said


def _window(names: Sequence[str]) -> str:
    """Why names of local attentions may be those of global ones."""
    if not any("window" in options_of(MECHANISMS[parse(name)[0]].layer) for name in names):
        return ": here they are one thing"
    return ": a window that reaches past the whole input hides nothing"


def _timing(entry: Entry) -> str:
    """What timing the same work several times says about the timings."""
    if len(entry.timed) < 2 or not entry.timed[0]:
        return ""
    low, high = entry.timed[0], entry.timed[-1]
    text = f" Timed one by one they made {low:.3g} to {high:.3g} steps per second"
    if high / low < QUIET:
        return f"{text}: speeds closer than {100 * (high / low - 1):.0f} % should be read as equal."
    return (
        f"{text} for the same work: the machine was not quiet, and differences in speed below a factor of "
        f"{high / low:.1f} say nothing here."
    )

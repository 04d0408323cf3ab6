"""What a verdict says, as sentences chosen by its numbers. Nothing here knows any result."""

from __future__ import annotations

from collections.abc import Sequence

from .entries import Entry
from .verdict import AS_FAST, NOT_LEARNT, PARTLY, Verdict
from .wording import amount, code, count, gap, interval, joined, listed, times, value

NAMED = 3  # names in half a sentence; of more, their number is told
FASTER = 1.25  # times as fast, to be worth a word


def best(verdict: Verdict) -> str:
    """Who came out ahead, and how certain its number is."""
    ahead, metric = verdict.best, verdict.metric
    extreme = "highest" if verdict.higher else "lowest"
    return f"{code(ahead.name)} reached the {extreme} test {noun(metric)}: {reached(ahead, metric)}."


def reached(entry: Entry, metric: str) -> str:
    """A number with its interval."""
    low, high = (float(entry.over[end]) for end in ("low", "high"))
    number = value(entry.mean, metric)
    if len(entry.seeds) < 2:
        return f"{number} (one seed, so no interval)"
    if low == high:
        return f"{number} with every seed"
    return f"{number} (95 % interval {interval(low, high, metric)})"


def noun(metric: str) -> str:
    """The deciding number as a noun."""
    return metric.replace("_", " ").replace("bits per sequence", "cost in bits per sequence")


def race(verdict: Verdict) -> str:
    """Who may be the best, as far as the tests can tell."""
    everyone, left = verdict.everyone, verdict.racing
    if len(everyone) == 1:
        return ""
    hidden = ""
    if verdict.needed is not None and len(left) > 1:
        seeds = count(max(len(entry.seeds) for entry in everyone))
        hidden = (
            f" With {seeds} seeds that scatter like these, a gap to the best had to exceed about "
            f"{amount(verdict.needed, verdict.metric)} to show."
        )
    if len(left) == len(everyone):
        return f"The tests strike nobody off: any of the {count(len(left))} may be the best.{hidden}"
    out = len(everyone) - len(left)
    if len(left) == 1:
        others = "the other" if out == 1 else f"all {count(out)} others"
        return f"The tests strike off {others}, so with 95 % confidence it is the best of them."
    rivals = listed([entry.name for entry in left if entry is not verdict.best])
    return (
        f"The tests strike off {count(out)} of the {count(len(everyone))}; besides it, {rivals} may be the best."
        f"{hidden}"
    )


def advice(verdict: Verdict) -> str:
    """What to take, and why."""
    if verdict.take is None:
        return "Nobody got beyond guessing within this budget, so there is nothing to recommend."
    return f"**Take {code(verdict.take.name)}**: {because(verdict)}.{faster(verdict)}"


def because(verdict: Verdict) -> str:
    """The reason for what is taken, as half a sentence."""
    chosen, margin = verdict.take, verdict.question.margin.words
    assert chosen is not None
    metric, others = verdict.metric, [entry for entry in verdict.close if entry is not verdict.take]
    number = value(chosen.mean, metric)
    if chosen is verdict.best and len(verdict.everyone) > 1 and not others:
        runner = verdict.everyone[1]
        behind = gap(runner.mean, chosen.mean, metric)
        if len(verdict.racing) == 1:
            return f"the best by every test ({number}), {behind} ahead of {code(runner.name)}"
        return f"the best mean ({number}), and nobody still in the race comes within {margin} of it"
    rivals = f"the {count(len(verdict.close))} that are in the race and within {margin} of the best"
    if chosen is verdict.best:
        return f"the best mean ({number}), and of {rivals} none is more than {100 * AS_FAST:.0f} % faster"
    speed = ""
    if chosen.speed and verdict.best.speed:
        speed = f", at {times(chosen.speed / verdict.best.speed)} the speed"
    best_mean = f"{_behind(chosen, verdict)} {code(verdict.best.name)}, the best mean"
    return f"{number}, {best_mean}{speed}; the fastest of {rivals}"


def _behind(entry: Entry, verdict: Verdict) -> str:
    if entry.mean == verdict.best.mean:
        return "level with"
    return f"{gap(entry.mean, verdict.best.mean, verdict.metric)} behind"


def faster(verdict: Verdict) -> str:
    """What to take where speed counts more: of those that nobody beats on both, the best that is clearly faster."""
    chosen = verdict.take
    if chosen is None or chosen.speed is None:
        return ""
    for entry in sorted(verdict.front, key=lambda entry: -entry.mean if verdict.higher else entry.mean):
        if entry.speed is None or entry is chosen or verdict.progress(entry) < PARTLY:
            continue
        if entry.speed >= FASTER * chosen.speed:
            return (
                f" Where speed counts more, {code(entry.name)} makes {times(entry.speed / chosen.speed)} the steps per "
                f"second and ends {gap(entry.mean, chosen.mean, verdict.metric)} behind."
            )
    return ""


def undominated(verdict: Verdict) -> str:
    """Whom nobody beats on quality and speed together."""
    chosen = verdict.front
    if len(chosen) < 2:
        return f"{code(chosen[0].name)} is both the best and the fastest." if chosen else ""
    parts = [
        f"{code(entry.name)} ({value(entry.mean, verdict.metric)} at {_pace(entry)} steps/s)"
        for entry in chosen
    ]
    return f"On quality and speed together nobody beats {joined(parts)}."


def _pace(entry: Entry) -> str:
    return f"{entry.speed:.3g}" if entry.speed else "?"


def scale(verdict: Verdict) -> str:
    """The yardsticks, and who passes them."""
    parts = []
    for one in verdict.yardsticks:
        number = value(one.value, verdict.metric)
        if one.guess:
            parts.append(f"{one.words} gives {number}")
            continue
        passed = [entry for entry in verdict.everyone if verdict.better(entry, one.value)]
        if not passed:
            who = "which nobody here beats"
        elif len(passed) == len(verdict.everyone):
            who = "which everybody here beats"
        elif len(passed) <= NAMED:
            beat = "beats" if len(passed) == 1 else "beat"
            who = f"which only {listed([entry.name for entry in passed])} {beat}"
        else:
            who = f"which {count(len(passed))} of the {count(len(verdict.everyone))} beat"
        parts.append(f"{one.words} gives {number}, {who}")
    return f"For scale: {'; '.join(parts)}." if parts else ""


def findings(verdict: Verdict) -> list[str]:
    """The paragraph of findings, one sentence or two in each."""
    said = [f"{best(verdict)} {race(verdict)}".strip(), advice(verdict), undominated(verdict), scale(verdict)]
    return [sentence for sentence in said if sentence]


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
    if not chosen or taken is None or taken.speed is None:
        return ""
    speed = taken.speed

    def behind(entry: Entry) -> tuple[str, str]:
        slower = times(speed / (entry.speed or speed))
        return slower, gap(entry.mean, taken.mean, verdict.metric)

    (slower, less), *rest = map(behind, chosen)
    text = (
        f"**Costs more and gives less** than {code(taken.name)}: {code(chosen[0].name)} takes {slower} as long for a "
        f"step and ends {less} behind"
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
        if not set(entry.names) <= wanted:
            said.append(
                f"{listed(entry.names)} came out the same to the last digit: here they are one thing."
            )
    return said


def _timing(entry: Entry) -> str:
    if len(entry.timed) < 2 or not entry.timed[0]:
        return ""
    low, high = entry.timed[0], entry.timed[-1]
    return (
        f" Timed one by one they made {low:.3g} to {high:.3g} steps per second: speeds closer than "
        f"{100 * (high / low - 1):.0f} % should be read as equal."
    )

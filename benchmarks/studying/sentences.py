"""What a verdict says, as sentences chosen by its numbers. Nothing here knows any result."""

from __future__ import annotations

import statistics

from .entries import Entry
from .verdict import AS_FAST, PARTLY, Verdict
from .wording import amount, code, count, gap, interval, joined, listed, times, value

NAMED = 3  # names in half a sentence; of more, their number is told
FASTER = 1.25  # times as fast, to be worth a word
LARGER = 1.25  # times the parameters of the median, to be worth one


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
        return f"The tests strike nobody off: none of the {count(len(left))} can be ruled out as the best.{hidden}"
    out = len(everyone) - len(left)
    if len(left) == 1:
        others = {1: "the other", 2: "both others"}.get(out, f"all {count(out)} others")
        return f"The tests strike off {others}, so with 95 % confidence it is the best of them."
    rivals = listed([entry.name for entry in left if entry is not verdict.best])
    lost = [entry.name for entry in everyone if entry not in left]
    who = listed(lost) if out <= NAMED else f"{count(out)} of the {count(len(everyone))}"
    return f"The tests strike off {who}; besides it, {rivals} cannot be ruled out.{hidden}"


def advice(verdict: Verdict) -> str:
    """What to take, and why."""
    if verdict.take is None:
        return "Nobody got beyond guessing within this budget, so there is nothing to recommend."
    said = [f"**Take {code(verdict.take.name)}**: {because(verdict)}.", size(verdict), faster(verdict)]
    return " ".join(part for part in said if part)


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


def but(verdict: Verdict) -> str:
    """What speaks against taking it: something simpler that does better, as the end of a sentence."""
    for one in verdict.yardsticks:  # the simplest first
        if not one.guess and verdict.take is not None and not verdict.better(verdict.take, one.value):
            return f"; but {one.words} gives {value(one.value, verdict.metric)}"
    return ""


def sure(verdict: Verdict) -> str:
    """How far the tests stand behind what is taken: who else may be the best."""
    rivals = [entry.name for entry in verdict.racing if entry is not verdict.take]
    if not rivals:
        return "yes: all others are struck off"
    if len(rivals) <= NAMED:
        return f"no: {joined([code(name) for name in rivals])} cannot be ruled out"
    return f"no: {count(len(rivals))} others cannot be ruled out"


def size(verdict: Verdict) -> str:
    """Whether what is taken is larger than most, so that its size may be what helps."""
    sizes = [entry.row["parameters"] for entry in verdict.everyone]
    if verdict.take is None or len(sizes) < 3:
        return ""
    factor = verdict.take.row["parameters"] / statistics.median(sizes)
    if factor < LARGER:
        return ""
    return (
        f"Part of that may be size: {code(verdict.take.name)} has {times(factor)} the parameters of the contestant in "
        "the middle."
    )


def _behind(entry: Entry, verdict: Verdict) -> str:
    if entry.mean == verdict.best.mean:
        return "level with"
    return f"{gap(entry.mean, verdict.best.mean, verdict.metric)} behind"


def faster(verdict: Verdict) -> str:
    """What to take where speed counts more: of those that nobody beats on both, the best that is clearly faster."""
    chosen = verdict.take
    if chosen is None or not chosen.speed:
        return ""
    for entry in sorted(verdict.front, key=lambda entry: -entry.mean if verdict.higher else entry.mean):
        if entry is chosen or verdict.progress(entry) < PARTLY:
            continue
        if entry.speed >= FASTER * chosen.speed:
            return (
                f"Where speed counts more, {code(entry.name)} makes {times(entry.speed / chosen.speed)} the steps per "
                f"second and ends {gap(entry.mean, chosen.mean, verdict.metric)} behind."
            )
    return ""


def undominated(verdict: Verdict) -> str:
    """Whom nobody beats on quality and speed together."""
    chosen = verdict.front
    if len(chosen) < 2:
        return f"{code(chosen[0].name)} is both the best and {_among_the_fastest(verdict)}." if chosen else ""
    parts = [
        f"{code(entry.name)} ({value(entry.mean, verdict.metric)} at {_pace(entry)} steps/s)"
        for entry in chosen
    ]
    return f"On quality and speed together nobody beats {joined(parts)}."


def _among_the_fastest(verdict: Verdict) -> str:
    slowest_alike = max(entry.speed for entry in verdict.everyone) * (1 - AS_FAST)
    rivals = [entry for entry in verdict.everyone if entry.speed >= slowest_alike]
    return "the fastest" if rivals == [verdict.best] else "as fast as any"


def _pace(entry: Entry) -> str:
    return f"{entry.speed:.3g}" if entry.speed else "?"


def scale(verdict: Verdict) -> str:
    """The yardsticks, and who passes them."""
    parts = []
    for one in verdict.yardsticks:
        number = value(one.value, verdict.metric)
        if one.guess and not one.value:
            continue  # that nothing comes of nothing needs no telling
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


def unripe(verdict: Verdict) -> str:
    """Whether the budget ended before learning did."""
    done = sum(not run.error for run in verdict.comparison.outcomes)
    late = round(verdict.learning * done)
    if verdict.learning <= PARTLY:
        return ""
    runs = f"all {done}" if late == done else f"{late} of {done}"
    return (
        f"In {runs} runs the last checkpoint was the best: they were still learning when the budget ended, so this "
        "says who starts well, and not where anybody ends."
    )


def findings(verdict: Verdict) -> list[str]:
    """The paragraph of findings, one sentence or two in each."""
    said = [
        f"{best(verdict)} {race(verdict)}".strip(),
        advice(verdict),
        undominated(verdict),
        scale(verdict),
        unripe(verdict),
    ]
    return [sentence for sentence in said if sentence]

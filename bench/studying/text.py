"""What the page says, as sentences chosen by the numbers of a verdict. Nothing here knows any result.

Numbers and lists as a reader takes them; findings; what did not work; and the parts that explain: how it was done, what
it does not show, how to reproduce it.
"""

from __future__ import annotations

import math
import re
import statistics
import textwrap
from collections.abc import Sequence

from regard.nn.parts.mechanism import MECHANISMS, options_of
from regard.registry import parse
from regard_workbench.comparison.columns import counted, significant
from regard_workbench.tasks.measures.metrics import SHARE, Metric

from .evidence import Entry, Question, machine
from .verdict import AS_FAST, NOT_LEARNT, PARTLY, RACING, STRUCK, Verdict

NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
WIDTH = 120
HELD = "\u00a0"  # a space at which no line is broken
AS_IT_IS = ("#", "|", "```", "<", "![")


def value(number: float, metric: Metric) -> str:
    """A result: 98.1 %, 8.17, 0.0012."""
    if metric.unit == SHARE:
        return f"{100 * number:.1f} %"
    return f"{number:.1e}" if 0 < abs(number) < 1e-4 else _short(number)


def interval(low: float, high: float, metric: Metric) -> str:
    """Between which numbers; a share cannot leave 0 to 100 %, a cost cannot fall below nothing."""
    if metric.unit == SHARE:
        low, high = max(low, 0.0), min(high, 1.0)
        return f"{100 * low:.1f}–{100 * high:.1f} %"
    return f"{value(max(low, 0.0), metric)}–{value(high, metric)}"


def gap(worse: float, best: float, metric: Metric) -> str:
    """How far one is behind another, without a sign: 1.3 points, 3.6 %, 0.4 bits."""
    if metric.unit == SHARE:
        return f"{100 * abs(best - worse):.1f} points"
    if metric.name == "perplexity":
        return f"{100 * abs(worse / best - 1):.1f} %"
    return f"{_short(abs(worse - best))} bits"


def amount(difference: float, metric: Metric) -> str:
    """A difference by itself."""
    if metric.unit == SHARE:
        return f"{100 * difference:.1f} points"
    return _short(difference) + (" bits" if metric.name == "bits_per_sequence" else "")


def times(factor: float) -> str:
    """A factor: 2.3 ×, 14 ×."""
    return f"{factor:.1f} ×" if factor < 9.95 else f"{factor:.0f} ×"


def code(name: str) -> str:
    """A name as it is typed."""
    return f"`{name}`"


def listed(names: Sequence[str], most: int = 30) -> str:
    """`a`, `b` and `c`; of too many the first, and how many more."""
    shown = [code(name) for name in names[:most]]
    if len(names) > most:
        shown.append(f"{count(len(names) - most)} more")
    return joined(shown)


def joined(parts: Sequence[str]) -> str:
    """a, b and c."""
    *ahead, last = parts
    return f"{', '.join(ahead)} and {last}" if ahead else last


def count(number: int) -> str:
    """A small whole number in words."""
    return NUMBERS[number] if 0 <= number < len(NUMBERS) else str(number)


def wrapped(text: str) -> str:
    """A page with its paragraphs and bullets broken into lines; headings, tables, pictures and code as they are."""
    return "\n\n".join(
        block if block.startswith(AS_IT_IS) else "\n".join(_lines(block)) for block in text.split("\n\n")
    )


def _lines(block: str) -> list[str]:
    """A paragraph, or bullets, in lines."""
    parts = re.split(r"\n(?=- )", block.replace(" %", HELD + "%"))
    return [
        line.replace(HELD, " ")
        for part in parts
        for line in textwrap.wrap(
            re.sub(r"[ \n]+", " ", part).strip(),
            WIDTH,
            subsequent_indent="  " if part.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def _short(number: float) -> str:
    """Three digits at most, fewer where the number is small."""
    if not number:
        return "0"
    return significant(number) if abs(number) >= 1 else f"{number:.{1 - math.floor(math.log10(abs(number)))}f}"


NAMED = 3  # names in half a sentence; of more, their number is told
FASTER = 1.25  # times as fast, to be worth a word
LARGER = 1.25  # times the parameters of the median, to be worth one


def best(verdict: Verdict) -> str:
    """Who came out ahead, and how certain its number is."""
    ahead, metric = verdict.best, verdict.metric
    extreme = "highest" if verdict.metric.higher_is_better else "lowest"
    return f"{code(ahead.name)} reached the {extreme} test {noun(metric.name)}: {reached(ahead, metric)}."


def reached(entry: Entry, metric: Metric) -> str:
    """A number with its interval."""
    low, high = (float(entry.over[end]) for end in ("low", "high"))
    number = value(entry.mean, metric)
    if len(entry.seeds) < 2:
        return f"{number} (one seed, so no interval)"
    if low == high:
        return f"{number} with every seed"
    return f"{number} (95 % interval {interval(low, high, metric)})"


def noun(metric: str) -> str:
    """The name of a metric as a noun."""
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
    alone = len(verdict.best.seeds) == 1 < len(chosen.seeds)  # the best mean is that of a single run
    several = " that has several seeds" if alone else ""
    rivals = f"the {count(len(verdict.close))} that are in the race and within {margin} of the best{several}"
    if chosen is verdict.best:
        return f"the best mean ({number}), and of {rivals} none is more than {100 * AS_FAST:.0f} % faster"
    speed = ""
    if chosen.speed and verdict.best.speed:
        speed = f", at {times(chosen.speed / verdict.best.speed)} the speed"
    best_mean = f"{_behind(chosen, verdict)} {code(verdict.best.name)}, the best mean{' (one seed)' if alone else ''}"
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
    for entry in sorted(
        verdict.front, key=lambda entry: -entry.mean if verdict.metric.higher_is_better else entry.mean
    ):
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
    parts = [f"{code(entry.name)} ({value(entry.mean, verdict.metric)} at {_pace(entry)} steps/s)" for entry in chosen]
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
            apart = [
                f"{code(entry.name)} ({value(entry.mean, verdict.metric)})"
                for entry in verdict.everyone
                if set(entry.names) & there
            ]
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


SCRIPT = "bench/study.py"
COLUMN = 52  # where comments begin in a block of commands


def opening(verdicts: Sequence[Verdict]) -> str:
    """What this is."""
    names = {
        name
        for verdict in verdicts
        if "--attention" in verdict.question.arguments
        for entry in verdict.everyone
        for name in entry.names
    }
    runs = sum(len(verdict.comparison.outcomes) for verdict in verdicts)
    return f"""# Which attention for which job?

There are more ways to attend than reasons to choose between them. This study puts {len(names)} mechanisms and a
handful of whole models to {count(len(verdicts))} small questions, trains each contestant several times under the
same conditions ({runs} runs in all), and asks three things of every result: is it better than the next, or only
luckier? What does it cost? And would something much simpler have done?

The page is written by `{SCRIPT}` from the folders of those runs. No number on it was typed in, and neither was any
sentence that says who is better: rerun a comparison, and the text says what it says then."""


def method(verdicts: Sequence[Verdict]) -> str:
    """How a number is made, and how a claim."""
    seeds = joined([count(each) for each in sorted({len(verdict.comparison.seeds) for verdict in verdicts})])
    kinds = ((verdict.question.margin.words, verdict.metric.name.replace("_", " ")) for verdict in verdicts)
    margins = joined(list(dict.fromkeys(f"{words} of {metric}" for words, metric in kinds)))
    return f"""## How it was done

**Same conditions.** Within a question all contestants see the same examples in the same order, for the same number of
steps, with the same optimiser, learning rate, schedule and batch. A seed fixes the order of the data and the draw of
the first weights; everything is done with {seeds} seeds. Of each run the checkpoint that was best on validation is
measured on the test split, once.

**Not tuned.** Nobody was tuned to win: not by learning rate, not by width, not by the window of a local attention.
This favours mechanisms that are content with ordinary settings, and “worse” below reads “worse with these settings”.
{_exceptions(verdicts)}

**Intervals.** A ± is half of the 95 % interval over seeds (Student's t). With three seeds that is 4.3 standard errors,
so intervals are wide: three seeds know no more.

**The race.** A contestant is struck off ({STRUCK} in the tables) if some rival beats it by two tests at once, a paired
t test over the seeds and a paired bootstrap over blocks of test examples, both with p < 0.05 / (k − 1) for k
contestants. The true best may lose to one of its k − 1 rivals by bad luck, and the division keeps the chance of that
below 5 % in all; so with 95 % confidence it is among those still in the race ({RACING}). “In the race” is not “as good
as the best”: it may only mean that the seeds could not tell. Each section says which gap they could have told.

**What to take.** Of those in the race whose mean lies within a margin of the best ({margins}), the fastest; where
several are within {100 * AS_FAST:.0f} % of the fastest, the best of these. A contestant of which a single
seed has ended is not taken while others have several. The margins are a matter of taste.

**Cost.** Speed, FLOPs and the peak of additional memory are those of one training step (forward, backward, update),
measured after the runs, one contestant at a time in a process of its own. They belong to these sizes: a mechanism that
is linear in the length of its input gains nothing on eight rows of pixels.

**Yardsticks.** Beside every result stand what guessing would reach and, where there is one, what an old and simple
method does with the same training data: naive Bayes for sentences, the nearest training image for digits, counts of
what follows the last letters (smoothed after Witten and Bell) for text. They get neither seeds nor tuning either.

**Words.** “Did not learn” means less than {100 * NOT_LEARNT:.0f} % of the way from guessing to the best contestant,
“less than half” less than {100 * PARTLY:.0f} %. Contestants whose every metric is the same to the last digit with
every seed are one computation under several names, and count once."""


def _exceptions(verdicts: Sequence[Verdict]) -> str:
    chosen = [verdict.question.title for verdict in verdicts if verdict.question.tuned]
    return f"Where something was chosen by trying, the section says so: {joined(chosen)}." if chosen else ""


def limits(verdicts: Sequence[Verdict]) -> str:
    """What the study does not show, and what would change its mind."""
    done = [run for verdict in verdicts for run in verdict.comparison.outcomes if not run.error]
    sizes, steps = [run.parameters for run in done], [run.steps for run in done]
    hours = sum(run.seconds for run in done) / 3600
    about = machine(done)
    where = about["device"] if about.get("device", "cpu") != "cpu" else f"{about.get('processors', '?')} CPU cores"
    return f"""## What this does not show

- **Small models, short training.** From {counted(min(sizes))} to {counted(max(sizes))} parameters, {min(steps):,} to
  {max(steps):,} steps, {hours:.1f} hours of training in all. What learns fast is not always what ends best: a curve
  that still falls when the budget ends says nothing about where it would have ended.
- **Short sequences.** Windows, linear attention and memories exist for thousands of positions; here there are a few
  dozen. On long inputs their costs, and perhaps their places, change. `docs/results.md` has timings at such lengths.
- **Few seeds.** They show large gaps and no small ones. More of them would strike off more, and might turn a
  recommendation where two contestants are close.
- **One machine.** {where}, torch {about.get("torch", "?")}, Python {about.get("python", "?")}. On a GPU the order by
  speed can be another: fused kernels favour plain dot products even more.
- **One recipe for all.** Tuned one by one (`regard compare --sweep 8`), a mechanism that needs a lower learning rate
  may pass one that does not.

What would change a conclusion: a tuned comparison in which somebody struck off here comes within the margin; long
inputs, for everything said about cost; and for small gaps simply more seeds (`--seeds 10`)."""


def again(verdicts: Sequence[Verdict], missing: Sequence[Question]) -> str:
    """How to reproduce the page."""
    lines = [
        (f"python {SCRIPT} run --only {verdict.question.name}", f"{_time(verdict)} of training") for verdict in verdicts
    ]
    lines.append((f"python {SCRIPT} write", "this page, from the folders"))
    commands = "\n".join(f"{command.ljust(COLUMN)}  # {told}" for command, told in lines)
    text = f"""## How to have it again

```bash
{commands}
```

`run` without `--only` makes all of them, and goes on where it was stopped. Digits come with scikit-learn, dates and
bits are generated; tiny-shakespeare and SST-2 are read from the folder given with `--data`
(`tinyshakespeare/input.txt`, and `train.tsv`, `dev.tsv` and `test.tsv` in `sst2`). Beside the runs, in
`runs/study/NAME/report.html`, lie reports with learning curves and pictures of where each contestant looked."""
    if missing:
        text += f"\n\nNot in this edition: {listed([question.name for question in missing])}."
    return text


def _time(verdict: Verdict) -> str:
    seconds = sum(run.seconds for run in verdict.comparison.outcomes)
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(1, round(seconds / 60))} min"

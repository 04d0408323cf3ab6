"""The parts of the page that explain: how it was done, what it does not show, how to have it again.

What they say of the runs (sizes, seeds, machine) is read from the runs; the rest is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence

from regard.comparison.columns import counted

from . import reading
from .question import Question
from .section import RACING, STRUCK
from .verdict import AS_FAST, NOT_LEARNT, PARTLY, Verdict
from .wording import count, joined, listed

SCRIPT = "benchmarks/study.py"
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
    kinds = ((verdict.question.margin.words, verdict.metric.replace("_", " ")) for verdict in verdicts)
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
several are within {100 * AS_FAST:.0f} % of the fastest, the best of these. The margins are a matter of taste.

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
    about = reading.machine(done)
    where = (
        about["device"]
        if about.get("device", "cpu") != "cpu"
        else f"{about.get('processors', '?')} CPU cores"
    )
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
        (f"python {SCRIPT} run --only {verdict.question.name}", f"{_time(verdict)} of training")
        for verdict in verdicts
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

"""What the study is made from: its questions, the comparisons that answer them, and yardsticks.

A comparison is read back from the outcomes in its folder, so that an unfinished one can be read, too. Contestants that
computed exactly the same numbers are one entry. A yardstick is a result without attention: that of guessing, and that
of the oldest method for the job. Yardsticks are computed from the data of a comparison and kept beside its runs: the
page can be written where the data is not available.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.registry import parse
from regard_workbench.comparison.compare import budget_text
from regard_workbench.comparison.comparison import Comparison
from regard_workbench.comparison.costs import FILE as COSTS_FILE
from regard_workbench.comparison.grid import RUNS
from regard_workbench.comparison.job import Contestant, Cost, Outcome
from regard_workbench.comparison.report.keys import display_names
from regard_workbench.comparison.results import Row, rows, runs_of
from regard_workbench.models.parts.model import MODELS
from regard_workbench.tasks.classify import Classify
from regard_workbench.tasks.measures.metrics import Metric
from regard_workbench.tasks.parts.task import TASKS, Task
from regard_workbench.tasks.text.vocabulary import words_of
from regard_workbench.training.build import build_task
from regard_workbench.training.config import budget
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.run_folder import durable

DATA = "{data}"  # stands in arguments for the folder with data sets


@dataclass(frozen=True)
class Margin:
    """How far behind the best still counts as good enough, and how a reader is told."""

    amount: float
    words: str  # "1 point", "2 %"
    relative: bool = False  # a part of the best, not a difference

    def allows(self, value: float, best: float, *, higher_is_better: bool) -> bool:
        """Whether a value is that close to the best."""
        behind = best - value if higher_is_better else value - best
        return behind <= self.amount * (abs(best) if self.relative else 1.0) + 1e-12


@dataclass(frozen=True)
class Question:
    """What is asked of which job."""

    name: str  # of its folder
    title: str  # of its section
    job: str  # for the table of answers: "continue a text"
    asks: str  # the question in words
    words: str  # the arguments of `regard compare`, without --out
    margin: Margin
    story: str  # what the job is and why it is asked; nothing about results
    tuned: str = ""  # what was chosen by trying beforehand, and how; empty: nothing
    same: tuple[str, ...] = ()  # attentions that must be one thing here
    why_same: str = ""

    @property
    def arguments(self) -> list[str]:
        """The arguments one by one."""
        return self.words.split()

    def command(self, data: str, out: str) -> list[str]:
        """What is typed, word by word."""
        words = [word.replace(DATA, data) for word in self.arguments]
        return ["regard", "compare", *words, "--out", out]

    def shown(self, data: str, home: str) -> str:
        """The same for a reader, as a shell takes it."""
        return shlex.join(self.command(data, f"{home}/{self.name}"))

    def settings(self, data: str) -> dict[str, Any]:
        """Task and data, as a run's settings name them."""
        options = dict(zip(self.arguments, self.arguments[1:], strict=False))
        files = [options["--data"].replace(DATA, data)] if "--data" in options else []
        return {"task": self.arguments[0], "data": files}

    def contradicted(self, settings: dict[str, Any]) -> str:
        """Where a run's settings are not what the arguments say, in words; empty if they agree."""
        options = dict(zip(self.arguments, self.arguments[1:], strict=False))
        said = {"task": self.arguments[0]} | {
            name.removeprefix("--").replace("-", "_"): value for name, value in options.items() if name.startswith("--")
        }
        for name in ("models", "attention", "match", "seeds", "workers", "threads"):
            said.pop(name, None)
        if "data" in said:  # the folder may lie elsewhere
            said["data"] = said["data"].replace(DATA, "")
        for name, value in said.items():
            have = settings.get(name)
            if name == "data":
                have = _end(have, len(value))
            if not _equal(have, value):
                return f"{name} is {have!r} in its runs and {value!r} in the list"
        return ""


def _end(files: object, letters: int) -> str:
    """The last letters of the path, given alone or in a list."""
    first = files[0] if isinstance(files, (list, tuple)) else files
    return Path(str(first or "")).as_posix()[-letters:]


def _equal(have: object, said: str) -> bool:
    if isinstance(have, (int, float)) and not isinstance(have, bool):
        try:
            return float(have) == float(said)
        except ValueError:
            return False
    return str(have) == said


OWN = ("model", "attention", "seed")  # settings of a single run


class Unreadable(Exception):
    """A folder that does not hold what the study needs; the message says what to do."""


def read_comparison(folder: Path, command: str) -> Comparison:
    """The comparison in a folder; contestants in alphabetical order, as they were listed or found."""
    # The runs may have been made on another machine, and their folders brought here.
    outcomes = [
        dataclasses.replace(found, folder=str(path))
        for path in sorted((folder / RUNS).glob("*"))
        if (found := Outcome.load(path))
    ]
    done = [outcome for outcome in outcomes if not outcome.error]
    if not done:
        raise Unreadable(f"{folder}: no run has finished there. Start it: python benchmarks/study.py run")
    for outcome in done:
        _check(outcome)
    shared = _shared(outcomes, folder)
    asked = budget.budget_of(complete(done[0].settings))
    if any(run.stopped_by == "steps" and run.steps != asked.amount for run in done if asked.kind == "steps"):
        raise Unreadable(f"{folder}: its runs are older than the recipe, which says {asked}. Run it again.")
    contestants = list(dict.fromkeys(Contestant(outcome.model, outcome.attention) for outcome in outcomes))
    return Comparison(
        task=done[0].settings["task"],
        settings=shared,
        contestants=contestants,
        seeds=sorted({outcome.seed for outcome in outcomes}),
        outcomes=outcomes,
        costs=_costs(folder / COSTS_FILE, shared),
        left_out=[],
        budget=budget_text(asked),
        command=command,
        out=folder,
    )


def deciding_metric(comparison: Comparison) -> Metric:
    """The metric that decides, of the comparison's task."""
    return TASKS[parse(comparison.task)[0]].metric


def machine(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Where and with what the runs were made: python, torch, system, processors; several where they differ."""
    found: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        notes: dict[str, Any] = dict(outcome.versions)
        with suppress(OSError, ValueError):
            notes |= json.loads((Path(outcome.folder) / "env.json").read_bytes())
        for name in ("regard", "torch", "python", "device", "system", "processors"):
            if notes.get(name) not in (None, ""):
                found.setdefault(name, {})[str(notes[name])] = None
    return {name: ", ".join(values) for name, values in found.items()}


def _check(outcome: Outcome) -> None:
    """Refuse a run whose number is not the one its blocks give: tests over its blocks would be about something else."""
    metric, told = TASKS[parse(outcome.settings["task"])[0]].metric, outcome.test.get(outcome.metric)
    if told is None:  # the metric was not finite, which the page reports as a result
        return
    states = [block[metric.name] for block in outcome.blocks if metric.name in block]
    again = metric.value(metric.merge(states)) if states else None
    if again is None or not math.isclose(again, told, rel_tol=1e-9, abs_tol=1e-12):
        raise Unreadable(f"{outcome.folder}: {outcome.metric} is {told}, but its blocks make {again}.")


def _shared(outcomes: Iterable[Outcome], folder: Path) -> dict[str, Any]:
    """The settings all runs have in common, which must be all but who runs."""
    kinds = {json.dumps(_common(one.settings), sort_keys=True) for one in outcomes}
    if len(kinds) != 1:
        raise Unreadable(f"{folder}: its runs had {len(kinds)} different settings. Empty it and run it again.")
    shared: dict[str, Any] = json.loads(kinds.pop())
    return shared


def _common(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in OWN}


def _costs(path: Path, shared: Mapping[str, Any]) -> dict[str, Cost]:
    """What a step costs with these settings, by a contestant's label; empty before it was measured."""
    try:
        content = json.loads(path.read_bytes())
    except OSError:
        return {}
    found = {}
    for key, cost in content.items():
        settings, _ = json.loads(key)
        if _common(settings) == shared:
            found[Contestant(settings["model"], settings.get("attention")).label] = Cost(**cost)
    return found


COSTS = ("steps_per_second", "peak_memory_mib", "flops_per_step")


@dataclass(frozen=True)
class Entry:
    """One computation under one or several names: what it reached, and what it costs."""

    label: str
    name: str  # for people: the attention where all have one model, else the model
    twins: tuple[str, ...]  # the other names under which the same numbers came out
    row: Row  # of the table; what was timed under several names is the median
    seeds: dict[int, float]  # what each seed reached on the test
    timed: tuple[float, ...] = ()  # steps per second, as measured under each name

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, the usual one first."""
        return (self.name, *self.twins)

    @property
    def mean(self) -> float:
        """Of the deciding number, over the seeds."""
        return float(self.over["mean"])

    @property
    def over(self) -> Row:
        """Mean, low and high of the deciding number."""
        found: Row = self.row["test"][self.row["decides"]]
        return found

    @property
    def speed(self) -> float:
        """Steps per second."""
        return float(self.row["steps_per_second"] or 0.0)


def entries(comparison: Comparison) -> list[Entry]:
    """Those whose finished runs all gave a number, the best first."""
    found = {row["label"]: row for row in rows(comparison)}
    names = _named(list(found.values()))
    runs = {one.label: [run for run in runs_of(comparison, one) if not run.error] for one in comparison.contestants}
    groups: dict[str, list[Contestant]] = {}
    for one in comparison.contestants:
        if runs[one.label] and all(run.metric in run.test for run in runs[one.label]):
            groups.setdefault(_mark(runs[one.label]), []).append(one)
    made = [_entry(group, found, names, runs) for group in groups.values()]
    higher = made[0].row["higher_is_better"]
    return sorted(made, key=lambda entry: -entry.mean if higher else entry.mean)


def _named(found: Sequence[Row]) -> dict[str, str]:
    """How people call them, by label: models without their options, attentions where all have one model."""
    bare = {row["label"]: parse(row["model"])[0] for row in found}
    return bare if len(set(bare.values())) == len(found) else display_names(found)


def _mark(runs: Sequence[Outcome]) -> str:
    """The same for runs that gave the same numbers with every seed, to the last digit."""
    return repr([(run.seed, sorted(run.test.items()), sorted(run.validation.items())) for run in runs])


def _entry(
    group: Sequence[Contestant], found: dict[str, Row], names: dict[str, str], runs: dict[str, list[Outcome]]
) -> Entry:
    usual = next((one for one in group if one.attention == _default(one.model)), group[0])
    row = dict(found[usual.label])
    for cost in COSTS:
        values = [found[one.label][cost] for one in group if found[one.label][cost] is not None]
        row[cost] = statistics.median(values) if values else None
    return Entry(
        label=usual.label,
        name=names[usual.label],
        twins=tuple(names[one.label] for one in group if one is not usual),
        row=row,
        seeds={run.seed: float(run.test[run.metric]) for run in runs[usual.label]},
        timed=tuple(sorted(found[one.label]["steps_per_second"] for one in group)),
    )


def _default(model: str) -> str:
    return MODELS[parse(model)[0]].attention_default


YARDSTICKS = "yardsticks.json"
LETTERS, LETTERS_IN_WORDS = 4, "four"  # of context, for the longer of two counts


@dataclass(frozen=True)
class Yardstick:
    """A number to hold against the others."""

    words: str  # how it was reached: "always naming the commonest digit"
    value: float
    guess: bool = False  # without having learnt anything


def write_yardsticks(folder: Path, settings: dict[str, Any]) -> None:
    """Make them for the task that settings describe, and keep them in a folder."""
    task = build_task(complete({name: settings[name] for name in ("task", "data") if settings.get(name)}))
    made = _MAKERS[parse(settings["task"])[0]](task)
    text = json.dumps([dataclasses.asdict(one) for one in made], indent=1)
    durable.replace(folder / YARDSTICKS, text.encode())


def read_yardsticks(folder: Path) -> list[Yardstick]:
    """What was kept; nothing where nothing was."""
    try:
        return [Yardstick(**one) for one in json.loads((folder / YARDSTICKS).read_bytes())]
    except OSError:
        return []


def _digits(task: Task) -> list[Yardstick]:
    (train, known), (test, true) = (
        (np.stack([np.asarray(one.pixels).ravel() for one in part]), np.array([one.digit for one in part]))
        for part in (task.examples("train"), task.examples("test"))
    )
    far = ((test[:, None] - train[None]) ** 2).sum(-1)
    nearest = known[far.argmin(1)]
    commonest = np.bincount(known).argmax()
    return [
        Yardstick("always naming the commonest digit", float((true == commonest).mean()), guess=True),
        Yardstick("naming the digit of the nearest training image", float((nearest == true).mean())),
    ]


def _texts(task: Classify) -> list[Yardstick]:
    """Naive Bayes over all words of a text, each counted once, with one added to every count."""
    parts = [task.rows[part] for part in ("train", "test")]
    numbers = {word: n for n, word in enumerate(sorted({word for row in parts[0] for word in words_of(row.text)}))}

    def table(part: Sequence[Any]) -> tuple[Any, Any]:
        there = np.zeros((len(part), len(numbers)))
        for row, one in enumerate(part):
            there[row, [numbers[word] for word in words_of(one.text) if word in numbers]] = 1
        return there, np.array([task.labels.index(one.label) for one in part])

    (train, known), (test, true) = map(table, parts)
    classes = range(int(known.max()) + 1)
    counts = np.stack([train[known == each].sum(0) + 1 for each in classes])
    weights = np.log(counts / counts.sum(1, keepdims=True))
    prior = np.log([(known == each).mean() for each in classes])
    guessed = (test @ weights.T + prior).argmax(1)
    commonest = np.bincount(known).argmax()
    made = [
        Yardstick("always naming the commoner label", float((true == commonest).mean()), guess=True),
        Yardstick("naive Bayes over the words of a sentence", float((guessed == true).mean())),
    ]
    scores = [one.scores for one in task.examples("test") if one.scores is not None]
    if scores:
        words = "naive Bayes over words, word pairs and beginnings of words, which the models here start from,"
        made.append(Yardstick(words, float((np.argmax(scores, 1) == true).mean())))
    return made


def _letters(task: Task) -> list[Yardstick]:
    train, test = (task.tokens(part).tolist() for part in ("train", "test"))  # type: ignore[attr-defined]
    size = task.problem.answer.outputs
    return [
        Yardstick("guessing by letter frequency", perplexity(train, test, 0, size), guess=True),
        Yardstick("counting which letter follows which", perplexity(train, test, 1, size)),
        Yardstick(f"counting what follows the last {LETTERS_IN_WORDS} letters", perplexity(train, test, LETTERS, size)),
    ]


def perplexity(train: Sequence[int], test: Sequence[int], context: int, size: int) -> float:
    """Of a model that counts what follows each context, smoothed after Witten and Bell by the next shorter one."""
    seen: list[dict[tuple[int, ...], Counter[int]]] = [{} for _ in range(context + 1)]
    for index, token in enumerate(train):
        for length in range(min(context, index) + 1):
            seen[length].setdefault(tuple(train[index - length : index]), Counter())[token] += 1
    totals = [{before: counts.total() for before, counts in level.items()} for level in seen]
    cost = 0.0
    for index in range(1, len(test)):
        p = 1.0 / size
        for length in range(min(context, index) + 1):
            before = tuple(test[index - length : index])
            if (counts := seen[length].get(before)) is None:
                break
            kinds = len(counts)
            p = (counts[test[index]] + kinds * p) / (totals[length][before] + kinds)
        cost -= math.log(p)
    return math.exp(cost / (len(test) - 1))


def _copy(task: Task) -> list[Yardstick]:
    tapes = task.examples("test")
    bits = [(len(tape.targets) - tape.answer) * tape.targets.shape[1] for tape in tapes]
    return [Yardstick("tossing a coin for every bit", sum(bits) / len(bits), guess=True)]


def _dates(task: Task) -> list[Yardstick]:
    return [Yardstick("writing any one date", 0.0, guess=True)]


_MAKERS: dict[str, Callable[[Any], list[Yardstick]]] = {
    "digits": _digits,
    "classify": _texts,
    "language": _letters,
    "copy": _copy,
    "dates": _dates,
}

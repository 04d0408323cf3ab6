"""What is reached without any attention: by guessing, and by the oldest method that does the job.

A number means little without them. They are made from the data of a comparison and kept beside its runs, so that the
study can be written where the data is not.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.registry import parse
from regard.tasks.task import Task
from regard.training.assembly import build_task, complete
from regard.training.run_folder import durable

from .wording import count

FILE = "yardsticks.json"
LETTERS = 4  # of context, for the longer of two counts


@dataclass(frozen=True)
class Yardstick:
    """A number to hold against the others."""

    words: str  # how it was reached: "always naming the commonest digit"
    value: float
    guess: bool = False  # without having learnt anything


def write(folder: Path, settings: dict[str, Any]) -> None:
    """Make them for the task that settings describe, and keep them in a folder."""
    task = build_task(complete({name: settings[name] for name in ("task", "data") if settings.get(name)}))
    made = _MAKERS[parse(settings["task"])[0]](task)
    text = json.dumps([dataclasses.asdict(one) for one in made], indent=1)
    durable.replace(folder / FILE, text.encode())


def read(folder: Path) -> list[Yardstick]:
    """What was kept; nothing where nothing was."""
    try:
        return [Yardstick(**one) for one in json.loads((folder / FILE).read_bytes())]
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


def _texts(task: Task) -> list[Yardstick]:
    """Naive Bayes over the pieces of a text, each counted once, with one added to every count."""
    size = 1 + max(piece for one in task.examples("train") for piece in one.tokens)

    def table(part: Sequence[Any]) -> tuple[Any, Any]:
        there = np.zeros((len(part), size))
        for row, one in enumerate(part):
            there[row, [piece for piece in one.tokens if piece < size]] = 1
        return there, np.array([one.label for one in part])

    (train, known), (test, true) = table(task.examples("train")), table(task.examples("test"))
    classes = range(int(known.max()) + 1)
    counts = np.stack([train[known == each].sum(0) + 1 for each in classes])
    weights = np.log(counts / counts.sum(1, keepdims=True))
    prior = np.log([(known == each).mean() for each in classes])
    guessed = (test @ weights.T + prior).argmax(1)
    commonest = np.bincount(known).argmax()
    return [
        Yardstick("always naming the commoner label", float((true == commonest).mean()), guess=True),
        Yardstick("naive Bayes over the words of a sentence", float((guessed == true).mean())),
    ]


def _letters(task: Task) -> list[Yardstick]:
    train, test = (task.tokens(part).tolist() for part in ("train", "test"))  # type: ignore[attr-defined]
    size = task.problem.answer.outputs
    return [
        Yardstick("guessing by letter frequency", perplexity(train, test, 0, size), guess=True),
        Yardstick("counting which letter follows which", perplexity(train, test, 1, size)),
        Yardstick(
            f"counting what follows the last {count(LETTERS)} letters",
            perplexity(train, test, LETTERS, size),
        ),
    ]


def perplexity(train: Sequence[int], test: Sequence[int], context: int, size: int) -> float:
    """Of a model that counts what follows each context, smoothed after Witten and Bell by the next shorter one."""
    seen: list[dict[tuple[int, ...], Counter[int]]] = [{} for _ in range(context + 1)]
    for place, token in enumerate(train):
        for length in range(min(context, place) + 1):
            seen[length].setdefault(tuple(train[place - length : place]), Counter())[token] += 1
    totals = [{before: counts.total() for before, counts in level.items()} for level in seen]
    cost = 0.0
    for place in range(1, len(test)):
        p = 1.0 / size
        for length in range(min(context, place) + 1):
            before = tuple(test[place - length : place])
            if (counts := seen[length].get(before)) is None:
                break
            kinds = len(counts)
            p = (counts[test[place]] + kinds * p) / (totals[length][before] + kinds)
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

"""How answers are judged: metrics that know their name, unit, direction and how to print themselves.

A metric turns a batch into a *state*, plain data that can be written as JSON; states merge over batches, processes and
the blocks of a bootstrap; a value is made of a merged state once, at the end. So a metric need not be a mean: corpus
BLEU, F1 over entities or average precision are made from the merged state of the whole split.

    >>> from regard_workbench.tasks.measures.metrics import Mean
    >>> accuracy = Mean("accuracy", unit="share")
    >>> accuracy.value(accuracy.merge([[3.0, 4.0], [1.0, 2.0]])), accuracy.text(2 / 3)
    (0.6666666666666666, '66.7 %')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import BadType, BadValue
from regard_workbench.tasks.parts.batch import Batch

State = Any  # lists, dicts and numbers
States = dict[str, State]  # by the name of the metric
Numbers = NDArray[np.float64]
Found = TypeVar("Found")
SHARE = "share"  # the unit of values from 0 to 1, which people read as per cent
ROUNDING = 1e-5  # how far a share of float32 sums may lie outside


class Answering(Protocol):
    """What a task asks of a model."""

    def __call__(self, batch: Batch) -> Any:
        """The outputs of the model's head."""

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The sum of the losses and how much counts."""

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """What the outputs say, for each example."""

    def with_rows(self, batch: Batch) -> tuple[Any, Tensor]:
        """The outputs of the model's head, and the rows that the head made them from."""

    def attention_to_source(self, batch: Batch) -> dict[str, Tensor]:
        """With what weights each target position attends to each input position, by layer: (b,h,t,n) each."""

    def generate(self, batch: Batch, **options: Any) -> list[list[Any]]:
        """For each example hypotheses with `.tokens` and `.score`, best first."""


class Answered:
    """A batch and what a model answers to it, computed when a metric first asks and then kept."""

    def __init__(self, model: Answering, batch: Batch) -> None:
        self.model, self.batch = model, batch
        self._known: dict[Any, Any] = {}

    def once(self, function: Callable[[Answered], Found]) -> Found:
        """What a function makes of this, computed once for all metrics that ask."""
        if function not in self._known:
            self._known[function] = function(self)
        computed: Found = self._known[function]
        return computed

    @cached_property
    def outputs(self) -> Any:
        """The outputs of the model's head."""
        return self.model(self.batch)

    @cached_property
    def loss(self) -> tuple[float, float]:
        """The sum of the losses in nats and how much counts."""
        total, count = self.model.loss(self.outputs, self.batch)
        return float(total.detach()), float(count)

    @cached_property
    def predicted(self) -> list[Any]:
        """What the outputs say, for each example."""
        return self.model.predict(self.outputs, self.batch)

    @cached_property
    def right(self) -> Tensor:
        """Where the likeliest class is the target, shaped as the target."""
        hits: Tensor = self.outputs.argmax(-1) == self.batch.targets
        return hits

    @cached_property
    def counts(self) -> Tensor:
        """Where the target counts, shaped as the target."""
        keep, targets = self.batch.target_keep, self.batch.targets
        assert targets is not None
        return torch.ones_like(targets, dtype=torch.bool) if keep is None else keep


@dataclass(frozen=True)
class Metric:
    """The base of every metric. A subclass defines `of`, `merge` and `value`."""

    name: str
    higher_is_better: bool = True
    unit: str = ""  # "share": from 0 to 1, printed as per cent
    over: str = ""  # the unit that the mean is taken over; empty: the unit that the loss counts
    digits: int = 4  # significant ones, when printed

    def of(self, answered: Answered) -> State | None:
        """The state of one batch; None where the batch says nothing about this metric."""
        raise NotImplementedError(f"{type(self).__name__} does not define of")

    def merge(self, states: Sequence[State]) -> State:
        """The state of all batches together."""
        raise NotImplementedError(f"{type(self).__name__} does not define merge")

    def value(self, state: State) -> float:
        """The metric."""
        raise NotImplementedError(f"{type(self).__name__} does not define value")

    def count(self, state: State) -> float:
        """Over how much the value was made."""
        return math.nan

    def resampled(self, states: Sequence[State], drawn: NDArray[np.int64]) -> Numbers:
        """The value of each resample: `drawn` (resamples, states) says how often each state comes in it."""
        per_resample = []
        for times in drawn:
            chosen = [state for state, count in zip(states, times, strict=True) for _ in range(count)]
            per_resample.append(self.value(self.merge(chosen)))
        return np.array(per_resample, dtype=np.float64)

    def text(self, value: float) -> str:
        """A value as people read it."""
        if not math.isfinite(value):
            return "–"
        return f"{100 * value:.1f} %" if self.unit == SHARE else f"{value:.{self.digits}g}"

    def facts(self) -> dict[str, Any]:
        """What a table needs to know of it."""
        return {"higher_is_better": self.higher_is_better, "unit": self.unit}


def _same(value: float) -> float:
    return value


Look = Callable[[Answered], "tuple[float, float] | None"]


def _described(value: object) -> str:
    """What was returned instead of a number, for a message."""
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{'a tensor' if isinstance(value, Tensor) else 'an array'} of shape {tuple(value.shape)}"
    return type(value).__name__


def _number(value: object, expected: str) -> float:
    """A number, or the only element of a tensor; `expected` begins the error for anything else."""
    if isinstance(value, (Tensor, np.ndarray)) and math.prod(value.shape) == 1:
        value = value.item()
    if isinstance(value, Real):
        return float(value)
    raise BadType(f"{expected}, got {_described(value)}.")


@dataclass(frozen=True)
class Mean(Metric):
    """A sum divided by a count, and possibly a function of that; the state is [sum, count].

    `look` returns the sum over a batch and the count, two numbers, or None where the batch says nothing:

        Mean("accuracy", unit="share", look=lambda answered: (answered.right.sum(), answered.right.numel()))
    """

    look: Look = field(default=lambda answered: None, compare=False)
    made: Callable[[float], float] = field(default=_same, compare=False)  # from the mean to the metric

    def of(self, answered: Answered) -> State | None:
        pair = self.look(answered)
        if pair is None:
            return None
        expected = f"metric {self.name!r}: expected two numbers from `look`, the sum over the batch and the count"
        if not isinstance(pair, (tuple, list)):
            raise BadType(f"{expected}, got {_described(pair)}. Try scores.sum(), len(scores).")
        if len(pair) != 2:
            raise BadType(f"{expected}, got {len(pair)} of them.")
        total, count = (_number(number, expected) for number in pair)
        if not 0 <= count < math.inf:
            raise BadValue(f"metric {self.name!r}: expected a count from 0, got {count}.")
        if count and self.made is _same:
            self._check_share(total / count)
        return [total, count]

    def _check_share(self, value: float) -> None:
        if self.unit == SHARE and not (math.isnan(value) or -ROUNDING <= value <= 1 + ROUNDING):
            raise BadValue(
                f"metric {self.name!r}: expected a share from 0 to 1, got {value:.6g}. Its `look` returns the sum over "
                "the batch and the count; a mean of another range has another unit."
            )

    def merge(self, states: Sequence[State]) -> State:
        return [sum(state[0] for state in states), sum(state[1] for state in states)]

    def value(self, state: State) -> float:
        if not state[1]:
            return math.nan
        value = self.made(state[0] / state[1])
        self._check_share(value)
        return value

    def count(self, state: State) -> float:
        return float(state[1])

    def resampled(self, states: Sequence[State], drawn: NDArray[np.int64]) -> Numbers:
        pairs = np.array(states, dtype=np.float64).reshape(-1, 2)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (drawn @ pairs[:, 0]) / (drawn @ pairs[:, 1])
        return means if self.made is _same else np.array([self.made(float(mean)) for mean in means])


@dataclass(frozen=True)
class Counts(Metric):
    """A value made of numbers that add up: n-grams found, hits per class. The state is a dict of numbers.

    `look` returns the numbers of a batch by name, or None; `made` makes the value from their sums.
    """

    look: Callable[[Answered], Mapping[str, float] | None] = field(default=lambda _: None, compare=False)
    made: Callable[[Mapping[str, float]], float] = field(default=lambda _: math.nan, compare=False)
    total: str = ""  # which of the numbers says how many examples there were

    def of(self, answered: Answered) -> State | None:
        numbers = self.look(answered)
        if numbers is None:
            return None
        expected = f"metric {self.name!r}: expected numbers by name from `look`"
        if not isinstance(numbers, Mapping):
            raise BadType(f"{expected}, got {_described(numbers)}.")
        return {name: _number(number, f"{expected}; of {name!r}") for name, number in numbers.items()}

    def merge(self, states: Sequence[State]) -> State:
        sums: dict[str, float] = {}
        for state in states:
            for name, number in state.items():
                sums[name] = sums.get(name, 0.0) + number
        return sums

    def value(self, state: State) -> float:
        return self.made(state)

    def count(self, state: State) -> float:
        return float(state.get(self.total, math.nan))

    def resampled(self, states: Sequence[State], drawn: NDArray[np.int64]) -> Numbers:
        names = list(dict.fromkeys(name for state in states for name in state))
        table = np.array([[state.get(name, 0.0) for name in names] for state in states])
        return np.array([self.made(dict(zip(names, row, strict=True))) for row in (drawn @ table).tolist()])


def exponential(mean: float) -> float:
    """e to the mean, for perplexities; finite for every finite loss."""
    return math.exp(min(mean, 700.0))


LOSS = Mean("loss", higher_is_better=False, look=lambda answered: answered.loss)
PERPLEXITY = Mean("perplexity", higher_is_better=False, look=lambda answered: answered.loss, made=exponential)


def _correct(answered: Answered) -> tuple[float, float]:
    return float((answered.right & answered.counts).sum()), float(answered.counts.sum())


ACCURACY = Mean("accuracy", unit=SHARE, look=_correct)


def observe(metrics: Sequence[Metric], answered: Answered) -> States:
    """The state of each metric for one batch."""
    states = {metric.name: metric.of(answered) for metric in metrics}
    return {name: state for name, state in states.items() if state is not None}


def merged(metrics: Sequence[Metric], parts: Sequence[States]) -> States:
    """The states of all parts together."""
    by_metric: States = {}
    for metric in metrics:
        states = [batch_states[metric.name] for batch_states in parts if metric.name in batch_states]
        if states:
            by_metric[metric.name] = states[0] if len(states) == 1 else metric.merge(states)
    return by_metric


def values(metrics: Sequence[Metric], states: States) -> dict[str, float]:
    """The metrics, in order, that the states say something about."""
    return {metric.name: metric.value(states[metric.name]) for metric in metrics if metric.name in states}

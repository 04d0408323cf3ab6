"""What a task is: data, a judge and a presenter. One file with `@task("name")` adds one.

    TaskData    its options; `streams()`: what goes in, by name; `answers()`: what may come out, the usual one first;
                `examples(split)`; `collate(examples, generator)`: a `Batch`; `fit()`: what training data fix
    Judge       the metrics; the first decides which checkpoint is best
    Presenter   `parse`: an example from what a user typed; `show`: what its positions are called; `decode`: an answer

`Task` holds the three together. All that reads tasks calls its methods, which pass on to judge and presenter; so a task
may as well define one of them itself.

A task knows nothing of models beyond `measures.metrics.Answering`: calling one with a batch, its loss, its predictions
and the sequences it writes. A model knows nothing of tasks beyond `Problem` and `Batch`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from regard.registry import Registry, parse
from regard.support.options import read_options
from regard_workbench.tasks.generated.draws import Generated
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS, Answered, Answering, Metric, State
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.data import TaskData
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.presenter import Presenter
from regard_workbench.tasks.parts.shown import Looked, Shown, Understood

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard_workbench.tasks.formats.direction import Direction

_NOT_TEXT = ("true", "false", "none", "null", "yes", "no", "on", "off")  # unquoted, these are parsed as other types
SPLITS = ("train", "validation", "test")
NOTHING_GIVEN: Mapping[str, Any] = MappingProxyType({})
EVERY: int | None = None  # examples
DEFAULT = "digits"  # what `regard compare` takes when no task is named: its data comes with scikit-learn


@dataclass(frozen=True)
class Recipe:
    """Default hyperparameters of a task."""

    model: str = "encoder"
    steps: int = 1000
    batch_size: int = 32
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)  # of Adam
    warmup: int = 50
    smoothing: float = 0.0
    accumulate: int = 1
    schedule: str = "cosine"
    clip: float = 1.0
    # What a bare name means on this task: "transformer" → "transformer(layers=2)".
    models: Mapping[str, str] = field(default_factory=dict)
    compared: tuple[str, ...] = ()  # the models that `regard compare` takes when none is named; default: `model`
    # What these settings reach without files, by metric: bounds on the test split that each of the seeds 0 to 4 meets,
    # held by tests/tasks/test_stated.py.
    reaches: Mapping[str, float] = field(default_factory=dict)


TASKS: Registry[type[Task]] = Registry("task", "regard_workbench.tasks")
TaskClass = TypeVar("TaskClass", bound="type[Task]")


def task(name: str) -> Callable[[TaskClass], TaskClass]:
    """Register the decorated class under `name`."""

    def register(cls: TaskClass) -> TaskClass:
        cls.name = name
        TASKS.add(name, cls)
        return cls

    return register


class Task(TaskData):
    """The base of every task: data with a `judge` and a `presenter`.

    A subclass sets them and `recipe`, and defines `streams`, `answers`, `examples` and `collate`. What a task says
    itself, by a method of the same name, comes before what its judge and its presenter say.
    """

    name: ClassVar[str] = ""
    judge: ClassVar[Judge] = Judge.by(ACCURACY)
    presenter: ClassVar[Presenter[Any]] = Presenter()
    recipe: ClassVar[Recipe] = Recipe()
    metric: ClassVar[Metric] = judge.metric  # that of the judge; one set in a class makes a judge of it alone
    takes: ClassVar[tuple[str, ...]] = ()  # what `parse` reads, by the presenter: "text", "image", "sound", "table"
    together: ClassVar[bool] = False  # whether all that is given is one example: a sound and several images
    # Whether all its answers are measured on the same words, so that models that give different ones compare. Batches
    # then say in the note `MADE_FROM` which examples they hold, as they are laid out differently.
    answers_compare: ClassVar[bool] = False
    acts: ClassVar[bool] = False  # whether training batches are made by acting with the model as it is then
    translates: ClassVar[bool] = False  # whether each written piece comes from pieces that are read, or from none
    pretrained_vocabulary: ClassVar[bool] = False  # whether it can read with the vocabulary of a checkpoint
    tried: ClassVar[tuple[str, ...]] = ("--example", "0")  # an input of `regard predict`, on the task's page
    pictured: ClassVar[bool] = True  # whether `--figure` can draw what the recipe's model predicts for it

    # Without types of their own, by which a type checker would take them for options.
    given = NOTHING_GIVEN  # the options `build` was called with
    examined = EVERY  # how many examples `regard evaluate --limit` asks of `examine`; None: all

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        attributes = vars(cls)
        if "judge" in attributes:
            cls.metric = cls.judge.metric
        elif "metric" in attributes:
            cls.judge = Judge.by(cls.metric)
        if "presenter" in attributes:
            cls.takes = attributes.get("takes", cls.presenter.takes)
            cls.together = attributes.get("together", cls.presenter.together)

    @classmethod
    def defines(cls, method: str) -> bool:
        """Whether a method of judge or presenter is more than the default: by this class, its judge or presenter."""
        bases = ((cls, Task), (type(cls.judge), Judge), (type(cls.presenter), Presenter))
        return any(getattr(derived, method, None) is not getattr(base, method, None) for derived, base in bases)

    def metrics(self) -> tuple[Metric, ...]:
        """How answers are judged, `metric` among them."""
        return self.judge.metrics if self.metric is self.judge.metric else (LOSS, self.metric)

    def reached(self) -> dict[str, str]:
        """What the recipe reaches without files, by metric, as people read it: {"f1": "≥ 95.0 %"}."""
        metrics = {metric.name: metric for metric in self.metrics()}
        return {
            name: f"{'≥' if metrics[name].higher_is_better else '≤'} {metrics[name].text(value)}"
            for name, value in self.recipe.reaches.items()
        }

    def protocol(self) -> dict[str, Any]:
        """How metrics are computed, to be printed beside them (for example sacreBLEU's signature)."""
        return self.judge.protocol(self)

    def examine(
        self, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """Additional metrics for `regard evaluate`, measured on a model in eval mode."""
        return self.judge.examine(self, model, split, batch_size=batch_size, device=device)

    def completed(
        self, model: Answering, split: str, *, batch_size: int, most: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """How well a model completes texts of a split, `most` of them at most; nothing where it completes none."""
        return self.judge.completed(self, model, split, batch_size=batch_size, most=most, device=device)

    def examined_examples(self, split: str) -> Sequence[Any]:
        """The examples of a split that `examine` measures: the first ones where there is a limit, otherwise all.

        What a yardstick learns from is no part of them: it reads `examples("train")`, whatever the limit is.
        """
        examples = self.examples(split)
        if self.examined is None or self.examined >= len(examples):
            return examples
        return Generated(self.examined, examples.__getitem__)  # a slice might make all of them at once

    @torch.no_grad()
    def measured(
        self, metric: Metric, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> State:
        """The state of one metric over the examples that `examine` measures: of it, further metrics can be made."""
        examples = self.examined_examples(split)
        states = []
        for start in range(0, len(examples), batch_size):
            batch = self.collate(examples[start : start + batch_size], torch.Generator())
            states.append(metric.of(Answered(model, batch.to(device))))
        return metric.merge([state for state in states if state is not None])

    def direction(self) -> Direction | None:
        """What is read and what is written, where the task turns one kind of text into another."""
        return None

    def unanswered(self, example: Any) -> Any | None:
        """The example without its answer, for a model that continues what it reads; None: only typed ones."""
        return None

    def parse(self, given: Mapping[str, str]) -> Any:
        """An example, without its answer, from what a user typed: {"text": …}, {"image": path}, {"table": path}."""
        return self.presenter.parse(self, given)

    def conversation(self, turns: Sequence[str]) -> Mapping[str, str]:
        """What `parse` takes for the turns of a chat, oldest first, those of the user and of the model in turn."""
        return self.presenter.conversation(self, turns)

    def show(self, example: Any, batch: Batch) -> Shown:
        """Labels and picture of an example; `batch` contains it alone, as the model reads it (masked, truncated)."""
        return self.presenter.show(self, example, batch)

    def understood(self, given: Mapping[str, str], example: Any) -> Understood | None:
        """How much of the typed input the parsed example contains; None if nothing needs to be reported."""
        return self.presenter.understood(self, given, example)

    def continued(self, text: str, output: str) -> str:
        """Join a typed text and the model's continuation."""
        return self.presenter.continued(self, text, output)

    def output_pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each output token."""
        return self.presenter.output_pieces(self, tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """An answer (the number of a class alone, or the tokens of a text) as a user reads it."""
        return self.presenter.decode(self, tokens)

    def focused(self, example: Any, predicted: Any) -> Any:
        """The example as it is shown beside a prediction: with the chosen one of several parts first."""
        return self.presenter.focused(self, example, predicted)

    def marked(self, example: Any, predicted: Any) -> Any:
        """The example with a prediction on it, where `show` draws what was found (boxes, masks) on its picture."""
        return self.presenter.marked(self, example, predicted)

    def answer_text(self, predicted: Any, example: Any) -> str:
        """A prediction of a model's head for an example as a user reads it."""
        return self.presenter.answer_text(self, predicted, example)

    def draw(self, predicted: Any, example: Any, looked: Looked | None) -> Figure | None:
        """A figure of a prediction for an example and what it was drawn from; None: the usual one, a map of weights."""
        return self.presenter.draw(self, predicted, example, looked)

    def typed(self, **options: Any) -> str:
        """This task with some more options, as the command line takes it: `"classify(encoding=latin-1)"`."""
        chosen = {**self.given, **options}
        return typed(self.name, {name: chosen[name] for name in chosen if name not in ("data", "whole")})


def typed(name: str, options: Mapping[str, Any]) -> str:
    """A name with options as the command line takes it, quoted for a shell: `"classify(encoding=latin-1)"`."""
    return f'"{spelled(name, options)}"'


def spelled(name: str, options: Mapping[str, Any]) -> str:
    """A name with options as `build` reads it: `classify(encoding=latin-1)`."""
    return f"{name}({', '.join(f'{option}={_typed(value)}' for option, value in options.items())})"


def _typed(value: object) -> str:
    """A value inside the brackets: a bare word where that is read back as the same text, else as Python writes it."""
    bare = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w-]*", value)
    return str(value) if bare and value.lower() not in _NOT_TEXT else repr(value)  # type: ignore[attr-defined]


def names() -> list[str]:
    """Every task by name, in alphabetical order."""
    return sorted(TASKS.names())


def build(name: str, state: Mapping[str, Any] | None = None, **options: Any) -> Task:
    """The task called `name`, for instance `build("copy", max_length=20)` or `build("copy(max_length=20)")`.

    With the `state` of a task that was used before, vocabulary and labels are taken from there, and no data is read
    yet: it may be gone, and is not needed to use what was learned.
    """
    plain, inside = parse(name)
    cls = TASKS[plain]
    arguments = read_options(plain, cls, {**inside, **options}, inspect.signature(cls).parameters)
    new_task = cls(**arguments)
    new_task.given = dict(arguments)
    if state:
        new_task.restore(state)
    new_task.pose(new_task.problems()[0])
    return new_task


def recipe_of(name: str, **changes: Any) -> Recipe:
    """The recipe of a task with some of it changed."""
    return dataclasses.replace(TASKS[name].recipe, **changes)

"""How examples and answers meet people: the third of the three values of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from regard.errors import BadValue
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.shown import Looked, Shown, Understood, numbered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard_workbench.tasks.parts.task import Task

Presented = TypeVar("Presented", bound="Task", contravariant=True)


class Presenter(Generic[Presented]):
    """Knows positions by number and tokens by id. A subclass knows a kind of stream; its methods take the task."""

    takes: ClassVar[tuple[str, ...]] = ()  # what `parse` reads: "text", "image", "sound", "table"
    together: ClassVar[bool] = False  # whether all that is given is one example: a sound and several images

    def parse(self, task: Presented, given: Mapping[str, str]) -> Any:
        """An example, without its answer, from what a user typed: {"text": …}, {"image": path}, {"table": path}."""
        reads = " and ".join(spec.words for spec in task.streams().values())
        takes = " or ".join(f"--{name}" for name in task.takes)
        raise BadValue(
            f"--{next(iter(given), 'text')}: the task {task.name} reads {reads}"
            + (f". Give {takes}." if takes else " and takes nothing typed; measure it with `regard evaluate`.")
        )

    def conversation(self, task: Presented, turns: Sequence[str]) -> Mapping[str, str]:
        """What `parse` takes for the turns of a chat, oldest first, those of the user and of the model in turn."""
        from regard_workbench.tasks.parts.task import TASKS, names

        able = [name for name in names() if TASKS[name].defines("conversation")]
        raise BadValue(f"RUN: {task.name} does not reply to what is said. Tasks that do: {', '.join(able)}.")

    def show(self, task: Presented, example: Any, batch: Batch) -> Shown:
        """Labels and picture of an example; `batch` contains it alone, as the model reads it (masked, truncated)."""
        return numbered(batch)

    def understood(self, task: Presented, given: Mapping[str, str], example: Any) -> Understood | None:
        """How much of the typed input the parsed example contains; None if nothing needs to be reported."""
        return None

    def continued(self, task: Presented, text: str, output: str) -> str:
        """Join a typed text and the model's continuation."""
        return text + output

    def output_pieces(self, task: Presented, tokens: Sequence[int]) -> list[str]:
        """The text of each output token."""
        return [str(token) for token in tokens]

    def decode(self, task: Presented, tokens: Sequence[int]) -> str:
        """An answer (the number of a class alone, or the tokens of a text) as a user reads it."""
        return " ".join(task.output_pieces(tokens))

    def answer_text(self, task: Presented, predicted: Any, example: Any) -> str:
        """A prediction of a model's head for an example as a user reads it."""
        tokens = predicted if isinstance(predicted, list) else [predicted]
        plain = all(isinstance(token, int) for token in tokens)
        return task.decode(tokens) if plain else str(predicted)

    def focused(self, task: Presented, example: Any, predicted: Any) -> Any:
        """The example as it is shown beside a prediction: with the chosen one of several parts first."""
        return example

    def marked(self, task: Presented, example: Any, predicted: Any) -> Any:
        """The example with a prediction on it, where `show` draws what was found (boxes, masks) on its picture."""
        return example

    def draw(self, task: Presented, predicted: Any, example: Any, looked: Looked | None) -> Figure | None:
        """A figure of a prediction for an example and what it was drawn from; None: the usual one, a map of weights."""
        return None


class TypedText(Presenter[Presented]):
    """Reads typed texts by the method `encode` of the task."""

    takes = ("text",)

    def parse(self, task: Any, given: Mapping[str, str]) -> Any:
        """The example of a text."""
        return task.encode(given["text"]) if set(given) == {"text"} else super().parse(task, given)

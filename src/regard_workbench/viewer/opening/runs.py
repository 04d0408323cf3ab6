"""Opening a run of regard: its model, and a text, an image or an example of its task as input."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import BadValue
from regard_workbench.inspection.examples import choose, count_numbered, marked, numbered, prepare
from regard_workbench.models.parts.stack import CachedStep
from regard_workbench.tasks.answers import Bits, Decoded, HiddenTokens, NextToken, Writes
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.task import Task
from regard_workbench.tasks.text.characters import whole_characters
from regard_workbench.training.loading import Loaded, load
from regard_workbench.training.run_folder import checkpoints, metrics_file
from regard_workbench.viewer.opening import classification, predictions
from regard_workbench.viewer.opening.images import as_png, on_grid
from regard_workbench.viewer.opening.options import OpenedModel, ViewOptions


def is_run(where: str) -> bool:
    """Whether a folder holds a run, or one of its checkpoints."""
    path = Path(where)
    return (path / "config.yaml").is_file() or (path / checkpoints.MANIFEST).is_file()


def checkpoint_steps(where: str) -> list[int]:
    """The steps of a run's checkpoints, ascending."""
    paths = checkpoints.paths(Path(where) / "checkpoints")
    return sorted(checkpoints.step_of(path) for path in paths)


def losses(where: str, steps: Sequence[int], tell: Callable[[str], None] = lambda text: None) -> dict[str, Any] | None:
    """The training loss nearest to each step, from the run's metrics; damaged lines are reported to `tell`."""
    rows = metrics_file.read(Path(where) / "metrics.jsonl", tell)
    by_step = {row["step"]: float(row["loss"]) for row in rows if isinstance(row.get("loss"), int | float)}
    if not by_step:
        return None
    values = [by_step[min(by_step, key=lambda at, step=step: (abs(at - step), at))] for step in steps]  # type: ignore[misc]
    return {"name": "loss", "values": [value if np.isfinite(value) else None for value in values]}


def open_run(options: ViewOptions, where: str, checkpoint: str | None, tell: Callable[[str], None]) -> OpenedModel:
    """The model of a run, and its input."""
    return _with_input(load(where, checkpoint, options.device, tell=tell), options)


def _with_input(loaded: Loaded, options: ViewOptions, before: tuple[Any, str] | None = None) -> OpenedModel:
    """A loaded model on the input that the options ask for; `before`: picture and text of the input before."""
    task = loaded.task
    with _completed(task, options, before) as options:
        batch, shown, words, notes = _input(loaded, options)
    batch, shown = batch.to(loaded.device), loaded.model.relabel(shown)
    labels = {shown.called: list(shown.pieces), **shown.streams}
    image = None
    if shown.picture is not None and shown.grid is not None:
        rows, columns = shown.grid
        extra_tokens = max(0, len(shown.pieces) - rows * columns)  # a class token before the patches
        image = on_grid(shown.picture, rows, columns, extra_tokens)
    two_sides = isinstance(task.problem.answer, Decoded)
    ids = batch.inputs[0].tolist() if batch.inputs.dim() == 2 else None
    name = f"{loaded.config.model} {loaded.checkpoint}"
    opened = OpenedModel(
        loaded.run.resolve().name,
        name,
        loaded.model,
        lambda: loaded.model(batch),
        labels,
        words=_about(loaded),
        input=words,
        two_sides=two_sides,
        ids=ids,
        step=_step_of(loaded.checkpoint),
        image=image,
        takes=task.takes,
        text=_text_of(options, shown, "text" in task.takes),
        examples=count_numbered(task),
    )
    opened.reopen = partial(_with_input, loaded, before=(shown.picture, opened.text))
    _give_writer(opened, loaded, batch)
    opened.answer, opened.bits, opened.piece = _answer(task, batch), _bits(task, batch), _piece(task)
    if isinstance(task.problem.answer, HiddenTokens) and ids is not None:
        opened.places = predictions.hidden_places(ids, task.problem.answer.blank)
    if two_sides and options.generate is None:
        batch = _with_target(loaded, batch, options, opened, shown)
        opened.run = lambda: loaded.model(batch)
        opened.answer = _answer(task, batch)
    segment = getattr(loaded.model, "segment", None)
    if isinstance(segment, int) and task.problem.answer.needs == "past":
        opened.run = partial(_unsegmented, loaded.model, opened.run, max(segment, batch.inputs.shape[1]))
    opened.notes += notes
    return opened


def _piece(task: Task) -> Callable[[int], str]:
    """The text of a class or token that a task answers with."""
    if isinstance(task.problem.answer, Writes | NextToken | HiddenTokens):
        return lambda token: task.output_pieces([token])[0]
    return lambda label: task.decode([label])


def _answer(task: Task, batch: Batch) -> Callable[[Any], classification.Answer | None]:
    """How to read the answer from a model's outputs: a class, a written text, the next token, or hidden ones."""
    answer: Any = task.problem.answer
    ids = batch.inputs[0].tolist() if batch.inputs.dim() == 2 else []
    piece = _piece(task)

    def read(outputs: Any) -> classification.Answer | None:
        classified = classification.of_run(task)(outputs)
        if classified is not None or not isinstance(outputs, Tensor) or outputs.dim() != 3:
            return classified
        rows = outputs[0].detach().cpu()
        if isinstance(answer, Writes):
            assert batch.targets is not None
            target = batch.targets[0].tolist()
            return predictions.written(rows, target, task.decode(target), piece)
        if isinstance(answer, NextToken):
            return predictions.next_token(rows[-1], piece)
        if isinstance(answer, HiddenTokens):
            return predictions.hidden_tokens(rows, ids, answer.blank, piece)
        return None

    return read


def _bits(task: Task, batch: Batch) -> Callable[[Any], dict[str, Any] | None] | None:
    """The bits that go in and come out at each step; None for tasks of other answers."""
    if not isinstance(task.problem.answer, Bits) or batch.inputs.dim() != 3:
        return None

    def read(outputs: Any) -> dict[str, Any] | None:
        odds = outputs[0].detach().float().sigmoid().cpu()
        bits = batch.inputs[0].detach().float().clamp(0, 1).cpu()
        return {
            name: [[round(float(bit), 3) for bit in step] for step in rows]
            for name, rows in (("input", bits), ("output", odds.nan_to_num()))
        }

    return read


def _unsegmented(model: Any, run: Callable[[], Any], length: int) -> Any:
    """Let a model that reads in segments read all as one: the same output, and one map over all keys."""
    before, model.segment = model.segment, length
    try:
        return run()
    finally:
        model.segment = before


def _about(loaded: Loaded) -> str:
    attention = loaded.config.attention
    words = [str(loaded.config.model), *([str(attention)] if attention else []), f"on {loaded.config.task}"]
    return f"{' '.join(words)}, {loaded.checkpoint}"


def _step_of(name: str) -> int | None:
    digits = name.removeprefix("step-")
    return int(digits) if digits.isdigit() else None


def _input(loaded: Loaded, options: ViewOptions) -> tuple[Batch, Shown, str, list[str]]:
    """A batch of one example, the labels of its positions, what it is in words, and notes on a text that was given."""
    task = loaded.task
    inputs = options.inputs(task.together)
    if inputs:
        inputs = {name: whole_characters(value) if name == "text" else value for name, value in inputs.items()}
        example = task.parse(inputs)
        understood = task.understood(inputs, example)
        notes = [] if understood is None else [_as_sentence(note) for note in understood.notes]
        words = [f"“{text}”" if kind == "text" else f"the {kind} {Path(text).name}" for kind, text in inputs.items()]
        return *prepare(task, marked(task, example, loaded.model), longest=None), ", ".join(words), notes
    example = choose(task) if options.example is None else numbered(task, options.example)
    batch, shown = prepare(task, marked(task, example, loaded.model), model=loaded.model)
    return batch, shown, shown.words, []


@contextmanager
def _completed(task: Task, options: ViewOptions, before: tuple[Any, str] | None) -> Iterator[ViewOptions]:
    """Of a task that reads a picture with a text, what was not given is that of the input before."""
    inputs = options.inputs(together=True)
    picture, text = before or (None, "")
    if set(task.takes) != {"image", "text"} or len(inputs) != 1 or (picture is None if "text" in inputs else not text):
        yield options
    elif "text" in inputs:
        assert picture is not None
        with tempfile.TemporaryDirectory(prefix="regard-view-") as folder:
            path = Path(folder) / "picture.png"
            path.write_bytes(as_png(picture))
            yield dataclasses.replace(options, image=str(path))
    else:
        yield dataclasses.replace(options, text=text)


def _text_of(options: ViewOptions, shown: Shown, reads: bool) -> str:
    """The text that the page offers for changing: the given one, or that of the example."""
    if options.text is not None:
        return options.text
    quoted = (shown.called == "tokens" or reads) and shown.words.startswith("“")
    return shown.words[1:].removesuffix("”") if quoted else ""


def _as_sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}."


def _with_target(loaded: Loaded, batch: Batch, options: ViewOptions, made: OpenedModel, shown: Shown) -> Batch:
    """The batch with a target: the given words, or those the model writes. A forecast is written without one."""
    task = loaded.task
    answer: Any = task.problem.answer  # one that a decoder writes: it has a start, an end and a length
    vocabulary = getattr(task, "target_vocabulary", None)
    if options.target is not None and vocabulary is None:
        raise BadValue(f"--target: the task {task.name} takes no target as text. Leave it out.")
    if not answer.writes:
        made.labels = {**made.labels, "targets": shown.target, "read": shown.target}
        return batch
    if options.target is not None:
        assert vocabulary is not None
        ids = vocabulary.encode(whole_characters(options.target).strip())
        if len(ids) > answer.length:
            raise BadValue(f"--target: expected at most {answer.length} pieces, got {len(ids)}.")
        if len(ids) < answer.length:  # as the model itself writes: a text of the full length has no end
            ids = [*ids, answer.end]
    else:
        (best, *_) = loaded.model.generate(batch)[0]
        ids = best.tokens
    if not ids:
        raise BadValue("--text: the model writes nothing for it, so there is nothing to see. Give --target.")
    pieces = task.output_pieces(ids)
    start = task.output_pieces([answer.start])
    made.labels = {**made.labels, "targets": pieces, "read": [*start, *pieces[:-1]]}
    made.places = list(enumerate(pieces))
    made.input += f" → “{task.decode(ids)}”"
    return batch.answered(torch.tensor([ids], device=loaded.device))


def _give_writer(made: OpenedModel, loaded: Loaded, batch: Batch) -> None:
    problem, model = loaded.task.problem, loaded.model
    if not problem.answer.writes:
        made.no_writer = f"{loaded.config.model} on {loaded.config.task} writes nothing"
    elif not callable(getattr(model, "step", None)):
        made.no_writer = f"{loaded.config.model} does not write step by step"
    else:
        made.writer = RunGenerator(loaded, batch)
        answer: Any = problem.answer
        made.room = answer.length if made.two_sides else (problem.inputs.length or 0) - batch.inputs.shape[1]


class RunGenerator:
    """A model of a run that generates step by step."""

    def __init__(self, loaded: Loaded, batch: Batch) -> None:
        self.loaded, self.batch = loaded, batch
        answer: Any = loaded.task.problem.answer
        self.two_sides = answer.needs == "decoder"
        self.end, self.vocabulary = answer.end, answer.outputs
        self.prompt = [answer.start] if self.two_sides else batch.inputs[0].tolist()

    def begin(self) -> Any:
        """The state before the prompt."""
        model: Any = self.loaded.model
        return model.initial_state(self.batch if self.two_sides else 1)

    def advance(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits for tokens that continue a state, and the next state."""
        model: Any = self.loaded.model
        logits_and_state: tuple[Tensor, Any] = model.step(tokens.to(self.loaded.device), state)
        return logits_and_state

    def searching(self) -> Callable[[Tensor], Tensor]:
        """A step with a cache."""
        return CachedStep(self.advance, self.begin())

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Labels of tokens."""
        return self.loaded.task.output_pieces(list(ids))

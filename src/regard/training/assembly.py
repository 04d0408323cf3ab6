"""From settings to parts: the task, the problem it poses, the model that answers; a recipe fills in the settings."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import models, tasks
from regard.errors import BadValue
from regard.models.model import MODELS
from regard.nn.mechanism import entry
from regard.registry import parse
from regard.tasks.task import TASKS, Task
from regard.training import config as settings
from regard.training.budget import parse as parse_budget
from regard.training.config import FIXED, Config
from regard.training.run_folder import schema
from regard.training.run_folder.checkpoints import MANIFEST, Damaged, found, step_of
from regard.training.run_folder.folder import HOME, RunFolder, checked_name, free_name, locate


@dataclass(frozen=True)
class Parts:
    """What a run trains."""

    task: Task
    model: models.Model


def complete(values: Mapping[str, Any] | Config) -> Config:
    """Settings with everything filled in that was not said, from the task's recipe. All mistakes at once."""
    if isinstance(values, Config):
        values = dataclasses.asdict(values)
    clean, mistakes = settings.read(values)
    mistakes += _unknown_names(clean)
    if clean.get("name"):
        mistakes += settings.mistakes_of(lambda: checked_name(clean["name"]))
    if not clean.get("task"):
        mistakes.append(f"task: say what to learn. There are: {', '.join(tasks.names())}.")
    mistakes += _one_length(clean)
    settings.refuse(mistakes)

    recipe = TASKS[parse(clean["task"])[0]].recipe
    budgeted = clean.get("budget") is not None  # then nobody knows how many steps there will be
    for name in ("model", "batch_size", "accumulate", *(() if budgeted else ("steps",))):
        clean[name] = getattr(recipe, name) if clean.get(name) is None else clean[name]
    clean["model"] = _meant(clean["model"], clean["task"])
    for name in ("optimizer", "lr", "warmup", "smoothing", "schedule", "clip"):
        dotted = f"optim.{name}"
        clean[dotted] = getattr(recipe, name) if clean.get(dotted) is None else clean[dotted]
    often, logged = 1000, 10  # steps; a budget is also looked at each tenth
    if not budgeted:
        often, logged = max(1, min(often, clean["steps"] // 10)), max(1, min(logged, clean["steps"] // 20))
    for name, every in (("eval_every", often), ("save_every", often), ("log_every", logged)):
        clean[name] = every if clean.get(name) is None else clean[name]
    return settings.make(clean)


def _one_length(clean: dict[str, Any]) -> list[str]:
    """Steps and a budget may not both be said; a budget in steps is another way to say steps, and becomes that."""
    if clean.get("budget") is None:
        return []
    budget = parse_budget(clean["budget"])
    if clean.get("steps") is not None and (budget.kind, budget.amount) != ("steps", clean["steps"]):
        return [
            f"steps, budget: expected one of them, got steps {clean['steps']} and budget {str(budget)!r}."
        ]
    if budget.kind == "steps":
        clean |= {"steps": budget.amount, "budget": None}
    return []


def _meant(model: str, task: str) -> str:
    """What the bare name of a model means on a task; one with brackets, `transformer()`, means itself."""
    return TASKS[parse(task)[0]].recipe.models.get(model, model)


def arrange(values: Mapping[str, Any], resume: str | None) -> tuple[Config, RunFolder, Path | None]:
    """Settings, the run's folder, and the checkpoint to go on from if one was named.

    `resume`: None begins a new run; "auto" goes on if there is one; else the folder of a run or of a checkpoint.
    """
    given, mistakes = settings.read(values)
    settings.refuse(mistakes)
    given = {name: value for name, value in given.items() if value is not None}
    checkpoint: Path | None = None
    if resume is not None and resume != "auto":
        path = Path(resume)
        if (path / MANIFEST).is_file() and path.parent.name == "checkpoints":
            if path not in found(path.parent):
                raise BadValue(
                    f"resume: {path.name} is not named as a checkpoint. Rename it to step-NNNNNNNN."
                )
            checkpoint, path = path, path.parent.parent
        run = RunFolder(path)
        _refuse_elsewhere(given, run)
        # A run that goes back to an earlier checkpoint has the settings of that time.
        stored = run.settings(None if checkpoint is None else step_of(checkpoint))
    else:
        where = locate(given.get("out"), given.get("name"), "") if _placed(given) else None
        if resume == "auto" and where is None:
            where = newest_run(str(given.get("task", "")))
        if where is None or not RunFolder(where).exists:
            config = complete(given)
            fresh = free_name(f"{config.task}-{config.model}")
            return config, RunFolder(where or locate(None, None, fresh)), None
        run = RunFolder(where)
        if resume is None:
            run.refuse_taken()
        stored = run.settings()
    return _continued(stored, given, run), run, checkpoint


def _continued(stored: dict[str, Any], given: Mapping[str, Any], run: RunFolder) -> Config:
    before = dataclasses.asdict(complete(stored))
    flat = settings.flat(before)
    if "model" in given:
        given = {**given, "model": _meant(given["model"], flat["task"])}
    mistakes = [
        f"{name}: {run.path} was begun with {flat[name]!r}, so it cannot go on with {given[name]!r}. Start a new run."
        for name in FIXED
        if name in given and given[name] != flat[name]
    ]
    settings.refuse(mistakes)
    for one, other in (("steps", "budget"), ("budget", "steps")):
        if one in given:
            flat[other] = None
    moved = {name: value for name, value in given.items() if name not in ("out", "name")}
    return complete({**flat, **moved})


def _refuse_elsewhere(given: Mapping[str, Any], run: RunFolder) -> None:
    """Raise where a run is to be resumed and another folder is named for it: it stays where it is."""
    if _placed(given) and run.exists:
        asked = locate(given.get("out"), given.get("name"), "")
        if asked.resolve() != run.path.resolve():
            raise BadValue(
                f"out: {run.path} is resumed where it is, so it cannot go on in {asked}. Leave it out, or copy the "
                "folder first and resume the copy."
            )


def _placed(given: Mapping[str, Any]) -> bool:
    return given.get("out") is not None or given.get("name") is not None


def newest_run(task: str) -> Path | None:
    """The run of a task that was begun last in the usual place."""
    home = Path(HOME)
    marks = list(home.glob("*/config.yaml")) if home.is_dir() else []
    for mark in sorted(marks, key=lambda mark: mark.stat().st_mtime, reverse=True):
        try:
            if settings.from_yaml(mark).get("task") == task or not task:
                return mark.parent
        except BadValue:
            continue
    return None


def build_task(config: Config, state: Mapping[str, Any] | None = None, *, whole: bool = False) -> Task:
    """The task a run learns; with the vocabulary and labels of a run that already learned it.

    `whole`: a file is measured as a whole, where the task can, since nothing of it was kept for training.
    """
    name, options = parse(config.task)
    known = inspect.signature(TASKS[name]).parameters
    if whole and "whole" in known:
        options["whole"] = True
    if config.data:
        if "data" not in known:
            able = [other for other in tasks.names() if "data" in inspect.signature(TASKS[other]).parameters]
            raise BadValue(
                f"data: the task {name} makes its own examples; leave --data out. Tasks that read files: "
                f"{', '.join(able) or 'none'}."
            )
        options["data"] = config.data[0] if len(config.data) == 1 else list(config.data)
    if not state:
        return tasks.build(name, None, **options)
    try:
        return tasks.build(name, state, **options)
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as trouble:
        words = " ".join(str(trouble).split())
        raise Damaged(
            f"task: what the checkpoint keeps of {name} (vocabulary, labels) does not fit: {type(trouble).__name__}: "
            f"{words[:100]}."
        ) from trouble


def build_model(config: Config, task: Task) -> models.Model:
    """The model for the first of the task's problems that it fits."""
    assert config.model is not None
    problem = models.problem_for(config.model, task.problems())
    task.pose(problem)
    return models.build(config.model, problem, attention=config.attention)


def rebuild_model(config: Config, task: Task, weights: Mapping[str, Any], where: str) -> models.Model:
    """The model that weights belong to, not yet with them in it. Sizes are compared before memory is taken for it."""
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                outline: models.Model | None = build_model(config, task)
        except BadValue:
            raise
        except Exception:  # a model that needs real tensors while it is built
            outline = None
    if outline is not None:
        schema.of_sizes(where, weights, outline.state_dict())
    try:
        return build_model(config, task)
    except (RuntimeError, OverflowError, MemoryError) as trouble:
        words = " ".join(str(trouble).split())[:100]
        raise Damaged(f"{where}: no model can be built from what it keeps of its task: {words}.") from trouble


def own_tensors(model: nn.Module) -> dict[str, Any]:
    """The weights and kept buffers by name, each once: what is shared stands under its first name."""
    seen: dict[tuple[Any, ...], str] = {}
    found: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        place = (
            (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else (name,)
        )
        if place not in seen:
            seen[place] = name
            found[name] = tensor
    return found


def take_weights(model: nn.Module, weights: Mapping[str, Any], where: str) -> None:
    """Load the weights of the same model; anything missing or left over is an error."""
    wanted = own_tensors(model)
    schema.of_weights(where, weights, wanted, {name for name, _ in model.named_parameters()})
    for name, tensor in wanted.items():
        tensor.copy_(weights[name])


def _unknown_names(clean: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for setting, known in (("task", TASKS.__getitem__), ("model", MODELS.__getitem__), ("attention", entry)):
        if clean.get(setting):
            mistakes = settings.mistakes_of(lambda: known(parse(clean[setting])[0]))  # noqa: B023 (called at once)
            # What cannot be read as a name with options is called `name` there; here it is a setting.
            found += [
                f"{setting}: {text.removeprefix('name: ')}" if text.startswith("name: ") else text
                for text in mistakes
            ]
    return found

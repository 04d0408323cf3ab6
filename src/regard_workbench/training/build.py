"""Build the task and the model of a run, and load weights into a model: from a checkpoint, or from another run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard.registry import parse
from regard_workbench import models, tasks
from regard_workbench.tasks.parts.task import TASKS, Task
from regard_workbench.tasks.text.vocabulary import PRETRAINED
from regard_workbench.training.config import Config
from regard_workbench.training.run_folder import schema
from regard_workbench.training.run_folder.checkpoints import Damaged


@dataclass(frozen=True)
class Parts:
    """The task and the model of a run."""

    task: Task
    model: models.Model


def build_task(config: Config, state: Mapping[str, Any] | None = None, *, whole: bool = False) -> Task:
    """Build the task of a run. `state` holds the vocabulary and labels of a checkpoint.

    `whole`: evaluate on the whole file, if the task supports it, because none of it was used for training.
    """
    name, options = parse(config.task)
    accepted = inspect.signature(TASKS[name]).parameters
    if whole and "whole" in accepted:
        options["whole"] = True
    if config.data:
        if "data" not in accepted:
            able = [
                candidate for candidate in tasks.names() if "data" in inspect.signature(TASKS[candidate]).parameters
            ]
            raise BadValue(
                f"data: the task {name} makes its own examples; leave --data out. Tasks that read files: "
                f"{', '.join(able) or 'none'}."
            )
        options["data"] = config.data[0] if len(config.data) == 1 else list(config.data)
    if not state:
        return tasks.build(name, None, **options)
    try:
        return tasks.build(name, state, **options)
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        text = " ".join(str(error).split())
        raise Damaged(
            f"task: the checkpoint's state of {name} (vocabulary, labels) does not fit: {type(error).__name__}: "
            f"{text[:100]}."
        ) from error


def build_model(config: Config, task: Task) -> models.Model:
    """Build the model for the first of the task's problems that it fits."""
    assert config.model is not None
    problem = models.problem_for(config.model, task.problems())
    task.pose(problem)
    return models.build(config.model, problem, attention=config.attention)


def rebuild_model(config: Config, task: Task, weights: Mapping[str, Any], where: str) -> models.Model:
    """Build the model of a checkpoint, without loading its weights. Sizes are compared before memory is allocated."""
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                outline: models.Model | None = build_model(config, task)
        except BadValue:
            raise
        except Exception:  # a model that cannot be built on the meta device
            outline = None
    if outline is not None:
        schema.check_sizes(where, weights, outline.state_dict())
    try:
        return build_model(config, task)
    except (RuntimeError, OverflowError, MemoryError) as error:
        text = " ".join(str(error).split())[:100]
        raise Damaged(f"{where}: no model can be built from the task in the checkpoint: {text}.") from error


def unique_tensors(model: nn.Module) -> dict[str, Any]:
    """The weights and persistent buffers by name; a shared tensor appears once, under its first name."""
    keys: set[tuple[Any, ...]] = set()
    unique: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else (name,)
        if key not in keys:
            keys.add(key)
            unique[name] = tensor
    return unique


def load_weights(model: nn.Module, weights: Mapping[str, Any], where: str) -> None:
    """Copy weights into a model; raise if any is missing or unexpected. `where` starts the error message."""
    wanted = unique_tensors(model)
    schema.check_weights(where, weights, wanted, {name for name, _ in model.named_parameters()})
    for name, tensor in wanted.items():
        tensor.copy_(weights[name])


def build_new_model(config: Config, task: Task, tell: Callable[[str], None]) -> models.Model:
    """Build the model of a new run; with `init_from`, with the vocabulary and weights of another run."""
    if config.init_from is None:
        return build_model(config, task)
    from regard_workbench.training.init_from import origin_of

    origin = origin_of(config.init_from, tell)
    _copy_vocabulary(task, origin.task, tell)
    model = build_model(config, task)
    _copy_weights(model, model.adopted(origin.weights), tell)
    return model


def _copy_vocabulary(task: Task, theirs: Mapping[str, Any], tell: Callable[[str], None]) -> None:
    """Use the other run's vocabulary: its embeddings are meaningless with another one.

    Of two longest lengths the larger one holds: with theirs, tables of positions fit; with a smaller one than its own,
    this run could not read or write its longest examples. That of a checkpoint always holds: texts are cut to it.
    """
    ours = task.state()
    both = [name for name in theirs if name in ours]
    if not any("vocabulary" in name for name in both):
        return
    # Not the labels: this run has its own.
    adopted = {name: theirs[name] for name in both if "vocabulary" in name}
    foreign = any(
        isinstance(vocabulary, Mapping) and vocabulary.get("level") == PRETRAINED for vocabulary in adopted.values()
    )
    for name in (name for name in both if name.startswith("max_")):
        adopted[name] = theirs[name] if foreign else _longer(theirs[name], ours[name])
    adopted = {name: value for name, value in adopted.items() if ours[name] != value}
    if foreign and not task.pretrained_vocabulary:
        able = [name for name in tasks.names() if TASKS[name].pretrained_vocabulary]
        raise BadValue(
            f"init_from: {type(task).__name__.lower()} cannot read with the vocabulary of a checkpoint, because its "
            f"special tokens are others. Tasks that can: {', '.join(able)}."
        )
    if adopted:
        task.restore({**ours, **adopted})
        tell(f"init-from: took {' and '.join(sorted(adopted))} from the other run.")


def _longer(theirs: object, own: int) -> object:
    return max(theirs, own) if isinstance(theirs, int) else theirs  # what is no number, `restore` refuses by name


def _copy_weights(model: nn.Module, theirs: Mapping[str, Tensor], tell: Callable[[str], None]) -> None:
    """Copy the tensors that agree in name and shape; raise if none does."""
    ours = unique_tensors(model)
    copied = [name for name, tensor in ours.items() if name in theirs and theirs[name].shape == tensor.shape]
    if not any(name in dict(model.named_parameters()) for name in copied):
        raise BadValue(
            f"init_from: nothing fits. The other run's model has {', '.join([*theirs][:3])}, …; this one has "
            f"{', '.join([*ours][:3])}, …. Use the same --model with the same sizes."
        )
    with torch.no_grad():
        for name in copied:
            ours[name].copy_(theirs[name])
    count = sum(ours[name].numel() for name in copied)
    tell(f"init-from: took {len(copied)} of {len(ours)} tensors ({count:,} numbers).")
    shapes = [n for n in ours if n in theirs and n not in copied]
    fresh = [n for n in ours if n not in theirs]
    unused = [n for n in theirs if n not in ours]
    for reason, names in (("another shape", shapes), ("new here", fresh), ("not used", unused)):
        if names:
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            tell(f"init-from: {reason}: {', '.join(names[:6])}{more}.")

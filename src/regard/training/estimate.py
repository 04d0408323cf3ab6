"""`--dry-run`: what a run would be, without beginning it: shapes, parameters, memory, steps and epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.models import Model
from regard.tasks.batch import Batch
from regard.tasks.task import Task
from regard.training import initial
from regard.training.assembly import arrange, build_model, build_task, rebuild_model, take_weights
from regard.training.budget import of, positions
from regard.training.config import Config
from regard.training.data import Order, generator
from regard.training.hardware import check_surroundings
from regard.training.loading import to_stderr
from regard.training.position import seed_everything
from regard.training.run_folder import selection
from regard.training.run_folder.folder import RunFolder

_BYTES = {"64": 8, "32": 4, "bf16": 2, "16": 2}
_MIB = 2**20
LOOKED_AT = 20  # batches, to know how many tokens a step takes


def dry_run(values: Mapping[str, Any], resume: str | None = None) -> dict[str, Any]:
    """The facts of a run that is not begun. One batch goes through the model on the CPU; nothing is written."""
    config, run, chosen = arrange(values, resume)
    assert config.batch_size and config.accumulate
    check_surroundings(config)
    run.check_place()
    seed_everything(config.seed)
    task, model, told = _built(config, run, chosen)
    examples = task.examples("train")
    order = Order(examples, config.batch_size, config.seed, task.length, config.bucket)
    batch = task.batch(examples, order[0], generator(config.seed, "batch", 0), model)
    outputs, activations = _forward(model, batch)
    return {
        "task": config.task,
        "answer": task.problem.answer.words,
        "model": config.model,
        "attention": config.attention,
        **({"direction": str(direction)} if (direction := task.direction()) else {}),
        **({"init_from": config.init_from, "taken": " ".join(told)} if told else {}),
        "out": str(run.path),
        "examples": {split: _count(task, split) for split in ("train", "validation", "test")},
        "batch": batch.shapes(),
        "outputs": outputs,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "memory_mib": _memory(model, config, activations),
        **_length(config, task, model, order, examples),
    }


def _built(config: Config, run: RunFolder, chosen: Path | None) -> tuple[Task, Model, list[str]]:
    """The task and the model as a run would have them at its first step, and what was said of another run's weights."""
    told: list[str] = []
    checkpoint = None
    if run.exists:
        checkpoint = selection.find(
            run, selection.LAST if chosen is None else chosen.name, to_stderr
        ).checkpoint
    task = build_task(config, checkpoint.state.get("task") if checkpoint else None)
    if checkpoint is not None or config.init_from is None:
        if checkpoint is None:
            return task, build_model(config, task), told
        model = rebuild_model(config, task, checkpoint.weights, "resume")
        with torch.no_grad():
            take_weights(model, checkpoint.weights, "resume")
        return task, model, told
    return task, initial.begin(config, task, told.append), told


def _length(
    config: Config, task: Task, model: Model, order: Order, examples: Sequence[Any]
) -> dict[str, Any]:
    """How long the run would be. Nobody knows how many steps fit into seconds; for tokens the first batches tell."""
    assert config.batch_size and config.accumulate
    budget, looked_at = of(config), min(LOOKED_AT, order.per_epoch)
    tokens = sum(
        positions(
            task.batch(examples, order[place], generator(config.seed, "batch", place), model),
            task.problem,
        )
        for place in range(looked_at)
    )
    per_step = max(1, round(tokens / looked_at * config.accumulate))
    facts: dict[str, Any] = {
        "budget": str(budget),
        "batches_per_epoch": order.per_epoch,
        "examples_per_step": config.batch_size * config.accumulate,
        "tokens_per_step": per_step,
    }
    if budget.kind != "seconds":
        steps = int(budget.amount if budget.kind == "steps" else math.ceil(budget.amount / per_step))
        facts |= {"steps": steps, "epochs": round(steps * config.accumulate / order.per_epoch, 3)}
    return facts


def _forward(model: Model, batch: Batch) -> tuple[list[int], int]:
    """The shape of the outputs, and the bytes that training keeps for the backward pass."""
    own = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = model(batch)
        # The graph of the loss must live while addresses are counted, or they come twice.
        total, _ = model.loss(outputs, batch)
        shape = list(outputs.shape) if isinstance(outputs, Tensor) else []
        del total
    return shape, sum(kept.values())


def _memory(model: nn.Module, config: Config, activations: int) -> dict[str, float]:
    precision = config.precision.partition("-")[0]
    mixed = config.precision.endswith("mixed")
    weight = 4 if mixed else _BYTES[precision]
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    found = {
        "weights": sum(p.numel() for p in model.parameters()) * weight,
        "gradients": count * weight,
        "optimizer": 2 * count * weight,
        "activations": activations * _BYTES[precision] / 4,
    }
    found["total"] = sum(found.values())
    return {name: math.ceil(100 * value / _MIB) / 100 for name, value in found.items()}


def _count(task: Task, split: str) -> int | None:
    try:
        return len(task.examples(split))
    except RegardError:
        return None

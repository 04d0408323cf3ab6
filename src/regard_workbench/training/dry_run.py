"""`--dry-run`: shapes, parameters, memory, steps and epochs of a run, without starting it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard_workbench.models import Model
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.task import Task
from regard_workbench.training.build import build_new_model, build_task, load_weights, rebuild_model
from regard_workbench.training.config import Config
from regard_workbench.training.config.budget import budget_of
from regard_workbench.training.data import TrainingData, token_count
from regard_workbench.training.hardware import check_environment
from regard_workbench.training.resume import resolve
from regard_workbench.training.run_folder import selection
from regard_workbench.training.run_folder.folder import RunFolder
from regard_workbench.training.signals import to_stderr
from regard_workbench.training.state import seed_everything

_BYTES = {"64": 8, "32": 4, "bf16": 2, "16": 2}
_MIB = 2**20
SAMPLED = 20  # batches, to estimate the number of tokens in a step


def dry_run(values: Mapping[str, Any], resume: str | None = None) -> dict[str, Any]:
    """Describe a run without starting it. One batch goes through the model on the CPU; nothing is written."""
    config, run, chosen = resolve(values, resume)
    assert config.batch_size and config.accumulate
    check_environment(config)
    run.check_path()
    seed_everything(config.seed)
    task, model, messages = _build(config, run, chosen)
    data = TrainingData(task, model, config)
    batch = data.batch(0)
    outputs, activations = _forward(model, batch)
    return {
        "task": config.task,
        "answer": task.problem.answer.words,
        "model": config.model,
        "attention": config.attention,
        **({"direction": str(direction)} if (direction := task.direction()) else {}),
        **({"init_from": config.init_from, "taken": " ".join(messages)} if messages else {}),
        "out": str(run.path),
        "examples": {split: _count(task, split) for split in ("train", "validation", "test")},
        "batch": batch.shapes(),
        "outputs": outputs,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "memory_mib": _memory(model, config, activations),
        **_length(config, data),
    }


def _build(config: Config, run: RunFolder, chosen: Path | None) -> tuple[Task, Model, list[str]]:
    """The task and the model before the first step, and the messages about weights from another run."""
    messages: list[str] = []
    checkpoint = None
    if run.exists:
        checkpoint = selection.find(run, selection.LAST if chosen is None else chosen.name, to_stderr).checkpoint
    task = build_task(config, checkpoint.state.get("task") if checkpoint else None)
    if checkpoint is None:
        return task, build_new_model(config, task, messages.append), messages
    model = rebuild_model(config, task, checkpoint.weights, "resume")
    with torch.no_grad():
        load_weights(model, checkpoint.weights, "resume")
    return task, model, messages


def _length(config: Config, data: TrainingData) -> dict[str, Any]:
    """The length of the run; a budget in tokens is converted to steps by the first batches, one in seconds is not."""
    assert config.batch_size and config.accumulate
    budget, per_epoch = budget_of(config), data.order.per_epoch
    sampled = min(SAMPLED, per_epoch)
    tokens = sum(token_count(data.batch(index), data.task.problem) for index in range(sampled))
    per_step = max(1, round(tokens / sampled * config.accumulate))
    facts: dict[str, Any] = {
        "budget": str(budget),
        "batches_per_epoch": per_epoch,
        "examples_per_step": config.batch_size * config.accumulate,
        "tokens_per_step": per_step,
    }
    if budget.kind != "seconds":
        steps = int(budget.amount if budget.kind == "steps" else math.ceil(budget.amount / per_step))
        facts |= {"steps": steps, "epochs": round(steps * config.accumulate / per_epoch, 3)}
    return facts


def _forward(model: Model, batch: Batch) -> tuple[list[int], int]:
    """The shape of the outputs, and the bytes that the forward pass keeps for the backward pass."""
    addresses = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in addresses:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = model(batch)
        # Keep the graph of the loss alive while addresses are counted, or they would be reused.
        total, _ = model.loss(outputs, batch)
        shape = list(outputs.shape) if isinstance(outputs, Tensor) else []
        del total
    return shape, sum(kept.values())


def _memory(model: nn.Module, config: Config, activations: int) -> dict[str, float]:
    precision = config.precision.partition("-")[0]
    mixed = config.precision.endswith("mixed")
    weight = 4 if mixed else _BYTES[precision]
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    sizes = {
        "weights": sum(p.numel() for p in model.parameters()) * weight,
        "gradients": count * weight,
        "optimizer": 2 * count * weight,
        "activations": activations * _BYTES[precision] / 4,
    }
    if config.optim.average > 0:
        sizes["average"] = count * max(weight, 4)
    sizes["total"] = sum(sizes.values())
    return {name: math.ceil(100 * value / _MIB) / 100 for name, value in sizes.items()}


def _count(task: Task, split: str) -> int | None:
    try:
        return len(task.examples(split))
    except RegardError:
        return None

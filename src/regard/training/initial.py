"""`--init-from RUN`: begin with the weights of another run wherever name and shape agree, and say what was taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.errors import BadValue
from regard.models import Model
from regard.tasks.task import Task
from regard.training.assembly import build_model, own_tensors
from regard.training.config import Config
from regard.training.run_folder import selection
from regard.training.run_folder.checkpoints import Checkpoint
from regard.training.run_folder.folder import RunFolder


def begin(config: Config, task: Task, tell: Callable[[str], None]) -> Model:
    """The model of a run that begins, with another run's vocabulary and weights where the settings name one."""
    if config.init_from is None:
        return build_model(config, task)
    origin = source(config.init_from, tell)
    share_state(task, origin.state.get("task") or {}, tell)
    model = build_model(config, task)
    share_weights(model, origin.weights, tell)
    return model


def source(path: str, tell: Callable[[str], None]) -> Checkpoint:
    """The best checkpoint of the run to begin from."""
    run = RunFolder(Path(path))
    if not run.exists:
        raise BadValue(f"init_from: there is no run in {path} (no config.yaml). Pass the folder of a run.")
    return selection.one(run, selection.BEST, tell)


def share_state(task: Task, theirs: Mapping[str, Any], tell: Callable[[str], None]) -> None:
    """Read text with the other run's vocabulary: its embeddings mean nothing under another one."""
    own = task.state()
    both = [name for name in theirs if name in own]
    if not any("vocabulary" in name for name in both):
        return
    # Not the labels: what another run called its answers says nothing about this one's.
    taken = {name: theirs[name] for name in both if "vocabulary" in name or name.startswith("max_")}
    if any(own[name] != value for name, value in taken.items()):
        task.restore({**own, **taken})
        tell(f"init-from: took over {' and '.join(sorted(taken))} of the other run.")


def share_weights(model: nn.Module, theirs: Mapping[str, torch.Tensor], tell: Callable[[str], None]) -> None:
    """Copy what agrees in name and shape; refuse when nothing does."""
    own = own_tensors(model)
    taken = [name for name, tensor in own.items() if name in theirs and theirs[name].shape == tensor.shape]
    if not any(name in dict(model.named_parameters()) for name in taken):
        raise BadValue(
            f"init_from: nothing fits. The other run's model has {', '.join([*theirs][:3])}, …; this one has "
            f"{', '.join([*own][:3])}, …. Use the same --model with the same sizes."
        )
    with torch.no_grad():
        for name in taken:
            own[name].copy_(theirs[name])
    count = sum(own[name].numel() for name in taken)
    tell(f"init-from: took {len(taken)} of {len(own)} tensors ({count:,} numbers).")
    shapes = [n for n in own if n in theirs and n not in taken]
    fresh = [n for n in own if n not in theirs]
    unused = [n for n in theirs if n not in own]
    for what, names in (("another shape", shapes), ("new here", fresh), ("not used", unused)):
        if names:
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            tell(f"init-from: {what}: {', '.join(names[:6])}{more}.")

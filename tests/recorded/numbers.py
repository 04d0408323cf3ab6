"""States of tasks, batches, initial weights and first losses, as hashes and exact numbers, on one CPU thread."""

import hashlib
import json
import tempfile
from pathlib import Path

import torch

from regard.errors import RegardError
from regard_workbench import models, tasks
from regard_workbench.training import Config, train

SPLITS = ("train", "validation", "test")
STEPS = 20


def digest(tensors: list[torch.Tensor]) -> str:
    """A hash of the bits of some tensors, their shapes and dtypes."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        hashed.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()[:16]


def batches(task: tasks.Task) -> dict[str, str]:
    """Three batches of five examples of each split."""
    recorded = {}
    for split in SPLITS:
        examples = task.examples(split)
        for number in range(3):
            chosen = [examples[(5 * number + place) % len(examples)] for place in range(5)]
            tensors: list[torch.Tensor] = []
            task.collate(chosen, torch.Generator().manual_seed(7)).map(
                lambda tensor, to=tensors: to.append(tensor) or tensor
            )
            recorded[f"{split} {number}"] = digest(tensors)
    return recorded


def task_record(name: str) -> dict[str, object]:
    """State, batches, and by model the names of the weights with a hash of their first values."""
    task = tasks.build(name)
    problems = task.problems()
    recorded: dict[str, object] = {"problems": [repr(problem) for problem in problems]}
    if not task.acts:
        task.pose(problems[0])
        recorded["batches"] = batches(task)
        recorded["state"] = hashlib.sha256(json.dumps(task.state(), sort_keys=True).encode()).hexdigest()[:16]
    weights = {}
    for model in models.names():
        fitting = [problem for problem in problems if models.fits(models.MODELS[model], problem)]
        if fitting:
            torch.manual_seed(0)
            try:
                state = models.build(model, fitting[0]).state_dict()
            except RegardError as error:  # defaults that do not fit the sizes of this task
                weights[model] = str(error)
                continue
            weights[model] = [
                digest(list(state.values())),
                len(state),
                hashlib.sha256(" ".join(state).encode()).hexdigest()[:16],
            ]
    return recorded | {"weights": weights}


def losses(task: str, model: str) -> list[dict[str, object]]:
    """The logged numbers of the first steps but times and speeds."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Config(task=task, model=model, steps=STEPS, log_every=1, out=folder, device="cpu")
        train(settings, tell=lambda text: None)
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key in ("step", "loss", "gradient_norm", "lr")} for line in lines
    ]


def record() -> dict[str, object]:
    """The section `numbers`."""
    torch.set_num_threads(1)
    recorded: dict[str, object] = {name: task_record(name) for name in tasks.names()}
    served: dict[str, str] = {}  # each model once, on the first task that it serves
    for name in tasks.names():
        for model, weights in recorded[name]["weights"].items():
            if not isinstance(weights, str):
                served.setdefault(model, name)
    return {"tasks": recorded, "losses": {model: losses(task, model) for model, task in served.items()}}

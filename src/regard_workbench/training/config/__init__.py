"""The settings of a run: `Config` and `Optim`, read from YAML and dotted flags, with all mistakes reported together.

`Config(task="dates", steps=500)` gives what differs from the task's recipe; `complete` (in `recipe.py`) fills in the
rest. None means: not given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from regard.errors import BadValue, RegardError, closest
from regard_workbench.files import read_bytes
from regard_workbench.training.config import budget as budgets
from regard_workbench.training.config import plain_yaml, retention
from regard_workbench.training.config.readers import (
    Expected,
    Reader,
    betas,
    flag,
    number,
    one_of,
    optional,
    paths,
    some_of,
    text,
    whole,
)

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true", "32", "64", "bf16", "16")
OPTIMIZERS = ("adamw", "rmsprop", "sgd")
STRATEGIES = ("ddp", "fsdp")
SCHEDULES = ("cosine", "inverse-root", "halving", "constant")
REPORTERS = ("tensorboard", "wandb", "mlflow", "trackio")


def setting(reader: Reader, about: str, default: Any = None) -> Any:
    """A field with its reader, one line of help and its default; None: not given, so it may be left out."""
    return field(default=default, metadata={"read": optional(reader) if default is None else reader, "help": about})


@dataclass(frozen=True)
class Optim:
    """How weights are updated: AdamW, RMSprop or SGD, learning rate, weight decay, clipping, label smoothing."""

    optimizer: str | None = setting(one_of(*OPTIMIZERS), "the rule: " + ", ".join(OPTIMIZERS))
    lr: float | None = setting(number(least=0), "peak learning rate")
    weight_decay: float | None = setting(number(least=0), "weight decay of matrices (not of norms, biases, embeddings)")
    decay_embeddings: bool = setting(flag, "weight decay of embeddings, too", False)
    betas: tuple[float, float] | None = setting(betas, "decay rates of Adam's two averages (usually 0.9,0.98)")
    warmup: int | None = setting(whole(0), "steps until the peak learning rate")
    schedule: str | None = setting(one_of(*SCHEDULES), "decay after the warm-up: " + ", ".join(SCHEDULES))
    clip: float | None = setting(number(least=0), "largest norm of the gradient; 0 for no limit")
    smoothing: float | None = setting(number(least=0, below=1), "label smoothing")
    consistency: float = setting(
        number(least=0),
        "weight of the divergence between the answers of two passes with different dropout (R-Drop); 0: one pass",
        0.0,
    )
    average: float = setting(
        number(least=0, below=1),
        "decay of a moving average of the weights, which is validated and saved as the model (0.999); 0: none",
        0.0,
    )


@dataclass(frozen=True)
class Config:
    """The settings of a run: which task, which model, how long, where."""

    task: str = setting(text, "what to learn, for instance dates or copy(max_length=20)", "")
    model: str | None = setting(text, 'the network, for instance "decoder(layers=4)"')
    attention: str | None = setting(text, 'its attention, for instance "local(window=65)"')
    data: tuple[str, ...] = setting(
        paths,
        "files to learn from, joined by commas; for a translation SOURCE,TARGET (what is read, what is written)",
        (),
    )
    steps: int | None = setting(whole(0), "number of optimiser steps")
    budget: str | None = setting(
        budgets.setting, 'how long to train, instead of --steps: "5M tokens", "90 seconds", "2000 steps"'
    )
    seed: int = setting(whole(0), "one number that fixes weights, order and dropout", 0)
    device: str = setting(text, "auto, cpu, cuda, cuda:1, mps", "auto")
    precision: str = setting(one_of(*PRECISIONS), "one of " + ", ".join(PRECISIONS[:6]), "32-true")
    out: str | None = setting(text, "the run folder; with --name the folder that holds it")
    name: str | None = setting(text, "the run's name inside --out (default: runs)")
    batch_size: int | None = setting(whole(1), "examples in a batch")
    accumulate: int | None = setting(whole(1), "batches in one optimiser step")
    bucket: int = setting(whole(0), "batches sorted by length together; 0 for no sorting", 50)
    eval_every: int | None = setting(whole(1), "steps between validations")
    eval_limit: int | None = setting(whole(1), "examples in a validation (default: all)")
    save_every: int | None = setting(whole(1), "steps between checkpoints")
    keep: str = setting(
        retention.setting,
        "which checkpoints to keep besides the best: all, N (the last N), every:N (each N-th step, and the last two)",
        "2",
    )
    log_every: int | None = setting(whole(1), "steps between lines of metrics.jsonl")
    patience: int | None = setting(
        whole(1), "stop after this many validations without improvement of the deciding metric"
    )
    strategy: str = setting(
        one_of(*STRATEGIES),
        "how several processes (torchrun) hold the weights: replicated (ddp) or sharded (fsdp)",
        "ddp",
    )
    context_parallel: int = setting(
        whole(1), "how many processes share the positions of each sequence (decoder, next token); 1: none", 1
    )
    compile: bool = setting(flag, "run the model through torch.compile", False)
    graph: bool = setting(flag, "on a GPU with static shapes, run a step as one CUDA graph", True)
    deterministic: bool = setting(flag, "use deterministic kernels only", False)
    loaders: int = setting(whole(0), "processes that prepare the next batches meanwhile; 0: none", 0)
    report_to: str | None = setting(
        some_of(*REPORTERS), "also report metrics to some of tensorboard, wandb, mlflow, trackio, joined by commas"
    )
    init_from: str | None = setting(text, "a run whose matching weights to start from")
    optim: Optim = field(default_factory=Optim)


# These settings cannot change on resume: they determine what is learned, from which batches, and what the weights and
# the optimiser state mean; with another eval_limit, "best" would compare different validations. Every other setting may
# change; `run_folder/changes.py` records from which step on.
FIXED = (
    "task",
    "model",
    "attention",
    "data",
    "seed",
    "precision",
    "batch_size",
    "accumulate",
    "bucket",
    "eval_limit",
    "init_from",
    "optim.optimizer",
    "optim.average",
)


def settings(kind: type = Config, prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    """All settings by dotted name."""
    fields: dict[str, dataclasses.Field[Any]] = {}
    for declared in dataclasses.fields(kind):
        if declared.name == "optim":
            fields.update(settings(Optim, "optim."))
        else:
            fields[prefix + declared.name] = declared
    return fields


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings under dotted names: `{"optim": {"lr": 1}}` as `{"optim.lr": 1}`."""
    dotted: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            dotted.update({f"{name}.{key}": v for key, v in flat(value).items()})
        else:
            dotted[str(name)] = value
    return dotted


def read(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Read settings by dotted name; returns the typed values and a list of mistakes."""
    declared = settings()
    clean: dict[str, Any] = {}
    mistakes: list[str] = []
    for spelled, raw_value in flat(values).items():
        name = spelled.replace("-", "_")
        if name not in declared:
            near = closest(name, declared)
            meant = "" if near is None else f" Did you mean {near!r}?"
            mistakes.append(f"{spelled}: there is no such setting.{meant}")
            continue
        try:
            clean[name] = declared[name].metadata["read"](raw_value)
        except Expected as wanted:
            mistakes.append(f"{spelled}: expected {wanted}, got {raw_value!r}.")
    return clean, mistakes


def make(clean: Mapping[str, Any]) -> Config:
    """Make a Config from typed settings by dotted name."""
    fields = {name: value for name, value in clean.items() if "." not in name}
    optim_fields = {name.partition(".")[2]: value for name, value in clean.items() if "." in name}
    return Config(**fields, optim=Optim(**optim_fields))


def non_defaults(config: Config) -> dict[str, Any]:
    """The settings of a Config that differ from the defaults, by dotted name."""
    values = flat(dataclasses.asdict(config))
    return {name: values[name] for name, declared in settings().items() if values[name] != declared.default}


def mistakes_of(check: Callable[[], object]) -> list[str]:
    """The message of a check that raises, as a list; empty if it passes."""
    try:
        check()
    except RegardError as mistake:
        return [str(mistake)]
    return []


def refuse(mistakes: list[str]) -> None:
    """Raise one error for all mistakes, if there are any."""
    if mistakes:
        head = "" if len(mistakes) == 1 else f"{len(mistakes)} mistakes in the settings:\n  "
        raise BadValue(head + "\n  ".join(mistakes))


def to_yaml(config: Config) -> str:
    """The settings as YAML, as `--config` reads it."""
    plain = dataclasses.asdict(config)
    plain["data"] = list(config.data)
    plain["optim"]["betas"] = None if config.optim.betas is None else list(config.optim.betas)
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text


def from_yaml(path: str | Path) -> dict[str, Any]:
    """Read settings from a file, unvalidated. Only plain data is accepted: no tags, no objects, no aliases."""
    return parse_yaml(read_bytes(path, "--config", plain_yaml.MOST_BYTES), path)


def parse_yaml(content: bytes, path: str | Path) -> dict[str, Any]:
    """The settings in the content of a file, unvalidated."""
    values = plain_yaml.parse(content, path, "--config")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise BadValue(f"--config: expected {path} to hold `setting: value` lines, got {type(values).__name__}.")
    _refuse_repeated(values, path)
    return values


def _refuse_repeated(values: Mapping[Any, Any], path: str | Path) -> None:
    """Raise if a file gives a setting twice: as `optim.lr` and inside `optim`, or with hyphen and underscore."""
    names = list(_names(values))
    plain = [name.replace("-", "_") for name in names]
    for index, name in enumerate(plain):
        if name in plain[:index]:
            both = f"{names[plain.index(name)]} and {names[index]}"
            raise BadValue(f"--config: {path} gives the setting {name} twice, as {both}. Keep one of them.")


def _names(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings given, with repetitions."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"

"""A signature for each row of the table, in the style of sacrebleu: what exactly was measured.

    task:digits|model:decoder|attention:causal|seeds:0,1,2|budget:1,000 steps|batch:32|lr:0.001|data:1a2b3c4d|…

The order of the parts is fixed. A `|` or `\\` inside a value is written with a `\\` before it; the first `:` of a part
ends its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from regard_workbench.comparison.job import Outcome, Settings
from regard_workbench.training import config as known
from regard_workbench.training.config.recipe import complete

# Settings with a part of their own, or without influence on results.
_ELSEWHERE = (
    "task",
    "data",
    "model",
    "attention",
    "seed",
    "steps",
    "budget",
    "batch_size",
    "optim.lr",
    "out",
    "name",
    "device",
    "log_every",
    "save_every",
    "keep",
    "report_to",
    "loaders",
)
_DIGITS = 8  # of a hash, enough to tell data sets apart


def signature(
    outcomes: Sequence[Outcome],
    *,
    task: str,
    model: str,
    attention: str,
    budget: str,
    trials: int = 0,
    match: str | None = None,
) -> str:
    """The signature of a row, from its finished runs, one for each seed."""
    fields: dict[str, Any] = {
        "task": task,
        "model": model,
        "attention": attention,
        "seeds": ",".join(str(outcome.seed) for outcome in outcomes),
        "budget": budget,
    }
    if outcomes:
        fields |= _settings(outcomes[0].settings)
    if match:
        fields["match"] = match
    if trials:
        fields["trials"] = trials
    fields["beam"] = _several(str(outcome.beam or "") for outcome in outcomes)
    fields["data"] = _several(outcome.data_sha256[:_DIGITS] for outcome in outcomes)
    for name in ("regard", "torch", "device"):
        fields[name] = _several(outcome.versions.get(name, "") for outcome in outcomes)
    for name in dict.fromkeys(name for outcome in outcomes for name in outcome.protocol):
        fields[name] = _several(outcome.protocol.get(name, "") for outcome in outcomes)
    return "|".join(f"{name}:{_escaped(str(value))}" for name, value in fields.items() if value != "")


def _settings(settings: Settings) -> dict[str, Any]:
    """Batch size, learning rate, and every other setting that affects results and differs from its default."""
    config = complete(settings)
    fields: dict[str, Any] = {"batch": config.batch_size, "lr": f"{config.optim.lr:g}"}
    if config.data:
        fields["files"] = ",".join(PurePath(path).name for path in config.data)
    written, _ = known.read(settings)  # valid, or `complete` would have raised
    for name, setting in known.settings().items():
        if name not in _ELSEWHERE and written.get(name, setting.default) != setting.default:
            fields[name.removeprefix("optim.")] = _plain(written[name])
    return fields


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _several(values: Iterable[str]) -> str:
    """The value that all runs share; else all distinct values."""
    return ",".join(dict.fromkeys(value for value in values if value))


def _escaped(value: str) -> str:
    """A value with its separators escaped."""
    return " ".join(value.replace("\\", "\\\\").replace("|", "\\|").split())

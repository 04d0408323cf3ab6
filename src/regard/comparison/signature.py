"""One line that tells a number of a table from every other, in the manner of sacrebleu.

    task:digits|model:decoder|attention:causal|seeds:0,1,2|budget:1,000 steps|batch:32|lr:0.001|data:1a2b3c4d|…

The order of the parts is fixed. A `|` or `\\` inside a value is written with a `\\` before it; the first `:` of a part
ends its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from regard.comparison.job import Outcome, Settings
from regard.training import config as known
from regard.training.config.recipe import complete

# Told by their own part, or without a say in any number.
_ELSEWHERE = (
    "task", "data", "model", "attention", "seed", "steps", "budget", "batch_size", "optim.lr",
    "out", "name", "device", "log_every", "save_every", "keep", "report_to",
)  # fmt: skip
_DIGITS = 8  # of a hash, enough to tell data sets apart


def signature(
    outcomes: Sequence[Outcome],
    *,
    task: str,
    model: str,
    attention: str,
    budget: str,
    trials: int = 0,
) -> str:
    """The line for the row whose finished runs these are, one for each seed."""
    parts: dict[str, Any] = {
        "task": task,
        "model": model,
        "attention": attention,
        "seeds": ",".join(str(outcome.seed) for outcome in outcomes),
        "budget": budget,
    }
    if outcomes:
        parts |= _settings(outcomes[0].settings)
    if trials:
        parts["trials"] = trials
    parts["beam"] = _several(str(outcome.beam or "") for outcome in outcomes)
    parts["data"] = _several(outcome.data_sha256[:_DIGITS] for outcome in outcomes)
    for name in ("regard", "torch", "device"):
        parts[name] = _several(outcome.versions.get(name, "") for outcome in outcomes)
    for name in dict.fromkeys(name for outcome in outcomes for name in outcome.protocol):
        parts[name] = _several(outcome.protocol.get(name, "") for outcome in outcomes)
    return "|".join(f"{name}:{_escaped(str(value))}" for name, value in parts.items() if value != "")


def _settings(settings: Settings) -> dict[str, Any]:
    """Batch and learning rate in any case, and whatever was said that can change a number."""
    config = complete(settings)
    found: dict[str, Any] = {"batch": config.batch_size, "lr": f"{config.optim.lr:g}"}
    if config.data:
        found["files"] = ",".join(PurePath(path).name for path in config.data)
    said, _ = known.read(settings)  # without mistakes, or it could not have been completed
    for name, one in known.settings().items():
        if name not in _ELSEWHERE and said.get(name, one.default) != one.default:
            found[name.removeprefix("optim.")] = _plain(said[name])
    return found


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _several(values: Iterable[str]) -> str:
    """The value all runs share; where they do not, every one of them."""
    return ",".join(dict.fromkeys(value for value in values if value))


def _escaped(value: str) -> str:
    """A value without anything that could end it early."""
    return " ".join(value.replace("\\", "\\\\").replace("|", "\\|").split())

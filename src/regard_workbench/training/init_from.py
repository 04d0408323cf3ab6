"""What a run begins with (`--init-from`): another run, or a checkpoint of the Hub's form.

The model of a checkpoint says itself how it is built, so `--model` may be left out: the run's settings then hold the
model with all its options, and the checkpoint is not needed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.errors import BadValue
from regard.registry import parse, written
from regard_workbench.models.pretrained.source import HUB, is_hub_form, located
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.training.run_folder import selection
from regard_workbench.training.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from regard_workbench.models.pretrained.loading import Pretrained

WIDTH = "dim"  # the option that every model of a checkpoint has in its text


@dataclass(frozen=True)
class Origin:
    """Weights by the names that a model of regard has for them, and the state of a task."""

    weights: Mapping[str, Tensor]
    task: Mapping[str, Any]


def origin_of(path: str, tell: Callable[[str], None] = lambda line: None) -> Origin:
    """What is at `path`: the best checkpoint of a run, or a checkpoint of the Hub's form."""
    if is_pretrained(path):
        from regard_workbench.models.pretrained.loading import read_pretrained

        pretrained, weights = read_pretrained(located(path, argument="init_from"))
        return Origin(weights, _task_state(pretrained))
    run = RunFolder(Path(path))
    if not run.exists:
        raise BadValue(
            f"init_from: there is no run in {path} (no config.yaml) and no checkpoint (no config.json). Pass the "
            f"folder of one, or {HUB}NAME for a model of the Hub."
        )
    best = selection.require(run, selection.BEST, tell)
    return Origin(best.weights, best.state.get("task") or {})


def is_pretrained(path: str) -> bool:
    """Whether a path is a checkpoint of the Hub's form, or names one of the Hub."""
    return path.startswith(HUB) or is_hub_form(path)


def model_of(path: str, model: str | None) -> str | None:
    """The model that a run builds: that of the checkpoint at `path`, with the options that `model` adds.

    Another model than the checkpoint's, and one that is complete already, stay as they are.
    """
    name, inside = (None, {}) if model is None else parse(model)
    if not is_pretrained(path) or WIDTH in inside:
        return model
    from regard_workbench.models.pretrained.loading import plan_pretrained

    plan = plan_pretrained(located(path, argument="init_from"))[0].plan
    options = {**plan.body, **(plan.head if plan.problem.answer.needs == "pooled" else {}), **inside}
    return written(plan.model, options) if name in (None, plan.model) else model


def _task_state(found: Pretrained) -> dict[str, Any]:
    from regard_workbench.models.pretrained.tokenizer import vocabulary_state

    tokens = found.plan.problem.inputs
    assert isinstance(tokens, Tokens)
    state: dict[str, Any] = {"vocabulary": vocabulary_state(found.folder, tokens.count)}
    return state if tokens.length is None else {**state, "max_length": tokens.length}

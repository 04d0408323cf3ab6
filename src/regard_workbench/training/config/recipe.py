"""Complete the settings of a run with the task's recipe, and report all mistakes in them together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from regard.nn.parts.mechanism import entry
from regard.registry import parse
from regard_workbench import tasks
from regard_workbench.models.parts.model import MODELS, preset_settings
from regard_workbench.tasks.parts.task import TASKS
from regard_workbench.training import config as settings
from regard_workbench.training.config import Config
from regard_workbench.training.config.budget import parse as parse_budget
from regard_workbench.training.run_folder.folder import checked_name


def complete(values: Mapping[str, Any] | Config) -> Config:
    """Fill in missing settings from the model's preset and the task's recipe; raise one error for all mistakes."""
    if isinstance(values, Config):
        values = dataclasses.asdict(values)
    clean, mistakes = settings.read(values)
    mistakes += _unknown_names(clean)
    if clean.get("name"):
        mistakes += settings.mistakes_of(lambda: checked_name(clean["name"]))
    if not clean.get("task"):
        mistakes.append(f"task: name the task to train. There are: {', '.join(tasks.names())}.")
    mistakes += _check_length(clean)
    settings.refuse(mistakes)

    if clean.get("init_from"):
        from regard_workbench.training.init_from import model_of

        clean["model"] = model_of(clean["init_from"], clean.get("model"))
    recipe = TASKS[parse(clean["task"])[0]].recipe
    budgeted = clean.get("budget") is not None  # then the number of steps is unknown
    for name in ("model", "batch_size", "accumulate", *(() if budgeted else ("steps",))):
        clean[name] = getattr(recipe, name) if clean.get(name) is None else clean[name]
    clean["model"] = model_for(clean["model"], clean["task"])
    preset = preset_settings(clean["model"], clean.get("optim.warmup"))
    for name in ("optimizer", "lr", "weight_decay", "betas", "warmup", "smoothing", "schedule", "clip"):
        dotted = f"optim.{name}"
        if clean.get(dotted) is None:
            clean[dotted] = preset.get(name, getattr(recipe, name))
    often, logged = 1000, 10  # steps; a budget is also validated and saved at each tenth
    if not budgeted:
        often, logged = max(1, min(often, clean["steps"] // 10)), max(1, min(logged, clean["steps"] // 20))
    for name, every in (("eval_every", often), ("save_every", often), ("log_every", logged)):
        clean[name] = every if clean.get(name) is None else clean[name]
    return settings.make(clean)


def _check_length(clean: dict[str, Any]) -> list[str]:
    """Reject settings that give both steps and a budget; turn a budget in steps into steps."""
    if clean.get("budget") is None:
        return []
    budget = parse_budget(clean["budget"])
    if clean.get("steps") is not None and (budget.kind, budget.amount) != ("steps", clean["steps"]):
        return [f"steps, budget: expected one of them, got steps {clean['steps']} and budget {str(budget)!r}."]
    if budget.kind == "steps":
        clean |= {"steps": budget.amount, "budget": None}
    return []


def model_for(model: str, task: str) -> str:
    """The model a task's recipe means by a bare name; a name with brackets, `transformer()`, stays as it is."""
    return TASKS[parse(task)[0]].recipe.models.get(model, model)


def _unknown_names(clean: Mapping[str, Any]) -> list[str]:
    messages: list[str] = []
    for setting, entry_of in (("task", TASKS.__getitem__), ("model", MODELS.__getitem__), ("attention", entry)):
        if clean.get(setting):
            mistakes = settings.mistakes_of(lambda: entry_of(parse(clean[setting])[0]))  # noqa: B023 (called at once)
            # Parsing errors say `name:`; here the setting is named instead.
            messages += [
                f"{setting}: {text.removeprefix('name: ')}" if text.startswith("name: ") else text for text in mistakes
            ]
    return messages

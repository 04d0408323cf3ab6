"""Who runs against whom: models × attentions × seeds, less the cells that make no sense, as jobs.

A cell is tried out before anything trains: its model is built for the task and answers two examples. Names that nobody
knows are mistakes, told together. A combination that cannot work is a mistake where it is all that was asked for; among
several it is left out, and why is said.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.comparison.job import Contestant, Job, Settings
from regard.errors import BadValue, RegardError
from regard.models.model import MODELS, fits
from regard.nn.mechanism import MECHANISMS, entry, names, options_of
from regard.registry import parse
from regard.tasks.task import Task
from regard.training import config
from regard.training.build import build_model, build_task
from regard.training.config.recipe import complete
from regard.training.data import generator
from regard.training.evaluation import decoding_of
from regard.training.run_folder.folder import checked_name

ALL = "all"
RUNS = "runs"  # the folder of the runs inside that of the comparison
_LONGEST_SLUG = 70


@dataclass(frozen=True)
class RunGrid:
    """Who takes part, with which settings; and which cells do not, and why."""

    settings: Settings  # shared by all, checked, by dotted name
    contestants: list[Contestant]
    left_out: list[tuple[str, str]] = field(default_factory=list)  # label, why


def compose(
    settings: Mapping[str, Any],
    models: Sequence[str],
    attentions: Sequence[str] = (),
    *,
    beam: int | None = None,
) -> RunGrid:
    """The contestants of a task; `all` stands for every model that serves it, every mechanism that serves in a model.

    Without attentions each model has its own.
    """
    clean, mistakes = config.read(settings)
    clean = {name: value for name, value in clean.items() if value is not None}
    checks: list[Callable[[], object]] = [] if mistakes else [partial(complete, clean)]
    checks += [partial(_model, name) for name in models] + [partial(_attention, name) for name in attentions]
    mistakes += [found for check in checks for found in config.mistakes_of(check)]
    mistakes += ["models: expected at least one."] if not models else []
    config.refuse(mistakes)

    task = build_task(complete(clean))
    task.examples("test")  # a task that has none says so now
    wanted = [name for one in models for name in (_serving(task) if one == ALL else [one])]
    inside: list[str | None] = [
        name for one in attentions for name in (_mechanisms() if one == ALL else [one])
    ]
    cells = list(dict.fromkeys(Contestant(model, one) for model in wanted for one in inside or [None]))
    return _tried(clean, task, cells, beam)


def _tried(settings: Settings, task: Task, cells: Sequence[Contestant], beam: int | None) -> RunGrid:
    asked: dict[str, str] = {}  # the answer in words, and the first contestant that was asked for it
    taken, left_out = [], []
    for cell in cells:
        try:
            answer = _try(task, settings, cell, beam)
        except RegardError as mistake:
            left_out.append((cell.label, str(mistake)))
            continue
        if asked and answer not in asked:
            (other, who), *_ = asked.items()
            why = f"it would be asked for {answer}, {who} for {other}: their numbers do not compare."
            left_out.append((cell.label, why))
            continue
        asked.setdefault(answer, cell.label)
        taken.append(cell)
    if not taken:
        if len(left_out) == 1:
            raise BadValue(left_out[0][1])
        lines = [f"{label}: {_short(why)}" for label, why in left_out]
        raise BadValue("\n  ".join(["none of what was asked for can be compared:", *lines]))
    return RunGrid(settings, taken, [(label, _short(why)) for label, why in left_out])


def _try(task: Task, settings: Settings, cell: Contestant, beam: int | None) -> str:
    """Build the cell's model and let it answer; returns its answer in words. Raises what the run would raise."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            model = build_model(complete({**settings, **_named(cell)}), task)
            decoding_of(task, beam)
            examples = task.examples("train")
            batch = task.batch(examples, range(min(2, len(examples))), generator("grid"), model)
            model.eval()(batch)
        except RegardError:
            raise
        except (
            Exception
        ):  # a model of the user may fail in any way; its run will say so, and the others go on
            return task.problem.answer.words
    return task.problem.answer.words


def _short(why: str) -> str:
    """Without the list of what would have been possible, which helps once but not in every line."""
    return re.sub(r" These can: .*", "", why, flags=re.DOTALL)


def _serving(task: Task) -> list[str]:
    """Every model for the usual question of a task."""
    problem = task.problems()[0]
    return [name for name in sorted(MODELS.names()) if fits(MODELS[name], problem)]


def _mechanisms() -> list[str]:
    """Every mechanism, with no more options than it needs."""
    found = []
    for name in names():
        known = options_of(MECHANISMS[name].layer)
        needed = {
            option: value
            for option, value in MECHANISMS[name].needs.items()
            if option in known and known[option].default is known[option].empty
        }
        inside = ", ".join(f"{option}={value}" for option, value in needed.items())
        found.append(f"{name}({inside})" if inside else name)
    return found


def _model(name: str) -> object:
    return name == ALL or MODELS[parse(name)[0]]


def _attention(name: str) -> object:
    return name == ALL or entry(parse(name)[0])


def _named(contestant: Contestant) -> Settings:
    found: Settings = {"model": contestant.model}
    return found if contestant.attention is None else {**found, "attention": contestant.attention}


def jobs(
    grid: RunGrid,
    seeds: Sequence[int],
    out: Path,
    *,
    chosen: Mapping[str, Settings] | None = None,
    threads: int = 1,
    beam: int | None = None,
    use: tuple[str, ...] = (),
) -> list[Job]:
    """One for each contestant and seed, each in OUT/runs/<contestant>-seed-<n>; `chosen`: settings by label."""
    found = []
    for contestant in grid.contestants:
        own = {**grid.settings, **_named(contestant), **(chosen or {}).get(contestant.label, {})}
        for seed in seeds:
            folder = out.absolute() / RUNS / checked_name(f"{slug(contestant)}-seed-{seed}")
            found.append(
                Job(contestant, seed, {**own, "seed": seed}, str(folder), threads=threads, beam=beam, use=use)
            )
    return found


def slug(contestant: Contestant) -> str:
    """A contestant as part of a folder's name: readable, and not that of any other, whoever else takes part."""
    raw = [part for part in (contestant.model, contestant.attention) if part is not None]
    plain = [re.sub(r"[^a-z0-9-]+", "-", part.lower()).strip("-") or "run" for part in raw]
    if plain == raw and len("+".join(plain)) <= _LONGEST_SLUG:
        return "+".join(plain)
    return "+".join(plain)[:_LONGEST_SLUG] + "-" + hashlib.sha256("+".join(raw).encode()).hexdigest()[:6]

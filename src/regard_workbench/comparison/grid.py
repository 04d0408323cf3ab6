"""The grid of a comparison, models × attentions × origins × seeds, as jobs; combinations that cannot run are left out.

Each combination is tried before anything trains: its model is built for the task and run on two examples. Unknown names
are reported together as one error. A combination that cannot run is an error where it is the only one; among several it
is left out, and the reason is reported.
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

from regard.errors import BadValue, RegardError
from regard.nn.parts.mechanism import MECHANISMS, entry, names, options_of
from regard.registry import parse
from regard_workbench.comparison.job import SCRATCH, Contestant, Job, Settings
from regard_workbench.models.parts.model import MODELS, fits
from regard_workbench.tasks.parts.task import Task
from regard_workbench.training import config
from regard_workbench.training.build import build_model, build_new_model, build_task
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.data import generator
from regard_workbench.training.evaluation import decoding_of
from regard_workbench.training.init_from import origin_of
from regard_workbench.training.run_folder.folder import checked_name

ALL = "all"
RUNS = "runs"  # the folder of the runs inside that of the comparison
_LONGEST_SLUG = 70


@dataclass(frozen=True)
class RunGrid:
    """The contestants and their settings; and which combinations were left out, and why."""

    settings: Settings  # shared by all contestants, validated, by dotted name
    contestants: list[Contestant]
    models: Mapping[str, str] = field(default_factory=dict)  # with the widths of `--match`, by label
    left_out: list[tuple[str, str]] = field(default_factory=list)  # label and reason


def compose(
    settings: Mapping[str, Any],
    models: Sequence[str],
    attentions: Sequence[str] = (),
    origins: Sequence[str] = (),
    *,
    beam: int | None = None,
) -> RunGrid:
    """The contestants of a task; `all` means every model that fits it, or every mechanism that fits a model.

    Without attentions each model has its default one. `origins`: runs whose weights each contestant begins with, one
    after the other, or `SCRATCH`; without any, all begin as the settings say.
    """
    clean, mistakes = config.read(settings)
    clean = {name: value for name, value in clean.items() if value is not None}
    checks: list[Callable[[], object]] = [] if mistakes else [partial(complete, clean)]
    checks += [partial(_model, name) for name in models] + [partial(_attention, name) for name in attentions]
    checks += [partial(origin_of, name) for name in origins if name != SCRATCH]
    mistakes += [mistake for check in checks for mistake in config.mistakes_of(check)]
    mistakes += ["models: expected at least one."] if not models else []
    config.refuse(mistakes)

    task = build_task(complete(clean))
    task.examples("test")  # a task without test data raises here, before anything runs
    wanted = [name for model_name in models for name in (_serving(task) if model_name == ALL else [model_name])]
    inside: list[str | None] = [
        name for attention in attentions for name in (_mechanisms() if attention == ALL else [attention])
    ]
    begins: list[str | None] = [*origins]
    cells = list(
        dict.fromkeys(
            Contestant(model, attention, origin)
            for model in wanted
            for attention in inside or [None]
            for origin in begins or [None]
        )
    )
    return _tried(clean, task, cells, beam)


def _tried(settings: Settings, task: Task, cells: Sequence[Contestant], beam: int | None) -> RunGrid:
    answers: dict[str, str] = {}  # the answer in words, and the first contestant that was asked for it
    comparable, left_out = [], []
    for cell in cells:
        try:
            answer = _try(task, settings, cell, beam)
        except RegardError as mistake:
            left_out.append((cell.label, str(mistake)))
            continue
        if answers and answer not in answers and not task.answers_compare:
            (other_answer, who), *_ = answers.items()
            why = f"it would be asked for {answer}, {who} for {other_answer}: their numbers do not compare."
            left_out.append((cell.label, why))
            continue
        answers.setdefault(answer, cell.label)
        comparable.append(cell)
    if not comparable:
        if len(left_out) == 1:
            raise BadValue(left_out[0][1])
        lines = [f"{label}: {_short(why)}" for label, why in left_out]
        raise BadValue("\n  ".join(["none of the combinations can be compared:", *lines]))
    return RunGrid(settings, comparable, left_out=[(label, _short(why)) for label, why in left_out])


def _try(task: Task, settings: Settings, cell: Contestant, beam: int | None) -> str:
    """Build the combination's model and run it; returns its answer in words. Raises what the run would raise."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            config = complete({**settings, **named(cell)})
            if cell.init_from is None:
                model = build_model(config, task)
            else:  # the vocabulary of the other run must not reach the other contestants
                task = build_task(config)
                model = build_new_model(config, task, lambda line: None)
            decoding_of(task, beam)
            examples = task.examples("train")
            batch = task.batch(examples, range(min(2, len(examples))), generator("grid"), model)
            model.eval()(batch)
        except RegardError:
            raise
        except Exception:  # a model of the user may raise anything; its run reports that, and the others continue
            return task.problem.answer.words
    return task.problem.answer.words


def _short(why: str) -> str:
    """The reason without the list of alternatives, which would repeat in every line."""
    return re.sub(r" These can: .*", "", why, flags=re.DOTALL)


def _serving(task: Task) -> list[str]:
    """Every model that fits the default problem of a task."""
    problem = task.problems()[0]
    return [name for name in sorted(MODELS.names()) if fits(MODELS[name], problem)]


def _mechanisms() -> list[str]:
    """Every mechanism, with the options it requires."""
    spellings = []
    for name in names():
        options = options_of(MECHANISMS[name].layer)
        needed = {
            option: value
            for option, value in MECHANISMS[name].needs.items()
            if option in options and options[option].default is options[option].empty
        }
        inside = ", ".join(f"{option}={value}" for option, value in needed.items())
        spellings.append(f"{name}({inside})" if inside else name)
    return spellings


def _model(name: str) -> object:
    return name == ALL or MODELS[parse(name)[0]]


def _attention(name: str) -> object:
    return name == ALL or entry(parse(name)[0])


def named(contestant: Contestant, models: Mapping[str, str] | None = None) -> Settings:
    """The settings that name a contestant; `models`: those with another width than the user wrote, by label."""
    settings: Settings = {"model": (models or {}).get(contestant.label, contestant.model)}
    if contestant.attention is not None:
        settings["attention"] = contestant.attention
    if contestant.init_from not in (None, SCRATCH):
        settings["init_from"] = contestant.init_from
    return settings


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
    """One job for each seed and contestant, in OUT/runs/<contestant>-seed-<n>; `chosen`: tuned settings by label.

    The first seed of everyone comes before the second of anyone: a comparison that is stopped has all contestants.
    """
    planned = []
    for seed in seeds:
        for contestant in grid.contestants:
            tuned = (chosen or {}).get(contestant.label, {})
            settings = {**grid.settings, **named(contestant, grid.models), **tuned}
            folder = out.absolute() / RUNS / checked_name(f"{slug(contestant)}-seed-{seed}")
            planned.append(
                Job(contestant, seed, {**settings, "seed": seed}, str(folder), threads=threads, beam=beam, use=use)
            )
    return planned


def slug(contestant: Contestant) -> str:
    """A contestant as part of a folder's name: readable, and unique among all contestants."""
    every = (contestant.model, contestant.attention, contestant.init_from)
    raw = [component for component in every if component is not None]
    plain = [re.sub(r"[^a-z0-9-]+", "-", component.lower()).strip("-") or "run" for component in raw]
    if plain == raw and len("+".join(plain)) <= _LONGEST_SLUG:
        return "+".join(plain)
    return "+".join(plain)[:_LONGEST_SLUG] + "-" + hashlib.sha256("+".join(raw).encode()).hexdigest()[:6]

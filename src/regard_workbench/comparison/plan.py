"""What a comparison is asked to do, and how that is made from the arguments a user gives.

The command line and `regard.compare` make their plans here, so that both read names, seeds and times alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import BadValue, unknown_name
from regard.registry import parse, split
from regard_workbench import plugins
from regard_workbench.comparison import limits
from regard_workbench.comparison.columns import read_columns
from regard_workbench.comparison.comparison import DEFAULT_COLUMNS
from regard_workbench.comparison.convergence import read_target
from regard_workbench.comparison.job import SCRATCH, Settings
from regard_workbench.comparison.matching import MATCHES, NONE, PARAMETERS
from regard_workbench.tasks.parts.task import DEFAULT, TASKS
from regard_workbench.training.run_folder.folder import HOME, checked_name

SEEDS = 3
SINGLE = ("model", "attention", "seed", "out", "name")  # settings of one run, not of a comparison


@dataclass(frozen=True)
class ComparisonPlan:
    """What is asked for."""

    settings: Settings  # of every run, by dotted name, the task among them
    models: Sequence[str]  # "all": every one that serves the task
    out: Path
    attentions: Sequence[str] = ()  # none: each model's own; "all": every mechanism that serves in a model
    origins: Sequence[str] = ()  # of the weights: folders of runs, or "scratch"; none: as the settings say
    seeds: Sequence[int] = tuple(range(SEEDS))
    trials: int = 0  # of tuning, for each contestant
    space: str | None = None  # the search space of tuning; None: the default one
    engine: str = "local"
    address: str | None = None  # of a cluster
    workers: int | None = None  # processes at once; None: as many as fit
    threads: int | None = None  # of each process
    beam: int | None = None  # beam width for generated sequences; None: greedy
    use: tuple[str, ...] = ()  # plugin files of the user
    timeout: float | None = None  # seconds a run may take; None: no limit
    heartbeat: float | None = limits.HEARTBEAT  # seconds a run may go without progress; None: no limit
    match: str | None = None  # choose widths for equal "parameters" or "flops"; None: as they are
    target: float | None = None  # of validation, for convergence; None: the best score that every run reaches
    columns: tuple[str, ...] = DEFAULT_COLUMNS  # of the table
    command: str = "regard compare"


def make_plan(
    settings: Mapping[str, Any],
    *,
    models: str | Sequence[str] | None = None,
    attention: str | Sequence[str] | None = None,
    seeds: int | str | Sequence[int] = SEEDS,
    sweep: int = 0,
    space: str | None = None,
    out: str | Path | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    threads: int | None = None,
    beam: int | None = None,
    timeout: str | float | None = None,
    heartbeat: str | float | None = None,
    match: str | None = None,
    target: str | float | None = None,
    columns: str | Sequence[str] | None = None,
    command: str = "regard compare",
) -> ComparisonPlan:
    """The plan for arguments as a user gives them; what is None gets its default.

    `settings` are those of `regard train`, by dotted name; without a task the default one. Names may be one text joined
    by commas. `seeds` is a number of seeds or a list of them. `timeout` and `heartbeat` are seconds, a text such as
    "5 min", or "never". Several runs in the setting `init_from`, "scratch" among them, are compared with each other.
    Without `match`, the models that the task's recipe compares are matched by parameters; models that the user named
    keep their sizes.
    """
    counts = {"sweep": (sweep, 0), "workers": (workers, 1), "threads": (threads, 1), "beam": (beam, 1)}
    for name, (value, least) in counts.items():
        if value is not None and value < least:
            raise BadValue(f"{name}: expected at least {least}, got {value}.")
    shared = dict(settings)
    single = {name: shared.pop(name, None) for name in SINGLE}  # the settings file of one run holds them, too
    shared["task"] = shared.get("task") or DEFAULT
    chosen_seeds = read_seeds(seeds)
    attentions = _names("attention", attention, single["attention"])
    chosen_models = _names("models", models, single["model"])
    metric = TASKS[parse(shared["task"])[0]].metric  # an unknown task raises, with the names of the known ones
    usual = not chosen_models
    chosen_models = chosen_models or usual_models(shared["task"], attentions)
    if match is None:
        match = PARAMETERS if usual and len(chosen_models) > 1 else NONE
    if match not in MATCHES:
        raise unknown_name("match", match, MATCHES)
    matched = None if match == NONE else match
    origins = _origins(shared)
    question = [shared, chosen_models, attentions, chosen_seeds, sweep, space, beam]
    question += [] if matched is None else [matched]
    question += [origins] if origins else []
    return ComparisonPlan(
        settings=shared,
        models=chosen_models,
        attentions=attentions,
        origins=origins,
        seeds=chosen_seeds,
        out=default_folder(shared["task"], question) if out is None else Path(out),
        trials=sweep,
        space=space,
        engine=engine,
        address=address,
        workers=workers,
        threads=threads,
        beam=beam,
        use=plugins.loaded(),
        timeout=limits.seconds("timeout", timeout, default=None),
        heartbeat=limits.seconds("heartbeat", heartbeat, default=limits.HEARTBEAT),
        match=matched,
        target=read_target(target, metric),
        columns=read_columns(columns),
        command=command,
    )


def _names(argument: str, given: str | Sequence[str] | None, default: object) -> list[str]:
    """The names of an argument; commas inside parentheses do not separate. Without the argument the default, if any."""
    if given is None:
        return [] if default is None else [str(default)]
    names = [name.strip() for name in (split(given) if isinstance(given, str) else given)]
    if not names:
        raise BadValue(
            f"{argument}: expected names joined by commas, got {given!r}. `regard list` shows what there is."
        )
    return names


def _origins(shared: Settings) -> list[str]:
    """Several runs to begin with, taken out of the settings; none where the setting names at most one."""
    setting = shared.get("init_from")
    origins = split(setting) if isinstance(setting, str) and not Path(setting).is_dir() else setting
    if origins is None or isinstance(origins, str):
        return []
    names = [str(origin).strip() for origin in origins]
    if len(names) == 1:
        shared["init_from"] = names[0]
        if names[0] == SCRATCH:
            del shared["init_from"]
        return []
    if not all(names) or len(set(names)) < len(names):
        raise BadValue(f"init_from: expected different runs or {SCRATCH}, joined by commas, got {setting!r}.")
    del shared["init_from"]
    return names


def read_seeds(given: int | str | Sequence[int]) -> list[int]:
    """`3` means 0, 1, 2; with a comma, or as a list, these seeds: `0,7,11`, or `7,` for one."""
    text = given if isinstance(given, (int, str)) else "".join(f"{seed}," for seed in given)
    tokens = split(str(text))
    expected = f"seeds: expected how many, at least 1, or a list such as 0,7,11 (`7,` for one), got {given!r}."
    if not tokens or not all(token.strip().isdecimal() for token in tokens):
        raise BadValue(expected)
    numbers = [int(token) for token in tokens]
    if "," not in str(text):
        if not 1 <= numbers[0] <= 1000:
            raise BadValue(expected)
        return list(range(numbers[0]))
    if max(numbers) >= 2**63:
        raise BadValue(f"seeds: expected numbers below 2⁶³, got {given!r}.")
    if len(set(numbers)) < len(numbers):
        raise BadValue(f"seeds: a seed appears twice in {given!r}; expected each seed once.")
    return numbers


def usual_models(task: str, attentions: Sequence[str]) -> list[str]:
    """The models that are compared where none are named: the recipe's; with attentions one of them."""
    recipe = TASKS[parse(task)[0]].recipe
    return list(recipe.compared) if recipe.compared and not attentions else [recipe.model]


def default_folder(task: str, question: Sequence[Any]) -> Path:
    """The folder of a comparison without `out`: the same for the same question, so that a second command resumes it."""
    digest = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return Path(HOME) / checked_name(f"compare-{parse(task)[0]}-{digest}")

"""A comparison read back from its folder: from what each run left there, so that an unfinished one can be read, too."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard.comparison.compare import words
from regard.comparison.comparison import Comparison
from regard.comparison.costs import FILE as COSTS
from regard.comparison.grid import RUNS
from regard.comparison.job import Contestant, Cost, Outcome
from regard.training.config import budget
from regard.training.config.recipe import complete

OWN = ("model", "attention", "seed")  # settings of a single run


class Unreadable(Exception):
    """A folder that does not hold what the study needs; the message says what to do."""


def read(folder: Path, command: str) -> Comparison:
    """The comparison in a folder; contestants in alphabetical order, as they were listed or found."""
    outcomes = [found for path in sorted((folder / RUNS).glob("*")) if (found := Outcome.load(path))]
    done = [outcome for outcome in outcomes if not outcome.error]
    if not done:
        raise Unreadable(f"{folder}: no run has finished there. Start it: python benchmarks/study.py run")
    for outcome in done:
        _check(outcome)
    shared = _shared(outcomes, folder)
    asked = budget.budget_of(complete(done[0].settings))
    if any(run.stopped_by == "steps" and run.steps != asked.amount for run in done if asked.kind == "steps"):
        raise Unreadable(f"{folder}: its runs are older than the recipe, which says {asked}. Run it again.")
    contestants = list(dict.fromkeys(Contestant(outcome.model, outcome.attention) for outcome in outcomes))
    return Comparison(
        task=done[0].settings["task"],
        settings=shared,
        contestants=contestants,
        seeds=sorted({outcome.seed for outcome in outcomes}),
        outcomes=outcomes,
        costs=_costs(folder / COSTS, shared),
        left_out=[],
        budget=words(asked),
        command=command,
        out=folder,
    )


def finish(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Metrics from sums and counts, as the tasks of this study make them: means, and perplexity from the loss."""
    found = {name: total / count for name, (total, count) in sums.items() if count}
    if "loss" in found:
        found["perplexity"] = math.exp(found["loss"])
    return found


def machine(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Where and with what the runs were made: python, torch, system, processors; several where they differ."""
    found: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        notes: dict[str, Any] = dict(outcome.versions)
        with suppress(OSError, ValueError):
            notes |= json.loads((Path(outcome.folder) / "env.json").read_bytes())
        for name in ("regard", "torch", "python", "device", "system", "processors"):
            if notes.get(name) not in (None, ""):
                found.setdefault(name, {})[str(notes[name])] = None
    return {name: ", ".join(values) for name, values in found.items()}


def _check(outcome: Outcome) -> None:
    """That a run's number is the one its blocks add up to: else tests over blocks would be about something else."""
    sums: dict[str, tuple[float, float]] = {}
    for block in outcome.blocks:
        for name, (total, count) in block.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + count)
    again, told = finish(sums).get(outcome.metric), outcome.test.get(outcome.metric)
    if told is None:  # no number came out, which is told as a result
        return
    if again is None or not math.isclose(again, told, rel_tol=1e-9, abs_tol=1e-12):
        raise Unreadable(f"{outcome.folder}: {outcome.metric} is {told}, but its blocks make {again}.")


def _shared(outcomes: Iterable[Outcome], folder: Path) -> dict[str, Any]:
    """The settings all runs have in common, which must be all but who runs."""
    kinds = {json.dumps(_common(one.settings), sort_keys=True) for one in outcomes}
    if len(kinds) != 1:
        raise Unreadable(
            f"{folder}: its runs had {len(kinds)} different settings. Empty it and run it again."
        )
    shared: dict[str, Any] = json.loads(kinds.pop())
    return shared


def _common(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in OWN}


def _costs(path: Path, shared: Mapping[str, Any]) -> dict[str, Cost]:
    """What a step costs with these settings, by a contestant's label; empty before it was measured."""
    try:
        content = json.loads(path.read_bytes())
    except OSError:
        return {}
    found = {}
    for key, cost in content.items():
        settings, _ = json.loads(key)
        if _common(settings) == shared:
            found[Contestant(settings["model"], settings.get("attention")).label] = Cost(**cost)
    return found

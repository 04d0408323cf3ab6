"""Accuracy under attack, where `regard attack RUN --keep` has measured it for runs of the comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard_workbench.comparison.comparison import Comparison
from regard_workbench.comparison.results import Row, runs_of
from regard_workbench.comparison.statistics import interval
from regard_workbench.figures.style import Key, Keys
from regard_workbench.training.run_folder import durable

FOLDER = "attacks"  # in the folder of a run
LARGEST = 2**22  # bytes of one file


@dataclass(frozen=True)
class UnderAttack:
    """One attack: its budgets, and the accuracy of each contestant under each, as text."""

    title: str
    budgets: list[str]
    rows: list[tuple[Key, list[str]]]
    seeds: int  # the least number of runs behind a cell


def table(comparison: Comparison, rows: Sequence[Row], keys: Keys) -> list[UnderAttack]:
    """One table for each attack that was measured on some run."""
    accuracies: dict[str, dict[str, dict[str, list[float]]]] = {}  # attack → label → budget → accuracies
    labels = {row["label"] for row in rows}
    for contestant in comparison.contestants:
        for run in runs_of(comparison, contestant):
            if run.error or contestant.label not in labels:
                continue
            for attack in _read(Path(run.folder) / FOLDER):
                by_budget = accuracies.setdefault(attack["title"], {}).setdefault(contestant.label, {})
                for budget, accuracy in attack["accuracy"].items():
                    by_budget.setdefault(budget, []).append(accuracy)
    return [_made(title, by_label, rows, keys) for title, by_label in sorted(accuracies.items())]


def _made(title: str, by_label: dict[str, dict[str, list[float]]], rows: Sequence[Row], keys: Keys) -> UnderAttack:
    budgets = list(dict.fromkeys(budget for by_budget in by_label.values() for budget in by_budget))
    counts = [len(values) for by_budget in by_label.values() for values in by_budget.values()]
    body = [
        (keys[row["label"]], [_cell(by_label[row["label"]].get(budget, [])) for budget in budgets])
        for row in rows
        if row["label"] in by_label
    ]
    return UnderAttack(title, budgets, body, min(counts, default=0))


def _cell(accuracies: Sequence[float]) -> str:
    if not accuracies:
        return "–"
    over = interval(accuracies)
    return f"{100 * over.mean:.1f} %" + (f" ({len(accuracies)} runs)" if len(accuracies) > 1 else "")


def _read(folder: Path) -> list[dict[str, Any]]:
    """The attacks stored in a run; a file that is not one is left out, as the run is not."""
    attacks = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            content = json.loads(durable.read(path, LARGEST))
            run = content["runs"][0]
            clean = {"none": float(run["clean"]["value"])}
            accuracy = {_budget(row): float(row["accuracy"]["value"]) for row in run["rows"]}
            title = f"{content['attack']['method']}, {run['split']} split"
        except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
            continue
        attacks.append({"title": str(title)[:200], "accuracy": {**clean, **accuracy}})
    return attacks


def _budget(row: dict[str, Any]) -> str:
    size = f"ε = {row['eps']:.4g}" if row.get("eps") is not None else f"{int(row['words'])} words"
    return f"{size}, {str(row['choice'])[:60]}" if row.get("choice") else size

"""What a comparison found, as plain data: who took part, how each run went, what a step costs, under which rules."""

from __future__ import annotations

import html
import io
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.support.display import html_frame
from regard_workbench.comparison.job import Contestant, Cost, Outcome, Settings
from regard_workbench.comparison.matching import Match
from regard_workbench.figures.history import RunHistory, history
from regard_workbench.training.run_folder import metrics_file
from regard_workbench.training.run_folder.folder import RunFolder

REPORT = "report.html"
DEFAULT_COLUMNS = ("speed", "validation", "test")  # beside the name: those of the user's table


@dataclass(frozen=True)
class Comparison:
    """Everything that tables, figures and reports are made of.

    `print(comparison)` shows its table; in a notebook it shows its report, with the table and the figures.
    """

    task: str
    settings: Settings  # shared by all contestants, by dotted name
    contestants: list[Contestant]
    seeds: list[int]
    outcomes: list[Outcome]  # of all jobs, failed ones included
    costs: dict[str, Cost]  # by a contestant's label
    left_out: list[tuple[str, str]]  # the label of a combination that cannot run, and why
    budget: str  # of each run, in words: "2,000 steps"
    command: str  # the command that made it, as a shell reads it
    out: Path
    engine: str = "local"
    trials: int = 0  # of tuning that each contestant got
    chosen: dict[str, Settings] = field(default_factory=dict)  # settings that tuning chose, by a contestant's label
    match: Match | None = None  # widths that were chosen for equal size
    target: float | None = None  # of validation, for convergence; None: the best score that every run reaches
    columns: tuple[str, ...] = DEFAULT_COLUMNS  # of the table

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each contestant, as in `results.json`."""
        from regard_workbench.comparison.results import rows

        return rows(self)

    @cached_property
    def pairs(self) -> list[dict[str, Any]]:
        """One row for each pair of contestants, as in `differences.json`: the difference on the test, and its tests."""
        from regard_workbench.comparison.results import paired_rows

        return paired_rows(self)

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.out / REPORT

    def __str__(self) -> str:
        """The table, as the command line prints it."""
        from rich.console import Console

        from regard_workbench.comparison.table import render

        console = Console(file=io.StringIO(), width=100, highlight=False, markup=False, emoji=False)
        console.print(render(self.rows, self.columns))
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())

    def _repr_html_(self) -> str:
        """The report for a notebook, in a frame of its own so that its styles do not reach the notebook."""
        try:
            page = self.report.read_text(encoding="utf-8")
        except OSError:
            return f"<pre>{html.escape(str(self))}</pre>"
        return html_frame(page, self.task)


def histories(comparison: Comparison) -> list[RunHistory]:
    """The curves of the runs with metrics, failed ones included: a curve may show why."""
    curves = []
    for run in comparison.outcomes:
        records = metrics_file.read(RunFolder(Path(run.folder)).metrics)
        if records:
            curves.append(history(run.contestant.label, run.seed, records))
    return curves

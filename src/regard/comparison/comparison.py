"""What a comparison found, as plain data: who took part, how each run went, what a step costs, under which rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from regard.comparison.job import Contestant, Cost, Outcome, Settings


@dataclass(frozen=True)
class Comparison:
    """Everything that tables, pictures and reports are made of."""

    task: str
    settings: Settings  # shared by all contestants, by dotted name
    contestants: list[Contestant]
    seeds: list[int]
    outcomes: list[Outcome]  # of all jobs, those that failed too
    costs: dict[str, Cost]  # by a contestant's label
    left_out: list[tuple[str, str]]  # the label of a cell that makes no sense, and why
    budget: str  # what each run was given, in words: "2,000 steps"
    command: str  # what was typed, as a shell reads it
    out: Path
    engine: str = "local"
    trials: int = 0  # of tuning that each contestant got
    chosen: dict[str, Settings] = field(default_factory=dict)  # what tuning chose, by a contestant's label

"""The outcome of an attack: accuracy with intervals, how far the attention moved, runs side by side."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.support.display import html_table
from regard_workbench.attacks.intervals import Share, paired_difference
from regard_workbench.attacks.settings import AttackPlan, Level
from regard_workbench.attacks.specimen import Specimen
from regard_workbench.training.run_folder import durable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KEPT = "attacks"  # the folder of kept results in a run


@dataclass(frozen=True)
class Changed:
    """One example before and after an attack that succeeded."""

    number: int  # in the split
    before: str
    after: str
    label: str
    predicted: str


@dataclass(frozen=True)
class AttackRow:
    """One budget, spent in one way."""

    level: Level
    choice: str | None  # how the places were chosen, for the method `attention`
    accuracy: Share
    right: list[bool] = field(repr=False)  # of each example, under attack
    moved: dict[str, float]  # by layer, in bits: the mean over the examples that were attacked
    largest: float  # the largest change: of a pixel, of a picture's length, or the most words
    places: float | None  # how many positions were attacked, or words changed: the mean
    examples: list[Changed]  # some that were fooled, for texts

    @property
    def budget(self) -> str:
        """The budget in words."""
        return str(self.level) if self.choice is None else f"{self.level}, {self.choice}"


@dataclass(frozen=True)
class AttackedRun:
    """A run under attack."""

    run: str
    checkpoint: str
    sha256: str
    task: str
    model: str
    attention: str | None
    split: str
    data_sha256: str  # of the examples as the model read them before the attack
    clean: Share
    right: list[bool] = field(repr=False)
    rows: list[AttackRow]
    notes: list[str]
    specimen: Specimen | None = field(default=None, repr=False)  # an example for the figure

    @property
    def name(self) -> str:
        """The model with its attention."""
        return self.model if self.attention is None else f"{self.model}, {self.attention}"

    @property
    def layers(self) -> list[str]:
        """The layers whose attention was compared."""
        return list(dict.fromkeys(name for row in self.rows for name in row.moved))


@dataclass(frozen=True)
class AttackReport:
    """Runs under the same attack, the first against each of the others."""

    plan: AttackPlan
    runs: list[AttackedRun]
    notes: list[str]

    def differences(self, other: AttackedRun) -> list[Share] | None:
        """Accuracy of the first run minus that of another, clean and for each row; None where examples differ."""
        first = self.runs[0]
        if first.data_sha256 != other.data_sha256 or len(first.rows) != len(other.rows):
            return None
        pairs = [(first.right, other.right), *((a.right, b.right) for a, b in zip(first.rows, other.rows, strict=True))]
        return [paired_difference(*pair) for pair in pairs]

    def figure(self) -> Figure:
        """One example before and after the largest budget, with the attention to it; a row or column for each run."""
        from regard_workbench.attacks.figure import attack_figure

        shown = [(run.name, run.specimen) for run in self.runs if run.specimen is not None]
        return attack_figure([name for name, _ in shown], [specimen for _, specimen in shown])

    def to_dict(self) -> dict[str, Any]:
        """As plain data: what `regard attack --json` prints."""
        runs = []
        for run in self.runs:
            differences = None if run is self.runs[0] else self.differences(run)
            rows = []
            for number, row in enumerate(run.rows):
                facts: dict[str, Any] = {
                    "eps": row.level.eps,
                    "words": row.level.words,
                    "choice": row.choice,
                    "accuracy": dataclasses.asdict(row.accuracy),
                    "moved": row.moved,
                    "largest": row.largest,
                    "places": row.places,
                    "examples": [dataclasses.asdict(example) for example in row.examples],
                }
                if differences is not None:
                    facts["difference"] = dataclasses.asdict(differences[number + 1])
                rows.append(facts)
            runs.append(
                {
                    "run": run.run,
                    "checkpoint": run.checkpoint,
                    "checkpoint_sha256": run.sha256,
                    "task": run.task,
                    "model": run.model,
                    "attention": run.attention,
                    "split": run.split,
                    "examples": len(run.right),
                    "data_sha256": run.data_sha256,
                    "clean": dataclasses.asdict(run.clean),
                    "rows": rows,
                    "notes": run.notes,
                }
            )
        return {"attack": self.plan.described(), "runs": runs, "notes": self.notes}

    def keep(self) -> list[Path]:
        """Store the result of each run in its folder, where the report of a comparison finds it; returns the files."""
        paths = []
        for run in self.runs:
            alone = dataclasses.replace(self, runs=[run])
            folder = Path(run.run) / KEPT
            with durable.reporting(folder):
                folder.mkdir(exist_ok=True)
            path = folder / f"{self.plan.method}-{run.split}.json"
            durable.replace(path, json.dumps(alone.to_dict(), indent=1, ensure_ascii=False).encode())
            paths.append(path)
        return paths

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        heads = ("attack", *(run.name for run in self.runs))
        rows: list[tuple[str, ...]] = [("none", *(str(run.clean) for run in self.runs))]
        for number, row in enumerate(self.runs[0].rows):
            rows.append((row.budget, *(str(run.rows[number].accuracy) for run in self.runs)))
        count = len(self.runs[0].right)
        return html_table(heads, rows, f"accuracy under {self.plan.method}, {count:,} examples")

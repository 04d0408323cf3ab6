"""Every figure of a report, drawn once: as inline SVG for the page, and as files for papers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard.errors import RegardError
from regard_workbench.comparison.comparison import Comparison, histories
from regard_workbench.comparison.report import bars, cost
from regard_workbench.comparison.results import Row, deciding, runs_of
from regard_workbench.figures import attention, curves, svg
from regard_workbench.figures.style import Drawing, Key, Keys, style
from regard_workbench.inspection import inspection
from regard_workbench.inspection.attribution import Attribution
from regard_workbench.inspection.inspection import Inspection


@dataclass(frozen=True)
class Plate:
    """A figure on the page."""

    name: str
    title: str
    svg: str


@dataclass(frozen=True)
class AttentionView:
    """The attention of one contestant: figures and weighted words, or why there are none."""

    key: Key
    seed: int | None
    inspection: Inspection | None
    plates: list[tuple[Attribution, Plate | None]]  # None: a text with a weight for each word, shown as text
    why_not: str = ""


@dataclass(frozen=True)
class Gallery:
    """All figures of a report."""

    curves: list[Plate]
    results: list[Plate]
    costs: list[Plate]
    views: list[AttentionView]


def gallery(comparison: Comparison, rows: Sequence[Row], keys: Keys, split: str, folder: Path) -> Gallery:
    """Draw all figures; `split` is the one whose results are shown, `folder` is for the files."""
    metric = deciding(rows)
    seeds = {
        contestant.label: {
            run.seed: float(getattr(run, split)[metric.name])
            for run in runs_of(comparison, contestant)
            if not run.error and getattr(run, split).get(metric.name) is not None
        }
        for contestant in comparison.contestants
    }

    def plates(drawings: Iterable[Drawing | None]) -> list[Plate]:
        return [_plate(drawing, folder, keys) for drawing in drawings if drawing is not None]

    with style():
        runs = histories(comparison)
        axes = ("step", "seconds", "tokens") if "token" in comparison.budget else ("step", "seconds")
        reached = bars.reached(rows, keys, split, seeds)
        return Gallery(
            plates(
                draw(axis)
                for draw in (
                    lambda axis: curves.curve(runs, keys, metric, axis),
                    lambda axis: curves.loss_curve(runs, keys, axis),
                )
                for axis in axes
            ),
            plates(draw(reached, metric, split) for draw in (bars.bars, bars.closer)),
            plates(cost.against(reached, rows, keys, axis, metric, split) for axis in cost.COST_AXES),
            [_view(comparison, keys[row["label"]], folder) for row in rows],
        )


def _plate(drawing: Drawing, folder: Path, keys: Keys | None) -> Plate:
    return Plate(drawing.name, drawing.title, svg.publish(drawing, folder, keys))


def _view(comparison: Comparison, key: Key, folder: Path) -> AttentionView:
    """The attention of the first finished run of a contestant. An error there does not stop the report."""
    contestant = next(candidate for candidate in comparison.contestants if candidate.label == key.label)
    run = next((run for run in runs_of(comparison, contestant) if not run.error), None)
    if run is None:
        return AttentionView(key, None, None, [], "No run of this contestant finished.")
    try:
        inspected = inspection.inspect_run(run.folder)
        image = None if inspected.shown.picture is None else np.asarray(inspected.shown.picture, dtype=np.float64)
        plates: list[tuple[Attribution, Plate | None]] = []
        for number, attribution in enumerate(inspected.attributions, 1):
            if in_words(attribution, inspected):
                plates.append((attribution, None))
            else:
                drawing = attention.picture(
                    attribution, f"attention-{key.number}-{number}", image, inspected.shown.grid
                )
                plates.append((attribution, _plate(drawing, folder, None)))
        return AttentionView(key, run.seed, inspected, plates)
    except Exception as trouble:
        kind = "" if isinstance(trouble, RegardError) else f"{type(trouble).__name__}: "
        return AttentionView(key, run.seed, None, [], f"The run could not be inspected: {kind}{trouble}")


def in_words(attribution: Attribution, found: Inspection) -> bool:
    """Whether each weight belongs to a piece of a text, and is shown on the text itself."""
    return attribution.weights.dim() == 1 and attribution.inputs and found.shown.picture is None

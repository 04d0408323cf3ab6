"""How the runs of a comparison went along, read from their `metrics.jsonl`, and what their seeds have in common."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.comparison.comparison import Comparison
from regard.comparison.job import Contestant
from regard.training.run_folder import metrics_file
from regard.training.run_folder.folder import RunFolder

Floats = NDArray[np.float64]
AXES = ("step", "seconds", "tokens")
POINTS = 60  # of a training loss: what was logged is averaged in so many stretches


@dataclass(frozen=True)
class Series:
    """A number along a run: where it was taken (steps, seconds, tokens), and what it was."""

    at: dict[str, Floats]
    values: Floats


@dataclass(frozen=True)
class RunHistory:
    """One run: its training loss, and each metric of its validations."""

    label: str
    seed: int
    loss: Series
    validation: dict[str, Series]


def histories(comparison: Comparison) -> list[RunHistory]:
    """The runs that left metrics, those of failed ones too: a curve may show why."""
    found = []
    for run in comparison.outcomes:
        records = metrics_file.read(RunFolder(Path(run.folder)).metrics)
        if records:
            label = Contestant(run.model, run.attention).label
            found.append(history(label, run.seed, records))
    return found


def history(label: str, seed: int, records: Sequence[metrics_file.Record]) -> RunHistory:
    """The curves of one run's records."""
    judged = [record for record in records if isinstance(record.get("validation"), dict)]
    names = dict.fromkeys(name for record in judged for name in record["validation"])
    return RunHistory(
        label,
        seed,
        _thinned(_series(records, (record.get("loss") for record in records))),
        {name: _series(judged, (record["validation"].get(name) for record in judged)) for name in names},
    )


def _series(records: Sequence[metrics_file.Record], values: Iterable[object]) -> Series:
    """The records whose value is a number, in the order of their steps."""
    kept = [
        (record, float(value))
        for record, value in zip(records, values, strict=True)
        if isinstance(value, (int, float)) and math.isfinite(value)
    ]
    kept.sort(key=lambda pair: pair[0]["step"])
    known = [axis for axis in AXES if all(isinstance(record.get(axis), (int, float)) for record, _ in kept)]
    return Series(
        {axis: np.array([record[axis] for record, _ in kept], dtype=np.float64) for axis in known},
        np.array([value for _, value in kept], dtype=np.float64),
    )


def _thinned(series: Series, points: int = POINTS) -> Series:
    """Means over stretches, so that a long run is not a thick line."""
    if len(series.values) <= points:
        return series
    cuts = np.linspace(0, len(series.values), points + 1).astype(int)

    def means(values: Floats) -> Floats:
        return np.array([values[a:b].mean() for a, b in itertools.pairwise(cuts)])

    return Series({axis: means(places) for axis, places in series.at.items()}, means(series.values))


@dataclass(frozen=True)
class SeedBand:
    """What several seeds have in common: their mean, and between which values they lie."""

    at: Floats
    mean: Floats
    low: Floats
    high: Floats


def together(series: Sequence[Series], axis: str) -> SeedBand | None:
    """Mean and range over seeds, wherever one of them was measured and all of them were under way.

    Between two measurements of a seed, the straight line between them counts.
    """
    usable = [one for one in series if axis in one.at and len(one.values)]
    if not usable:
        return None
    begin = max(one.at[axis][0] for one in usable)
    end = min(one.at[axis][-1] for one in usable)
    places = np.unique(np.concatenate([one.at[axis] for one in usable]))
    places = places[(places >= begin) & (places <= end)]
    if not len(places):
        return None
    if len(places) > 2 * POINTS:
        places = np.linspace(begin, end, POINTS)
    lines = np.stack([np.interp(places, one.at[axis], one.values) for one in usable])
    return SeedBand(places, lines.mean(0), lines.min(0), lines.max(0))

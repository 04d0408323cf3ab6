"""Learning curves of runs, from the records of `metrics.jsonl`, and their mean and range over seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard_workbench.training.run_folder import metrics_file

Floats = NDArray[np.float64]
AXES = ("step", "seconds", "tokens")
POINTS = 60  # of a training loss, which is averaged over so many intervals


@dataclass(frozen=True)
class Series:
    """A value over a run: its positions (steps, seconds, tokens) and values."""

    at: dict[str, Floats]
    values: Floats


@dataclass(frozen=True)
class RunHistory:
    """One run: its training loss, and each validation metric."""

    label: str
    seed: int
    loss: Series
    validation: dict[str, Series]


def history(label: str, seed: int, records: Sequence[metrics_file.Record]) -> RunHistory:
    """The curves of one run's records."""
    validated = [record for record in records if isinstance(record.get("validation"), dict)]
    names = dict.fromkeys(name for record in validated for name in record["validation"])
    return RunHistory(
        label,
        seed,
        _thinned(_series(records, (record.get("loss") for record in records))),
        {name: _series(validated, (record["validation"].get(name) for record in validated)) for name in names},
    )


def _series(records: Sequence[metrics_file.Record], values: Iterable[object]) -> Series:
    """The records with a finite value, sorted by step."""
    kept = [
        (record, float(value))
        for record, value in zip(records, values, strict=True)
        if isinstance(value, (int, float)) and math.isfinite(value)
    ]
    kept.sort(key=lambda pair: pair[0]["step"])
    axes = [axis for axis in AXES if all(isinstance(record.get(axis), (int, float)) for record, _ in kept)]
    return Series(
        {axis: np.array([record[axis] for record, _ in kept], dtype=np.float64) for axis in axes},
        np.array([value for _, value in kept], dtype=np.float64),
    )


def _thinned(series: Series, points: int = POINTS) -> Series:
    """Means over intervals, so that a long run does not become a thick line."""
    if len(series.values) <= points:
        return series
    cuts = np.linspace(0, len(series.values), points + 1).astype(int)

    def means(values: Floats) -> Floats:
        return np.array([values[a:b].mean() for a, b in itertools.pairwise(cuts)])

    return Series({axis: means(positions) for axis, positions in series.at.items()}, means(series.values))


@dataclass(frozen=True)
class SeedBand:
    """Mean and range over several seeds."""

    at: Floats
    mean: Floats
    low: Floats
    high: Floats


def together(series: Sequence[Series], axis: str) -> SeedBand | None:
    """Mean and range over seeds, at every position where one was measured and all were running.

    Values between two measurements of a seed are interpolated linearly.
    """
    usable = [curve for curve in series if axis in curve.at and len(curve.values)]
    if not usable:
        return None
    begin = max(curve.at[axis][0] for curve in usable)
    end = min(curve.at[axis][-1] for curve in usable)
    positions = np.unique(np.concatenate([curve.at[axis] for curve in usable]))
    positions = positions[(positions >= begin) & (positions <= end)]
    if not len(positions):
        return None
    if len(positions) > 2 * POINTS:
        positions = np.linspace(begin, end, POINTS)
    lines = np.stack([np.interp(positions, curve.at[axis], curve.values) for curve in usable])
    return SeedBand(positions, lines.mean(0), lines.min(0), lines.max(0))

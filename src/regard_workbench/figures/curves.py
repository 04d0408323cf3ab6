"""Learning curves: a mean line for each contestant, a band over its seeds, and faintly each seed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard_workbench.figures.history import RunHistory, SeedBand, Series, together
from regard_workbench.figures.labels import at_ends, beside
from regard_workbench.figures.style import (
    FEW,
    Drawing,
    Key,
    Keys,
    blank,
    in_percent,
    logarithmic,
    number_of,
    short,
    titled,
)
from regard_workbench.tasks.measures.metrics import LOSS, SHARE, Metric

TITLES = {"step": "steps", "seconds": "seconds of training", "tokens": "tokens"}
EARLY = 0.05  # of a run: values before may lie outside of the axes
WIDE = 4.0  # numbers, and ends of curves, that differ by more than this factor get a logarithmic axis
NEAR = 0.9  # of the width: curves that end beyond are labelled at the edge


def curve(runs: Sequence[RunHistory], keys: Keys, metric: Metric, axis: str) -> Drawing | None:
    """A validation metric over an axis ("step", "seconds", "tokens"); None where it was not measured."""
    series = {
        label: [run.validation[metric.name] for run in runs if run.label == label and metric.name in run.validation]
        for label in keys
    }
    return _drawn(series, keys, f"validation {titled(metric)}", metric, f"validation-{_plain(metric.name)}", axis)


def loss_curve(runs: Sequence[RunHistory], keys: Keys, axis: str) -> Drawing | None:
    """The training loss over an axis."""
    series = {label: [run.loss for run in runs if run.label == label] for label in keys}
    return _drawn(series, keys, "training loss", LOSS, "training-loss", axis)


def _drawn(
    series: dict[str, list[Series]], keys: Keys, title: str, metric: Metric, name: str, axis: str
) -> Drawing | None:
    bands = {keys[label]: band for label, curves in series.items() if (band := together(curves, axis)) is not None}
    if not bands:
        return None
    figure, frame = blank()
    tips: dict[str, str] = {}
    for key, band in bands.items():
        if len(keys) <= FEW:  # with more they would overlap
            _seeds(frame, key, band, [seed_curve for seed_curve in series[key.label] if axis in seed_curve.at], axis)
        _line(frame, key, band, tips, metric, axis)
    frame.set_xlabel(TITLES[axis])
    frame.set_ylabel(title)
    _limit_across(frame, list(bands.values()))
    _limit_along(frame, list(bands.values()), metric)
    in_percent(frame.yaxis, metric)
    _label(figure, frame, bands, keys)
    ends = "; ".join(f"{key.name} ends at {number_of(band.mean[-1], metric)}" for key, band in bands.items())
    alt = f"Curves of the {title} over {TITLES[axis]}: {ends}."
    return Drawing(f"{name}-by-{axis}", f"{title} over {TITLES[axis]}", alt, figure, tips)


def _plain(metric: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", metric)


def _seeds(frame: Axes, key: Key, band: SeedBand, series: Sequence[Series], axis: str) -> None:
    """The range of several seeds as a band, and each seed as a thin line."""
    if len(series) < 2:
        return
    shade = frame.fill_between(band.at, band.low, band.high, color=key.colour, alpha=0.13, linewidth=0)
    shade.set_gid(key.group("band"))
    for number, seed_curve in enumerate(series):
        (faint,) = frame.plot(seed_curve.at[axis], seed_curve.values, color=key.colour, linewidth=0.5, alpha=0.45)
        faint.set_gid(key.group(f"seed{number}"))


def _line(frame: Axes, key: Key, band: SeedBand, tips: dict[str, str], metric: Metric, axis: str) -> None:
    every = max(1, len(band.at) // 6)
    (line,) = frame.plot(
        band.at,
        band.mean,
        color=key.colour,
        linestyle=key.dash,
        linewidth=1.5,
        marker=key.marker,
        markersize=3.2,
        markevery=(key.number * every // 7 % every, every),
        zorder=3,
    )
    line.set_gid(key.group("mean"))
    last = f"{number_of(band.mean[-1], metric)} after {short(float(band.at[-1]))} {TITLES[axis]}"
    tips[key.group("mean")] = f"{key.label}: {last}"


def _label(figure: Figure, frame: Axes, bands: dict[Key, SeedBand], keys: Keys) -> None:
    """A label for each curve: at the edge of the axes where it reaches that far, else at its end."""
    edge = NEAR * frame.get_xlim()[1]
    at_ends(frame, {key: float(band.mean[-1]) for key, band in bands.items() if band.at[-1] >= edge}, keys)
    early = [(float(band.at[-1]), float(band.mean[-1]), key) for key, band in bands.items() if band.at[-1] < edge]
    if early:
        lines = [list(zip(band.at.tolist(), band.mean.tolist(), strict=True)) for band in bands.values()]
        beside(figure, frame, early, keys, lines)


def _limit_across(frame: Axes, bands: Sequence[SeedBand]) -> None:
    """Limits of the x axis: to the last end; logarithmic where some curves end far earlier than others."""
    ends = [float(band.at[-1]) for band in bands]
    if min(ends) > 0 and max(ends) / min(ends) > WIDE:
        frame.set_xlim(EARLY * min(ends), 1.15 * max(ends))
        logarithmic(frame, "x")
        return
    frame.set_xlim(0, max(ends) or 1.0)
    frame.xaxis.set_major_formatter(lambda value, _: short(value))


def _limit_along(frame: Axes, bands: Sequence[SeedBand], metric: Metric) -> None:
    """Limits of the y axis, without the first values, which would compress the rest."""
    late = [band.at >= EARLY * band.at[-1] for band in bands]
    low = min(float(band.low[chosen].min()) for band, chosen in zip(bands, late, strict=True))
    high = max(float(band.high[chosen].max()) for band, chosen in zip(bands, late, strict=True))
    if low > 0 and high / low > WIDE and metric.unit != SHARE:
        frame.set_ylim(low / 1.1, high * 1.1)
        logarithmic(frame, "y")
        return
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    frame.set_ylim(low - room, high + room)

"""The columns of a comparison's table, shared by terminal, LaTeX and report: cells, and which is the best.

`--columns` names them. Those of the user's table, `DEFAULT_COLUMNS`, are shown by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import BadValue, unknown_name
from regard.registry import split as split_names
from regard_workbench.comparison.comparison import DEFAULT_COLUMNS
from regard_workbench.comparison.matching import FLOPS, PARAMETERS
from regard_workbench.comparison.results import Row, deciding, metric_of, t_interval
from regard_workbench.comparison.statistics import CUT, CUT_WORDS, TOO_FEW, TOO_FEW_WORDS, possible
from regard_workbench.tasks.measures.metrics import SHARE, Metric

PLUS_MINUS = "±"
SPLITS = ("validation", "test")
_OTHER = Metric("")  # a number that is no metric of a task, without unit and bounds
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class TableCell:
    """A number as text, half of its interval, its unit, and whether it is the best of its column."""

    text: str
    half: str = ""  # empty: no interval
    best: bool = False
    unit: str = ""  # after number and interval: " %"
    mark: str = ""  # of an interval that was cut, or covers everything that is possible

    def __str__(self) -> str:
        number = f"{self.text} {PLUS_MINUS} {self.half}" if self.half else self.text
        return number + self.unit + self.mark


@dataclass(frozen=True)
class Column:
    """A title of one or two lines; a cell for each row, and the number by which it is sorted."""

    title: tuple[str, ...]
    cells: list[TableCell]
    values: list[float | None]


def columns(rows: Sequence[Row], names: Sequence[str] = DEFAULT_COLUMNS) -> list[Column]:
    """The columns with these names, in this order; those for which no row has a number are left out."""
    candidates = [quality(rows, *name.split(".", 1)) if "." in name else NAMED[name](rows) for name in names]
    return [column for column in candidates if column is not None]


def read_columns(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names of columns as a user writes them: joined by commas, or `all`; None: the default ones."""
    if given is None:
        return DEFAULT_COLUMNS
    names: list[str] = []
    for name in split_names(given) if isinstance(given, str) else given:
        plain = name.strip()
        if plain.partition(".")[0] not in SPLITS:
            plain = plain.replace("_", "-")
        names += NAMED if plain == ALL else [plain]
    if not names:
        raise BadValue(f"columns: expected names joined by commas, or all, got {given!r}.")
    for name in names:
        if name not in NAMED and not (name.partition(".")[0] in SPLITS and name.partition(".")[2]):
            raise unknown_name("columns", name, [*NAMED, ALL, *(f"{split}.METRIC" for split in SPLITS)])
    return tuple(dict.fromkeys(names))


def quality(rows: Sequence[Row], split: str, name: str | None = None, *, decimals: int = 1) -> Column | None:
    """A metric of a split, by default the deciding one; None if no row has it.

    Shares are percentages with these decimals; other metrics have as many as their intervals are worth.
    """
    decides = deciding(rows)
    metric = decides if name is None else metric_of(name, decides)
    higher = metric.higher_is_better if metric.name == decides.name else None
    title = (split, metric.name.replace("_", " "))
    intervals = [t_interval(row, split, metric.name) for row in rows]
    digits = decimals if metric.unit == SHARE else None
    return _over_seeds(rows, intervals, title, metric, decimals=digits, higher=higher)


def number(
    rows: Sequence[Row], key: str, title: tuple[str, ...], shown: Callable[[float], str], *, higher: bool | None
) -> Column | None:
    """One number of each row; None if no row has it. Without `higher`, none is the best."""
    values = [row.get(key) for row in rows]
    if all(value is None for value in values):
        return None
    texts = [_missing(row) if value is None else shown(value) for value, row in zip(values, rows, strict=True)]
    best = _best(texts, values, higher)
    return Column(title, [TableCell(text, best=text in best) for text in texts], values)


def _over_seeds(
    rows: Sequence[Row],
    found: Sequence[Mapping[str, Any] | None],
    title: tuple[str, ...],
    metric: Metric = _OTHER,
    *,
    decimals: int | None = None,
    higher: bool | None,
) -> Column | None:
    """A mean over seeds of each row, with half of its interval; None if no row has one."""
    if not any(found):
        return None
    share = metric.unit == SHARE
    scale = 100.0 if share else 1.0
    numbers = [[_scaled(interval and interval[end], scale) for end in ("mean", "low", "high")] for interval in found]
    means = [mean for mean, _, _ in numbers]
    halves = [
        (high - low) / 2 if low is not None and high is not None and len(row["seeds"]) > 1 else None
        for (_, low, high), row in zip(numbers, rows, strict=True)
    ]
    decimals = _decimals(means, halves) if decimals is None else decimals
    texts = [_missing(row) if mean is None else f"{mean:,.{decimals}f}" for mean, row in zip(means, rows, strict=True)]
    best = _best(texts, means, higher)
    marks = [
        "" if half is None or low is None or high is None else _mark(low / scale, high / scale, metric)
        for half, (_, low, high) in zip(halves, numbers, strict=True)
    ]
    cells = [
        TableCell(
            text,
            "" if half is None or mark == TOO_FEW else f"{half:,.{decimals}f}",
            text in best,
            " %" if share and mean is not None else "",
            mark,
        )
        for text, half, mean, mark in zip(texts, halves, means, marks, strict=True)
    ]
    return Column(title, cells, means)


def _mark(low: float, high: float, metric: Metric) -> str:
    """Whether an interval leaves what is possible."""
    bounds = possible(low, high, metric)
    return TOO_FEW if bounds.empty else CUT if bounds.cut else ""


def mark_notes(made: Sequence[Column]) -> list[str]:
    """What the marks of these columns mean."""
    marks = {cell.mark for column in made for cell in column.cells}
    return [words for mark, words in ((CUT, CUT_WORDS), (TOO_FEW, TOO_FEW_WORDS)) if mark in marks]


def _steps_to_target(rows: Sequence[Row]) -> Column | None:
    steps = [row.get("steps_to_target") for row in rows]
    return _over_seeds(rows, steps, ("steps to", f"{target_text(rows)}"), decimals=0, higher=False)


def _seconds_to_target(rows: Sequence[Row]) -> Column | None:
    seconds = [row.get("seconds_to_target") for row in rows]
    means = [interval["mean"] for interval in seconds if interval and interval["mean"] is not None]
    least = min((mean for mean in means if mean > 0), default=1.0)
    decimals = 0 if least >= 100 else 1 if least >= 1 else min(4, 1 - math.floor(math.log10(least)))
    return _over_seeds(rows, seconds, ("seconds to", f"{target_text(rows)}"), decimals=decimals, higher=False)


def target_text(rows: Sequence[Row]) -> str:
    """The target of convergence, as the deciding metric is shown."""
    target = next((row["target"] for row in rows if row.get("target") is not None), None)
    if target is None:
        return ""
    return f"{100 * target:.1f} %" if deciding(rows).unit == SHARE else f"{target:.4g}"


def _size(rows: Sequence[Row], key: str, title: tuple[str, ...], matched: str) -> Column | None:
    """Parameters or operations; of contestants that were made equal, none is the best."""
    equal = any(row.get("match") == matched for row in rows)
    return number(rows, key, title, counted, higher=None if equal else False)


def _seeds(rows: Sequence[Row]) -> Column:
    counts = [(len(row["seeds"]), len(row["failed"])) for row in rows]
    texts = [f"{done} of {done + failed}" if failed else str(done) for done, failed in counts]
    return Column(("seeds",), [TableCell(text) for text in texts], [float(done) for done, _ in counts])


ALL = "all"
NAMED: dict[str, Callable[[Sequence[Row]], Column | None]] = {
    "speed": lambda rows: number(rows, "steps_per_second", ("average", "convergence speed"), speed, higher=True),
    "validation": lambda rows: quality(rows, "validation"),
    "test": lambda rows: quality(rows, "test"),
    "steps-to-target": _steps_to_target,
    "seconds-to-target": _seconds_to_target,
    "width": lambda rows: number(rows, "width", ("width",), "{:,}".format, higher=None),
    "parameters": lambda rows: _size(rows, "parameters", ("parameters",), PARAMETERS),
    "flops": lambda rows: _size(rows, "flops_per_step", ("FLOPs", "per step"), FLOPS),
    "batch": lambda rows: number(rows, "batch_size", ("batch", "size"), "{:,}".format, higher=None),
    "memory": lambda rows: number(rows, "peak_memory_mib", ("memory", "MiB"), significant, higher=False),
    "steps": lambda rows: number(rows, "steps", ("steps",), "{:,.0f}".format, higher=None),
    "seconds": lambda rows: number(rows, "seconds", ("seconds of", "training"), significant, higher=None),
    "seeds": _seeds,
}


def speed(value: float) -> str:
    """Steps per second with one decimal: 95.3 step/s, from 1,000 on 4.9k step/s; more digits below 1."""
    if value >= 999.95:
        return f"{value / 1000:,.1f}k step/s"
    return f"{value:.1f} step/s" if value >= 1 else f"{significant(value)} step/s"


def significant(value: float) -> str:
    """Three significant digits, and all digits before the decimal point: 1,234, 56.7, 8.90."""
    rounded = abs(float(f"{value:.3g}"))
    size = math.floor(math.log10(rounded)) if rounded else 0
    return f"{value:,.{max(0, 2 - size)}f}"


def counted(value: float) -> str:
    """A count with a unit prefix: 950, 12.3k, 4.56M."""
    for size, prefix in _PREFIXES:
        if value >= 0.9995 * size:  # would be rounded to 1,000 of the next smaller unit
            return significant(value / size) + prefix
    return f"{value:,.0f}"


def naming(rows: Sequence[Row], *, alone: bool = False) -> dict[str, str]:
    """The fields of a row that tell contestants apart, with their titles; `alone`: a model that all share, too."""
    titles = {"model": "model"}
    if len({(row["model"], row.get("init_from")) for row in rows}) < len(rows):
        titles["attention"] = "attention"
    if any(row.get("init_from") for row in rows):
        titles["init_from"] = "begins with"
    if len(titles) > 1 and len({row["model"] for row in rows}) == 1 and not alone:
        del titles["model"]
    return titles


def _missing(row: Row) -> str:
    return "failed" if not row["seeds"] and row["failed"] else "–"


def _scaled(value: Any, scale: float) -> float | None:
    return None if value is None else scale * float(value)


def _best(texts: Sequence[str], values: Sequence[float | None], higher: bool | None) -> set[str]:
    """The text of the best value, which several may share; empty for a single row, or where none is better."""
    ranked = [
        (value if higher else -value, text) for value, text in zip(values, texts, strict=True) if value is not None
    ]
    return {max(ranked)[1]} if len(ranked) > 1 and higher is not None else set()


def _decimals(means: Sequence[float | None], halves: Sequence[float | None]) -> int:
    """1 to 4 decimals, so that the smallest interval has two significant digits; without intervals four of the mean."""
    half_widths = [half for half in halves if half]
    sizes = [abs(mean) for mean in means if mean]
    if not sizes:
        return 2
    wanted = 1 - math.floor(math.log10(min(half_widths))) if half_widths else 3 - math.floor(math.log10(max(sizes)))
    return max(1, min(wanted, 4))

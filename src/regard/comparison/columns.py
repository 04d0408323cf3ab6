"""The columns of a comparison's table, shared by terminal, LaTeX and report: cells, and which is the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.comparison.results import Row, deciding
from regard.tasks.metrics import SHARE

PLUS_MINUS = "±"
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class TableCell:
    """A number as text, half of its interval, and whether it is the best of its column."""

    text: str
    half: str = ""  # empty: no interval
    best: bool = False

    def __str__(self) -> str:
        return f"{self.text} {PLUS_MINUS} {self.half}" if self.half else self.text


@dataclass(frozen=True)
class Column:
    """A title of one or two lines, and a cell for each row."""

    title: tuple[str, ...]
    cells: list[TableCell]


def quality(rows: Sequence[Row], split: str) -> Column | None:
    """The deciding metric of a split; None if no row has it."""
    metric = deciding(rows)
    found = [row[split].get(metric.name) for row in rows]
    if not any(found):
        return None
    share = metric.unit == SHARE
    scale = 100.0 if share else 1.0
    numbers = [[_scaled(each and each[end], scale) for end in ("mean", "low", "high")] for each in found]
    means = [mean for mean, _, _ in numbers]
    halves = [
        (high - low) / 2 if low is not None and high is not None and len(row["seeds"]) > 1 else None
        for (_, low, high), row in zip(numbers, rows, strict=True)
    ]
    decimals = _decimals(means, halves, share)
    texts = [
        _missing(row) if mean is None else f"{mean:,.{decimals}f}"
        for mean, row in zip(means, rows, strict=True)
    ]
    best = _best(texts, means, metric.higher_is_better)
    cells = [
        TableCell(text, "" if half is None else f"{half:,.{decimals}f}", text in best)
        for text, half in zip(texts, halves, strict=True)
    ]
    return Column((split, metric.name.replace("_", " ") + (" %" if share else "")), cells)


def number(
    rows: Sequence[Row], key: str, title: tuple[str, ...], shown: Callable[[float], str], *, higher: bool
) -> Column | None:
    """One number of each row; None if no row has it."""
    values = [row.get(key) for row in rows]
    if all(value is None for value in values):
        return None
    texts = [
        _missing(row) if value is None else shown(value) for value, row in zip(values, rows, strict=True)
    ]
    best = _best(texts, values, higher)
    return Column(title, [TableCell(text, best=text in best) for text in texts])


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns of the table: speed, validation, test; then size and memory of the model."""
    made = [
        number(rows, "steps_per_second", ("steps/s",), significant, higher=True),
        quality(rows, "validation"),
        quality(rows, "test"),
        number(rows, "parameters", ("params",), counted, higher=False),
        number(rows, "peak_memory_mib", ("memory", "MiB"), significant, higher=False),
    ]
    return [column for column in made if column is not None]


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


def attention_varies(rows: Sequence[Row]) -> bool:
    """Whether some rows share a model and differ only in the attention."""
    return len({row["model"] for row in rows}) < len(rows)


def _missing(row: Row) -> str:
    return "failed" if not row["seeds"] and row["failed"] else "–"


def _scaled(value: Any, scale: float) -> float | None:
    return None if value is None else scale * float(value)


def _best(texts: Sequence[str], values: Sequence[float | None], higher: bool) -> set[str]:
    """The text of the best value, which several may share; empty for a single row."""
    ranked = [
        (value if higher else -value, text)
        for value, text in zip(values, texts, strict=True)
        if value is not None
    ]
    return {max(ranked)[1]} if len(ranked) > 1 else set()


def _decimals(means: Sequence[float | None], halves: Sequence[float | None], share: bool) -> int:
    """1 to 4 decimals, so that the smallest interval has two significant digits; without intervals four of the mean."""
    known = [half for half in halves if half]
    sizes = [abs(mean) for mean in means if mean]
    if share or not sizes:
        return 2
    wanted = 1 - math.floor(math.log10(min(known))) if known else 3 - math.floor(math.log10(max(sizes)))
    return max(1, min(wanted, 4))

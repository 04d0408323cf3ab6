"""The tables of a report as plain data: results, pairs, and the details of each contestant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from regard_workbench.comparison.columns import SPLITS, columns, mark_notes, naming
from regard_workbench.comparison.comparison import DEFAULT_COLUMNS, Comparison
from regard_workbench.comparison.job import Contestant
from regard_workbench.comparison.results import Row, runs_of
from regard_workbench.comparison.statistics import CUT
from regard_workbench.figures.style import Key, Keys
from regard_workbench.tasks.measures.metrics import SHARE

FULL = 8  # up to so many contestants, every cell of the matrix shows interval and p
RESULTS = (*DEFAULT_COLUMNS, "seeds")
CONVERGENCE = ("steps-to-target", "seconds-to-target", "speed")
COSTS = ("width", "parameters", "flops", "batch", "memory")


@dataclass(frozen=True)
class SortableCell:
    """The text of a cell, and the value by which it is sorted; None goes last."""

    text: str
    sort: float | str | None
    half: str = ""
    best: bool = False
    unit: str = ""
    mark: str = ""


@dataclass(frozen=True)
class ReportTable:
    """Titles and rows; each row belongs to a contestant."""

    titles: list[str]
    rows: list[tuple[Key, list[SortableCell]]]
    words: int  # how many of the first columns hold text
    notes: list[str] = field(default_factory=list)  # what the marks in it mean


def sortable(rows: Sequence[Row], keys: Keys, shown: Sequence[str]) -> ReportTable:
    """The contestants and the columns with these names."""
    table_columns = columns(rows, shown)
    names = naming(rows)  # where all have one model, the title names it
    body = []
    for index, row in enumerate(rows):
        cells = [SortableCell(row[name], row[name].lower()) for name in names]
        for column in table_columns:
            cell = column.cells[index]
            cells.append(SortableCell(cell.text, column.values[index], cell.half, cell.best, cell.unit, cell.mark))
        body.append((keys[row["label"]], cells))
    titles = [*names.values(), *(" ".join(column.title) for column in table_columns)]
    return ReportTable(titles, body, len(names), mark_notes(table_columns))


@dataclass(frozen=True)
class PairCell:
    """One contestant against another, from the point of view of the first."""

    word: str  # "better", "worse", "unclear"
    difference: str
    interval: str
    p: str
    claim: str


def matrix(pairs: Sequence[Row], keys: Keys) -> list[tuple[Key, list[PairCell | None]]]:
    """Every contestant against every other; None where there is no result."""
    by_names = {(pair["first"], pair["second"]): pair for pair in pairs}
    decimals = _decimals([pair["difference"]["mean"] for pair in pairs])
    return [(key, [_verdict(by_names, first, second, decimals) for second in keys]) for first, key in keys.items()]


def _decimals(differences: Sequence[float | None]) -> int:
    """Decimals such that the largest difference has three significant digits; at most four."""
    largest = max((abs(difference) for difference in differences if difference), default=1.0)
    return max(0, min(4, 2 - math.floor(math.log10(largest))))


def _verdict(found: dict[tuple[str, str], Row], one: str, other: str, decimals: int) -> PairCell | None:
    turned = (one, other) not in found
    pair = found.get((other, one) if turned else (one, other))
    if pair is None or pair["difference"]["mean"] is None:
        return None
    scale, decimals = (100.0, 2) if pair["unit"] == SHARE else (1.0, decimals)
    ends = [(-scale if turned else scale) * pair["difference"][end] for end in ("mean", "low", "high")]
    bounds = sorted(ends[1:])
    cut = scale == 100.0 and (bounds[0] < -scale or bounds[1] > scale)  # no two shares are further apart
    bounds = [min(max(end, -scale), scale) if cut else end for end in bounds]
    mean, low, high = (signed(end, decimals) for end in (ends[0], *bounds))
    word = "unclear" if pair["better"] is None else "better" if pair["better"] == one else "worse"
    interval = f"{low} to {high}{CUT * cut}" if len(pair["seeds"]) > 1 else "one seed"
    p = "no test" if pair["p_holm"] is None else probability(pair["p_holm"])
    return PairCell(word, mean, interval, p, pair["claim"])


def signed(value: float, decimals: int) -> str:
    """A difference with its sign; zero has none."""
    text = f"{value:+.{decimals}f}".replace("-", "−")
    return text if text.strip("+−0.") else text[1:]


def probability(value: float) -> str:
    """A p value."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def failures(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Label, seeds and reason of failed runs; seeds with the same reason are grouped."""
    seeds_by_failure: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for seed, why in row["failed"].items():
            seeds_by_failure.setdefault((row["label"], why), []).append(seed)
    return [(label, ", ".join(seeds), why) for (label, why), seeds in seeds_by_failure.items()]


@dataclass(frozen=True)
class Measured:
    """One metric of one split: over all seeds, and for each seed."""

    split: str
    metric: str
    mean: str
    low: str
    high: str
    seeds: list[str]


@dataclass(frozen=True)
class Facts:
    """The details of a contestant."""

    key: Key
    seeds: list[int]
    measured: list[Measured]
    facts: list[tuple[str, str]]
    commands: list[tuple[str, str]]  # seed, command
    failed: list[tuple[str, str]]  # seed, reason
    warnings: list[str]
    signature: str


def facts(comparison: Comparison, row: Row, contestant: Contestant, key: Key) -> Facts:
    """The numbers of a row in full precision, and how to reproduce them."""
    done = [run for run in runs_of(comparison, contestant) if not run.error]
    measured = [
        Measured(
            split,
            metric,
            exact(over["mean"]),
            exact(over["low"]),
            exact(over["high"]),
            [exact(getattr(run, split).get(metric)) for run in done],
        )
        for split in SPLITS
        for metric, over in row[split].items()
    ]
    details = [
        ("model", row["model"]),
        ("attention", row["attention"]),
        ("begins with the weights of", row["init_from"] or ""),
        ("parameters", exact(row["parameters"])),
        ("steps per second", exact(row["steps_per_second"])),
        ("peak memory, MiB", exact(row["peak_memory_mib"])),
        ("FLOPs per step", exact(row["flops_per_step"])),
        ("trained as", row["trained_as"] if row["trained_as"] != row["model"] else ""),
        ("steps to the target", _interval(row["steps_to_target"])),
        ("seconds to the target", _interval(row["seconds_to_target"])),
        ("steps", exact(row["steps"])),
        ("seconds of training", exact(row["seconds"])),
        ("best step of each seed", ", ".join(str(run.best_step) for run in done)),
        ("test examples, sha256", row["data_sha256"]),
        ("settings that tuning chose", ", ".join(f"{k}={v}" for k, v in row.get("settings_chosen", {}).items())),
    ]
    return Facts(
        key,
        [run.seed for run in done],
        measured,
        [(name, text) for name, text in details if text],
        list(row["commands"].items()),
        list(row["failed"].items()),
        row["warnings"],
        row["signature"],
    )


def _interval(over: dict[str, float | None] | None) -> str:
    """Mean and interval over seeds; empty where there is no mean."""
    if over is None or over["mean"] is None:
        return ""
    mean, low, high = (exact(over[end]) for end in ("mean", "low", "high"))
    return mean if low == high else f"{mean} ({low} to {high})"


def exact(value: float | None) -> str:
    """A number with six significant digits, an integer with all; a dash for None."""
    if value is None:
        return "–"
    integral = float(value).is_integer() and abs(value) < 1e15
    return f"{value:,.0f}" if integral and abs(value) >= 1000 else f"{value:.6g}"

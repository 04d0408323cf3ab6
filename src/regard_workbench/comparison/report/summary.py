"""The title and the main finding of a comparison, as sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from regard_workbench.comparison.fairness import unequal_sizes
from regard_workbench.comparison.report.keys import display_names
from regard_workbench.comparison.results import Row, deciding, t_interval
from regard_workbench.comparison.statistics import possible
from regard_workbench.figures.style import number_of, short
from regard_workbench.tasks.measures.metrics import Metric

LONGEST_TITLE = 44  # characters: one line of the page
LISTED = 4  # names in a sentence; of more, only their number is given


def title(rows: Sequence[Row], task: str) -> str:
    """The title: what was compared, and on which task."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    if len(rows) == 1:
        return f"{rows[0]['label']} on {task}"
    if len(models) == 1:
        return f"{len(rows)} attentions in {models[0]} on {task}"
    if len(rows) <= LISTED and len(models) == len(rows):
        names = f"{listed(models)} on {task}"
        if len(names) <= LONGEST_TITLE:
            return names
    return f"{len(rows)} models on {task}"


def best_first(rows: Sequence[Row], split: str) -> list[Row]:
    """The rows in the one order of all tables and figures: best first, those without a result last."""
    metric = deciding(rows)

    def place(row: Row) -> tuple[bool, float]:
        mean = (row[split].get(metric.name) or {}).get("mean")
        return mean is None, 0.0 if mean is None else -mean if metric.higher_is_better else mean

    return sorted(rows, key=place)


def shown_split(rows: Sequence[Row]) -> str:
    """The split whose results are shown: the test, unless no run was tested."""
    tested = any(row["test"].get(row["decides"]) for row in rows)
    return "test" if tested or not any(row["validation"] for row in rows) else "validation"


def finding(rows: Sequence[Row], pairs: Sequence[Row], split: str) -> str:
    """Which contestant is best, its result, and from which others it is distinguishable."""
    names = display_names(rows)
    metric = deciding(rows)
    reached = {
        row["label"]: over for row in rows if (over := t_interval(row, split, metric.name)) and over["mean"] is not None
    }
    if not reached:
        return "No run finished with a finite result, so there is nothing to compare."
    order = sorted(reached, key=lambda label: reached[label]["mean"], reverse=metric.higher_is_better)
    best = order[0]
    seeds = len(next(row["seeds"] for row in rows if row["label"] == best))
    number = _interval(reached[best], metric, seeds)
    if len(reached) == 1:
        return f"{names[best]} reaches {number} on the {split} split."
    if len({reached[label]["mean"] for label in reached}) == 1:
        return f"All {len(reached)} contestants reach the same on the {split} split: {number}."
    sizes = unequal_sizes(rows)
    unequal = "" if sizes is None else f"The sizes differ, {short(sizes[0])} to {short(sizes[1])} parameters. "
    apart = _apart(best, order[1:], pairs, seeds, names)
    return f"{unequal}{names[best]} is best on the {split} split: {number}. {apart}"


def _interval(over: Row, metric: Metric, seeds: int) -> str:
    number = f"{number_of(over['mean'], metric)} {metric.name.replace('_', ' ')}"
    if seeds < 2:
        return f"{number} (one seed, so no interval)"
    bounds = possible(over["low"], over["high"], metric)
    if bounds.empty:
        return f"{number} ({seeds} seeds are too few for an interval)"
    low, high = (number_of(end, metric) for end in (bounds.low, bounds.high))
    cut = ", cut at what is possible" if bounds.cut else ""
    return f"{number} (95 % interval over {seeds} seeds: {low.removesuffix(' %')}–{high}{cut})"


def _apart(best: str, others: Sequence[str], pairs: Sequence[Row], seeds: int, names: Mapping[str, str]) -> str:
    """From which contestants the best is distinguishable."""
    if seeds < 2:
        return "With one seed no difference can be claimed: use more seeds."
    beaten = {label for pair in pairs if pair["better"] == best for label in (pair["first"], pair["second"])}
    clear = [names[label] for label in others if label in beaten]
    close = [names[label] for label in others if label not in beaten]
    claim = f"distinguishable with {seeds} seeds"
    few = " Two seeds are very few: how far seeds differ rests on one difference." if clear and seeds == 2 else ""
    if not close:
        return f"The difference to {'each other' if len(clear) > 1 else clear[0]} is {claim}.{few}"
    if not clear:
        return f"The difference to {listed(close, 'any of the others')} is not {claim}."
    return f"The difference to {listed(clear)} is {claim}, the difference to {listed(close)} is not.{few}"


def listed(names: Sequence[str], many: str = "") -> str:
    """a, b and c; for many names, their number."""
    if len(names) > LISTED:
        return many or f"{len(names)} others"
    *ahead, last = names
    return f"{', '.join(ahead)} and {last}" if ahead else last

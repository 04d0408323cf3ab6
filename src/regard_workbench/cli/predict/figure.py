"""The figure of a prediction: what was drawn from what, as its task draws it or as a map of weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard_workbench.figures.predictions import prediction_figure
from regard_workbench.inspection.prediction import Prediction, example_of, one_batch
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.training.loading import Loaded

NULL = "(null)"  # the column of weight that no word of the source has
LEAST_NULL = 1e-3  # less than that is rounding


def draw(loaded: Loaded, given: Mapping[str, str], found: Prediction, path: Path) -> None:
    """Write the figure of a prediction to a file, in the format of its ending."""
    example, looked = example_of(loaded, given), _looked(found)
    figure = loaded.task.draw(found.get("predicted", found["output"]), example, looked)
    if figure is None:
        if looked is None:
            why = found.get("no_alignment") or f"{loaded.config.model} shows no weights of its answer"
            raise BadValue(f"--figure: there is nothing to draw: {why}. `regard view` shows all attention.")
        shown = loaded.task.show(example, one_batch(loaded, example).to("cpu"))
        over = shown.picture if shown.grid == (1, len(looked.columns)) else None
        output = found["output"].replace("\n", "; ")
        figure = prediction_figure(f"{_read(given, found)}  →  {output}", looked, over)
    try:
        figure.savefig(path, dpi=160)
    except (OSError, ValueError) as trouble:  # no such folder; a format that matplotlib does not know
        raise BadValue(f"--figure: {str(path)!r} cannot be written: {trouble}. Try name.svg.") from None


def _read(given: Mapping[str, Any], found: Prediction) -> str:
    """What was read, in words."""
    if "words" in found:
        return str(found["words"])
    return " | ".join(text if isinstance(text, str) else " ".join(text) for text in given.values())


def with_null(table: Prediction) -> tuple[list[list[float]], list[str]]:
    """The weights and columns of a map, with a column for the null word (the sink) where it has any weight."""
    null = table.get("null", ())
    if max(null, default=0.0) < LEAST_NULL:
        return table["weights"], table["columns"]
    pairs = zip(table["weights"], null, strict=True)
    return [[*row, weight] for row, weight in pairs], [*table["columns"], NULL]


def _looked(found: Prediction) -> Looked | None:
    """What a prediction was drawn from, whatever kind it is."""
    table = found.get("alignment") or found.get("attention")
    if table:
        weights, columns = with_null(table)
        return Looked(weights, columns, table["rows"], table["source"])
    looked_at = found.get("looked_at")
    if not looked_at:
        return None
    columns = [piece["piece"] for piece in looked_at["pieces"]]
    if "readings" in looked_at:
        rows = [f"reading {number}" for number in range(1, 1 + len(looked_at["readings"]))]
        return Looked(looked_at["readings"], columns, rows, looked_at["source"])
    return Looked([[piece["weight"] for piece in looked_at["pieces"]]], columns, source=looked_at["source"])

"""The names and styles of the contestants of a comparison, in all its figures and tables."""

from __future__ import annotations

from collections.abc import Sequence

from regard_workbench.comparison.columns import naming
from regard_workbench.comparison.results import Row
from regard_workbench.figures.style import Key, Keys, shortened


def display_names(rows: Sequence[Row]) -> dict[str, str]:
    """The display names of the contestants by label: without the model where all have the same."""
    one_model = len(rows) > 1 and len({row["model"] for row in rows}) == 1
    names = [" · ".join(row[field] for field in naming(rows)) if one_model else row["label"] for row in rows]
    return {
        row["label"]: name if names.count(name) == 1 else row["label"] for row, name in zip(rows, names, strict=True)
    }


def keys_of(rows: Sequence[Row]) -> Keys:
    """The styles of the contestants, by label."""
    named = enumerate(display_names(rows).items(), 1)
    return {label: Key(number, label, shortened(name)) for number, (label, name) in named}

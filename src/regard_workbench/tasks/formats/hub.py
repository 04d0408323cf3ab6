"""Data sets of the Hugging Face hub: `data="hf:NAME"`, or "hf:NAME:CONFIGURATION", where `datasets` is installed."""

from __future__ import annotations

from typing import Any

from regard.errors import BadValue, Unsupported
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.splits import NAMES

MARK = "hf:"
Rows = list[dict[str, Any]]


def is_hub(data: Data | None) -> bool:
    """Whether `data` names a set of the hub."""
    return isinstance(data, str) and data.startswith(MARK)


def load(data: str) -> dict[str, Rows]:
    """The rows of each split, by our names of the splits; numbers of classes are replaced by their names.

    Rows that the set marks as unlabelled (class −1) are left out.
    """
    name, _, configuration = data.removeprefix(MARK).partition(":")
    if not name:
        raise BadValue(f"data: expected hf:NAME or hf:NAME:CONFIGURATION, got {data!r}.")
    try:
        import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise Unsupported(
            f"data: {data!r} needs the package datasets, which is not installed. "
            "Install the extra: pip install 'regard[huggingface]'."
        ) from None
    try:
        sets = datasets.load_dataset(name, configuration or None)
    except Exception as error:  # the library raises errors of many kinds: network, name, script, disk
        raise BadValue(f"data: the set {name!r} could not be loaded: {error}") from error
    splits: dict[str, Rows] = {}
    for split, split_names in NAMES.items():
        for theirs in split_names:
            if theirs in sets and split not in splits:
                splits[split] = _named(sets[theirs])
    if "train" not in splits:
        raise BadValue(f"data: the set {name!r} has no split 'train'. It has: {', '.join(map(str, sets))}.")
    return {split: rows for split, rows in splits.items() if rows}


def _named(part: Any) -> Rows:
    classes = {column: list(feature.names) for column, feature in part.features.items() if hasattr(feature, "names")}
    rows = []
    for row in part:
        fields = dict(row)
        if any(fields[column] == -1 for column in classes):
            continue
        fields.update({column: names[fields[column]] for column, names in classes.items()})
        rows.append(fields)
    return rows


def column(rows: Rows, place: str, option: str, given: str | None, usual: tuple[str, ...]) -> str:
    """The name of a column: the one given, or the first usual one there is."""
    columns = list(rows[0]) if rows else []
    for name in (given,) if given is not None else usual:
        if name in columns:
            return name
    raise BadValue(
        f"{option}: {place} has no column {' or '.join(usual) if given is None else repr(given)}. "
        f"It has: {', '.join(columns)}."
    )

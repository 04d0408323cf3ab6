"""Which files and which lines are for training, for validation, for testing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from regard.errors import BadValue, unknown_name
from regard.tasks.generated.draws import shares
from regard.tasks.task import SPLITS

Item = TypeVar("Item")

# How the files of a split are called, the usual name first.
NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "validate"),
    "test": ("test",),
}


def checked_split(split: str) -> str:
    """A split that exists."""
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    return split


def plain_name(path: Path) -> str:
    """A file's name without .gz."""
    return path.name.removesuffix(".gz")


def named_split(path: Path) -> str | None:
    """The split that the words of a file's name say: "qa1_train.txt", "wnut17train.conll", "emerging.dev.conll"."""
    words = re.findall(r"[a-z]+", plain_name(path).lower())
    found = [split for word in words for split, known in NAMES.items() if word in known]
    return found[-1] if found else None


def folder_split(folder: Path) -> str | None:
    """The split that a folder is called after, and nothing else: "train", "val". Not that of "my test data"."""
    return next((split for split, known in NAMES.items() if folder.name.lower() in known), None)


def files_by_split(files: Sequence[Path]) -> dict[str, Path]:
    """The file of each split among some: "dev.tsv", "test_2016.de", "woz_train_en.json". Of several, the first by name.

    A name that is the split's, or begins with it, comes before one that holds it as a word.
    """
    found: dict[str, Path] = {}
    for split, known in NAMES.items():
        exact = [path for name in known for path in sorted(files) if plain_name(path).split(".")[0] == name]
        longer = [
            path
            for name in known
            for path in sorted(files)
            if plain_name(path).startswith((f"{name}_", f"{name}-"))
        ]
        inside = [
            path
            for name in known
            for path in sorted(files)
            if name in plain_name(path).lower().replace("-", "_").replace(".", "_").split("_")
        ]
        for path in [*exact, *longer, *inside][:1]:
            found[split] = path
    return found


def listed(folder: Path, endings: Sequence[str] | None = None) -> list[Path]:
    """The files of a folder, in order, whose names end so; without hidden ones."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise BadValue(f"data: the folder {str(folder)!r} cannot be read: {error.strerror}.") from None
    return [path for path in files if endings is None or plain_name(path).lower().endswith(tuple(endings))]


def complete(parts: dict[str, list[Item]], keys: Sequence[str], seed: int) -> dict[str, list[Item]]:
    """All three splits: those that are missing are taken from the training set, a tenth of it each, by `seed`.

    `keys` are the texts of the training set. Equal texts stay together, so that none is in two splits.
    """
    missing = [split for split in ("validation", "test") if split not in parts]
    if not missing:
        return parts
    if len(set(keys)) <= len(missing):
        raise BadValue(
            f"data: {len(set(keys))} different examples are too few to take {' and '.join(missing)} from them. "
            f"Expected at least {len(missing) + 1}, or a folder with files for each split."
        )
    where = shares(keys, seed, [0.1] * len(missing))
    found = {**parts, "train": [], **{split: [] for split in missing}}
    for key, item in zip(keys, parts["train"], strict=True):
        part = where[key]
        found[missing[part] if part < len(missing) else "train"].append(item)
    return found

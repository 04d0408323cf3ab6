"""Which files and which lines are for training, for validation, for testing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from regard.errors import BadValue, unknown_name
from regard_workbench.tasks.generated.draws import shares
from regard_workbench.tasks.parts.task import SPLITS

if TYPE_CHECKING:
    from regard_workbench.tasks.formats.reading import Data

Item = TypeVar("Item")
Content = TypeVar("Content")

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


def of_split(splits: Mapping[str, Content], split: str, data: object) -> Content:
    """What there is for a split; refused where the data have nothing for it."""
    if checked_split(split) not in splits:
        raise BadValue(f"data: {data} has nothing for {split}. It has: {', '.join(splits)}.")
    return splits[split]


def plain_name(path: Path) -> str:
    """A file's name without .gz."""
    return path.name.removesuffix(".gz")


def named_split(path: Path) -> str | None:
    """The split that the words of a file's name say: "qa1_train.txt", "wnut17train.conll", "emerging.dev.conll"."""
    words = re.findall(r"[a-z]+", plain_name(path).lower())
    splits = [split for word in words for split, synonyms in NAMES.items() if word in synonyms]
    return splits[-1] if splits else None


def folder_split(folder: Path) -> str | None:
    """The split that a folder is called after, and nothing else: "train", "val". Not that of "my test data"."""
    return next((split for split, synonyms in NAMES.items() if folder.name.lower() in synonyms), None)


def files_by_split(files: Sequence[Path]) -> dict[str, Path]:
    """The file of each split among some: "dev.tsv", "test_2016.de", "woz_train_en.json". Of several, the first by name.

    A name that is the split's, or begins with it, comes before one that holds it as a word.
    """
    by_split: dict[str, Path] = {}
    for split, synonyms in NAMES.items():
        exact = [path for name in synonyms for path in sorted(files) if plain_name(path).split(".")[0] == name]
        longer = [
            path for name in synonyms for path in sorted(files) if plain_name(path).startswith((f"{name}_", f"{name}-"))
        ]
        inside = [
            path
            for name in synonyms
            for path in sorted(files)
            if name in plain_name(path).lower().replace("-", "_").replace(".", "_").split("_")
        ]
        for path in [*exact, *longer, *inside][:1]:
            by_split[split] = path
    return by_split


def listed(folder: Path, endings: Sequence[str] | None = None) -> list[Path]:
    """The files of a folder, in order, whose names end so; without hidden ones."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise BadValue(f"data: the folder {str(folder)!r} cannot be read: {error.strerror}.") from None
    return [path for path in files if endings is None or plain_name(path).lower().endswith(tuple(endings))]


def chosen_files(paths: Sequence[Path], endings: Sequence[str] | None = None) -> dict[str, list[Path]]:
    """The files of each split among paths and the files in folders: by their names, or all of them for training.

    A single file is for training, whatever it is called. Of a folder, one file of each split is taken, and what is
    called after none is left out beside it, as a README is. A file that was named itself is never left out.
    """
    if len(paths) == 1 and not paths[0].is_dir():
        return {"train": [paths[0]]}
    by_split: dict[str, list[Path]] = {}
    nameless: list[Path] = []
    for path in paths:
        inside = listed(path, endings) if path.is_dir() else [path]
        usual = files_by_split(inside)
        for split in SPLITS:
            named = [file for file in inside if named_split(file) == split]
            if named:
                by_split.setdefault(split, []).append(usual.get(split, named[0]))
        nameless += [file for file in inside if named_split(file) is None]
    for path in paths:
        if by_split and path in nameless:
            sibling = next(file for some in by_split.values() for file in some)
            raise BadValue(
                f"data: {str(path)!r} does not say which split it is for, and {str(sibling)!r} does. Name it so, too, "
                f"for instance train{path.suffix}."
            )
    return {split: by_split[split] for split in SPLITS if split in by_split} or (
        {"train": nameless} if nameless else {}
    )


def single_file(paths: Sequence[Path], endings: Sequence[str], wanted: str) -> Path:
    """The one file that was given, or the one that ends so in the one folder that was given."""
    candidates = listed(paths[0], endings) if len(paths) == 1 and paths[0].is_dir() else list(paths)
    if len(candidates) == 1:
        return candidates[0]
    if len(paths) != 1:
        raise BadValue(f"data: expected one {wanted}, got {len(paths)} paths.")
    names = ", ".join(path.name for path in candidates[:6]) or f"no file that ends in {', '.join(endings)}"
    raise BadValue(f"data: expected one {wanted}, got the folder {str(paths[0])!r}. It has {names}.")


def divided(
    parts: dict[str, list[Item]], key: Callable[[Item], str], seed: int, data: Data | None, whole: bool = False
) -> dict[str, list[Item]]:
    """The splits of what files hold: completed from the training set where there is one.

    `key`: the text of an item; items of equal texts stay together. `data`: the files, for messages. `whole`: everything
    is for testing where no file is.
    """
    if whole and "test" not in parts:
        every = [item for items in parts.values() for item in items]
        return {"validation": every, "test": every}
    if "train" not in parts or set(SPLITS) <= set(parts):
        return parts
    return complete(parts, [key(item) for item in parts["train"]], seed, data)


def complete(parts: dict[str, list[Item]], keys: Sequence[str], seed: int, data: Data | None) -> dict[str, list[Item]]:
    """All three splits: those that are missing are taken from the training set, a tenth of it each, by `seed`.

    `keys` are the texts of the training set. Equal texts stay together, so that none is in two splits. `data`: the
    files, for messages.
    """
    missing = [split for split in ("validation", "test") if split not in parts]
    if not missing:
        return parts
    if (count := len(set(keys))) <= len(missing):
        from regard_workbench.tasks.formats.file_errors import named

        several = "1 different example is" if count == 1 else f"{count} different examples are"
        examples = "1 example is" if len(keys) == 1 else several
        raise BadValue(
            f"data: {named(data)}: {examples} too few to take {' and '.join(missing)} from. "
            f"Expected at least {len(missing) + 1}, or a folder with files for each split."
        )
    where = shares(keys, seed, [0.1] * len(missing))
    splits = {**parts, "train": [], **{split: [] for split in missing}}
    for key, item in zip(keys, parts["train"], strict=True):
        tenth = where[key]
        splits[missing[tenth] if tenth < len(missing) else "train"].append(item)
    return splits

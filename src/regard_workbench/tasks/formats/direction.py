"""Which side of a translation is read and which is written, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import BadValue
from regard_workbench.tasks.formats.splits import NAMES, plain_name


class Direction(NamedTuple):
    """From the source, which is read, to the target, which is written."""

    source: str
    target: str

    def __str__(self) -> str:
        """For people."""
        return f"reads {self.source}, writes {self.target}"


def of_files(source: Path, target: Path) -> Direction:
    """The direction of two parallel files: their endings (train.de, train.en), or their names where those say more."""
    sides = [plain_name(path).rpartition(".") for path in (source, target)]
    if sides[0][0] == sides[1][0] != "" and sides[0][2] != sides[1][2]:
        return Direction(sides[0][2], sides[1][2])
    names = (source.name, target.name)
    return Direction(*names) if names[0] != names[1] else Direction(str(source), str(target))


def of_folder(folder: Path, files: Sequence[Path], learned: Direction | None, example: str) -> Direction:
    """The two endings of a folder's files: in the order a run learned them, else English first, else by alphabet."""
    split_names = {name for names in NAMES.values() for name in names}
    endings = {
        plain_name(path).rsplit(".", 1)[1]
        for path in files
        if "." in plain_name(path) and plain_name(path).split(".")[0] in split_names
    }
    if learned is not None and endings == set(learned):
        return learned
    if len(endings) != 2:
        raise BadValue(
            f"languages: {folder} has files of {', '.join(sorted(endings)) or 'no language'}; "
            f"say which two, source first, for instance {example}."
        )
    return Direction(*sorted(endings, key=lambda ending: (ending != "en", ending)))


def refuse_reversed(learned: Direction | None, given: Direction) -> None:
    """Raise where data have the two sides of what was learned the other way round."""
    if learned is not None and given == learned[::-1] and given != learned:
        raise BadValue(
            f"data: this run reads {learned.source} and writes {learned.target}, but these data come the other way "
            f"round, {given.source} first. Give SOURCE,TARGET in this order: {learned.source},{learned.target}."
        )

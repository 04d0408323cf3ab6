"""Histories of users from files: lines `user item` in time order, or a line for each user; and the titles of items."""

from __future__ import annotations

from pathlib import Path

from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.reading import excerpt, read_lines, wrong
from regard_workbench.tasks.text.split_words import split_words, trimmed

TITLES = (".titles.tsv", ".titles.txt", ".movies.dat")  # after the name of the data file without its ending
MAPPING = ".sas_to_original_items.txt"  # lines `item id`, where titles have other ids than the data


@reads_file
def read_histories(path: Path, encoding: str, other: str) -> dict[str, list[tuple[str, int]]]:
    """The items of each user in the order of the file, each with its line.

    A line is `user item`. In a file with longer lines and no user on two of them, a line is a whole history, `user item
    item …`: read as `user item` with further columns, no user would have taken more than one item.
    """
    lines = [(line, split_words(text)) for line, text in enumerate(read_lines(path, encoding, other), 1)]
    histories: dict[str, list[tuple[str, int]]] = {}
    longer: int | None = None  # the first line with more than a user and an item
    again: int | None = None  # the first line whose user was on a line before it
    for line, cells in lines:
        if not cells:
            continue
        if len(cells) < 2:
            raise wrong(
                path, line, f"expected a user and an item, got {excerpt(cells[0])}. Complete the line or delete it."
            )
        longer = line if longer is None and len(cells) > 2 else longer
        again = line if again is None and cells[0] in histories else again
        if longer is not None and again is not None:
            raise wrong(
                path,
                max(longer, again),
                f"expected lines `user item`, or one line `user item item …` for each user, but line {longer} has more "
                f"than an item, and the user of line {again} is on a line before it. Leave out what follows the item "
                "(a rating, a time), or bring each user's items into one line, in time order.",
            )
        histories.setdefault(cells[0], []).extend((item, line) for item in cells[1:])
    return histories


def titles_beside(path: Path) -> Path | None:
    """The file with titles that belongs to a file of histories, if there is one."""
    stem = path.name.removesuffix(".gz").rpartition(".")[0]
    return next((path.with_name(stem + end) for end in TITLES if path.with_name(stem + end).is_file()), None)


@reads_file
def read_titles(path: Path, data: Path | None = None) -> dict[str, str]:
    """Titles by item: lines `item TAB title`, or `id::title::…` as MovieLens has them (in Latin-1).

    Where a file of the data's name and `.sas_to_original_items.txt` lies beside the data, it says which id an item has.
    """
    movies = path.name.endswith(".dat")
    titles: dict[str, str] = {}
    for line, text in enumerate(read_lines(path, "latin-1" if movies else "utf-8"), 1):
        cells = text.split("::" if movies else "\t")
        if not trimmed(text):
            continue
        if len(cells) < 2:
            form = "id::title" if movies else "an item, a tab and its title"
            raise wrong(path, line, f"expected {form}, got {excerpt(text)}.")
        titles[trimmed(cells[0])] = trimmed(cells[1])
    mapping = None if data is None else data.with_name(data.name.partition(".")[0] + MAPPING)
    if mapping is None or not mapping.is_file():
        return titles
    named: dict[str, str] = {}
    for line, text in enumerate(read_lines(mapping), 1):
        pair = split_words(text)
        if pair and len(pair) != 2:
            raise wrong(mapping, line, f"expected an item and its id in the titles, got {excerpt(text)}.")
        if pair and pair[1] in titles:
            named[pair[0]] = titles[pair[1]]
    return named

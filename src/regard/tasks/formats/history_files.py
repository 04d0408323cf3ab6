"""Histories of users from files: lines `user item` in time order; and the titles of items from a file beside them."""

from __future__ import annotations

from pathlib import Path

from regard.tasks.formats.reading import excerpt, read_lines, wrong

TITLES = (".titles.tsv", ".titles.txt", ".movies.dat")  # after the name of the data file without its ending
MAPPING = ".sas_to_original_items.txt"  # lines `item id`, where titles have other ids than the data


def read_histories(path: Path, encoding: str, other: str) -> dict[str, list[tuple[str, int]]]:
    """The items of each user in the order of the file, each with its line."""
    found: dict[str, list[tuple[str, int]]] = {}
    for line, text in enumerate(read_lines(path, encoding, other), 1):
        if not text.strip():
            continue
        cells = text.split()
        if len(cells) != 2:
            hint = (
                " Leave out what follows the item: the order of lines is the order in time."
                if len(cells) > 2
                else " Complete the line or delete it."
            )
            raise wrong(path, line, f"expected a user and an item, got {excerpt(text)}.{hint}")
        found.setdefault(cells[0], []).append((cells[1], line))
    return found


def titles_beside(path: Path) -> Path | None:
    """The file with titles that belongs to a file of histories, if there is one."""
    stem = path.name.removesuffix(".gz").rpartition(".")[0]
    return next((path.with_name(stem + end) for end in TITLES if path.with_name(stem + end).is_file()), None)


def read_titles(path: Path, data: Path | None = None) -> dict[str, str]:
    """Titles by item: lines `item TAB title`, or `id::title::…` as MovieLens has them (in Latin-1).

    Where a file of the data's name and `.sas_to_original_items.txt` lies beside the data, it says which id an item has.
    """
    movies = path.name.endswith(".dat")
    found: dict[str, str] = {}
    for line, text in enumerate(read_lines(path, "latin-1" if movies else "utf-8"), 1):
        cells = text.split("::" if movies else "\t")
        if not text.strip():
            continue
        if len(cells) < 2:
            form = "id::title" if movies else "an item, a tab and its title"
            raise wrong(path, line, f"expected {form}, got {excerpt(text)}.")
        found[cells[0].strip()] = cells[1].strip()
    mapping = None if data is None else data.with_name(data.name.partition(".")[0] + MAPPING)
    if mapping is None or not mapping.is_file():
        return found
    named: dict[str, str] = {}
    for line, text in enumerate(read_lines(mapping), 1):
        pair = text.split()
        if pair and len(pair) != 2:
            raise wrong(mapping, line, f"expected an item and its id in the titles, got {excerpt(text)}.")
        if pair and pair[1] in found:
            named[pair[0]] = found[pair[1]]
    return named

"""The alignment of target and source, from the attention between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard_workbench.viewer.page_model import PageModel, finite

LONGEST = 512  # positions on each side; a larger alignment is not readable


def read_gold_line(given: str) -> Any:
    """The gold alignment of one sentence pair: FILE, or FILE:LINE, by default the first line."""
    from regard_workbench.tasks.formats.gold import read_gold

    path, colon, number = given.rpartition(":")
    if not colon or not number.isdigit() or Path(given).is_file():
        path, number = given, "1"
    if not Path(path).is_file():
        raise BadValue(f"--gold: there is no file {path!r}.")
    lines = read_gold(path)
    if not 1 <= int(number) <= len(lines):
        raise BadValue(f"--gold: {path!r} has {len(lines)} lines, got {number}. Write FILE:LINE.")
    return lines[int(number) - 1]


def alignment(page_model: PageModel, gold: Any = None) -> dict[str, Any] | None:
    """The scene's entry: links of the last cross-attention, and their error rate.

    Links are pairs [source, target] of positions (column, row) of that site's map, not of words.
    """
    from regard.observation.analysis.alignment import align
    from regard.observation.analysis.sites import at

    crossing = [number for number in page_model.sites(0) if page_model.page_sites[number].group == "cross"]
    if not crossing:
        return None
    number = crossing[-1]
    site, labels = page_model.site(0, number), page_model.variants[0].labels
    joined, _ = at(site, None if site.calls > 1 else -1)  # steps of a generation are rows of one map
    rows, columns = joined.shape(-1)[2:]
    if max(rows, columns) > LONGEST or not rows or not columns:
        return None
    links = align(joined)
    scene: dict[str, Any] = {
        "site": number,
        "pairs": sorted([source, target] for source, target in links),
        "aer": None,
        "sure": [],
        "possible": [],
    }
    if gold is not None:
        scene |= _judged(joined, labels, gold, rows, columns)
    return scene


def _judged(site: Any, labels: Any, gold: Any, rows: int, columns: int) -> dict[str, Any]:
    """The error rate over words, and the gold links over positions."""
    from regard.observation.analysis.alignment import align, word_of
    from regard_workbench.tasks.formats.gold import quality

    source, target = list(labels.get("tokens", ()))[:columns], list(labels.get("targets", ()))[:rows]
    words = align(site, source, target, call=-1)
    judged = quality([words], [gold])
    positions = {"source": _by_word(word_of(source)), "target": _by_word(word_of(target))}

    def spread(pairs: Any) -> list[list[int]]:
        return sorted(
            [column, row]
            for source, target in pairs
            for row in positions["target"].get(target, ())
            for column in positions["source"].get(source, ())
        )

    return {
        "aer": finite(round(judged.error_rate, 6)),
        "sure": spread(gold.sure),
        "possible": spread(gold.possible - gold.sure),
    }


def _by_word(words: Any) -> dict[int, list[int]]:
    positions: dict[int, list[int]] = {}
    for position, word in enumerate(words or ()):
        if word is not None:
            positions.setdefault(word, []).append(position)
    return positions

"""The table of docs/seeing.md, between its markers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- sweep:begin -->", "<!-- sweep:end -->"
ATTENDING = ("full", "partial", "nothing", "differs", "wrong weights")


def headline(records: list[dict[str, Any]]) -> str:
    """N of M, for each library and way of attending."""
    lines = []
    for library, way in dict.fromkeys((one["library"], one["attend"]) for one in records):
        of = [one for one in records if (one["library"], one["attend"]) == (library, way)]
        counts = Counter(one["status"] for one in of)
        attending = sum(counts[name] for name in ATTENDING)
        rest = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        lines.append(f"{library} ({way}): {counts['full']} of {attending} architectures with softmax attention are fully "
                     f"seen, of {len(of)} in all ({rest})")  # fmt: skip
    return "\n".join(lines)


def rewrite(page: Path, records: list[dict[str, Any]]) -> None:
    """Put the table between the markers of a page; they are added at its end where they are missing."""
    text = page.read_text()
    table = f"{BEGIN}\n{markdown(records)}\n{END}"
    if BEGIN in text:
        before, _, rest = text.partition(BEGIN)
        page.write_text(before + table + rest.partition(END)[2])
    else:
        page.write_text(f"{text.rstrip()}\n\n## Every architecture\n\n{table}\n")


def markdown(records: list[dict[str, Any]]) -> str:
    """The headline and a table for each library."""
    return headline(records)

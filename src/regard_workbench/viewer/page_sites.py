"""Sites as the page shows them: label, group, and what their rows and columns are.

A site knows its module's path and the sizes of its calls. The rest is inferred from common module names and from the
number of labels of each kind; otherwise positions are numbered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.observation.analysis.sites import CROSSING

MEMORIES = ("slot", "memory")
NUMBERED = {
    "tokens": "token",
    "targets": "target",
    "read": "target",
    "slots": "slot",
    "steps": "step",
    "patches": "patch",
    "nodes": "node",
    "channels": "channel",
}


@dataclass(frozen=True)
class PageSite:
    """A site as the page shows it."""

    name: str  # the site's name
    label: str  # short, for display
    group: str  # encoder, decoder, cross, memory, layers
    rows: str  # kind of its queries: a key of `Variant.labels`
    columns: str
    cross: bool  # whether it attends from one sequence to another

    def described(self, site: Any) -> dict[str, Any]:
        """The site's entry in the scene, without heads and calls."""
        return {
            "name": self.name,
            "label": self.label,
            "kind": str(site.kind),
            "how": str(site.how),
            "rows": self.rows,
            "columns": self.columns,
            "cross": self.cross,
            "group": self.group,
        }


@dataclass(frozen=True)
class _Draft:
    """A site before it has a label."""

    name: str
    group: str
    rows: str
    columns: str
    part: str = ""  # read or write, for a site of a memory


def page_sites(seen: Any, labels: Mapping[str, Sequence[str]], two_sides: bool = False) -> list[PageSite]:
    """Every site of a `Seen`, in its order.

    labels: labels of positions by kind. two_sides: the model reads `tokens` and writes `targets`.
    """
    drafts = [_draft(name, seen[name], labels, two_sides) for name in seen.names()]
    short = _labels(drafts)
    return [
        PageSite(draft.name, label, draft.group, draft.rows, draft.columns, draft.group == "cross")
        for draft, label in zip(drafts, short, strict=True)
    ]


def _labels(drafts: Sequence[_Draft]) -> list[str]:
    """Short unique labels: the group of a site and the number of its layer, from its path."""
    labels = []
    for draft in drafts:
        number = re.search(r"(?<![^.])\d+(?![^.#])", draft.name)
        word = draft.part or {"layers": "layer"}.get(draft.group, draft.group)
        labels.append(f"{word} {int(number[0])}" if number else word)
    if len(set(labels)) == len(labels):
        return labels
    ends = [draft.name.partition("#")[0].rpartition(".")[2] for draft in drafts]
    longer = [f"{label} {end}" if labels.count(label) > 1 else label for label, end in zip(labels, ends, strict=True)]
    if len(set(longer)) == len(longer):
        return longer
    counts: dict[str, int] = {}  # one module called repeatedly: numbered in the order of its calls
    numbered = []
    for draft in drafts:
        word = draft.part or {"layers": "layer"}.get(draft.group, draft.group)
        numbered.append(f"{word} {counts.get(word, 0)}")
        counts[word] = counts.get(word, 0) + 1
    return numbered


def main_kind(labels: Mapping[str, Sequence[str]]) -> str:
    """The kind of positions that a model reads: patches of an image, steps, nodes of a graph, or tokens."""
    return next((kind for kind in ("patches", "steps", "nodes") if kind in labels), "tokens")


def _draft(name: str, site: Any, labels: Mapping[str, Sequence[str]], two_sides: bool) -> _Draft:
    down, across = str(site.rows), str(site.columns)
    path, main = name.casefold().split("."), main_kind(labels)
    if down in MEMORIES or across in MEMORIES:
        sides = [{"slot": "slots", "memory": "memory"}.get(side, main) for side in (down, across)]
        direction = next((word for word in ("write", "read") if path[-1].startswith(word[:4])), "")
        return _Draft(name, "memory", sides[0], sides[1], direction)
    if across == "channel":
        return _Draft(name, "channels", "whole", "channels")
    if CROSSING.search(name) or (two_sides and path[0].startswith("attention")):
        _, _, queries, keys = site.shape(0)
        rows = "targets" if two_sides else _fitting(queries, labels, main)
        return _Draft(name, "cross", rows, _fitting(keys, labels, main))
    if two_sides and any(step.startswith("decoder") for step in path):
        return _Draft(name, "decoder", "read", "read")
    group = "encoder" if two_sides and any(step.startswith("encoder") for step in path) else "layers"
    _, _, queries, keys = site.shape(0)
    pools = queries == 1 < keys and site.calls == 1  # one query over the whole input
    if two_sides:
        return _Draft(name, group, "whole" if pools else main, main)
    rows = "whole" if pools else _fitting(queries, labels, main)
    return _Draft(name, group, rows, _fitting(keys, labels, main))


def _fitting(count: int, labels: Mapping[str, Sequence[str]], main: str) -> str:
    """The kind with so many labels; the main kind where several or none fit."""
    if len(labels.get(main, ())) == count:
        return main
    return next((kind for kind, texts in labels.items() if len(texts) == count and kind != "read"), main)


def labels_for(kind: str, count: int, given: Sequence[str]) -> list[str]:
    """`count` labels: those given, and numbers from 0 where there are too few."""
    if kind == "whole":
        return ["the whole input"]
    word = NUMBERED.get(kind, "position")
    return [*given[:count], *(f"{word} {number}" for number in range(len(given), count))]

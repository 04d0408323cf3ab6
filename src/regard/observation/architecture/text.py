"""The picture of a network in characters, from top to bottom; a sum shows where a residual connection ends."""

from __future__ import annotations

from itertools import zip_longest

from regard.observation.architecture.diagram import (
    Diagram,
    Edge,
    Frame,
    Node,
    from_other_lanes,
    lanes,
    members,
    skips,
    tracks_of,
)

SIGNS = {"+": "⊕", "×": "⊗", "∥": "⊞"}
WIDEST = 46  # of a column
LEAST = 26
GAP = 4  # between columns


def text(diagram: Diagram, width: int = 100) -> list[str]:
    """The lines of the picture; columns stand side by side where they fit."""
    columns = lanes(diagram)
    own = min(WIDEST, (width - GAP * (len(columns) - 1)) // len(columns))
    beside = own >= LEAST
    blocks = [_column(column, diagram, own if beside else min(WIDEST, width)) for column in columns]
    if not beside:
        return [
            line.rstrip() for number, block in enumerate(blocks) for line in ([""] if number else []) + block
        ]
    widths = [max(map(len, block)) for block in blocks]
    rows = zip_longest(*blocks, fillvalue="")
    return [
        (" " * GAP).join(line.ljust(size) for line, size in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _column(column: list[Node | Frame], diagram: Diagram, width: int) -> list[str]:
    nodes = {node for child in column for node in members(child)}
    home = {node: child for child in diagram.root.children for node in members(child)}
    reads = {
        node: list(dict.fromkeys(home[source].label for source in sources))
        for node, sources in from_other_lanes(column, diagram).items()
    }
    return _Drawing(diagram.edges, nodes, reads).block(column, width)


class _Drawing:
    """One column."""

    def __init__(self, edges: list[Edge], lane: set[Node], reads: dict[Node, list[str]]) -> None:
        self.edges, self.lane, self.reads = edges, lane, reads

    def block(self, children: list[Node | Frame], width: int) -> list[str]:
        """Children below each other; edges past neighbours run on their right."""
        found = skips(children, self.edges, self.lane)
        tracks, routed = tracks_of(found)
        inner = width - 2 * len(tracks)
        lines: list[list[str]] = []
        ends: dict[int, int] = {}  # the line at which an edge to a child arrives
        starts: dict[int, int] = {}
        for number, child in enumerate(children):
            if any(skip.start == number for skip, _ in routed):
                starts[number] = len(lines)
                lines.append(list(" ┬".ljust(width)))
            drawn = self._node(child, inner) if isinstance(child, Node) else self._frame(child, inner)
            ends[number] = len(lines) + (len(drawn) - 1 if isinstance(child, Node) else 1)
            lines += [list(line.ljust(width)) for line in drawn]
        for skip, track in routed:
            _route(lines, starts[skip.start], ends[skip.end], inner + 2 * track + 1)
        return ["".join(line).rstrip() for line in lines]

    def _node(self, node: Node, width: int) -> list[str]:
        if node.kind == "output":
            return [_cut(f" ▼ {node.label}", width)]
        if node.kind in SIGNS:
            return [f" {SIGNS[node.kind]} {self._sources(node)}".rstrip()]
        before = [f" ▽ {node.given}"] if node.given else []
        label, parts = f" {node.label}", [part for part in (node.detail, self._sources(node)) if part]
        room = width - len(label) - 2
        if len(" ".join(parts)) > room:
            return [*before, _cut(label, width), *(_cut(f"   {part}", width) for part in parts)]
        return [*before, label + "  " + " ".join(parts).rjust(room)]

    def _sources(self, node: Node) -> str:
        others = [*self.reads.get(node, []), *([node.given] if node.given and node.kind in SIGNS else [])]
        return f"← {', '.join(others)}" if others else ""

    def _frame(self, frame: Frame, width: int) -> list[str]:
        times = f" × {frame.repeat}" if frame.repeat > 1 else ""
        title = _cut(f"╭─ {frame.label}{times} ", width - 1)
        inside = self.block(frame.children, width - 4)
        body = [f"│ {line.ljust(width - 4)} │" for line in inside]
        return [title + "─" * (width - 1 - len(title)) + "╮", *body, "╰" + "─" * (width - 2) + "╯"]


def _route(lines: list[list[str]], start: int, end: int, column: int) -> None:
    """Draw an edge from the wire at line `start` down to line `end`, along a column."""
    for number in range(start + 1, end):
        lines[number][column] = "│"
    _level(lines[start], column, "╮")
    _level(lines[end], column, "╯")


def _level(line: list[str], column: int, corner: str) -> None:
    last = max((place for place in range(column) if line[place] != " "), default=0)
    for place in range(last + 1, column):
        line[place] = "─" if place > last + 1 or line[last] == "┬" else " "
    line[column] = corner


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"

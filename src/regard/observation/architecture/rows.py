"""In which row of a frame each thing stands, and in which order: what feeds stands above what is fed."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

from regard.observation.architecture.diagram import DiagramNode, Edge, Frame, members

Thing = DiagramNode | Frame


@dataclass
class Link:
    """A wire of a frame before it has a place: from a child (None: the frame's top) to a child (None: its bottom)."""

    origin: Thing | None
    source: DiagramNode
    target: Thing | None
    back: bool  # how it is drawn
    up: bool  # whether it leads to an earlier row, or to the same
    beside: bool = False  # runs on the right of the rows
    x: float = 0.0  # where it ends

    @property
    def trunk(self) -> tuple[int, DiagramNode, bool]:
        """The key by which wires are joined: those with equal keys are drawn as one line until they part."""
        return id(self.origin), self.source, self.back


class FrameRows:
    """The children of a frame in rows. What comes from `sides` enters at the left, all else from outside at the top."""

    def __init__(self, children: list[Thing], edges: list[Edge], sides: set[DiagramNode]) -> None:
        self.children, self.edges, self.sides = children, edges, sides
        self.home: dict[DiagramNode, Thing] = {node: child for child in children for node in members(child)}
        self.links = self._links()
        self.row = self._rows()
        self.rows: list[list[Thing]] = [[] for _ in range(max(self.row.values(), default=-1) + 1)]
        for child in children:
            self.rows[self.row[id(child)]].append(child)
        place: dict[int, float] = {}
        for row in self.rows:  # first what is fed from outside on the left; what begins here at the nearer end
            fed = any(self.entering(child) for child in row)
            row.sort(key=lambda c: (not self.entering(c), self.begins(c) is fed, self._pull(c, place)))
            place |= {id(child): number - (len(row) - 1) / 2 for number, child in enumerate(row)}

    def _links(self) -> list[Link]:
        links: dict[tuple[int, DiagramNode, int, bool], Link] = {}
        for edge in self.edges:
            origin, target = self.home.get(edge.source), self.home.get(edge.target)
            if (origin is None and (target is None or edge.source in self.sides)) or (
                origin is target and isinstance(origin, Frame)
            ):
                continue
            back = edge.back and target is not None
            link = Link(origin, edge.source, target, back, back and origin is not None)
            links.setdefault((id(origin), edge.source, id(target), back), link)
        return list(links.values())

    def _rows(self) -> dict[int, int]:
        row: dict[int, int] = {}
        down = [link for link in self.links if not link.up]
        for child in self.children:  # in an order in which what feeds comes first
            above = [row[id(k.origin)] for k in down if k.target is child and k.origin is not None]
            row[id(child)] = max(above, default=-1) + 1
        for child in reversed(self.children):
            after = [row[id(k.target)] for k in down if k.origin is child and k.target is not None]
            if self.begins(child) and after:
                row[id(child)] = max(0, min(after) - 1)
            elif self.begins(child):
                row[id(child)] = max(row.values()) + (len(row) > 1)
        return row

    def begins(self, child: Thing) -> bool:
        """Whether nothing feeds a child: an input, or learned rows."""
        return not any(k.target is child and not k.up for k in self.links) and not self.entering(child)

    def _pull(self, child: Thing, place: dict[int, float]) -> float:
        """The mean place of what feeds a child."""
        feeding = [place[id(k.origin)] for k in self.links if k.target is child and id(k.origin) in place]
        return fsum(feeding) / len(feeding) if feeding else 0.0

    def entering(self, child: Thing) -> list[DiagramNode]:
        """What comes to a child from the left."""
        outside = [edge.source for edge in self.edges if self.home.get(edge.target) is child]
        return list(dict.fromkeys(source for source in outside if source in self.sides and source not in self.home))

    def leftmost(self, child: Thing) -> bool:
        """Whether a child stands first in its row, so that a wire from the left reaches it."""
        return self.rows[self.row[id(child)]][0] is child

    def row_of(self, thing: Thing | None, otherwise: int) -> int:
        """The row of a child, or another number for the border of the frame."""
        return otherwise if thing is None else self.row[id(thing)]

    def tracks(self) -> dict[object, int]:
        """A line on the right of the rows for each trunk; lines that overlap are different."""
        spans: dict[object, list[float]] = {}
        for link in self.links:
            if link.beside:
                ends = (self.row_of(link.origin, -1) + 0.6, self.row_of(link.target, len(self.rows)) + 0.1)
                trunk_span = spans.setdefault(link.trunk, [min(ends), max(ends)])
                trunk_span[:] = [min(trunk_span[0], *ends), max(trunk_span[1], *ends)]
        occupied: list[list[list[float]]] = []
        track_of: dict[object, int] = {}
        for trunk, span in sorted(spans.items(), key=lambda item: item[1][1] - item[1][0]):
            apart = [
                all(other_span[1] < span[0] or span[1] < other_span[0] for other_span in some) for some in occupied
            ]
            free = apart.index(True) if True in apart else len(occupied)
            occupied[free : free + 1] = [[*(occupied[free] if free < len(occupied) else []), span]]
            track_of[trunk] = free
        return track_of

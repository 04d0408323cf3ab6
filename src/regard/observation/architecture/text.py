"""The picture of a network in characters, laid out like the SVG; an outline where there is no room for that."""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.observation.architecture.diagram import SIGNS, Diagram, DiagramNode, Edge, Frame, members
from regard.observation.architecture.geometry import Block, Measures, Rect, Wire
from regard.observation.architecture.picture import arranged

CIRCLED = {"+": "⊕", "×": "⊗", "∥": "⊞", "·": "⊙"}
WIDTHS = (39, 35, 31, 29, 27, 25, 23, 21)  # of the widest box, tried one after the other
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = {
    3: "│",
    12: "─",
    9: "└",
    5: "┘",
    10: "┌",
    6: "┐",
    11: "├",
    7: "┤",
    14: "┬",
    13: "┴",
    15: "┼",
    1: "│",
    2: "│",
    4: "─",
    8: "─",
}
_DASHED = {"│": "╎", "─": "╌"}


def text(diagram: Diagram, width: int = 80) -> list[str]:
    """The lines of the picture, none longer than `width`."""
    for beside in (True, False):
        for most in WIDTHS:
            lines = _Canvas(arranged(diagram, _measures(most), beside)).lines()
            if max(map(len, lines)) <= width:
                return lines
    return outline(diagram, width)


def title_of(frame: Frame) -> str:
    """The title of a frame: its name, how often it is repeated, and what its loop goes over."""
    times = f" × {frame.repeat}" if frame.repeat > 1 else ""
    return ", ".join(filter(None, (f"{frame.label}{times}".strip(), f"↻ {frame.loop}" if frame.loop else "")))


def _measures(most: int) -> Measures:
    return Measures(
        box=_sized(most),
        label=lambda frame: min(len(title_of(frame)) + 3.0, most),
        gap=1,
        enter=1,
        track=1,
        gutter=2,
        pad=2,
        foot=1,
        title=1,
        beside=2,
        lane=2,
        port=4,
    )


def _sized(most: int) -> Callable[[DiagramNode], tuple[float, float]]:
    def size(node: DiagramNode) -> tuple[float, float]:
        if node.kind in SIGNS:
            return 1, 1
        if node.kind in ("input", "output"):
            return _odd(min(len(node.label), most)), 1
        return _odd(min(max(len(node.label), len(node.detail), 9) + 2, most)), 4 if node.detail else 3

    return size


def _odd(number: int) -> int:
    return number + 1 - number % 2


class _Canvas:
    """Characters at columns and rows, and the directions in which wires leave each place."""

    def __init__(self, block: Block) -> None:
        self.width, self.height = math.ceil(block.right) + 1, math.ceil(block.height) + 1
        self.signs: dict[tuple[int, int], str] = {}
        self.ways: dict[tuple[int, int], int] = {}
        self.dashed: dict[tuple[int, int], bool] = {}
        for rect in block.rects:
            if isinstance(rect.thing, Frame):
                self._frame(rect, rect.thing)
        for wire in block.wires:
            self._wire(wire)
        for place, ways in self.ways.items():
            line = _LINES[ways]
            self.signs[place] = _DASHED.get(line, line) if self.dashed[place] else line
        for wire in block.wires:
            self._arrow(wire)
        for rect in block.rects:
            if isinstance(rect.thing, DiagramNode):
                self._node(rect, rect.thing)

    def lines(self) -> list[str]:
        """The picture line by line."""
        rows = ["".join(self.signs.get((x, y), " ") for x in range(self.width)).rstrip() for y in range(self.height)]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def _put(self, x: int, y: int, words: str) -> None:
        for number, sign in enumerate(words):
            self.signs[x + number, y] = sign

    def _border(self, rect: Rect, corners: str, lines: str) -> tuple[int, int, int, int]:
        left, top = _column(rect.x), math.floor(rect.y)
        right, bottom = _column(rect.x + rect.width) - 1, math.floor(rect.y + rect.height) - 1
        for y in range(top + 1, bottom):
            self._put(left, y, lines[1])
            self._put(right, y, lines[1])
        self._put(left, top, corners[0] + lines[0] * (right - left - 1) + corners[1])
        self._put(left, bottom, corners[2] + lines[0] * (right - left - 1) + corners[3])
        return left, top, right, bottom

    def _frame(self, rect: Rect, frame: Frame) -> None:
        left, top, right, _ = self._border(rect, "╭╮╰╯", "╌╎" if frame.loop else "─│")
        title = title_of(frame)
        if title:
            self._put(left + 2, top, _cut(f" {title} ", right - left - 3))

    def _node(self, rect: Rect, node: DiagramNode) -> None:
        x, y = _column(rect.x), math.floor(rect.y)
        if node.kind in SIGNS:
            self._put(x, y, CIRCLED[node.kind])
        elif node.kind in ("input", "output"):
            self._put(x, y, _cut(node.label, int(rect.width)).center(int(rect.width)))
        else:
            left, top, right, _ = self._border(rect, "┌┐└┘", "─│" if node.used else "╌╎")
            for number, words in enumerate(filter(None, (node.label, node.detail))):
                self._put(left + 1, top + 1 + number, _cut(words, right - left - 1).center(right - left - 1))

    def _wire(self, wire: Wire) -> None:
        (a, b), (c, d) = wire.points[:2]
        if a == c and b != d:  # it begins below something
            self._way((_column(a), math.floor(b)), _UP, wire.back)
        for (a, b), (c, d) in zip(wire.points, wire.points[1:], strict=False):
            x, y, u, v = _column(a), math.floor(b), _column(c), math.floor(d)
            steps = max(abs(u - x), abs(v - y))
            for step in range(steps):
                ahead = ((u > x) - (u < x), (v > y) - (v < y))
                cell = (x + ahead[0] * step, y + ahead[1] * step)
                self._way(cell, _direction(*ahead), wire.back)
                self._way((cell[0] + ahead[0], cell[1] + ahead[1]), _direction(-ahead[0], -ahead[1]), wire.back)

    def _way(self, place: tuple[int, int], way: int, back: bool) -> None:
        self.ways[place] = self.ways.get(place, 0) | way
        self.dashed[place] = self.dashed.get(place, True) and back

    def _arrow(self, wire: Wire) -> None:
        if wire.arrow:
            (a, _), (c, d) = wire.points[-2:]
            x, y = _column(c), math.floor(d)
            if a < c:
                self.signs[x - 1, y] = "▶"
            elif a > c:
                self.signs[x, y] = "◀"
            else:
                self.signs[x, y - 1] = "▼"


def _direction(x: int, y: int) -> int:
    return _RIGHT if x > 0 else _LEFT if x < 0 else _DOWN if y > 0 else _UP


def _column(x: float) -> int:
    return math.floor(x + 0.5)


def _cut(words: str, width: int) -> str:
    return words if len(words) <= width else words[: max(0, width - 1)] + "…"


def outline(diagram: Diagram, width: int) -> list[str]:
    """The network as an indented list, each part with what feeds it."""
    return _listed(diagram.root.children, diagram.edges, width, "")


def _listed(children: list[DiagramNode | Frame], edges: list[Edge], width: int, indent: str) -> list[str]:
    lines: list[str] = []
    before: DiagramNode | None = None
    for child in children:
        if isinstance(child, Frame):
            lines.append(_cut(f"{indent}{title_of(child)}", width))
            lines += _listed(child.children, edges, width, f"{indent}│ ")
        else:
            fed = [edge.source for edge in edges if edge.target is child and edge.source is not before]
            named = ", ".join(dict.fromkeys(source.label for source in fed))
            sign = CIRCLED.get(child.kind, "")
            words = " ".join(filter(None, (sign, child.label, child.detail, f"← {named}" if named else "")))
            lines.append(_cut(f"{indent}{words}", width))
        before = members(child)[-1] if members(child) else before
    return lines

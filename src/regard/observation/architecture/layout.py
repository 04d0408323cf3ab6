"""Where everything stands: rows from top to bottom, what is parallel side by side, wires between them and beside them.

Wires run only where no box can be: across in the gaps between rows, down and up on the right of all rows, and from the
left border to the leftmost thing of a row. So no wire crosses a box, whatever the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from regard.observation.architecture.diagram import SIGNS, Edge, Frame, Node, members
from regard.observation.architecture.geometry import Block, Metric, Rect, Wire

Thing = Node | Frame


@dataclass
class _Link:
    """A wire of a frame before it has a place: from a child (None: the frame's top) to a child (None: its bottom)."""

    origin: Thing | None
    source: Node
    target: Thing | None
    back: bool  # how it is drawn
    up: bool  # whether it leads to an earlier row, or to the same
    beside: bool = False  # runs on the right of the rows
    x: float = 0.0  # where it ends

    @property
    def trunk(self) -> tuple[int, Node, bool]:
        """Wires with one trunk are one line as far as they run together."""
        return id(self.origin), self.source, self.back


class Grid:
    """The inside of a frame."""

    def __init__(
        self, children: list[Thing], edges: list[Edge], metric: Metric, tops: list[Node], sides: set[Node]
    ) -> None:
        self.children, self.edges, self.metric, self.tops, self.sides = children, edges, metric, tops, sides
        self.home: dict[Node, Thing] = {node: child for child in children for node in members(child)}
        self.links = self._links()
        self.row = self._rows()
        self.rows: list[list[Thing]] = [[] for _ in range(max(self.row.values(), default=-1) + 1)]
        for child in children:
            self.rows[self.row[id(child)]].append(child)
        place: dict[int, float] = {}
        for row in self.rows:  # what is fed from the left stands on the left, and what begins leftmost of all
            row.sort(key=lambda child: (not self._begins(child), self._pull(child, place)))
            place |= {id(child): number - (len(row) - 1) / 2 for number, child in enumerate(row)}
        self.blocks = {id(child): self._block(child) for child in children}
        self.x: dict[int, float] = {}
        self.result = Block()
        self._place_across()
        self._choose_ends()
        self._place_down()

    # What feeds what inside the frame.

    def _links(self) -> list[_Link]:
        found: dict[tuple[int, Node, int, bool], _Link] = {}
        for edge in self.edges:
            origin, target = self.home.get(edge.source), self.home.get(edge.target)
            if (origin is None and (target is None or edge.source in self.sides)) or (
                origin is target and isinstance(origin, Frame)
            ):
                continue
            back = edge.back and target is not None
            link = _Link(origin, edge.source, target, back, back and origin is not None)
            found.setdefault((id(origin), edge.source, id(target), back), link)
        return list(found.values())

    def _rows(self) -> dict[int, int]:
        row: dict[int, int] = {}
        feeding = {id(c): [k for k in self.links if k.target is c and not k.up and k.origin is not None] for c in self.children}
        for child in self.children:  # in an order in which what feeds comes first
            row[id(child)] = max((row.get(id(link.origin), -1) for link in feeding[id(child)]), default=-1) + 1
        for child in reversed(self.children):
            after = [row[id(link.target)] for link in self.links if link.origin is child and link.target is not None and not link.up]
            if self._begins(child) and after:
                row[id(child)] = max(0, min(after) - 1)
            elif self._begins(child):
                row[id(child)] = max(row.values()) + (len(row) > 1)
        return row

    def _begins(self, child: Thing) -> bool:
        """Whether nothing feeds a child: an input, or learned rows."""
        return not any(link.target is child and not link.up for link in self.links) and not (
            self.sides & {edge.source for edge in self.edges if self.home.get(edge.target) is child}
        )

    def _pull(self, child: Thing, place: dict[int, float]) -> float:
        """The mean place of what feeds a child."""
        feeding = [place[id(k.origin)] for k in self.links if k.target is child and id(k.origin) in place]
        return sum(feeding) / len(feeding) if feeding else 0.0

    def _block(self, child: Thing) -> Block:
        if isinstance(child, Node):
            width, height = self.metric.box(child)
            half = width / 2
            return Block(half, half, height, [Rect(child, -half, 0, width, height)], bottoms={child: 0.0})
        tops = [link.source for link in self.links if link.target is child]
        return framed(child, self.edges, self.metric, list(dict.fromkeys(tops)), self.sides)

    # Across.

    def _place_across(self) -> None:
        metric = self.metric
        self.left = self.right = 0.0
        for row in self.rows:
            side = [child for child in row if self._begins(child)] if len(row) > 1 else []
            side = side if len(side) < len(row) else []
            main = [child for child in row if child not in side]
            wide = sum(self._width(child) for child in main) + metric.beside * (len(main) - 1)
            x = -wide / 2 if len(main) > 1 else -self.blocks[id(main[0])].left
            edge = x
            for child in main:
                self.x[id(child)] = math.floor(x + self.blocks[id(child)].left + 0.5)
                x += self._width(child) + metric.beside
            self.right = max(self.right, x - metric.beside)
            for child in reversed(side):
                edge -= metric.beside + self._width(child)
                self.x[id(child)] = math.floor(edge + self.blocks[id(child)].left)
            self.left = max(self.left, -edge)
        if any(e.source in self.sides and e.source not in self.home and isinstance(self.home.get(e.target), Node) for e in self.edges):
            self.left += metric.enter
        first = [link.source for link in self.links if link.origin is None and self._row_of(link.target, 1) == 0]
        direct = [source for source in self.tops if source in first]
        for number, source in enumerate(direct):
            self.result.tops[source] = (number - (len(direct) - 1) / 2) * metric.port

    def _width(self, child: Thing) -> float:
        return self.blocks[id(child)].left + self.blocks[id(child)].right

    def _choose_ends(self) -> None:
        """Decide which wires run beside the rows, and where arrows enter boxes from above."""
        for link in self.links:
            link.beside = link.up or self._row_of(link.target, len(self.rows)) - self._row_of(link.origin, -1) > 1
        for child in self.children:
            block, middle = self.blocks[id(child)], self.x[id(child)]
            above = [link for link in self.links if link.target is child and not self._at_side(link)]
            if isinstance(child, Frame):
                for link in above:
                    link.x = middle + block.tops[link.source]
                continue
            above.sort(key=lambda link: (link.beside, self._start(link)))
            straight = next((n for n, link in enumerate(above) if abs(self._start(link) - middle) < 0.01), None)
            base = (len(above) - 1) / 2 if straight is None else straight
            room = min(self.metric.port, 2 * block.left / (len(above) + 1))
            for number, link in enumerate(above):
                link.x = middle + (0.0 if child.kind in SIGNS else (number - base) * room)
        for link in self.links:
            if link.target is None:
                link.x = self._start(link)

    def _row_of(self, thing: Thing | None, otherwise: int) -> int:
        return otherwise if thing is None else self.row[id(thing)]

    def _start(self, link: _Link) -> float:
        """The x at which a wire begins."""
        if link.origin is None:
            return self.result.tops.get(link.source, self.right)
        return self.x[id(link.origin)] + self.blocks[id(link.origin)].bottoms[link.source]

    def _from_above(self, link: _Link) -> bool:
        """Whether a wire enters the frame beside the rows, because its source feeds nothing in the first one."""
        return link.origin is None and link.source not in self.result.tops

    def _at_side(self, link: _Link) -> bool:
        """Whether a wire beside the rows enters its target, the last thing of a row, from the right."""
        target = link.target
        return link.beside and isinstance(target, Node) and self.rows[self.row[id(target)]][-1] is target

    # Down.

    def _place_down(self) -> None:
        metric, count = self.metric, len(self.rows)
        tracks = self._tracks()
        across: list[dict[object, int]] = [{} for _ in range(count + 1)]  # wires in the gap above each row
        for link in self.links:
            leaving, arriving = self._row_of(link.origin, -1) + 1, self._row_of(link.target, count)
            if link.beside:
                if not self._from_above(link):
                    across[leaving].setdefault(link.trunk, len(across[leaving]))
                if not self._at_side(link) and link.target is not None:
                    across[arriving].setdefault((link.trunk, id(link.target)), len(across[arriving]))
            elif abs(self._start(link) - link.x) > 0.01:
                across[arriving].setdefault(link.trunk, len(across[arriving]))
        late = self._late_sides()
        y, tops, gaps = 0.0, [], []
        for number in range(count + 1):
            lines = len(across[number]) + len([1 for row, _, _ in late if row == number])
            gaps.append(y)
            y += self._gap(number, lines) + metric.track * lines
            tops.append(y)
            if number < count:
                y += max(self.blocks[id(child)].height for child in self.rows[number])
        self.result.height = y
        self.y = {id(child): tops[number] for number, row in enumerate(self.rows) for child in row}
        for child in self.children:
            self.result.add(self.blocks[id(child)], self.x[id(child)], self.y[id(child)])
        level = {
            (number, key): gaps[number] + metric.gap * 0.4 + metric.track * place
            for number in range(count + 1)
            for key, place in across[number].items()
        }
        self._draw(level, tracks)
        self._enter_sides(late, gaps, across)
        self.result.left = self.left
        self.result.right = self.right + metric.gutter * (max(tracks.values(), default=-1) + 1)

    def _gap(self, number: int, lines: int) -> float:
        """The height of the gap above a row without the wires that run across in it."""
        if 0 < number < len(self.rows) or lines:
            return self.metric.gap
        arriving = any(link.origin is None and not self._from_above(link) for link in self.links)
        return self.metric.enter if number == 0 and arriving and isinstance(self.rows[0][0], Node) else 0.0

    def _tracks(self) -> dict[object, int]:
        """A line on the right of the rows for each trunk; lines that overlap are different."""
        spans: dict[object, list[float]] = {}
        for link in self.links:
            if link.beside:
                ends = (self._row_of(link.origin, -1) + 0.6, self._row_of(link.target, len(self.rows)) + 0.1)
                known = spans.setdefault(link.trunk, [min(ends), max(ends)])
                known[:] = [min(known[0], *ends), max(known[1], *ends)]
        taken: list[list[list[float]]] = []
        found: dict[object, int] = {}
        for trunk, span in sorted(spans.items(), key=lambda item: item[1][1] - item[1][0]):
            free = next(
                (n for n, some in enumerate(taken) if all(one[1] < span[0] or span[1] < one[0] for one in some)),
                len(taken),
            )
            taken[free : free + 1] = [[*(taken[free] if free < len(taken) else []), span]]
            found[trunk] = free
        return found

    def _draw(self, level: dict[tuple[int, object], float], tracks: dict[object, int]) -> None:
        metric, count = self.metric, len(self.rows)
        ports: dict[int, int] = {}  # how many wires have entered a node from the right
        above: dict[Node, float] = {}
        for link in self.links:
            x = self._start(link)
            y = 0.0 if link.origin is None else self.y[id(link.origin)] + self.blocks[id(link.origin)].height
            leaving, arriving = self._row_of(link.origin, -1) + 1, self._row_of(link.target, count)
            end = self.result.height if link.target is None else self.y[id(link.target)]
            points = [(x, y)]
            if link.beside:
                beside = self.right + metric.gutter * (tracks[link.trunk] + 0.75)
                if self._from_above(link):
                    points, above[link.source] = [(beside, y)], beside
                else:
                    out = level[leaving, link.trunk]
                    points += [(x, out), (beside, out)]
                    if sum(1 for other in self.links if other.trunk[:2] == link.trunk[:2]) > 1:
                        self.result.dots.append((x, out))
                if self._at_side(link):
                    assert isinstance(link.target, Node)
                    place = ports.get(id(link.target), 0)
                    ports[id(link.target)] = place + 1
                    block = self.blocks[id(link.target)]
                    middle = end + block.height / 2 + (0 if link.target.kind in SIGNS else _spread(place) * metric.port * 0.45)
                    points += [(beside, middle), (self.x[id(link.target)] + block.right, middle)]
                elif link.target is None:
                    link.x = beside
                    points.append((beside, end))
                else:
                    into = level[arriving, (link.trunk, id(link.target))]
                    points += [(beside, into), (link.x, into), (link.x, end)]
            else:
                if abs(x - link.x) > 0.01:
                    turn = level[arriving, link.trunk]
                    points += [(x, turn), (link.x, turn)]
                points.append((link.x, end))
            if link.target is None:
                self.result.bottoms[link.source] = link.x
            self.result.wires.append(Wire(points, link.source, link.back, isinstance(link.target, Node)))
        self.result.tops.update(above)

    # From the left.

    def _late_sides(self) -> list[tuple[int, Node, Thing]]:
        """What comes from the left to things that do not stand leftmost: it enters above their row."""
        found = []
        for edge in self.edges:
            child = self.home.get(edge.target)
            if edge.source in self.sides and edge.source not in self.home and isinstance(child, Node):
                if self.rows[self.row[id(child)]][0] is not child:
                    found.append((self.row[id(child)], edge.source, child))
        return found

    def _enter_sides(self, late: list[tuple[int, Node, Thing]], gaps: list[float], across: list[dict[object, int]]) -> None:
        metric, taken = self.metric, {}
        for number, source, child in late:
            place = len(across[number]) + taken.get(number, 0)
            taken[number] = taken.get(number, 0) + 1
            y = gaps[number] + metric.gap * 0.4 + metric.track * place
            x = self.x[id(child)] - metric.port
            self.result.wires.append(Wire([(-self.left, y), (x, y), (x, self.y[id(child)])], source))
            self.result.sides.append((source, y))
        for child in self.children:
            block, x, y = self.blocks[id(child)], self.x[id(child)], self.y[id(child)]
            if isinstance(child, Frame):
                for source, level in block.sides:
                    self.result.wires.append(Wire([(-self.left, y + level), (x - block.left, y + level)], source, arrow=False))
                    self.result.sides.append((source, y + level))
            elif self.rows[self.row[id(child)]][0] is child:
                entering = list(dict.fromkeys(e.source for e in self.edges if e.target is child and e.source in self.sides and e.source not in self.home))
                for number, source in enumerate(entering):
                    level = y + block.height * (number + 1) / (len(entering) + 1)
                    self.result.wires.append(Wire([(-self.left, level), (x - block.left, level)], source))
                    self.result.sides.append((source, level))


def _spread(number: int) -> int:
    """0, 1, −1, 2, −2 …"""
    return (number + 1) // 2 * (1 if number % 2 else -1)


def framed(frame: Frame, edges: list[Edge], metric: Metric, tops: list[Node], sides: set[Node]) -> Block:
    """A frame with its border and title around what it holds."""
    inner = Grid(frame.children, edges, metric, tops, sides).result
    pad = metric.pad
    entering = max((-x for x in inner.tops.values()), default=0.0)
    left = max(inner.left + pad, metric.label(frame) + pad + entering if tops else 0.0)
    right = max(inner.right + pad, 0.0 if tops else metric.label(frame) + pad - left)
    top = metric.title
    block = Block(left, right, inner.height + top + metric.foot)
    block.rects.append(Rect(frame, -left, 0, left + right, block.height))
    block.add(inner, 0, top)
    block.tops, block.bottoms = inner.tops, inner.bottoms
    for source, x in inner.tops.items():
        block.wires.append(Wire([(x, 0), (x, top)], source, arrow=False))
    for node, x in inner.bottoms.items():
        block.wires.append(Wire([(x, top + inner.height), (x, block.height)], node, arrow=False))
    for source, y in inner.sides:
        block.wires.append(Wire([(-left, y + top), (-inner.left, y + top)], source, arrow=False))
        block.sides.append((source, y + top))
    return block

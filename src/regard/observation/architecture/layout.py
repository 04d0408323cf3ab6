"""Where everything stands: rows from top to bottom, what is parallel side by side, wires between them and beside them.

Wires run only where no box can be: across in the gaps between rows, down and up on the right of all rows, and from the
left border to the leftmost thing of a row. So no wire crosses a box, whatever the network.
"""

from __future__ import annotations

import math
from math import fsum

from regard.observation.architecture.diagram import SIGNS, DiagramNode, Edge, Frame
from regard.observation.architecture.geometry import Block, Measures, Rect, Wire
from regard.observation.architecture.rows import FrameRows, Link, Thing


class FrameLayout(FrameRows):
    """The inside of a frame."""

    def __init__(
        self,
        children: list[Thing],
        edges: list[Edge],
        metric: Measures,
        tops: list[DiagramNode],
        sides: set[DiagramNode],
    ) -> None:
        super().__init__(children, edges, sides)
        self.metric, self.tops = metric, tops
        self.blocks = {id(child): self._block(child) for child in children}
        self.x: dict[int, float] = {}
        self.result = Block()
        self._place_across()
        self._choose_ends()
        self._place_down()

    def _block(self, child: Thing) -> Block:
        if isinstance(child, DiagramNode):
            width, height = self.metric.box(child)
            half = width / 2
            return Block(half, half, height, [Rect(child, -half, 0, width, height)], bottoms={child: 0.0})
        tops = [link.source for link in self.links if link.target is child]
        sides = self.sides if self.leftmost(child) else set[DiagramNode]()  # else they come from above
        tops += [] if sides else self.entering(child)
        return framed(child, self.edges, self.metric, list(dict.fromkeys(tops)), sides)

    # Across.

    def _place_across(self) -> None:
        metric = self.metric
        self.left = self.right = 0.0
        for row in self.rows:
            main = [child for child in row if not self.begins(child)] or row  # what stands on the axis
            first = row.index(main[0])
            wide = fsum(map(self._width, main)) + metric.beside * (len(main) - 1)
            x = -wide / 2 if len(main) > 1 else -self.blocks[id(main[0])].left
            x -= fsum(self._width(child) + metric.beside for child in row[:first])
            self.left = max(self.left, -x)
            for child in row:
                self.x[id(child)] = math.floor(x + self.blocks[id(child)].left + 0.5)
                x += self._width(child) + metric.beside
            self.right = max(self.right, x - metric.beside)
        if any(self.entering(child) for child in self.children if isinstance(child, DiagramNode)):
            self.left += metric.enter
        first_row = {k.source for k in self.links if k.origin is None and self.row_of(k.target, 1) == 0}
        direct = [source for source in self.tops if source in first_row]
        for number, source in enumerate(direct):
            self.result.tops[source] = (number - (len(direct) - 1) / 2) * metric.port

    def _width(self, child: Thing) -> float:
        return self.blocks[id(child)].left + self.blocks[id(child)].right

    def _choose_ends(self) -> None:
        """Decide which wires run beside the rows, and where arrows enter boxes from above."""
        for link in self.links:
            link.beside = link.up or self.row_of(link.target, len(self.rows)) - self.row_of(link.origin, -1) > 1
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

    def _start(self, link: Link) -> float:
        """The x at which a wire begins."""
        if link.origin is None:
            return self.result.tops.get(link.source, self.right)
        return self.x[id(link.origin)] + self.blocks[id(link.origin)].bottoms[link.source]

    def _from_above(self, link: Link) -> bool:
        """Whether a wire enters the frame beside the rows, because its source feeds nothing in the first one."""
        return link.origin is None and link.source not in self.result.tops

    def _at_side(self, link: Link) -> bool:
        """Whether a wire beside the rows enters its target, the last thing of a row, from the right."""
        target = link.target
        last = isinstance(target, DiagramNode) and self.rows[self.row[id(target)]][-1] is target
        return link.beside and last

    # Down.

    def _place_down(self) -> None:
        metric, count = self.metric, len(self.rows)
        tracks = self.tracks()
        across: list[dict[object, int]] = [{} for _ in range(count + 1)]  # wires in the gap above each row
        for link in self.links:
            leaving, arriving = self.row_of(link.origin, -1) + 1, self.row_of(link.target, count)
            if link.beside:
                if not self._from_above(link):
                    across[leaving].setdefault(link.trunk, len(across[leaving]))
                if not self._at_side(link) and link.target is not None:
                    across[arriving].setdefault((link.trunk, id(link.target)), len(across[arriving]))
            elif abs(self._start(link) - link.x) > 0.01:
                across[arriving].setdefault(link.trunk, len(across[arriving]))
        late = [
            (self.row[id(child)], source, child)
            for child in self.children
            if not self.leftmost(child)
            for source in self.entering(child)
        ]
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
        enters = number == 0 and arriving and isinstance(self.rows[0][0], DiagramNode)
        return self.metric.enter if enters else 0.0

    def _draw(self, level: dict[tuple[int, object], float], tracks: dict[object, int]) -> None:
        metric, count = self.metric, len(self.rows)
        above: dict[DiagramNode, float] = {}
        for link in self.links:
            x = self._start(link)
            y = 0.0 if link.origin is None else self.y[id(link.origin)] + self.blocks[id(link.origin)].height
            leaving, arriving = self.row_of(link.origin, -1) + 1, self.row_of(link.target, count)
            end = self.result.height if link.target is None else self.y[id(link.target)]
            points = [(x, y)]
            if link.beside:
                beside = self.right + metric.gutter * (tracks[link.trunk] + 0.75)
                if self._from_above(link):
                    points, above[link.source] = [(beside, y)], beside
                else:
                    out = level[leaving, link.trunk]
                    points += [(x, out), (beside, out)]
                    if sum(1 for neighbour in self.links if neighbour.trunk[:2] == link.trunk[:2]) > 1:
                        self.result.dots.append((x, out))
                if self._at_side(link):
                    entry = end + self._height_of_entry(link)
                    right = self.x[id(link.target)] + self.blocks[id(link.target)].right
                    points += [(beside, entry), (right, entry)]
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
            self.result.wires.append(Wire(points, link.source, link.back, isinstance(link.target, DiagramNode)))
        self.result.tops.update(above)

    def _height_of_entry(self, link: Link) -> float:
        """How far below the top of its target a wire from the right enters."""
        target = link.target
        assert isinstance(target, DiagramNode)
        height = self.blocks[id(target)].height
        same = [sibling for sibling in self.links if sibling.target is target and self._at_side(sibling)]
        share = (same.index(link) + 1) / (len(same) + 1)
        return height * (0.5 if target.kind in SIGNS else share)

    # From the left.

    def _enter_sides(
        self, late: list[tuple[int, DiagramNode, Thing]], gaps: list[float], across: list[dict[object, int]]
    ) -> None:
        metric = self.metric
        tracks_used: dict[int, int] = {}
        for number, source, child in late:
            place = len(across[number]) + tracks_used.get(number, 0)
            tracks_used[number] = tracks_used.get(number, 0) + 1
            y = gaps[number] + metric.gap * 0.4 + metric.track * place
            block, frame = self.blocks[id(child)], isinstance(child, Frame)
            beside = min(metric.port, block.left / 2)  # a sign is narrower than the distance of two ports
            x = self.x[id(child)] + (block.tops[source] if frame else -beside)
            points = [(-self.left, y), (x, y), (x, self.y[id(child)])]
            self.result.wires.append(Wire(points, source, arrow=not frame))
            self.result.sides.append((source, y))
        for child in self.children:
            block, x, y = self.blocks[id(child)], self.x[id(child)], self.y[id(child)]
            if isinstance(child, Frame):
                for source, level in block.sides:
                    self.result.wires.append(
                        Wire([(-self.left, y + level), (x - block.left, y + level)], source, arrow=False)
                    )
                    self.result.sides.append((source, y + level))
            elif self.leftmost(child):
                entering = self.entering(child)
                for number, source in enumerate(entering):
                    level = y + block.height * (number + 1) / (len(entering) + 1)
                    self.result.wires.append(Wire([(-self.left, level), (x - block.left, level)], source))
                    self.result.sides.append((source, level))


def framed(
    frame: Frame, edges: list[Edge], metric: Measures, tops: list[DiagramNode], sides: set[DiagramNode]
) -> Block:
    """A frame with its border and title around what it holds."""
    content = FrameLayout(frame.children, edges, metric, tops, sides).result
    pad = metric.pad
    entering = max((-x for x in content.tops.values()), default=0.0)
    left = max(content.left + pad, metric.label(frame) + pad + entering if tops else 0.0)
    right = max(content.right + pad, 0.0 if tops else metric.label(frame) + pad - left)
    top = metric.title
    block = Block(left, right, content.height + top + metric.foot)
    block.rects.append(Rect(frame, -left, 0, left + right, block.height))
    block.add(content, 0, top)
    block.tops, block.bottoms = content.tops, content.bottoms
    for source, x in content.tops.items():
        block.wires.append(Wire([(x, 0), (x, top)], source, arrow=False))
    for node, x in content.bottoms.items():
        block.wires.append(Wire([(x, top + content.height), (x, block.height)], node, arrow=False))
    for source, y in content.sides:
        block.wires.append(Wire([(-left, y + top), (-content.left, y + top)], source, arrow=False))
        block.sides.append((source, y + top))
    return block

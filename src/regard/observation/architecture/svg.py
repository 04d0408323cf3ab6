"""The picture of a network as SVG, from top to bottom: boxes in frames, wires, and residual connections beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

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
)  # fmt: skip

BOX, TALL, SIGN = 216.0, 38.0, 20.0  # width and height of a box, diameter of a sign
GAP, PAD, TITLE, TRACK, BETWEEN, MARGIN, JOINT = 20.0, 14.0, 20.0, 18.0, 64.0, 20.0, 12.0
INK, MUTED, WIRE = "#1b1f24", "#5b6570", "#3d4650"
FILLS = {
    "attention": ("#dcebf7", "#0068a8"), "norm": ("#f1eef6", "#7a6a96"), "embedding": ("#fbe9dc", "#c64f00"),
    "recurrent": ("#dff1ea", "#00805c"), "map": ("#f6f0dd", "#8f6400"),
}  # fmt: skip
SIGNS = {"+": "+", "×": "×", "∥": "∥"}
FONT = "font-family=\"'DejaVu Sans', Helvetica, Arial, sans-serif\""


@dataclass
class _Spot:
    """Where a node is drawn: the middle of its wire, top, bottom and half its width."""

    x: float
    top: float
    bottom: float
    half: float


@dataclass
class _Canvas:
    """Shapes in three layers, and the place of each node."""

    frames: list[str] = field(default_factory=list)
    wires: list[str] = field(default_factory=list)
    boxes: list[str] = field(default_factory=list)
    spots: dict[Node, _Spot] = field(default_factory=dict)

    def text(self, x: float, y: float, words: str, size: float, colour: str, **more: str) -> None:
        """Add a text; further attributes by name, _ for -."""
        rest = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        self.boxes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}"{rest}>{escape(words)}</text>'
        )

    def wire(self, *points: tuple[float, float], arrow: bool = True) -> None:
        """Add a wire through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        head = ' marker-end="url(#arrow)"' if arrow else ""
        self.wires.append(f'<polyline points="{path}" fill="none" stroke="{WIRE}" stroke-width="1.3"{head}/>')


def svg(diagram: Diagram) -> str:
    """The picture as the text of an SVG file."""
    canvas, columns = _Canvas(), lanes(diagram)
    x, lowest, sizes = MARGIN, 0.0, []
    for column in columns:
        lane = {node for child in column for node in members(child)}
        drawing = _Lane(canvas, diagram.edges, lane)
        size = drawing.width(column)
        lowest = max(lowest, drawing.draw(column, x, MARGIN + TITLE, size))
        sizes.append((x, x + size))
        x += size + BETWEEN
    bottom = _between_lanes(canvas, diagram, columns, sizes, lowest)
    width, height = x - BETWEEN + MARGIN, bottom + MARGIN
    canvas.text(MARGIN, MARGIN + 2, diagram.root.label, 15, INK, font_weight="bold")
    parts = "\n".join([*canvas.frames, *canvas.wires, *canvas.boxes])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" {FONT} role="img">\n<title>{escape(diagram.root.label)}</title>\n'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7.2" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0,0.6 L8,4 L0,7.4 z" fill="{WIRE}"/></marker></defs>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{parts}\n</svg>\n'
    )


class _Lane:
    """One column of the picture."""

    def __init__(self, canvas: _Canvas, edges: list[Edge], lane: set[Node]) -> None:
        self.canvas, self.edges, self.lane = canvas, edges, lane
        self.fed = {(edge.source, edge.target) for edge in edges}

    def width(self, children: list[Node | Frame]) -> float:
        """How much room these children and the edges beside them take, on both sides alike."""
        widest = max(
            BOX if isinstance(child, Node) else self.width(child.children) + 2 * PAD for child in children
        )
        return widest + 2 * TRACK * len(tracks_of(skips(children, self.edges, self.lane))[0])

    def draw(self, children: list[Node | Frame], x: float, y: float, width: float) -> float:
        """Draw children below each other from y on; return where they end."""
        found = skips(children, self.edges, self.lane)
        tracks, routed = tracks_of(found)
        middle, outer = x + width / 2, width - 2 * TRACK * len(tracks)
        joints: dict[int, float] = {}  # where an edge leaves the wire above a child
        for number, child in enumerate(children):
            above = y
            y += (GAP if number else 0) + (JOINT if any(skip.start == number for skip in found) else 0)
            joints[number] = y - GAP / 2 if number else above + JOINT / 2
            fed = number and (members(children[number - 1])[-1], members(child)[0]) in self.fed
            if isinstance(child, Node) and child.given and fed:
                self._beside(child, middle, y)
            elif isinstance(child, Node) and child.given:
                self.canvas.text(
                    middle, y + 8, child.given, 11, MUTED, text_anchor="middle", font_style="italic"
                )
                self.canvas.wire((middle, y + 13), (middle, y + 13 + GAP))
                y += 13 + GAP
            y = (
                self._node(child, middle, y)
                if isinstance(child, Node)
                else self._frame(child, middle, y, outer)
            )
            if number:
                self._wire(members(children[number - 1])[-1], members(child)[0])
        for skip, track in routed:
            side, spot = middle + outer / 2 + TRACK * (track + 0.6), self.canvas.spots[skip.target]
            begin, level = joints[skip.start], (spot.top + spot.bottom) / 2
            self.canvas.wire((middle, begin), (side, begin), (side, level), (middle + spot.half, level))
        return y

    def _beside(self, node: Node, x: float, y: float) -> None:
        """An input of the network that a node reads besides its neighbour's output, on its left."""
        sign = node.kind in SIGNS
        level = y + (SIGN if sign else TALL) / 2
        end = x - (SIGN if sign else BOX) / 2
        self.canvas.wire((end - (26 if sign else 16), level), (end, level))
        begin = end - (30 if sign else 0)
        anchor = "end" if sign else "start"
        self.canvas.text(
            begin,
            level + 4 if sign else y - 4,
            node.given,
            11,
            MUTED,
            text_anchor=anchor,
            font_style="italic",
        )

    def _wire(self, source: Node, target: Node) -> None:
        """Draw the wire between neighbours, if one feeds the other."""
        if (source, target) in self.fed:
            begin, end = self.canvas.spots[source], self.canvas.spots[target]
            self.canvas.wire((begin.x, begin.bottom), (end.x, end.top))

    def _node(self, node: Node, x: float, y: float) -> float:
        canvas = self.canvas
        if node.kind == "output":
            canvas.text(x, y + 11, node.label, 11, MUTED, text_anchor="middle", font_style="italic")
            canvas.spots[node] = _Spot(x, y, y + 14, 60)
            return y + 14
        if node.kind in SIGNS:
            r = SIGN / 2
            canvas.boxes.append(
                f'<circle cx="{x:.1f}" cy="{y + r:.1f}" r="{r:g}" fill="#ffffff" stroke="{WIRE}" stroke-width="1.3"/>'
            )
            canvas.text(x, y + r + 5, SIGNS[node.kind], 15, INK, text_anchor="middle")
            canvas.spots[node] = _Spot(x, y, y + SIGN, r)
            return y + SIGN
        fill, edge = FILLS[node.kind]
        dashes = ' stroke-dasharray="4 3"' if node.loose else ""
        canvas.boxes.append(
            f'<rect x="{x - BOX / 2:.1f}" y="{y:.1f}" width="{BOX:g}" height="{TALL:g}" rx="5" fill="{fill}" '
            f'stroke="{edge}" stroke-width="1.2"{dashes}><title>{escape(node.path or node.label)}</title></rect>'
        )
        lift = 16.5 if node.detail else 23.5
        canvas.text(x, y + lift, node.label, 12.5, INK, text_anchor="middle")
        if node.detail:
            canvas.text(x, y + 30.5, node.detail, 10.5, MUTED, text_anchor="middle")
        canvas.spots[node] = _Spot(x, y, y + TALL, BOX / 2)
        return y + TALL

    def _frame(self, frame: Frame, x: float, y: float, width: float) -> float:
        times = f" × {frame.repeat}" if frame.repeat > 1 else ""
        inner = width - 2 * PAD
        bottom = self.draw(frame.children, x - inner / 2, y + PAD + TITLE, inner) + PAD
        self.canvas.frames.insert(
            0,
            f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{bottom - y:.1f}" rx="9" '
            f'fill="#5b6570" fill-opacity="0.045" stroke="{MUTED}" stroke-opacity="0.55"/>',
        )
        self.canvas.text(x - width / 2 + 10, y + 17, f"{frame.label}{times}", 11.5, MUTED, font_weight="bold")
        return bottom


def _between_lanes(
    canvas: _Canvas,
    diagram: Diagram,
    columns: list[list[Node | Frame]],
    sizes: list[tuple[float, float]],
    lowest: float,
) -> float:
    """Draw the edges from one column to another: below the source, up between the columns, to the target's side."""
    place = {node: n for n, column in enumerate(columns) for child in column for node in members(child)}
    bottoms = [
        max(canvas.spots[node].bottom for child in column for node in members(child)) for column in columns
    ]
    count = 0
    for number in range(len(columns)):
        for target, sources in from_other_lanes(columns[number], diagram).items():
            for source in sources:
                begin, end = canvas.spots[source], canvas.spots[target]
                right = place[source] < number
                shift = 12.0 + 9 * count
                channel = sizes[number][0] - shift if right else sizes[number][1] + shift
                level = (end.top + end.bottom) / 2 + (0 if right else 7 * (count % 3 - 1))
                side = end.x - end.half if right else end.x + end.half
                last = begin.bottom == bottoms[place[source]]
                out = begin.bottom + (36 if last and right else 8 + 7 * (count % 3))
                canvas.wire(
                    (begin.x, begin.bottom), (begin.x, out), (channel, out), (channel, level), (side, level)
                )
                lowest, count = max(lowest, out), count + 1
    return lowest

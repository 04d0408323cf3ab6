"""Shapes of a picture in numbers: boxes, frames, wires. The unit is a pixel or a character."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from regard.observation.architecture.diagram import DiagramNode, Frame

Point = tuple[float, float]


@dataclass(frozen=True)
class Measures:
    """Sizes of what is drawn, in one unit."""

    box: Callable[[DiagramNode], tuple[float, float]]  # width and height of a node
    label: Callable[[Frame], float]  # width of a frame's title
    gap: float  # between rows, where no wire runs across
    enter: float  # between the border of a frame and what a wire enters first
    track: float  # between wires that run across, one above the other
    gutter: float  # between wires that run down, side by side
    pad: float  # inside a frame, left and right
    foot: float  # inside a frame, below
    title: float  # height of a frame's title
    beside: float  # between things in a row
    lane: float  # between the two sides of a network
    port: float  # between arrows into one box


@dataclass
class Wire:
    """A line from an output to an input."""

    points: list[Point]
    source: DiagramNode
    back: bool = False
    arrow: bool = True


@dataclass
class Rect:
    """Where a node or a frame is drawn."""

    thing: DiagramNode | Frame
    x: float  # of the left border
    y: float
    width: float
    height: float


@dataclass
class Block:
    """Something that is laid out, relative to its axis (x = 0) and its top (y = 0), and where wires enter and leave."""

    left: float = 0.0  # extents from the axis, both positive
    right: float = 0.0
    height: float = 0.0
    rects: list[Rect] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    dots: list[Point] = field(default_factory=list)  # where a wire branches
    tops: dict[DiagramNode, float] = field(
        default_factory=dict
    )  # x at which what comes from a source enters at the top
    sides: list[tuple[DiagramNode, float]] = field(default_factory=list)  # y at which it enters at the left
    bottoms: dict[DiagramNode, float] = field(default_factory=dict)  # x at which what a node gives leaves at the bottom

    def add(self, other: Block, x: float, y: float) -> None:
        """Place another block with its axis at x and its top at y."""
        for rect in other.rects:
            self.rects.append(Rect(rect.thing, rect.x + x, rect.y + y, rect.width, rect.height))
        for wire in other.wires:
            moved = [(a + x, b + y) for a, b in wire.points]
            self.wires.append(Wire(moved, wire.source, wire.back, wire.arrow))
        self.dots += [(a + x, b + y) for a, b in other.dots]

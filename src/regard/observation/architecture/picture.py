"""The whole picture: one column, or encoder on the left and decoder on the right where a network has two sides."""

from __future__ import annotations

import math

from regard.observation.architecture.assemble import ordered
from regard.observation.architecture.diagram import Diagram, DiagramNode, Edge, Frame, members
from regard.observation.architecture.geometry import Block, Measures, Wire
from regard.observation.architecture.layout import FrameLayout
from regard.observation.architecture.rows import Thing


def arranged(diagram: Diagram, metric: Measures, beside: bool = True) -> Block:
    """The picture with its left border at x = 0. `beside`: whether the two sides may stand side by side."""
    lanes = sides(diagram) if beside else [diagram.root.children]
    picture = Block()
    x = 0.0
    blocks: list[Block] = []
    starts: list[float] = []
    before: set[DiagramNode] = set()
    for lane in lanes:
        block = FrameLayout(lane, diagram.edges, metric, [], set(before)).result
        crossing = len(dict.fromkeys(source for source, _ in block.sides))
        x = math.ceil(x) + (metric.lane + metric.gutter * crossing if blocks else 0.0)
        block.left = math.ceil(block.left)  # so that the axis lies on a column of characters
        picture.add(block, x + block.left, 0.0)
        blocks.append(block)
        starts.append(x)
        x += block.left + block.right
        before |= {node for child in lane for node in members(child)}
    picture.right = x
    picture.height = max(block.height for block in blocks)
    _cross(picture, blocks, starts, metric)
    return picture


def _cross(whole: Block, blocks: list[Block], starts: list[float], metric: Measures) -> None:
    """Draw what leads from one side to another: out below, and up or down between them."""
    lowest = 0
    for number, block in enumerate(blocks):
        sources = list(dict.fromkeys(source for source, _ in block.sides))
        sources.sort(key=lambda node: _bottom(blocks, starts, node)[0])
        for place, source in enumerate(sources):
            x, lane = _bottom(blocks, starts, source)
            floor = max(block.height for block in blocks[lane:number]) + metric.track * (lowest + 0.6)
            lowest += 1
            trunk = starts[number] - metric.lane * 0.5 - metric.gutter * place
            entries = [y for node, y in block.sides if node is source]
            for y in entries:
                points = [(x, blocks[lane].height), (x, floor), (trunk, floor), (trunk, y), (starts[number], y)]
                whole.wires.append(Wire(points, source, arrow=False))
            above, below = sorted(y for y in entries if y < floor), sorted(y for y in entries if y >= floor)
            whole.dots += [(trunk, y) for y in [*above[1:], *below[:-1]]]
            whole.dots += [(trunk, floor)] if above and below else []
            whole.height = max(whole.height, floor)


def _bottom(blocks: list[Block], starts: list[float], node: DiagramNode) -> tuple[float, int]:
    for lane, block in enumerate(blocks):
        if node in block.bottoms:
            return starts[lane] + block.left + block.bottoms[node], lane
    raise AssertionError(f"{node.label} leaves no side")


def sides(diagram: Diagram) -> list[list[Thing]]:
    """The children of the root in columns: what only one input reaches, if it is large, stands left of the rest."""
    children = diagram.root.children
    home = {node: child for child in children for node in members(child)}
    reached: dict[int, set[DiagramNode]] = {id(child): set() for child in children}
    for child in ordered(children, diagram.edges):
        if isinstance(child, DiagramNode) and child.kind == "input":
            reached[id(child)] = {child}
        for edge in diagram.edges:
            if home[edge.target] is child and not edge.back:
                reached[id(child)] |= reached[id(home[edge.source])]
    inputs = [child for child in children if isinstance(child, DiagramNode) and child.kind == "input"]
    columns: list[list[Thing]] = []
    remaining = list(children)
    for source in inputs:
        alone = [child for child in remaining if reached[id(child)] == {source}]
        ends = any(isinstance(child, DiagramNode) and child.kind == "output" for child in alone)
        if not ends and _large(alone) and len(alone) < len(remaining) and not _returns(alone, home, diagram.edges):
            columns.append(alone)
            remaining = [child for child in remaining if child not in alone]
    return [*columns, remaining]


def _large(children: list[Thing]) -> bool:
    nodes = [node for child in children for node in members(child) if node.kind not in ("input", "embedding")]
    return len(nodes) > 1 and any(isinstance(child, Frame) or child.kind == "recurrent" for child in children)


def _returns(children: list[Thing], home: dict[DiagramNode, Thing], edges: list[Edge]) -> bool:
    """Whether something outside feeds these children."""
    inside = {id(child) for child in children}
    return any(id(home[e.target]) in inside and id(home[e.source]) not in inside for e in edges)

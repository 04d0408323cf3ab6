"""Draw equal layers that follow each other once, and leave out frames that say nothing."""

from __future__ import annotations

from typing import Any

from regard.observation.architecture.diagram import Diagram, DiagramNode, Edge, Frame, frames, members


def folded(diagram: Diagram) -> Diagram:
    """The same with equal layers in a chain drawn once, and without frames around one or two nodes."""
    edges = diagram.edges
    for frame in reversed(list(frames(diagram.root))):
        edges = _fold_children(frame, edges)
        frame.children = [_plain(child) for child in frame.children]
        frame.children = [content for child in frame.children for content in _dissolved(child)]
    return Diagram(diagram.root, edges)


def _fold_children(frame: Frame, edges: list[Edge]) -> list[Edge]:
    place = 0
    while place < len(frame.children):
        first = frame.children[place]
        count = 1
        twins: dict[DiagramNode, DiagramNode] = {}
        previous = first
        while place + count < len(frame.children):
            following = frame.children[place + count]
            if _shape(first) != _shape(following) or not _continues(previous, following, edges):
                break
            twins.update(zip(members(following), members(first), strict=True))
            previous = following
            count += 1
        if count > 1:
            edges = _redirected(edges, twins, set(members(first)), set(members(previous)))
            if isinstance(first, DiagramNode):
                frame.children[place] = Frame(first.path.rpartition(".")[0], "", [first], repeat=count)
            else:
                first.repeat *= count
            del frame.children[place + 1 : place + count]
        place += 1
    return edges


def _continues(before: DiagramNode | Frame, after: DiagramNode | Frame, edges: list[Edge]) -> bool:
    """Whether `before` feeds `after` and nothing else, and `after` reads it where `before` read what came earlier.

    Both may read one thing that lies outside of the chain, at the same place, as decoder layers read an encoder.
    """
    first, second = members(before), members(after)
    number = {node: place for some in (first, second) for place, node in enumerate(some)}
    first_nodes, second_nodes = set(first), set(second)
    entries: dict[int, set[tuple[int, Any]]] = {0: set(), 1: set()}
    inside: dict[int, set[tuple[int, int, bool]]] = {0: set(), 1: set()}
    handed: set[int] = set()
    for edge in edges:
        for side, some in ((0, first_nodes), (1, second_nodes)):
            if edge.source in some and edge.target in some:
                inside[side].add((number[edge.source], number[edge.target], edge.back))
            elif edge.target in some and not (side == 1 and edge.source in first_nodes):
                entries[side].add((number[edge.target], edge.source))
        if edge.source in first_nodes and edge.target not in first_nodes:
            if edge.target not in second_nodes or edge.back:
                return False
            handed.add(number[edge.target])
    shared = entries[0] & entries[1]
    own_entries = {target for target, _ in entries[0] - shared}
    return inside[0] == inside[1] and entries[1] == shared and bool(handed) and handed == own_entries


def _redirected(
    edges: list[Edge], twins: dict[DiagramNode, DiagramNode], first: set[DiagramNode], last: set[DiagramNode]
) -> list[Edge]:
    """Edges of a chain of layers that is drawn as its first one: what leaves the last leaves the first."""
    redirected: dict[tuple[DiagramNode, DiagramNode, bool], Edge] = {}
    for edge in edges:
        source, target = twins.get(edge.source, edge.source), twins.get(edge.target, edge.target)
        moved = edge.source in twins or edge.target in twins
        if moved and target in first and not (edge.source in last and edge.target in last):
            continue  # between two layers, or one that the first layer has as well
        redirected.setdefault((source, target, edge.back), Edge(source, target, edge.back))
    return list(redirected.values())


def _shape(thing: DiagramNode | Frame) -> tuple[Any, ...]:
    """What two layers must have in common to be drawn as one."""
    if isinstance(thing, DiagramNode):
        return thing.label, thing.detail, thing.kind, thing.parameters, thing.used
    return ("frame", thing.repeat, thing.loop, *(_shape(child) for child in thing.children))


def _plain(child: DiagramNode | Frame) -> DiagramNode | Frame:
    """A frame around a single frame is one frame."""
    if isinstance(child, Frame) and len(child.children) == 1 and isinstance(child.children[0], Frame):
        only_child = child.children[0]
        if child.repeat == 1 or only_child.repeat == 1:
            label = only_child.label if only_child.repeat > 1 or not child.label else child.label
            loop = " · ".join(filter(None, (child.loop, only_child.loop)))
            return Frame(only_child.path, label, only_child.children, child.repeat * only_child.repeat, loop)
    return child


def _dissolved(child: DiagramNode | Frame) -> list[DiagramNode | Frame]:
    """The children of a frame around one or two nodes, which is not worth drawing; any other thing itself."""
    if isinstance(child, DiagramNode) or child.repeat > 1 or child.loop:
        return [child]
    few = len(child.children) <= 2 and all(isinstance(node, DiagramNode) and node.used for node in child.children)
    return list(child.children) if few else [child]

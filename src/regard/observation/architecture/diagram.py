"""What a picture of a network contains: nodes inside frames, and edges; equal layers in a row are drawn once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Node:
    """A module that was called, or a sum, a product or a concatenation of what modules returned."""

    path: str  # of the module, or of the module that ran an operation
    label: str
    detail: str = ""
    kind: str = "map"  # attention, norm, embedding, recurrent, map, or the sign of an operation: + × ∥
    given: str = ""  # an input of the network that it reads
    loose: bool = False  # its weights are used without a call, so what feeds it is not known


@dataclass(eq=False)
class Frame:
    """A module that holds others, in the order of their first call."""

    path: str
    label: str
    children: list[Node | Frame] = field(default_factory=list)
    repeat: int = 1  # how many equal ones follow each other

    def nodes(self) -> list[Node]:
        """All nodes inside, in order."""
        return [node for child in self.children for node in members(child)]


@dataclass(frozen=True)
class Edge:
    """The output of a node is an input of another; `main`: its first input."""

    source: Node
    target: Node
    main: bool = True


@dataclass(frozen=True)
class Diagram:
    """A network as nodes and edges."""

    root: Frame
    edges: list[Edge]

    def to_dict(self) -> dict[str, Any]:
        """As plain data; nodes are numbered in order."""
        number = {node: place for place, node in enumerate(self.root.nodes())}
        return {
            "frame": _plain(self.root, number),
            "edges": [[number[edge.source], number[edge.target], edge.main] for edge in self.edges],
        }

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> Diagram:
        """The diagram that `to_dict` made this of."""
        root = _restored(plain["frame"])
        assert isinstance(root, Frame)
        nodes = root.nodes()
        return Diagram(
            root, [Edge(nodes[source], nodes[target], main) for source, target, main in plain["edges"]]
        )


def members(thing: Node | Frame) -> list[Node]:
    """The nodes of a frame, or the node itself."""
    return [thing] if isinstance(thing, Node) else thing.nodes()


def frames(thing: Frame) -> Iterator[Frame]:
    """A frame and all frames inside it."""
    yield thing
    for child in thing.children:
        if isinstance(child, Frame):
            yield from frames(child)


def folded(diagram: Diagram) -> Diagram:
    """The same with equal neighbours drawn once, and without frames that hold a single thing."""
    twins: dict[Node, Node] = {}
    root = _folded(diagram.root, twins)
    assert isinstance(root, Frame)
    order = {node: place for place, node in enumerate(root.nodes())}
    edges: dict[tuple[Node, Node], Edge] = {}
    for edge in diagram.edges:
        source, target = twins.get(edge.source, edge.source), twins.get(edge.target, edge.target)
        if (
            source in order and target in order and order[source] < order[target]
        ):  # not from one layer to its twin
            edges.setdefault((source, target), Edge(source, target, edge.main))
    return Diagram(root, list(edges.values()))


def _folded(frame: Frame, twins: dict[Node, Node], top: bool = True) -> Node | Frame:
    children: list[Node | Frame] = []
    for child in frame.children:
        small = child if isinstance(child, Node) else _folded(child, twins, top=False)
        before = children[-1] if children else None
        if isinstance(before, Frame) and isinstance(small, Frame) and _shape(before) == _shape(small):
            before.repeat += small.repeat
            twins.update(zip(small.nodes(), before.nodes(), strict=True))
        else:
            children.append(small)
    if len(children) == 1 and not top:
        only = children[0]
        if isinstance(only, Frame) and only.repeat == 1:
            return only if only.label else Frame(only.path, frame.label, only.children)
        if isinstance(only, Node):
            return only
    return Frame(frame.path, frame.label, children, frame.repeat)


def _shape(thing: Node | Frame) -> tuple[Any, ...]:
    """What two layers must have in common to be drawn as one."""
    if isinstance(thing, Node):
        return thing.label, thing.detail, thing.kind
    return ("frame", *(_shape(child) for child in thing.children))


def _plain(thing: Node | Frame, number: dict[Node, int]) -> dict[str, Any]:
    if isinstance(thing, Frame):
        inside = [_plain(child, number) for child in thing.children]
        return {"path": thing.path, "label": thing.label, "repeat": thing.repeat, "children": inside}
    return {"node": number[thing], **vars(thing)}


def _restored(plain: dict[str, Any]) -> Node | Frame:
    if "children" in plain:
        return Frame(
            plain["path"], plain["label"], [_restored(one) for one in plain["children"]], plain["repeat"]
        )
    return Node(**{name: value for name, value in plain.items() if name != "node"})


def lanes(diagram: Diagram) -> list[list[Node | Frame]]:
    """The children of the root in columns, the one with the output among them: each continues the column that its
    first input ends. Columns of a single thing stand right of the main one, longer ones on its left.
    """
    found: list[list[Node | Frame]] = []
    home = {node: child for child in diagram.root.children for node in members(child)}
    for child in diagram.root.children:
        order = {node: place for place, node in enumerate(members(child))}
        feeding = [edge for edge in diagram.edges if edge.target in order and edge.source not in order]
        feeding.sort(key=lambda edge: (order[edge.target], not edge.main))
        ends = {lane[-1]: lane for lane in found}
        lane = next((ends[home[edge.source]] for edge in feeding if home[edge.source] in ends), None)
        if lane is None and found and isinstance(found[-1][-1], Node) and found[-1][-1].loose:
            lane = found[-1]
        if lane is None:
            found.append([child])
        else:
            lane.append(child)
    return sorted(found, key=lambda lane: 1 if diagram.root.children[-1] in lane else 2 * (len(lane) == 1))


@dataclass(frozen=True)
class Skip:
    """An edge past its neighbours: from the wire before child `start` of a frame to a node inside child `end`."""

    start: int
    end: int
    target: Node


def skips(children: list[Node | Frame], edges: list[Edge], lane: set[Node]) -> list[Skip]:
    """The edges of a lane that are drawn beside these children, and not inside one of them."""
    place = {node: number for number, child in enumerate(children) for node in members(child)}
    found: dict[Skip, None] = {}
    for edge in edges:
        if edge.target not in place or edge.source not in lane:
            continue
        end = place[edge.target]
        start = place[edge.source] + 1 if edge.source in place else 0
        if start < end:
            found[Skip(start, end, edge.target)] = None
    return list(found)


def from_other_lanes(lane: list[Node | Frame], diagram: Diagram) -> dict[Node, list[Node]]:
    """The nodes of a lane that read from other lanes, with what they read."""
    own = {node for child in lane for node in members(child)}
    found: dict[Node, list[Node]] = {}
    for edge in diagram.edges:
        if edge.target in own and edge.source not in own:
            found.setdefault(edge.target, []).append(edge.source)
    return found


def tracks_of(found: list[Skip]) -> tuple[list[int], list[tuple[Skip, int]]]:
    """The end of each track, and each edge with its track; edges that overlap have different ones."""
    tracks: list[int] = []
    routed = []
    for skip in sorted(found, key=lambda skip: (skip.start, skip.end)):
        free = next((number for number, end in enumerate(tracks) if end <= skip.start), len(tracks))
        tracks[free : free + 1] = [skip.end]
        routed.append((skip, free))
    return tracks, routed

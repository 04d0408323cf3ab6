"""What a picture of a network contains: nodes inside frames, and edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SIGNS = ("+", "×", "∥", "·")  # kinds of nodes that are drawn as a sign


@dataclass(eq=False)
class DiagramNode:
    """A module that was called or whose weights were used, learned rows, a state, or a sign such as a sum."""

    path: str  # of the module, of the parameter, or of the module that ran an operation
    label: str
    detail: str = ""  # sizes
    kind: str = "map"  # attention, norm, embedding, recurrent, map, memory, a sign, input or output
    parameters: int = 0  # how many; weights that two nodes share count for one of them
    used: bool = True  # whether the call ran it


@dataclass(eq=False)
class Frame:
    """A module that holds others, or what is repeated, in the order in which they feed each other."""

    path: str
    label: str
    children: list[DiagramNode | Frame] = field(default_factory=list)
    repeat: int = 1  # how many equal ones follow each other
    loop: str = ""  # "for each step" where the inside runs again and again with the state it left

    def nodes(self) -> list[DiagramNode]:
        """All nodes inside, in order."""
        return [node for child in self.children for node in members(child)]


@dataclass(frozen=True)
class Edge:
    """The output of a node is an input of another; `back`: of its next run, as the state of a recurrence is."""

    source: DiagramNode
    target: DiagramNode
    back: bool = False


@dataclass(frozen=True)
class Diagram:
    """A network as nodes and edges."""

    root: Frame
    edges: list[Edge]

    @property
    def parameters(self) -> int:
        """How many parameters the nodes have, repeated ones counted as often as they are repeated."""
        return _count(self.root)

    def to_dict(self) -> dict[str, Any]:
        """As plain data; nodes are numbered in order."""
        number = {node: place for place, node in enumerate(self.root.nodes())}
        return {
            "frame": _plain(self.root, number),
            "edges": [[number[edge.source], number[edge.target], edge.back] for edge in self.edges],
        }

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> Diagram:
        """The diagram that `to_dict` made this of."""
        root = _restored(plain["frame"])
        assert isinstance(root, Frame)
        nodes = root.nodes()
        return Diagram(root, [Edge(nodes[source], nodes[target], back) for source, target, back in plain["edges"]])


def members(thing: DiagramNode | Frame) -> list[DiagramNode]:
    """The nodes of a frame, or the node itself."""
    return [thing] if isinstance(thing, DiagramNode) else thing.nodes()


def frames(thing: Frame) -> Iterator[Frame]:
    """A frame and all frames inside it."""
    yield thing
    for child in thing.children:
        if isinstance(child, Frame):
            yield from frames(child)


def short(count: int) -> str:
    """A number of parameters in a few characters: 812, 66k, 1.2M."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            scaled = count / unit
            return f"{scaled:.0f}{name}" if scaled >= 9.95 else f"{scaled:.1f}{name}"
    return str(count)


def _count(thing: DiagramNode | Frame) -> int:
    if isinstance(thing, DiagramNode):
        return thing.parameters
    return thing.repeat * sum(map(_count, thing.children))


def _plain(thing: DiagramNode | Frame, number: dict[DiagramNode, int]) -> dict[str, Any]:
    if isinstance(thing, Frame):
        inside = [_plain(child, number) for child in thing.children]
        return {**vars(thing), "children": inside}
    return {"node": number[thing], **vars(thing)}


def _restored(plain: dict[str, Any]) -> DiagramNode | Frame:
    if "children" in plain:
        return Frame(**{**plain, "children": [_restored(child) for child in plain["children"]]})
    return DiagramNode(**{name: value for name, value in plain.items() if name != "node"})

"""A diagram from a graph of parts: order and direction of edges, frames for modules and for loops."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from regard.nn.parts.mechanism import Mechanism
from regard.observation.architecture.diagram import Diagram, DiagramNode, Edge, Frame, frames, members
from regard.observation.architecture.fold import folded
from regard.observation.architecture.graph import Graph, Key, strongly_connected
from regard.observation.architecture.labels import mechanism_name, role_of, words
from regard.observation.architecture.nodes import nodes_of
from regard.observation.architecture.record import Recording
from regard.observation.architecture.simplify import Loop


def assembled(
    module: nn.Module, recording: Recording, graph: Graph, loops: list[Loop], name: str, output: str
) -> Diagram:
    """The diagram of a graph: frames for modules and loops, equal layers drawn once."""
    nodes = nodes_of(module, recording, graph, output)
    edges = [
        Edge(nodes[source], nodes[target], (source, target) in back)
        for back in [_back_edges(graph)]
        for source, target in graph.edges
    ]
    edges += [Edge(nodes[key], nodes[key], True) for key, vertex in graph.parts.items() if vertex.again]
    root = Frame("", name)
    above = {key: _frame_path(graph, recording, key) for key in graph.parts}
    frame_at: dict[str, Frame] = {"": root}
    for key in sorted(graph.parts, key=lambda key: graph.parts[key].first):
        _frame(module, above[key], frame_at).children.append(nodes[key])
    for loop in loops:
        _wrap_loop(module, root, frame_at, [nodes[key] for key in loop])
    _dissolve_circles(root, edges)
    for frame in list(frames(root)):
        frame.children = ordered(frame.children, edges)
    unused: list[DiagramNode | Frame] = [node for node in nodes.values() if not node.used]
    if unused:
        root.children.append(Frame("", "not used in this call", [*unused]))
    return folded(Diagram(root, list(dict.fromkeys(edges))))


def _back_edges(graph: Graph) -> set[tuple[Key, Key]]:
    """The edges that lead to the next round of a loop: those that close a circle, taken in the order of time."""
    back: set[tuple[Key, Key]] = set()
    for circle in graph.circles():
        inside = set(circle)
        forward: dict[Key, set[Key]] = {key: set() for key in circle}
        for (source, target), _ in sorted(graph.edges.items(), key=lambda item: item[1]):
            if source in inside and target in inside:
                if source in _reached(forward, target):
                    back.add((source, target))
                else:
                    forward[source].add(target)
    return back


def _reached(forward: dict[Key, set[Key]], start: Key) -> set[Key]:
    reached, waiting = {start}, [start]
    while waiting:
        for key in forward[waiting.pop()] - reached:
            reached.add(key)
            waiting.append(key)
    return reached


def _frame_path(graph: Graph, recording: Recording, key: Key) -> str:
    """The module whose frame holds a part: the nearest one around it that was called."""
    vertex = graph.parts[key]
    path = vertex.path if vertex.role in ("attend", "join", "state") else vertex.path.rpartition(".")[0]
    while path and path not in recording.called:
        path = path.rpartition(".")[0]
    return path


def _frame(module: nn.Module, path: str, known: dict[str, Frame]) -> Frame:
    if path not in known:
        above = path.rpartition(".")[0]
        holder = _frame(module, above, known)
        submodule = module.get_submodule(path)
        if isinstance(submodule, (nn.ModuleList, nn.ModuleDict)):  # its members stand in the frame around it
            known[path] = holder
            return holder
        known[path] = Frame(path, _frame_label(submodule, path))
        holder.children.append(known[path])
    return known[path]


def _frame_label(part: nn.Module, path: str) -> str:
    name = path.rsplit(".", 1)[-1]
    label = words(type(part).__name__) if name.isdigit() else role_of(path)
    label = "layer" if label.endswith(" layer") and name.isdigit() else label
    if isinstance(part, Mechanism):
        mechanism = mechanism_name(part)
        return mechanism if label in ("attention", mechanism) else f"{label}: {mechanism}"
    return label


def _wrap_loop(module: nn.Module, root: Frame, known: dict[str, Frame], loop: list[DiagramNode]) -> None:
    """Put the nodes of a loop into a frame of their own, or mark the frame that holds exactly these."""
    inside = set(loop)
    holder = root
    while True:
        below = [c for c in holder.children if isinstance(c, Frame) and inside <= set(c.nodes())]
        if not below:
            break
        holder = below[0]
    label = _loop_label(module, holder.path)
    if inside == set(holder.nodes()) and holder is not root:
        holder.loop = label
        return
    touched = [child for child in holder.children if inside & set(members(child))]
    enclosed = [child for child in touched if set(members(child)) <= inside]
    if len(enclosed) == 1 and isinstance(enclosed[0], Frame) and len(touched) == 1:
        enclosed[0].loop = label
        return
    for child in touched:
        if child not in enclosed:  # a part of a frame: what runs again leaves it
            assert isinstance(child, Frame)
            enclosed += _pulled(child, inside)
    first = holder.children.index(touched[0])
    holder.children = [c for c in holder.children if c not in enclosed and members(c)]
    holder.children.insert(min(first, len(holder.children)), Frame(holder.path, "", enclosed, loop=label))


def _pulled(frame: Frame, wanted: set[DiagramNode]) -> list[DiagramNode | Frame]:
    """Take the nodes out of a frame."""
    pulled: list[DiagramNode | Frame] = []
    for child in list(frame.children):
        if isinstance(child, DiagramNode) and child in wanted:
            frame.children.remove(child)
            pulled.append(child)
        elif isinstance(child, Frame):
            pulled += _pulled(child, wanted)
    return pulled


def _loop_label(module: nn.Module, path: str) -> str:
    """For each step; for each segment, where a module around the loop has segments."""
    while True:
        segment = getattr(module.get_submodule(path), "segment", None)
        if isinstance(segment, int):
            return f"for each segment of {segment}"
        if not path:
            return "for each step"
        path = path.rpartition(".")[0]


def _dissolve_circles(frame: Frame, edges: list[Edge]) -> None:
    """Dissolve frames that something leaves and enters again, so that each frame has a place in the order."""
    for child in frame.children:
        if isinstance(child, Frame):
            _dissolve_circles(child, edges)
    while True:
        following = _following(frame.children, edges)
        circle = next((some for some in strongly_connected(following) if len(some) > 1), None)
        if circle is None:
            return
        able = [c for c in frame.children if id(c) in set(circle) and isinstance(c, Frame)]
        smallest = min(able, key=lambda child: len(child.nodes()))
        place = frame.children.index(smallest)
        frame.children[place : place + 1] = smallest.children


def _following(children: list[DiagramNode | Frame], edges: Iterable[Edge]) -> dict[int, list[int]]:
    home = {node: id(child) for child in children for node in members(child)}
    following: dict[int, list[int]] = {id(child): [] for child in children}
    for edge in edges:
        if not edge.back and edge.source in home and edge.target in home and home[edge.source] != home[edge.target]:
            following[home[edge.source]].append(home[edge.target])
    return following


def ordered(children: list[DiagramNode | Frame], edges: list[Edge]) -> list[DiagramNode | Frame]:
    """Children so that what feeds comes before what is fed, and otherwise in the given order."""
    following = _following(children, edges)
    waiting = {id(child): 0 for child in children}
    for targets in following.values():
        for target in set(targets):
            waiting[target] += 1
    in_order: list[DiagramNode | Frame] = []
    remaining = list(children)
    while remaining:
        child = next((child for child in remaining if waiting[id(child)] == 0), remaining[0])
        remaining.remove(child)
        in_order.append(child)
        for target in set(following[id(child)]):
            waiting[target] -= 1
    return in_order

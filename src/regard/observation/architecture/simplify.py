"""Make the graph of parts one that people would draw: loops once, states as one box, sums only where paths meet."""

from __future__ import annotations

from torch import nn

from regard.observation.architecture.contract import contract
from regard.observation.architecture.graph import BOXES, Graph, Key
from regard.observation.architecture.record import Recording

MOST_APART = 4  # a module called more often than this without a loop is drawn once
Loop = list[Key]


def simplified(module: nn.Module, recording: Recording) -> tuple[Graph, list[Loop]]:
    """The graph of a recording, and the parts of each of its loops."""
    graph = contract(module, recording)
    _merge_at_one_place(graph)
    looped = {graph.parts[key].path for loop in _loops(graph) for key in loop if graph.parts[key].role == "box"}
    apart = {
        vertex.path
        for vertex in graph.parts.values()
        if vertex.role == "box" and 1 < len(vertex.runs.get(None, ())) <= MOST_APART and vertex.path not in looped
    }
    if apart:
        graph = contract(module, recording, apart)
        _merge_at_one_place(graph)
    _recognise_attention(graph)
    _contract_states(graph)
    before = -1
    while before != len(graph.parts):
        before = len(graph.parts)
        _drop_plain_joins(graph)
        _settle_learned(graph)
        _drop_unread(graph)
    _merge_sums(graph)
    return graph, _loops(graph)


def _merge_at_one_place(graph: Graph) -> None:
    """What one place of the code does in each round of a loop is one part.

    Calls of `attend` that read the same boxes are one. A join of the first round, which may read other parts than those
    of later rounds, becomes the later one that feeds the same.
    """
    turning = {key for circle in graph.circles() for key in circle}
    groups: dict[object, list[Key]] = {}
    for key, vertex in graph.parts.items():
        if vertex.role in ("join", "attend"):
            boxes = frozenset(source for source in graph.sources(key) if graph.parts[source].role in BOXES[:2])
            apart = boxes if vertex.role == "attend" else None
            groups.setdefault((vertex.role, vertex.sign, vertex.path, vertex.place, apart), []).append(key)
    for group in groups.values():
        loops = [key for key in group if key in turning]
        if len(group) < 2 or not loops:
            continue
        if graph.parts[group[0]].role == "attend":
            graph.merge(group, loops[0])
            continue
        for key in set(group) - set(loops):
            fed = set(graph.targets(key))
            graph.merge([key], max(loops, key=lambda one: len(fed & set(graph.targets(one)))))


def _recognise_attention(graph: Graph) -> None:
    """A product, a softmax and another product written by hand are an attention; any other softmax hands on."""
    for key in [key for key, vertex in graph.parts.items() if vertex.sign == "softmax"]:
        before = [source for source in graph.sources(key) if graph.parts[source].sign in ("·", "×", "+", "?")]
        after = [target for target in graph.targets(key) if graph.parts[target].sign == "·"]
        while before and graph.parts[before[0]].sign != "·":
            earlier = [source for source in graph.sources(before[0]) if graph.parts[source].role == "join"]
            before = [*earlier[:1], *before] if earlier and earlier[0] not in before else []
        if before and after and after[0] not in before:
            into = after[0]
            graph.merge([*before, key], into)
            vertex = graph.parts[into]
            vertex.role, vertex.sign, vertex.detail = "attend", "", "softmax"
        else:
            graph.bypass(key)


def _contract_states(graph: Graph) -> None:
    """Operations without weights that feed each other from step to step are one state, or belong to a cell."""
    free = [key for key, vertex in graph.parts.items() if vertex.role in ("join", "attend")]
    for circle in graph.circles(free):
        if (
            len(circle) == 1
            and graph.parts[circle[0]].sign == "+"
            and _cell(graph, set(graph.sources(circle[0]))) is None
        ):
            continue  # a residual connection from round to round
        attends = [key for key in circle if graph.parts[key].role == "attend"]
        into = attends[0] if attends else circle[0]
        sources = {source for key in circle for source in graph.sources(key)} - set(circle)
        shape = max((graph.parts[key].shape for key in circle), key=_size)
        cell = None if attends else _cell(graph, sources)
        if cell is not None:
            graph.merge([*circle, cell], cell)
            graph.parts[cell].again = True
        else:
            graph.merge(circle, into)
            vertex = graph.parts[into]
            vertex.role, vertex.sign, vertex.shape, vertex.again = "state", "", shape, True


def _cell(graph: Graph, sources: set[Key]) -> Key | None:
    """The part that a state belongs to: all else that the state reads, this part reads, too."""
    able = [key for key in sources if graph.parts[key].role == "raw" or any(graph.parts[key].runs.keys() - {None})]
    able = [key for key in able if graph.parts[key].role in ("raw", "box")]  # weights are used without a call
    return next((key for key in able if sources - {key} <= set(graph.sources(key))), None)


def _settle_learned(graph: Graph) -> None:
    """Weights that one part alone uses belong to it, also where a sum or a product stands between."""
    for key in [key for key, vertex in graph.parts.items() if vertex.role == "learned"]:
        targets = graph.targets(key)
        if len(targets) != 1:
            continue
        vertex = graph.parts[targets[0]]
        beside = [source for source in graph.sources(targets[0]) if source != key]
        if vertex.role in ("attend", "state", "raw"):
            graph.merge([key], targets[0])
        elif vertex.role == "join" and len(beside) == 1 and graph.parts[beside[0]].role == "raw":
            graph.merge([key, targets[0]], beside[0])


def _drop_plain_joins(graph: Graph) -> None:
    """Remove joins of one thing, joins without a sign, and those that belong to weights used without a call."""
    changed = True
    while changed:
        changed = False
        for key, vertex in list(graph.parts.items()):
            if vertex.role != "join":
                continue
            sources = set(graph.sources(key))
            cell = _cell(graph, sources) if vertex.sign in ("×", "?", "·") else None
            if cell is not None and graph.parts[cell].role == "raw" and len(sources) > 1:
                graph.merge([key], cell)
            elif len(sources) < 2 or vertex.sign == "?":
                graph.bypass(key)
            else:
                continue
            changed = True


def _merge_sums(graph: Graph) -> None:
    """A sum that only feeds another sum of the same module is one with it; the same for concatenations."""
    for key in list(graph.parts):
        vertex = graph.parts.get(key)
        following = [] if vertex is None or vertex.role != "join" or vertex.sign not in "+∥" else graph.targets(key)
        if vertex is not None and len(following) == 1:
            after = graph.parts[following[0]]
            if (after.role, after.sign, after.path) == (vertex.role, vertex.sign, vertex.path):
                graph.merge([key], following[0])


def _drop_unread(graph: Graph) -> None:
    """Remove inputs and joins that nothing reads."""
    while True:
        dead = [
            key for key, vertex in graph.parts.items() if vertex.role in ("join", "input") and not graph.targets(key)
        ]
        if not dead:
            return
        for key in dead:
            graph.remove(key)


def _loops(graph: Graph) -> list[Loop]:
    """What runs again and again, each time with what the last time left: circles, and all that runs between them."""
    loops: list[tuple[int, int, Loop]] = []
    for circle in graph.circles():
        members = [graph.parts[key] for key in circle]
        counts = [vertex.times for vertex in members if vertex.role in ("box", "raw")]
        if max(vertex.times for vertex in members) < 2 or (counts and max(counts) - min(counts) > (max(counts) > 3)):
            continue
        loops.append((min(vertex.first for vertex in members), max(vertex.last for vertex in members), list(circle)))
    loops.sort(key=lambda loop: loop[0])
    merged: list[tuple[int, int, Loop]] = []
    for first, last, loop in loops:
        if merged and first < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]), [*merged[-1][2], *loop])
        else:
            merged.append((first, last, loop))
    for first, last, loop in merged:
        loop += [
            key
            for key, vertex in graph.parts.items()
            if key not in loop and vertex.times > 1 and vertex.first < last and vertex.last > first
        ]
    return [loop for _, _, loop in merged]


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape[1:]:
        total *= size
    return total if len(shape) > 1 else 0

"""Nodes of a diagram from the parts of a graph: labels, sizes and numbers of parameters."""

from __future__ import annotations

from torch import nn

from regard.observation.architecture.diagram import DiagramNode
from regard.observation.architecture.graph import Graph, Key, Part
from regard.observation.architecture.labels import described, role_of
from regard.observation.architecture.record import Recording

_WORDS = {"+": "sum", "×": "product", "∥": "concatenation", "·": "matrix product"}
_NO_NAME = ("cells", "layers", "maps")  # lists whose name says less than that of the module around them


def nodes_of(module: nn.Module, recording: Recording, graph: Graph, output: str) -> dict[Key, DiagramNode]:
    """The node of each part, and one for each module that was not used, under the key ("unused", path)."""
    ownership = _Ownership(module)
    nodes: dict[Key, DiagramNode] = {}
    for vertex in graph.parts.values():
        if vertex.role in ("box", "raw") and vertex.path in ownership.modules:
            ownership.take(vertex.path, vertex.owns)
    for key, vertex in graph.parts.items():
        nodes[key] = _node(module, recording, graph, key, vertex, ownership, output)
    for path in ownership.left():
        label, detail, kind = (
            described(ownership.modules[path], path, 1) if path in ownership.modules else (role_of(path), "", "memory")
        )
        nodes["unused", path] = DiagramNode(path, label, detail, kind, ownership.count_left(path), used=False)
    return nodes


def _node(
    module: nn.Module, recording: Recording, graph: Graph, key: Key, part: Part, own: _Ownership, output: str
) -> DiagramNode:
    if part.role == "input":
        return DiagramNode("", part.detail, kind="input")
    if part.role == "output":
        return DiagramNode("", output, kind="output")
    if part.role == "join":
        return DiagramNode(part.path, _WORDS[part.sign], kind=part.sign)
    if part.role == "attend":
        return DiagramNode(part.path, "attention", part.detail, "attention", own.counted(part.owns))
    if part.role == "state":
        sizes = " × ".join(map(str, part.shape[1:]))
        return DiagramNode(part.path, "memory", sizes, "memory", own.counted(part.owns))
    if part.role == "learned" or part.path not in own.modules:  # rows or a matrix that a module holds by itself
        sizes = " × ".join(map(str, own.tensors[part.path].shape))
        kind = "memory" if part.role == "learned" else "map"
        return DiagramNode(part.path, role_of(part.path), sizes, kind, own.counted(part.owns))
    label, detail, kind = described(own.modules[part.path], part.path, len(graph.sources(key)))
    if part.role == "box" and own.shares(part.path):
        detail = ", ".join(filter(None, (detail, "tied")))
    holder = _holder(part, recording, own)
    label = f"{holder}: {label}" if holder and kind in ("map", "recurrent") else label
    return DiagramNode(part.path, label, detail, kind, own.counts.pop(part.path, 0))  # one of several calls counts


def _holder(part: Part, recording: Recording, own: _Ownership) -> str:
    """The name of the module around a part, where that has no frame because it was not called itself."""
    above = part.path.rpartition(".")[0]
    while above and isinstance(own.modules[above], (nn.ModuleList, nn.ModuleDict)) and role_of(above) in _NO_NAME:
        above = above.rpartition(".")[0]
    listed = isinstance(own.modules[above], (nn.ModuleList, nn.ModuleDict))
    return "" if not above or above in recording.called or listed else role_of(above)


class _Ownership:
    """Which parameter belongs to which part: each to one."""

    def __init__(self, module: nn.Module) -> None:
        self.modules = dict(module.named_modules())
        self.tensors = dict(module.named_parameters())
        self.free = dict(self.tensors)
        self.counts: dict[str, int] = {}

    def shares(self, path: str) -> bool:
        """Whether a module uses a parameter that another one holds under its own name."""
        mine = {id(self.tensors[name]) for name in self.tensors if name.startswith(f"{path}.")}
        return any(id(parameter) not in mine for parameter in self.modules[path].parameters())

    def take(self, path: str, owns: set[str]) -> None:
        """Give a box the parameters below its path that no other has."""
        names = [name for name in self.free if name.startswith(f"{path}.") or name in owns]
        count = sum(self.free.pop(name).numel() for name in names)
        self.counts[path] = self.counts.get(path, 0) + count

    def counted(self, owns: set[str]) -> int:
        """Take the parameters of a part without a module out of the free ones; return their number of elements."""
        return sum(self.free.pop(name).numel() for name in sorted(owns) if name in self.free)

    def left(self) -> list[str]:
        """The largest modules of which nothing was used, and parameters of others that were not used."""
        unused: list[str] = []
        for name in self.free:
            path = name
            segments = name.split(".")
            for depth in range(1, len(segments)):
                above = ".".join(segments[:depth])
                below = [tensor_name for tensor_name in self.tensors if tensor_name.startswith(f"{above}.")]
                if all(tensor_name in self.free for tensor_name in below):
                    path = above
                    break
            unused.append(path)
        return list(dict.fromkeys(unused))

    def count_left(self, path: str) -> int:
        """How many unused parameters a module has."""
        return sum(
            parameter.numel() for name, parameter in self.free.items() if name == path or name.startswith(f"{path}.")
        )

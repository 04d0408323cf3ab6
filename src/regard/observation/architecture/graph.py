"""A graph of parts while it is being simplified: boxes, learned rows, sums and products, and what feeds what."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

Key = tuple[object, ...]
Vertex = TypeVar("Vertex", bound=Hashable)
BOXES = ("box", "raw", "attend", "state")


@dataclass(eq=False)
class Part:
    """One node: `role` is box (a module that was called), raw (weights used without a call), attend, state, learned,
    join, input or output."""

    role: str
    path: str
    sign: str = ""  # of a join: + × ∥ · softmax ?
    detail: str = ""
    first: int = 0  # numbers of the first and the last operation
    last: int = 0
    runs: dict[object, set[object]] = field(default_factory=dict)  # calls, or operations at each place in the code
    owns: set[str] = field(default_factory=set)  # names of the parameters that it uses without a call
    again: bool = False  # reads what it wrote in an earlier run
    place: object = None  # where in the code it is called
    shape: tuple[int, ...] = ()  # of a state

    @property
    def times(self) -> int:
        """How often it ran."""
        return max(map(len, self.runs.values()), default=1)


@dataclass
class Graph:
    """Parts by key, and edges with the number of the operation that first followed them."""

    parts: dict[Key, Part] = field(default_factory=dict)
    edges: dict[tuple[Key, Key], int] = field(default_factory=dict)

    def connect(self, source: Key, target: Key, when: int) -> None:
        """Add an edge; the earliest one counts."""
        earliest = self.edges.get((source, target))
        self.edges[source, target] = when if earliest is None else min(earliest, when)

    def sources(self, key: Key) -> list[Key]:
        """What feeds a part, itself left out."""
        return [source for source, target in self.edges if target == key and source != key]

    def targets(self, key: Key) -> list[Key]:
        """What a part feeds, itself left out."""
        return [target for source, target in self.edges if source == key and target != key]

    def merge(self, keys: Iterable[Key], into: Key) -> None:
        """Make several parts one; edges among them become `again` where they close a circle."""
        gone = set(keys) - {into}
        kept = self.parts[into]
        for key in gone:
            vertex = self.parts.pop(key)
            kept.first, kept.last = min(kept.first, vertex.first), max(kept.last, vertex.last)
            kept.owns |= vertex.owns
            for place, some in vertex.runs.items():
                kept.runs.setdefault(place, set()).update(some)
            kept.again = kept.again or vertex.again
        for (source, target), when in list(self.edges.items()):
            if source in gone or target in gone:
                del self.edges[source, target]
                ends = (into if source in gone else source, into if target in gone else target)
                if ends[0] != ends[1]:
                    self.connect(*ends, when)

    def bypass(self, key: Key) -> None:
        """Remove a part and connect each of its sources to each of its targets."""
        before = {source: when for (source, target), when in self.edges.items() if target == key and source != key}
        after = {target: when for (source, target), when in self.edges.items() if source == key and target != key}
        self.remove(key)
        for source, earlier in before.items():
            for target, later in after.items():
                if source == target:
                    self.parts[source].again = True
                else:
                    self.connect(source, target, max(earlier, later))

    def remove(self, key: Key) -> None:
        """Remove a part and its edges."""
        del self.parts[key]
        for ends in [ends for ends in self.edges if key in ends]:
            del self.edges[ends]

    def circles(self, among: Iterable[Key] | None = None) -> list[list[Key]]:
        """The sets of parts that can reach each other, of two or more, or of one that feeds itself."""
        inside = list(self.parts if among is None else among)
        following: dict[Key, list[Key]] = {key: [] for key in inside}
        for source, target in self.edges:
            if source in following and target in following:
                following[source].append(target)
        components = strongly_connected(following)
        return [some for some in components if len(some) > 1 or some[0] in following[some[0]] or self._alone(some[0])]

    def _alone(self, key: Key) -> bool:
        return self.parts[key].again


def strongly_connected(following: dict[Vertex, list[Vertex]]) -> list[list[Vertex]]:
    """The strongly connected components of a graph (Tarjan 1972), without recursion."""
    index: dict[Vertex, int] = {}
    low: dict[Vertex, int] = {}
    stack: list[Vertex] = []
    components: list[list[Vertex]] = []
    for root in following:
        work = [(root, iter(following[root]))] if root not in index else []
        while work:
            key, followers = work[-1]
            if key not in index:
                index[key] = low[key] = len(index)
                stack.append(key)
            following_key = next(followers, None)
            if following_key is not None:
                if following_key not in index:
                    work.append((following_key, iter(following[following_key])))
                elif following_key in stack:
                    low[key] = min(low[key], index[following_key])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[key])
            if low[key] == index[key]:
                cut = stack.index(key)
                components.append(stack[cut:])
                del stack[cut:]
    return components

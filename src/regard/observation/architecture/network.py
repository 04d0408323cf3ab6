"""Run a network once and record which modules are called and what feeds what.

What feeds a module is read off autograd's graph: from each of its inputs, the search goes back until it meets the
output of another module. A sum, a product or a concatenation on the way that joins the outputs of two modules becomes a
node, so a residual connection is drawn exactly where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.core import attention as core
from regard.models.model import Model
from regard.nn.mechanism import Mechanism
from regard.nn.state import State
from regard.observation.architecture.diagram import Diagram, Edge, Frame, Node, folded
from regard.observation.architecture.labels import SILENT, described, is_one_box, words
from regard.tasks.batch import Batch

_SIGNS = {"Add": "+", "Mul": "×", "Cat": "∥"}
_WORDS = {"+": "sum", "×": "product", "∥": "concatenation"}
_ROWS = 5  # of the input of a layer


def of_model(model: Model, batch: Batch) -> Diagram:
    """The picture of a model, from one call with a batch."""
    given = {words(name): stream.data for name, stream in batch.streams.items()}
    return _drawn(
        model, lambda: model(batch), given, "targets so far", model.problem.answer.words, model.name
    )


def of_layer(layer: Mechanism) -> Diagram:
    """The picture of a mechanism's inside, from one call with a few rows."""
    query = torch.randn(1, _ROWS, layer.dim, requires_grad=True)
    if layer.source_dim == layer.dim:
        return _drawn(layer, lambda: layer(query), {"rows": query}, "", "rows", layer.entry.name)
    source = torch.randn(1, _ROWS, layer.source_dim, requires_grad=True)
    given = {"query": query, "source": source}
    return _drawn(layer, lambda: layer(query, source), given, "", "rows", layer.entry.name)


def _drawn(
    module: nn.Module,
    call: Callable[[], Any],
    given: Mapping[str, Tensor],
    others: str,
    output: str,
    name: str,
) -> Diagram:
    training = {part: part.training for part in module.modules()}
    module.eval()
    trace = _Trace(module, given, others)
    try:
        with trace.recording(), torch.enable_grad():
            found = call()
        trace.finish(found, output)
    finally:
        for part, mode in training.items():
            part.training = mode
    return folded(trace.diagram(name))


class _Trace:
    """The nodes and edges of one call."""

    def __init__(self, root: nn.Module, given: Mapping[str, Tensor], others: str) -> None:
        self.root, self.given, self.others = root, given, others
        self.nodes: list[Node] = []
        self.edges: dict[tuple[Node, Node], Edge] = {}
        self.made: dict[Any, Node] = {}  # from a node of autograd's graph to the module that made it
        self.known: dict[
            tuple[Any, ...], Node
        ] = {}  # what was drawn already: a module that runs again is no new node
        self.inputs = [Node("", name, kind="input") for name in given]
        self.calls = 0  # of boxes
        self.inside: list[tuple[nn.Module, int]] = []  # what is running, and the number of calls before it
        self.spans: list[tuple[int, str]] = [(_now(), "")]  # from when on which module was running
        self.paths = {part: path for path, part in root.named_modules()}
        self.kept: list[Any] = []  # autograd's nodes, whose identity is used

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, calls of modules and of `attend` are recorded."""
        hooks: list[Any] = []
        attend = core.attend

        def attending(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
            found = attend(query, key, value, **options)
            if not self._in_box():
                within = self.paths[self.inside[-1][0]] if self.inside else ""
                self._node(
                    (within, "attend"),
                    within,
                    "attend",
                    _pieces(options),
                    "attention",
                    (query, key, value),
                    found,
                )
            return found

        for part, path in self.paths.items():
            if part is not self.root:
                hooks.append(part.register_forward_pre_hook(self._enter))
                hooks.append(
                    part.register_forward_hook(self._leaver(path), with_kwargs=True, always_call=True)
                )
        core.attend = attending
        try:
            yield
        finally:
            core.attend = attend
            for hook in hooks:
                hook.remove()

    def _in_box(self) -> bool:
        return any(is_one_box(part) for part, _ in self.inside)

    def _enter(self, part: nn.Module, _: Any) -> None:
        self.inside.append((part, self.calls))
        self.spans.append((_now(), self.paths[part]))

    def _leaver(self, path: str) -> Callable[..., None]:
        def leave(part: nn.Module, positional: Any, named: Any, output: Any) -> None:
            _, before = self.inside.pop()
            self.spans.append((_now(), self.paths[self.inside[-1][0]] if self.inside else ""))
            if self._in_box() or isinstance(part, SILENT):
                return
            # A container whose parts were not called runs as one piece: a fused kernel, for instance.
            if is_one_box(part) or self.calls == before:
                label, detail, kind = described(part, path)
                self._node((path,), path, label, detail, kind, (positional, named), output)

        return leave

    def _node(
        self, key: tuple[Any, ...], path: str, label: str, detail: str, kind: str, inputs: Any, output: Any
    ) -> None:
        self.calls += 1
        sources = [self._source(one) for one in _tensors(inputs)]
        results = [one.grad_fn for one in _tensors(output) if one.grad_fn is not None]
        if not results or any(one.grad_fn in results for one in _tensors(inputs) if one.grad_fn is not None):
            return  # it hands its input on
        node = self.known.get(key)
        if node is None:
            node = self.known[key] = Node(path, label, detail, kind, self._given(inputs))
            self.nodes.append(node)
        self._connect(sources, node)
        for result in results:
            self.made[result] = node
            self.kept.append(result)

    def _connect(self, sources: list[list[Node]], node: Node) -> None:
        for number, some in enumerate(sources):
            for one in some:
                if one.kind == "input":
                    node.given = one.label
                elif one is not node:
                    self.edges.setdefault((one, node), Edge(one, node, number == 0))

    def _given(self, inputs: Any) -> str:
        """The name of the network's input that is among these tensors."""
        tensors = _tensors(inputs)
        for name, value in self.given.items():
            if any(one.shape == value.shape and bool((one == value).all()) for one in tensors):
                return name
        whole = any(not one.is_floating_point() and one.dtype != torch.bool for one in tensors)
        return self.others if whole else ""

    def _source(self, tensor: Tensor) -> list[Node]:
        return [] if tensor.grad_fn is None else self._search(tensor.grad_fn)

    def _search(self, start: Any) -> list[Node]:
        """The nodes whose outputs reach this point of autograd's graph, found without recursion."""
        results: dict[Any, list[Node]] = {}
        stack = [(start, False)]
        while stack:
            point, done = stack.pop()
            if point in results:
                continue
            if point in self.made:
                results[point] = [self.made[point]]
                continue
            before = [following for following, _ in point.next_functions if following is not None]
            if not before:
                leaf = getattr(point, "variable", None)
                results[point] = [
                    node for node in self.inputs if leaf is not None and self.given[node.label] is leaf
                ]
                continue
            if not done:
                stack.append((point, True))
                stack.extend((one, False) for one in before if one not in results)
                continue
            branches = [results.get(one, []) for one in before]
            union = list(dict.fromkeys(node for branch in branches for node in branch))
            sign = next(
                (sign for name, sign in _SIGNS.items() if point.name().startswith(f"{name}Backward")), ""
            )
            filled = [branch for branch in branches if branch]
            if sign and len(filled) > 1 and len(union) > 1 and any(node.kind != "input" for node in union):
                union = [self._joint(point, sign, filled)]
            results[point] = union
        return results[start]

    def _joint(self, point: Any, sign: str, branches: list[list[Node]]) -> Node:
        """A node for an operation that joins branches, in the module that ran it and that holds the latest branch."""
        made = point._sequence_nr()
        path = [path for begin, path in self.spans if begin <= made][-1]
        drawn = [node for branch in branches for node in branch if node.kind != "input"]
        latest = max(drawn, key=self.nodes.index)
        while path and not latest.path.startswith(f"{path}.") and latest.path != path:
            path = _parent(path)
        node = self.known.get((path, sign, latest))
        if node is None and latest.kind == sign and latest.path == path:
            node = latest  # a sum of sums is one sum
        if node is None:
            node = self.known[path, sign, latest] = Node(path, _WORDS[sign], "", sign)
            self.nodes.append(node)
        self._connect(branches, node)
        self.made[point] = node
        self.kept.append(point)
        return node

    def finish(self, output: Any, label: str) -> None:
        """Add what the network returns."""
        sources = [self._source(one) for one in _tensors(output)[:1]]
        self._add_uncalled()
        node = Node("", label, "", "output")
        self.nodes.append(node)
        self._connect(sources, node)

    def _add_uncalled(self) -> None:
        """Modules whose weights are used without a call, as in a fused kernel, behind the last node beside them."""
        drawn = [node.path for node in self.nodes if (node.path,) in self.known]
        for path, part in self.root.named_modules():
            covered = any(path == other or path.startswith(f"{other}.") for other in drawn)
            if not path or covered or part._modules or not list(part.parameters()):
                continue
            label, detail, kind = described(part, path)
            using = [node for node in self.nodes if node.label == "attend" and node.path == _parent(path)]
            near = [node for node in self.nodes if _parent(node.path) == _parent(path)]
            place = self.nodes.index(near[-1]) + 1 if near else len(self.nodes)
            place = self.nodes.index(using[0]) if using else place
            self.nodes.insert(place, Node(path, label, detail, kind, loose=True))

    def diagram(self, name: str) -> Diagram:
        """The nodes in frames, one for each module around them."""
        root = Frame("", name)
        frames: dict[str, Frame] = {"": root}
        for node in self.nodes:
            above = _parent(node.path) if (node.path,) in self.known or node.loose else node.path
            self._frame(above, frames).children.append(node)
        return Diagram(root, list(self.edges.values()))

    def _frame(self, path: str, frames: dict[str, Frame]) -> Frame:
        if path not in frames:
            module = self.root.get_submodule(path)
            above = self._frame(_parent(path), frames)
            if isinstance(module, nn.ModuleList):  # its members stand in the frame around it
                frames[path] = above
                return above
            name = path.rsplit(".", 1)[-1]
            label = words(type(module).__name__) if name.isdigit() else words(name)
            if isinstance(module, Mechanism) and hasattr(module, "entry"):
                label = module.entry.name if label == "attention" else f"{label}: {module.entry.name}"
            elif module.extra_repr():
                label = f"{label}: {', '.join(module.extra_repr().split(', ')[:2])}"
            frames[path] = Frame(path, label)
            above.children.append(frames[path])
        return frames[path]


def _now() -> int:
    """The number that autograd gives the next operation."""
    return int((torch.zeros((), requires_grad=True) * 1).grad_fn._sequence_nr()) + 1  # type: ignore[union-attr]


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _tensors(thing: Any) -> list[Tensor]:
    """All tensors inside tuples, lists, dicts and states, in order."""
    if isinstance(thing, Tensor):
        return [thing]
    if isinstance(thing, State):
        thing = vars(thing)
    if isinstance(thing, Mapping):
        thing = list(thing.values())
    return [one for part in thing for one in _tensors(part)] if isinstance(thing, (tuple, list)) else []


def _pieces(options: Mapping[str, Any]) -> str:
    """Score and normaliser of a call of `attend`, in words."""
    score, normalize = options.get("score") or "scaled-dot", options.get("normalize") or "softmax"
    named = [one if isinstance(one, str) else words(type(one).__name__) for one in (score, normalize)]
    return ", ".join(named)

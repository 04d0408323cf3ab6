"""The picture of a model, of a mechanism or of any module, made from one call with a few examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.nn.parts.mechanism import Mechanism
from regard.observation.architecture.assemble import assembled
from regard.observation.architecture.diagram import Diagram, DiagramNode, Edge, Frame
from regard.observation.architecture.labels import described, words
from regard.observation.architecture.record import record, tensors_of
from regard.observation.architecture.simplify import simplified

_ROWS, _SOURCE = 5, 7  # how many rows of the inputs of a layer


def of_layer(layer: Mechanism) -> Diagram:
    """The picture of a mechanism's inside, from a call with a few rows, and with a source where it reads two things."""
    weight = next(layer.parameters(), torch.zeros(()))
    query, source = (
        torch.randn(1, length, width, device=weight.device, dtype=weight.dtype)
        for length, width in ((_ROWS, layer.dim), (_SOURCE, layer.source_dim))
    )
    name, two = layer.entry.name, {"query": query, "source": source}
    both = getattr(layer, "both", None)  # of a mechanism between two streams
    if both is not None:
        return drawn(layer, lambda: both(query, source), two, "both streams", name)
    if layer.source_dim == layer.dim and not _reads_two(layer):
        try:
            return drawn(layer, lambda: layer(query), {"rows": query}, "rows", name)
        except RegardError:
            pass  # it needs a source
    return drawn(layer, lambda: layer(query, source), two, "rows", name)


def _reads_two(layer: Mechanism) -> bool:
    """Whether the parts of a mechanism are of different kinds: one for its own sequence, one for a source."""
    return len({type(child) for child in layer.children() if isinstance(child, Mechanism)}) > 1


def of_module(module: nn.Module, *inputs: Any, **named: Any) -> Diagram:
    """The picture of any module, from one call with these arguments."""
    bound = inspect.signature(module.forward).bind(*inputs, **named)
    named_inputs: dict[str, Tensor] = {}
    for name, value in bound.arguments.items():
        tensors = tensors_of(value)
        for number, tensor in enumerate(tensors):
            named_inputs[words(name) if len(tensors) == 1 else f"{words(name)} {number}"] = tensor
    return drawn(module, lambda: module(*inputs, **named), named_inputs, "output", words(type(module).__name__))


def drawn(module: nn.Module, call: Callable[[], Any], given: Mapping[str, Tensor], output: str, name: str) -> Diagram:
    """The picture of a module from any call of it; `given`: its inputs by the words that stand beside them."""
    recording = record(module, call, given)
    graph, loops = simplified(module, recording)
    if not any(vertex.role in ("box", "raw", "attend", "state") for vertex in graph.parts.values()):
        return _single(module, list(graph.parts), given, output, name)
    return assembled(module, recording, graph, loops, name, output)


def _single(module: nn.Module, keys: list[Any], given: Mapping[str, Tensor], output: str, name: str) -> Diagram:
    """The picture of a module from any call of it; `given`: its inputs by the words that stand beside them."""
    """The picture of a module without parts: itself, as one box."""
    inputs = [DiagramNode("", str(key[1]), kind="input") for key in keys if key[0] == "input"]
    inputs = inputs or [DiagramNode("", label, kind="input") for label in given]
    label, detail, kind = described(module, "", len(inputs))
    count = sum(parameter.numel() for parameter in module.parameters())
    box, end = DiagramNode("", label, detail, kind, count), DiagramNode("", output, kind="output")
    edges = [*(Edge(source, box) for source in inputs), Edge(box, end)]
    return Diagram(Frame("", name, [*inputs, box, end]), edges)

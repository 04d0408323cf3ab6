"""Mechanisms of ours whose weights are more, or other, than those of one call of `attend`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.dispatch.attention import Rows
from regard.nn.dynamic_memory import DynamicMemory
from regard.nn.gla import GlobalQuery
from regard.nn.graph import GraphAttention
from regard.nn.linear import Linear
from regard.nn.local_m import LocalAlignment
from regard.nn.ntm import NTM
from regard.nn.ntm.machine import MachineCore, Trace
from regard.nn.parts.attention_layer import AttentionLayer
from regard.nn.parts.gates import ChannelAttention, SpatialAttention
from regard.nn.parts.mechanism import Mechanism
from regard.nn.parts.state import State
from regard.nn.static_memory import StaticMemory
from regard.observation.capture.fingerprints import check_fingerprints, fingerprints_of
from regard.observation.capture.interception import Adapter, CallEvent
from regard.observation.capture.reading import How, Reading, Side, UnreadableCall, WholeMap
from regard.observation.capture.recomputed import (
    attend_calls_of,
    dynamic_memory_maps,
    inputs_of,
    linear_weights,
    slots_of,
)
from regard.observation.capture.storage import Storage, StoredTensor, restored

Readings = list[tuple[str, Reading]]  # each with what its name has behind the module's path


def mechanism_name(layer: nn.Module) -> str:
    """A layer's name as users know it."""
    return layer.entry.name if isinstance(layer, Mechanism) and hasattr(layer, "entry") else type(layer).__name__


def adapter_of(module: nn.Module) -> Adapter | None:
    """The adapter of a mechanism's class; None where its calls of `attend` say everything."""
    return next((adapter() for kind, adapter in _ADAPTERS if isinstance(module, kind)), None)


class OwnWeights(Adapter):
    """A mechanism whose `weights` computes the weights of a call; what it calls inside is part of that."""

    kind = "own weights"

    def readings(self, event: CallEvent) -> Readings:
        """One call, its weights computed by the layer for the rows and heads asked for."""
        layer, *inputs = event.args
        query, source = inputs_of(inputs, event.kwargs)
        call = RepeatableCall(layer, inputs, event.kwargs, event.keep)
        batch, queries, heads = len(query), query.shape[1], layer.num_heads
        keys = source.shape[1]
        if isinstance(event.kwargs.get("state"), State):  # only the layer knows how many keys there are
            keys = call.weights([0], [0]).shape[-1] if queries else 0
        reading = RecomputedRows(call.weights, (batch, heads, queries, keys), self.nature(source is query))
        reading.continues = isinstance(event.kwargs.get("state"), State)
        return [("", reading)]

    def nature(self, within: bool) -> How:
        """What the weights are; `within`: a sequence attends to itself."""
        return "exact"


class GlobalQueryWeights(OwnWeights):
    """`global-query`, which within a sequence never makes weights of pairs."""

    def nature(self, within: bool) -> How:
        """Effective within a sequence, exact over a source."""
        return "effective" if within else "exact"


class LinearWeights(Adapter):
    """`linear`: its weights are never made, but its output is the mean of its values by just these weights."""

    kind = "own weights"

    def readings(self, event: CallEvent) -> Readings:
        """One map, computed from the inputs. A source is read completely in every step, so its sums are not needed."""
        layer, *inputs = event.args
        query, source = inputs_of(inputs, event.kwargs)
        steps = event.kwargs.get("state") is not None
        if steps and (source is query or layer.causal):
            return [("", UnreadableCall("linear keeps only sums of earlier positions: a step has no weights to show."))]
        arguments = {name: argument for name, argument in event.kwargs.items() if name != "state"}
        call = RepeatableCall(layer, inputs, arguments, event.keep)
        sizes = (len(query), layer.num_heads, query.shape[1], source.shape[1])
        reading = WholeMap(lambda: linear_weights(layer, *call.given()), sizes, "effective")
        reading.continues = steps
        return [("", reading)]


class EdgeWeights(Adapter):
    """`GraphAttention`: the weights of its edges, as maps of nodes × nodes, computed for the nodes asked for."""

    kind = "own weights"

    def readings(self, event: CallEvent) -> Readings:
        layer, *inputs = event.args
        nodes = inputs[0] if inputs else event.kwargs["nodes"]
        call = RepeatableCall(layer, inputs, event.kwargs, event.keep)
        sizes = (len(nodes), layer.num_heads, nodes.shape[1], nodes.shape[1])
        return [("", RecomputedRows(call.weights, sizes, "exact"))]


class GateWeights(Adapter):
    """Gates of feature maps: one row of weights over all channels, or over all places. They do not sum to 1."""

    kind = "gate"

    def readings(self, event: CallEvent) -> Readings:
        """One map, computed from the feature maps."""
        layer, maps = event.args
        call = RepeatableCall(layer, [maps], {}, event.keep)
        over_channels = isinstance(layer, ChannelAttention)
        count = maps.shape[1] if over_channels else maps.shape[2:].numel()
        side: Side = "channel" if over_channels else "source"

        def weights() -> Tensor:
            (nodes,), _ = call.given()
            edge_weights: Tensor = layer.weights(nodes)
            return edge_weights.flatten(1)[:, None, None]

        return [("", WholeMap(weights, (len(maps), 1, 1, count), columns=side))]


class DynamicMemoryMaps(Adapter):
    """`dynamic-memory`: slots that are written by each segment, and positions that read slots and their segment."""

    kind = "own weights"

    def readings(self, event: CallEvent) -> Readings:
        """How the slots were written and read; over a source only how they were read."""
        layer, *inputs = event.args
        query, source = inputs_of(inputs, event.kwargs)
        (batch, queries, _), slots, state = query.shape, slots_of(layer), event.kwargs.get("state")
        call = RepeatableCall(layer, inputs, event.kwargs, event.keep)

        def part(index: int) -> Tensor:
            args, kwargs = call.given()
            return dynamic_memory_maps(layer, args, kwargs)[index]

        def shaped(rows: int, columns: int) -> tuple[int, int, int, int]:
            return batch, layer.num_heads, rows, columns

        if source is not query or getattr(state, "source", None) is not None:
            last = partial(_last_call, layer, call)
            last_map = WholeMap(last, shaped(queries, slots), columns="slot")
            last_map.continues = state is not None
            return [(".reading", last_map)]
        if state is not None:
            why = "dynamic-memory continues inside a segment: a step has no single map to show."
            return [("", UnreadableCall(why))]
        reading = WholeMap(lambda: part(1), shaped(queries, slots + queries), columns="memory")
        if queries <= layer.segment:  # no position reads what was written
            return [(".reading", reading)]
        writing = WholeMap(lambda: part(0), shaped(slots, queries), rows="slot")
        return [(".writing", writing), (".reading", reading)]


def _last_call(layer: nn.Module, call: RepeatableCall) -> Tensor:
    args, kwargs = call.given()
    return attend_calls_of(layer, args, kwargs)[-1].weights()


class RepeatableCall:
    """A call of a layer that can be made again, as long as its parameters are the same."""

    def __init__(self, layer: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], keep: Storage) -> None:
        self.layer = layer
        self.args = [keep.argument(argument) for argument in args]
        self.kwargs = {name: keep.argument(argument) for name, argument in kwargs.items()}
        self.parameters = list(layer.parameters())
        self.fingerprints = fingerprints_of(self.parameters)

    def given(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, after a check that nothing has changed."""
        words = f"a parameter of {mechanism_name(self.layer)}"
        check_fingerprints(self.parameters, self.fingerprints, words)
        named = {name: restored(argument) for name, argument in self.kwargs.items()}
        return [restored(argument) for argument in self.args], named

    def weights(self, rows: Rows, heads: Rows) -> Tensor:
        """The weights of some rows and heads, as the layer's own `weights` computes them."""
        args, kwargs = self.given()
        compute: Any = self.layer.weights
        weights: Tensor = compute(*args, **kwargs, rows=rows, heads=heads)
        return weights


class RecomputedRows(WholeMap):
    """A call of a layer that computes the weights of chosen rows and heads."""

    def __init__(self, compute: Callable[..., Tensor], sizes: tuple[int, int, int, int], how: How) -> None:
        super().__init__(lambda: compute(None, None), sizes, how)
        self.compute = compute

    @torch.no_grad()
    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        return self.compute(rows, heads)

    strips = Reading.strips


class MachineCoreAdapter(Adapter):
    """The tape of a Neural Turing Machine, which returns the weights of its heads after each step."""

    kind = "tape"

    def readings(self, event: CallEvent) -> Readings:
        """One for the heads that write, one for those that read."""
        trace: Trace = event.result[1]
        readings: Readings = []
        for name, weights in (("write", trace.write), ("read", trace.read)):
            if weights.shape[2]:
                kept = event.keep.activation(weights, f"the {name} weights")
                sizes = (weights.shape[0], weights.shape[2], weights.shape[1], weights.shape[3])
                reading = WholeMap(partial(_heads_first, kept), sizes, "exact", "source", "slot")
                readings.append((f".{name}", reading))
        return readings


def _heads_first(kept: StoredTensor) -> Tensor:
    return kept.get().transpose(1, 2)


_ADAPTERS: tuple[tuple[type[nn.Module], type[Adapter]], ...] = (
    (LocalAlignment, OwnWeights),
    (GlobalQuery, GlobalQueryWeights),
    (GraphAttention, EdgeWeights),
    (Linear, LinearWeights),
    (ChannelAttention, GateWeights),
    (SpatialAttention, GateWeights),
    (DynamicMemory, DynamicMemoryMaps),
    (MachineCore, MachineCoreAdapter),
)


def sides(parts: Iterable[nn.Module]) -> dict[int, tuple[Side, Side]]:
    """What rows and columns are, of modules whose `attend` calls cannot tell: by the identity of the module."""
    sides_of: dict[int, tuple[Side, Side]] = {}
    for module in parts:
        if isinstance(module, StaticMemory):
            sides_of[id(module.writer)] = ("slot", "source")
            sides_of[id(module.reader)] = ("position", "slot")
        elif isinstance(module, NTM):
            sides_of[id(module)] = ("position", "slot")
        elif isinstance(module, AttentionLayer):  # its queries attend to themselves, then to the source
            sides_of[id(module.memory)] = ("position", "position")
    return sides_of

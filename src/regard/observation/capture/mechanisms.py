"""Our own layers: `attend`, and the mechanisms whose weights are more, or other, than those of one call of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import regard.core.attention as core
from regard.biases import Bias
from regard.core.attention import Rows
from regard.masks import Mask
from regard.nn.dynamic_memory import DynamicMemory
from regard.nn.gla import GlobalQuery
from regard.nn.linear import Linear
from regard.nn.local_m import LocalAlignment
from regard.nn.ntm import NTM
from regard.nn.ntm.machine import Trace
from regard.nn.state import State
from regard.nn.static_memory import StaticMemory
from regard.observation.capture.fingerprints import check_fingerprints, fingerprints_of
from regard.observation.capture.interception import Adapter, CallEvent, Function
from regard.observation.capture.proof import proof_of
from regard.observation.capture.reading import GradientInputs, Pairs, Reading, UnreadableCall, WholeMap
from regard.observation.capture.storage import Storage, StoredKeys, StoredTensor, StoredValue, restored
from regard.observation.capture.torch_calls import as_computed, four_axes, mask_and_bias, rows_seen, silenced
from regard.observation.watching import How, Side, named, weighed
from regard.scores import Score

# Mechanisms that give an account of a call themselves; what they call on the way is part of it.
ACCOUNTING = (LocalAlignment, GlobalQuery, Linear, DynamicMemory)


class Attend(Adapter):
    """`regard.attend`: every mask, score, bias and normaliser is kept as the value it is."""

    kind = "attend"
    signature = inspect.signature(core.attend)

    def reading(self, event: CallEvent) -> Reading:
        """The request as it was made."""
        bound = self.signature.bind(*event.args, **event.kwargs)
        bound.apply_defaults()
        given, keep = bound.arguments, event.keep
        query, key = as_computed(given["query"]), as_computed(given["key"])
        mask, bias = given["mask"], given["bias"]
        seen = None
        if isinstance(mask, Mask):
            kept_mask: StoredTensor | StoredValue[Mask] | None = keep.value(mask, "the mask")
        else:
            kept_mask, _ = mask_and_bias(mask, query.shape[:-2], keep)
            seen = rows_seen(mask, key.shape[-2]) if mask is not None and mask.dim() >= 2 else None
        if isinstance(bias, Bias):
            kept_bias: StoredTensor | StoredValue[Bias] | None = keep.value(bias, "the bias")
        else:
            _, kept_bias = mask_and_bias(bias, query.shape[:-2], keep)
        score: StoredValue[Score] | str = given["score"]
        if not isinstance(score, str):
            score = keep.value(given["score"], "the score")
        sink = given["sink"]
        output = event.result[0] if given["return_logsumexp"] else event.result
        graph = None
        if event.gradients and output.requires_grad and query.dim() == 4 and given["normalize"] == "softmax":
            graph = GradientInputs(given["value"].detach(), output)
        return Pairs(
            keep.activation(four_axes(query), "the query"),
            StoredKeys(keep.activation(four_axes(key), "the key"), seen),
            (*four_axes(query).shape[:3], key.shape[-2]),
            kept_mask, kept_bias, score, given["normalize"], given["scale"],
            None if sink is None else keep.parameter(sink, "the sink"), graph=graph,
            proof=None if given["dropout"] else proof_of(keep, four_axes(given["value"]), four_axes(output), seen),
        )  # fmt: skip

    def silent(
        self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], heads: Sequence[int]
    ) -> Any:
        result = original(*args, **kwargs)
        if isinstance(result, tuple):
            return silenced(result[0], heads, 1), *result[1:]
        return silenced(result, heads, 1)


class MechanismAdapter(Adapter):
    """A mechanism that is asked, with what it was given, for its own account of the call."""

    kind = "own account"

    def readings(self, event: CallEvent) -> list[tuple[str, Reading]]:
        """One for each part of the mechanism: most have one; a memory is written and read."""
        layer, *given = event.args
        query = given[0] if given else event.kwargs["query"]
        source = given[1] if len(given) > 1 else event.kwargs.get("source")
        call = RepeatableCall(layer, given, event.kwargs, event.keep)
        (batch, queries, _), heads = query.shape, layer.num_heads
        keys = (query if source is None else source).shape[1]
        if isinstance(layer, DynamicMemory):
            slots, sizes = len(layer.slots), (batch, heads, queries, len(layer.slots))
            state = event.kwargs.get("state")
            if source is not None or getattr(state, "source", None) is not None:
                return [(".reading", WholeMap(lambda: call.part(0), sizes, columns="slot"))]
            if state is not None:
                return [
                    (
                        "",
                        UnreadableCall(
                            "dynamic-memory goes on inside of a segment: a step has no one map to show."
                        ),
                    )
                ]
            sizes = (batch, heads, queries, slots + queries)
            reading = WholeMap(lambda: call.part(-1), sizes, columns="memory")
            if queries < layer.segment:  # nothing was written yet
                return [(".reading", reading)]
            writing = WholeMap(lambda: call.part(0), (batch, heads, slots, queries), rows="slot")
            return [(".writing", writing), (".reading", reading)]
        sizes = (batch, heads, queries, keys)
        if isinstance(layer, Linear):
            if event.kwargs.get("state") is not None:
                return [
                    (
                        "",
                        UnreadableCall(
                            "linear keeps only sums of what came earlier: a step has no weights to show."
                        ),
                    )
                ]
            return [("", WholeMap(lambda: call.part(0), sizes, "effective"))]
        state = event.kwargs.get("state")
        if isinstance(state, State):  # how many keys there are, the layer knows
            sizes = (batch, heads, queries, call.weights([0], [0]).shape[-1] if queries else 0)
        how: How = "effective" if isinstance(layer, GlobalQuery) and source is None else "exact"
        return [("", RecomputedRows(call.weights, sizes, how))]


class RepeatableCall:
    """A call of a layer that can be made again, as long as its parameters are the same."""

    def __init__(self, layer: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], keep: Storage) -> None:
        self.layer = layer
        self.args = [keep.argument(part) for part in args]
        self.kwargs = {name: keep.argument(part) for name, part in kwargs.items()}
        self.parameters = list(layer.parameters())
        self.fingerprints = fingerprints_of(self.parameters)

    def given(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, after a look whether anything has changed."""
        check_fingerprints(self.parameters, self.fingerprints, f"a parameter of {named(self.layer)}")
        named_ones = {name: restored(part) for name, part in self.kwargs.items()}
        return [restored(part) for part in self.args], named_ones

    def weights(self, rows: Rows, heads: Rows) -> Tensor:
        """What the layer says of some rows and heads."""
        args, kwargs = self.given()
        ask: Any = self.layer.weights
        found: Tensor = ask(*args, **kwargs, rows=rows, heads=heads)
        return found

    def part(self, index: int) -> Tensor:
        """All weights of one part, from running the layer once more (without dropout) and watching its parts."""
        args, kwargs = self.given()
        training = {module: module.training for module in self.layer.modules()}
        self.layer.eval()
        try:
            return weighed(lambda: self.layer(*args, **kwargs), self.layer)[index].all
        finally:
            for module, was in training.items():
                module.training = was


class RecomputedRows(WholeMap):
    """A call of a layer that can tell the weights of chosen rows and heads."""

    def __init__(self, ask: Any, sizes: tuple[int, int, int, int], how: Any) -> None:
        super().__init__(lambda: ask(None, None), sizes, how)
        self.ask = ask

    @torch.no_grad()
    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        found: Tensor = self.ask(rows, heads)
        return found

    strips = Reading.strips


class TapeAdapter(Adapter):
    """The tape of a Neural Turing Machine, which hands over where its heads were after each step."""

    kind = "tape"

    def readings(self, event: CallEvent) -> list[tuple[str, Reading]]:
        """One for the heads that write, one for those that read."""
        trace: Trace = event.result[1]
        found: list[tuple[str, Reading]] = []
        for name, places in (("write", trace.write), ("read", trace.read)):
            if places.shape[2]:
                kept = event.keep.activation(places, f"the {name} weights")
                sizes = (places.shape[0], places.shape[2], places.shape[1], places.shape[3])
                reading = WholeMap(partial(_by_heads, kept), sizes, "exact", "position", "slot")
                found.append((f".{name}", reading))
        return found


def _by_heads(kept: StoredTensor) -> Tensor:
    return kept.get().transpose(1, 2)


def sides(parts: Iterable[nn.Module]) -> dict[int, tuple[Side, Side]]:
    """Modules whose rows or columns are slots of a memory, by identity: what they are."""
    found: dict[int, tuple[Side, Side]] = {}
    for module in parts:
        if isinstance(module, StaticMemory):
            found[id(module.writer)] = ("slot", "source")
            found[id(module.reader)] = ("position", "slot")
        elif isinstance(module, NTM):
            found[id(module)] = ("position", "slot")
    return found

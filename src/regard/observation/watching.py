"""What a mechanism weighed while a model ran as it always does.

A model runs once; what its mechanism and the parts of it were called with is noted, and each part is then asked for the
weights of just that call. A mechanism that has none says so by `Unseen`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard.core.attention as core
from regard import scores
from regard.masks import Mask
from regard.nn import masking
from regard.nn.attention_layer import AttentionLayer
from regard.nn.dynamic_memory import DynamicMemory
from regard.nn.gla import GlobalQuery
from regard.nn.hard import Hard
from regard.nn.linear import Linear, linear_attention
from regard.nn.mechanism import Mechanism
from regard.nn.ntm import NTM
from regard.nn.ntm.machine import MachineState, Trace
from regard.nn.static_memory import StaticMemory

# exact: the weights the layer itself mixes with. effective: the layer never makes them, but its output is the mean of
# its values by just these weights. gradient × input: how much each input moves the answer; not a weight of any layer.
# unverified: computed by what is known of the layer, but not found to be what it mixed with.
How = Literal["exact", "effective", "gradient × input", "unverified"]
Side = Literal["position", "source", "slot", "memory"]  # memory: the slots, then the positions


class Unseen(Exception):
    """There are no weights to show; the text says why."""


@dataclass(frozen=True)
class Weighed:
    """The weights of one part of a mechanism."""

    all: Tensor  # (b,h,q,k)
    part: str = ""  # "" or what this part does: "writing", "reading"
    rows: Side = "position"
    columns: Side = "source"
    how: How = "exact"

    @property
    def heads(self) -> Tensor:
        """Those of the first example, (h,q,k), as a picture needs them."""
        return self.all[0].float().cpu()


@dataclass(frozen=True)
class Call:
    """One call of a module."""

    given: tuple[Any, ...]
    named: dict[str, Any]
    result: Any


Calls = dict[nn.Module, list[Call]]


@torch.no_grad()
def calls(run: Callable[[], Any], inside: nn.Module) -> Calls:
    """Every call of a module and of its parts while `run` runs."""
    found: Calls = {module: [] for module in inside.modules()}

    def note(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        found[module].append(Call(given, named, result))

    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in found]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return found


@torch.no_grad()
def weighed(run: Callable[[], Any], layer: nn.Module) -> list[Weighed]:
    """What a mechanism weighed the last time it was called while `run` ran."""
    found = calls(run, layer)
    if not found[layer]:
        raise Unseen(f"{named(layer)} was not called.")
    return _read(layer, found)


def named(layer: nn.Module) -> str:
    """A layer's name as users know it."""
    return (
        layer.entry.name if isinstance(layer, Mechanism) and hasattr(layer, "entry") else type(layer).__name__
    )


def _asked(layer: nn.Module, found: Calls) -> Tensor:
    """The layer's own account of its last call, (b,h,q,k)."""
    offered = getattr(layer, "weights", None)
    if not callable(offered) or not found[layer]:
        raise Unseen(f"{named(layer)} has no weights to show.")
    last = found[layer][-1]
    try:
        weights = offered(*last.given, **last.named)
    except NotImplementedError:
        raise Unseen(f"{named(layer)} has no weights to show.") from None
    if not isinstance(weights, Tensor) or weights.dim() != 4:
        raise Unseen(f"{named(layer)} has no weights of pairs to show.")
    return weights


@singledispatch
def _read(layer: nn.Module, found: Calls) -> list[Weighed]:
    return [Weighed(_asked(layer, found))]


@_read.register
def _(layer: Hard, found: Calls) -> list[Weighed]:
    return [Weighed(_asked(layer, found), "the choice of one position")]


@_read.register
def _(layer: GlobalQuery, found: Calls) -> list[Weighed]:
    query, source = _inputs(found[layer][-1])
    return [Weighed(_asked(layer, found), how="effective" if source is query else "exact")]


@_read.register
def _(layer: Linear, found: Calls) -> list[Weighed]:
    """The result is linear in the values: with unit vectors in their place it is the weights."""
    last = found[layer][-1]
    if last.named.get("state") is not None:
        raise Unseen("linear keeps only sums of what came earlier, so that a step has no weights to show.")
    query, source = _inputs(last)
    mask = last.named.get("mask")
    asked, rest = masking.split_causal(mask) if isinstance(mask, Mask) else (False, mask)
    keep = masking.kept(rest, len(query), query.shape[1], source.shape[1], 0, query.device)
    rows = masking.without_padding(source, keep)

    def heads(mapped: Tensor) -> Tensor:
        split: Tensor = mapped.unflatten(-1, (layer.num_heads, layer.head_dim))
        return split.transpose(1, 2)

    queries, keys = heads(layer.query_map(rows if source is query else query)), heads(layer.key_map(rows))
    units = torch.eye(source.shape[1], dtype=keys.dtype, device=keys.device).expand(*keys.shape[:2], -1, -1)
    own = layer.causal and not (
        asked and query.shape[1] > source.shape[1]
    )  # of two alignments the narrower one
    weights = linear_attention(
        queries, keys, units, keep=keep, causal=layer.causal or asked, feature_map=layer.feature_map,
        align=layer.align if own else "bottom-right",
    )  # fmt: skip
    return [Weighed(weights, how="effective")]


@_read.register
def _(layer: StaticMemory, found: Calls) -> list[Weighed]:
    parts = [Weighed(_asked(layer.reader, found), "reading the memory", columns="slot")]
    if found[layer.writer]:  # a state may already hold the memory
        parts.insert(0, Weighed(_asked(layer.writer, found), "writing the memory", rows="slot"))
    return parts


@_read.register
def _(layer: DynamicMemory, found: Calls) -> list[Weighed]:
    last = found[layer][-1]
    query, source = _inputs(last)
    state = last.named.get("state")
    if source is not query or getattr(state, "source", None) is not None:
        return [Weighed(_asked(layer.reader, found), "reading the memory", columns="slot")]
    if state is not None:
        raise Unseen("dynamic-memory goes on inside of a segment, so that a step has no one map to show.")
    (batch, length, _), slots, size = query.shape, len(layer.slots), layer.segment
    keep = masking.kept(last.named.get("mask"), batch, length, length, 0, query.device)
    if keep is not None and not bool(keep.all()):
        raise Unseen(
            "dynamic-memory moves real elements together, so that padded examples have no one map to show."
        )
    # One call reads every segment of every example at once, as if each were an example of its own.
    reader = found[layer.reader][-1]
    segments = -(-length // size)
    elements = reader.given[0].unflatten(0, (batch, segments))
    inner = layer.reader.weights(*reader.given, **reader.named).unflatten(0, (batch, segments))
    reading = inner.new_zeros(batch, inner.shape[2], segments * size, slots + segments * size)
    for s in range(segments):
        own = slice(s * size, (s + 1) * size)
        reading[:, :, own, :slots] = inner[:, s, :, :, :slots]
        reading[:, :, own, slots + s * size : slots + (s + 1) * size] = inner[:, s, :, :, slots:]
    shown = reading[:, :, :length, : slots + length]
    parts = [Weighed(shown, "reading memory and segment", columns="memory")]
    writes = found[layer.gate][: length // size]
    if writes:
        writing = inner.new_zeros(batch, inner.shape[2], slots, length)
        for s, write in enumerate(writes):
            memory = write.given[1].view(batch, slots, -1)
            writing[..., s * size : (s + 1) * size] = layer.writer.weights(memory, elements[:, s])
        parts.insert(0, Weighed(writing, "writing the memory, segment by segment", rows="slot"))
    return parts


@_read.register
def _(layer: NTM, found: Calls) -> list[Weighed]:
    last = found[layer][-1]
    query, _ = _inputs(last)
    if not found[layer.tape]:  # a state holds the source: this call only read it
        return [
            Weighed(_read_weights(layer, query, last.named["state"]), "reading the memory", columns="slot")
        ]
    trace: Trace
    after: MachineState
    _, trace, after = found[layer.tape][-1].result
    return [
        Weighed(trace.write.transpose(1, 2), "write heads, step by step", "source", "slot"),
        Weighed(_read_weights(layer, query, after), "reading the memory", columns="slot"),
    ]


def _read_weights(layer: NTM, query: Tensor, state: MachineState) -> Tensor:
    """Where in the memory of a state the queries read, (b,h,q,slots)."""
    keys = layer.key_map(query).unflatten(-1, (layer.num_heads, layer.width)).transpose(1, 2)
    strength = F.softplus(layer.strength_map(query)).transpose(1, 2)[..., None]
    return core.weights(keys, state.memory[:, None].to(keys), score=scores.cosine(strength.to(keys)))


@_read.register
def _(layer: AttentionLayer, found: Calls) -> list[Weighed]:
    return [
        Weighed(_asked(layer.history, found), "the history"),
        Weighed(_asked(layer.memory, found), "the own sequence", columns="position"),
    ]


def _inputs(call: Call) -> tuple[Tensor, Tensor]:
    """Queries and source of a mechanism's call; without a source the queries are it."""
    query: Tensor = call.given[0]
    source = call.given[1] if len(call.given) > 1 else call.named.get("source")
    return query, query if source is None else source

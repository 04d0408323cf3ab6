"""Weights that a mechanism of ours never computes itself, from a repeated call of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import regard.dispatch.attention as dispatch
from regard.masks import Mask
from regard.nn.dynamic_memory import DynamicMemory
from regard.nn.linear import Linear, linear_attention
from regard.nn.parts import masking
from regard.observation.capture.attend_calls import AttendAdapter
from regard.observation.capture.interception import Adapter, CallEvent, Function, Patching, PatchPoint
from regard.observation.capture.reading import Reading, Unreadable
from regard.observation.capture.storage import Storage


def inputs_of(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Queries and source of a mechanism's call; without a source the queries are it."""
    query: Tensor = args[0] if args else kwargs["query"]
    source = args[1] if len(args) > 1 else kwargs.get("source")
    return query, query if source is None else source


def linear_weights(layer: Linear, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """Effective weights (b,h,q,k) of `linear`: what it returns for unit vectors as values, in which it is linear."""
    query, source = inputs_of(args, kwargs)
    mask = kwargs.get("mask")
    masked_causal, remaining_mask = masking.split_causal(mask) if isinstance(mask, Mask) else (False, mask)
    keep = masking.kept(remaining_mask, len(query), query.shape[1], source.shape[1], 0, query.device)
    rows = masking.without_padding(source, keep)

    def heads(mapped: Tensor) -> Tensor:
        split: Tensor = mapped.unflatten(-1, (layer.num_heads, layer.head_dim))
        return split.transpose(1, 2)

    queries, keys = heads(layer.query_map(rows if source is query else query)), heads(layer.key_map(rows))
    units = torch.eye(source.shape[1], dtype=keys.dtype, device=keys.device).expand(*keys.shape[:2], -1, -1)
    # Of two alignments the narrower one.
    by_layer = layer.causal and not (masked_causal and query.shape[1] > source.shape[1])
    return linear_attention(
        queries,
        keys,
        units,
        keep=keep,
        causal=layer.causal or masked_causal,
        feature_map=layer.feature_map,
        align=layer.align if by_layer else "bottom-right",
    )


def dynamic_memory_maps(layer: DynamicMemory, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """How `dynamic-memory` wrote its slots, (b,h,slots,n), and how positions read slots and positions, (b,h,n,slots+n).

    The layer reads all segments in one call, each as an example of its own, and writes them one by one. Here both are
    put where the segment stands in the sequence. With bidirectional=True, the slots that are written from the last
    segment backwards follow the others.
    """
    query, _ = inputs_of(args, kwargs)
    (batch, length, _), slots, size = query.shape, slots_of(layer), layer.segment
    keep = masking.kept(kwargs.get("mask"), batch, length, length, 0, query.device)
    if keep is not None and not bool(keep.all()):
        raise Unreadable(
            "dynamic-memory moves the real elements of a padded example together, so it has no map over positions."
        )
    *writes, read = attend_calls_of(layer, args, {**kwargs, "mask": None})
    segments = -(-length // size)
    segment_weights = read.weights().unflatten(0, (batch, segments))
    reading = segment_weights.new_zeros(batch, segment_weights.shape[2], segments * size, slots + segments * size)
    for s in range(segments):
        positions = slice(s * size, (s + 1) * size)
        reading[:, :, positions, :slots] = segment_weights[:, s, :, :, :slots]
        reading[:, :, positions, slots + s * size : slots + (s + 1) * size] = segment_weights[:, s, :, :, slots:]
    writing = segment_weights.new_zeros(batch, segment_weights.shape[2], slots, segments * size)
    forwards = len(layer.slots)
    for s, write in enumerate(writes):
        weights = write.weights()
        writing[:, :, :forwards, s * size : (s + 1) * size] = weights[:batch]
        if layer.bidirectional:  # one batch for both directions
            last = segments - s
            writing[:, :, forwards:, (last - 1) * size : last * size] = weights[batch:]
    return writing[..., :length], reading[:, :, :length, : slots + length]


def slots_of(layer: DynamicMemory) -> int:
    """The number of slots that a position reads."""
    return len(layer.slots) * (2 if layer.bidirectional else 1)


class _Collector:
    """A listener that stores the `attend` calls of one layer, in their order."""

    def __init__(self, layer: nn.Module) -> None:
        self.model: nn.Module | None = layer
        self.parts = {id(module) for module in layer.modules()}
        self.known: set[int] = set()
        self.ran: set[int] = set()
        self.missed: dict[int, str] = {}
        self.found: list[Reading] = []

    def holds(self, module: nn.Module) -> bool:
        return id(module) in self.parts

    def changed(self, adapter: Adapter, module: nn.Module | None, function: Function) -> Function:
        return function

    def note(
        self,
        adapter: Adapter,
        original: Function,
        module: nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        before: Any = None,
    ) -> None:
        event = CallEvent(original, module, args, kwargs, result, Storage(), False, before)
        self.found.append(adapter.reading(event))

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def end(self) -> None:
        pass


def attend_calls_of(layer: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Reading]:
    """The `attend` calls of a layer that runs again, without dropout."""
    collector = _Collector(layer)
    training = {module: module.training for module in layer.modules()}
    layer.eval()
    try:
        with torch.no_grad(), Patching(collector, [PatchPoint(dispatch, "attend", AttendAdapter())]):
            layer(*args, **kwargs)
    finally:
        for module, was in training.items():
            module.training = was
    return collector.found

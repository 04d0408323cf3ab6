"""Steps of a plain decoder on a CPU without its modules, whose calls cost more than their arithmetic for one token.

Within one generation the weights do not change. So the tensors of all layers are taken out of their modules once, the
projections of queries, keys and values are joined into one, and keys and values are written to a buffer with spare
capacity. What is computed is what `Stack.step` computes; `plain_steps` returns None for a decoder, or in
circumstances, for which this would not be so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

import regard.dispatch.attention as dispatch
from regard.nn import sharing
from regard.nn.multihead import Multihead
from regard.nn.parts.attention import Attention
from regard.nn.parts.blocks import ACTIVATIONS, EncoderLayer, FeedForward, Residual
from regard.nn.parts.cache import Cache
from regard.nn.parts.multihead_positions import IgnoredPositions
from regard.nn.parts.state import State
from regard.nn.positions import NoPositions, PositionalEncoding
from regard_workbench.models.parts.embedding import StreamEmbedding
from regard_workbench.models.parts.stack import Stack, StackState
from regard_workbench.tasks.answers.answer import Head

_WIDEST = 512  # beyond, a step is bound by reading weights, and joined projections would take memory for nothing
_ROOM = 64  # least spare capacity of a new buffer, in positions
_PLAIN = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.Identity, nn.Dropout)
_OURS = (EncoderLayer, FeedForward, Residual, StreamEmbedding, Stack)
_ATTEND = dispatch.attend  # while a model is observed, another function is in its place

RowMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PlainState(State):
    """Keys and values of each layer, (b,2,g,capacity,d), of which the first `passed` positions are in use.

    Unlike other states it is written to: only the newest of a generation may be continued.
    """

    buffers: tuple[Tensor, ...]
    passed: int


def plain_steps(embedding: StreamEmbedding, stack: Stack, head: Head) -> PlainSteps | None:
    """Steps for one generation of a decoder made of these parts; None where only its modules can compute them."""
    layers = list(stack.layers)
    modules = [module for root in (embedding, stack, head) for module in root.modules()]
    plain = (
        not (torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled())
        and dispatch.attend is _ATTEND
        and sharing.current() is None
        and not _has_any_global_hook()
        and type(head) is Head
        and all(type(layer) is EncoderLayer and _is_plain_attention(layer.attention) for layer in layers)
        and isinstance(embedding.rows, nn.Embedding)
        and not embedding.counted
        and embedding.segments is None
        and all(_is_unchanged(module) for module in modules)
    )
    return PlainSteps(embedding, stack, head) if plain else None


def _is_plain_attention(layer: nn.Module) -> bool:
    return (
        isinstance(layer, Multihead)
        and layer.shares_sequences  # overrides no step
        and type(layer).own_mask is Attention.own_mask
        and layer.causal
        and layer.window is None
        and type(layer.positions) is IgnoredPositions
        and layer.scale is None
        and layer.normalize == "softmax"
        and layer.sink is None
        and layer.query_norm is None
        and layer.value_dim == layer.head_dim
        and layer.dim <= _WIDEST
    )


def _is_unchanged(part: nn.Module) -> bool:
    """Whether calling a module does what its class says, on plain tensors of a CPU, as in evaluation."""
    kind = type(part)
    familiar = kind in (*_PLAIN, *_OURS, Head, nn.ModuleList) or isinstance(part, (Multihead, PositionalEncoding))
    hooked = part._forward_hooks or part._forward_pre_hooks or part._compiled_call_impl is not None
    tensors = [tensor for tensor in (*part._parameters.values(), *part._buffers.values()) if tensor is not None]
    on_cpu = all(tensor.is_cpu and type(tensor) in (nn.Parameter, Tensor) for tensor in tensors)
    return familiar and not hooked and not part.training and "forward" not in vars(part) and on_cpu


class PlainSteps:
    """The tensors of a decoder, ready for steps of one token."""

    def __init__(self, embedding: StreamEmbedding, stack: Stack, head: Head) -> None:
        assert isinstance(embedding.rows, nn.Embedding)
        self.words, self.scale = embedding.rows.weight, embedding.scale
        self.positions = None if isinstance(embedding.positions, NoPositions) else embedding.positions
        self.enter, self.leave = _row_map(embedding.norm), _row_map(stack.norm)
        self.layers = [_PlainLayer(layer) for layer in stack.layers if isinstance(layer, EncoderLayer)]
        self.head, self.row_scale = _row_map(head.logits), head.row_scale
        self.table, self.first = self.words.new_empty(0, self.words.shape[1]), 0

    def begin(self, state: StackState) -> PlainState:
        """Continue from the state after a prompt without padding."""
        buffers = []
        for cache in state.layers:
            assert isinstance(cache, Cache) and cache.keep is None
            buffers.append(_wider(torch.stack([cache.keys, cache.values], 1), state.passed))
        return PlainState(tuple(buffers), state.passed)

    def step(self, tokens: Tensor, state: PlainState) -> tuple[Tensor, PlainState]:
        """Logits (b,1,outputs) for the next tokens, and the new state."""
        passed = state.passed
        if passed == state.buffers[0].shape[3]:
            state = replace(state, buffers=tuple([_wider(buffer, passed) for buffer in state.buffers]))
        rows = F.embedding(tokens[:, 0], self.words)
        rows = rows * self.scale if self.scale != 1.0 else rows
        rows = self.enter(rows if self.positions is None else rows + self._position(self.positions, passed))
        for layer, buffer in zip(self.layers, state.buffers, strict=True):
            rows = layer.step(rows, buffer, passed)
        rows = self.leave(rows)
        logits = self.head(rows if self.row_scale == 1.0 else rows * self.row_scale)
        return logits[:, None], PlainState(state.buffers, passed + 1)

    def _position(self, positions: PositionalEncoding, place: int) -> Tensor:
        """What the encoding adds at one position, from a stretch of a table that is computed at once."""
        if not self.first <= place < self.first + len(self.table):
            most = positions.max_length
            length = _ROOM if most is None else max(1, min(_ROOM, most - place))
            nothing = self.words.new_zeros(1, length, self.words.shape[1])
            self.table, self.first = positions(nothing, place)[0], place
        return self.table[place - self.first]


class _PlainLayer:
    """The tensors of one layer, its projections of queries, keys and values joined."""

    def __init__(self, layer: EncoderLayer) -> None:
        attention, forward = layer.attention, layer.feed_forward
        assert isinstance(attention, Multihead)
        self.heads, self.groups, self.width = attention.num_heads, attention.kv_heads, attention.head_dim
        maps = (attention.query_map, attention.key_map, attention.value_map)
        weight = torch.cat([projection.weight for projection in maps])
        bias = None if maps[0].bias is None else torch.cat([projection.bias for projection in maps])
        self.project = _linear(weight, bias)
        self.output = _row_map(attention.output_map)
        self.around = [_Around(layer.around_attention), _Around(layer.around_feed_forward)]
        self.rise, self.fall = _row_map(forward.rise), _row_map(forward.fall)
        self.gate = None if forward.gate is None else _row_map(forward.gate)
        self.activate = ACTIVATIONS[forward.activation]

    def step(self, rows: Tensor, buffer: Tensor, passed: int) -> Tensor:
        """Rows (b,dim) after the layer; their keys and values are written to `buffer` at the position `passed`."""
        (batch, _), (around_attention, around_forward) = rows.shape, self.around
        joined = self.project(around_attention.enter(rows))
        query = joined[:, : self.heads * self.width].view(batch, self.heads, 1, self.width)
        new = joined[:, self.heads * self.width :].view(batch, 2, self.groups, self.width)
        buffer.select(3, passed).copy_(new)
        keys, values = buffer.narrow(3, 0, passed + 1).unbind(1)
        mixed = dispatch.attend(query, keys, values)
        rows = around_attention.leave(rows, self.output(mixed.reshape(batch, -1)))
        between = around_forward.enter(rows)
        risen = self.activate(self.rise(between))
        risen = risen if self.gate is None else risen * self.gate(between)
        return around_forward.leave(rows, self.fall(risen))


class _Around:
    """A residual connection and its normalisation."""

    def __init__(self, block: Residual) -> None:
        self.norm, self.before, self.residual = _row_map(block.norm), block.before, block.residual

    def enter(self, rows: Tensor) -> Tensor:
        return self.norm(rows) if self.before else rows

    def leave(self, rows: Tensor, found: Tensor) -> Tensor:
        found = rows + found if self.residual else found
        return found if self.before else self.norm(found)


def _row_map(module: nn.Module) -> RowMap:
    """What a module computes, as a function of rows alone."""
    if isinstance(module, nn.Linear):
        return _linear(module.weight, module.bias)
    if isinstance(module, nn.LayerNorm):
        shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda rows: torch.layer_norm(rows, shape, weight, bias, eps)
    return module


def _linear(weight: Tensor, bias: Tensor | None) -> RowMap:
    return lambda rows: F.linear(rows, weight, bias)


def _wider(buffer: Tensor, used: int) -> Tensor:
    """A copy of a buffer with room for further positions."""
    batch, both, groups, _, width = buffer.shape
    roomy = buffer.new_empty(batch, both, groups, used + max(_ROOM, used), width)
    roomy[:, :, :, :used] = buffer[:, :, :, :used]
    return roomy

"""The compiled kernel: FlexAttention with a mask and a score made of table look-ups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from regard.implementations.flex.lowering import Node

BLOCK = 128
Pair = tuple[Tensor, Tensor, Tensor, Tensor]  # batch, head, query and key index, one number each


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    blocks: tuple[Tensor, ...],
    tables: tuple[Tensor, ...],
    strides: Tensor,
    numbers: Tensor,
    mask: Node,
    bias: Node | None,
    capped: bool,
) -> Tensor:
    """What `torch.compile` compiles: the output (b,h,q,v)."""

    def visible(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return _visible(mask, (batch, head, row, column), tables, strides)

    def modified(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        score = score * numbers[0]
        if capped:
            score = torch.tanh(score) * numbers[1]
        if bias is not None:
            score = score + _added(bias, (batch, head, row, column), tables, strides, numbers).to(score.dtype)
        return score

    lengths = (query.shape[2], key.shape[2])
    by_key = (*blocks[4:], None, None, None, None)[:4]
    block_mask = BlockMask(lengths, *blocks[:4], *by_key, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=visible)
    grouped = query.shape[1] != key.shape[1]
    return flex_attention(query, key, value, modified, block_mask, scale=1.0, enable_gqa=True if grouped else False)


def _visible(node: Node, pair: Pair, tables: Sequence[Tensor], strides: Tensor) -> Tensor:
    kind = node[0]
    if kind == "and":
        return _visible(node[1], pair, tables, strides) & _visible(node[2], pair, tables, strides)
    if kind == "or":
        return _visible(node[1], pair, tables, strides) | _visible(node[2], pair, tables, strides)
    if kind == "not":
        return ~_visible(node[1], pair, tables, strides)
    if kind == "dense":
        return _look_up(node[1], pair, "bhqk", tables, strides)
    if kind == "same":
        return _look_up(node[1], pair, "bq", tables, strides) == _look_up(node[2], pair, "bk", tables, strides)
    low, high = _look_up(node[1], pair, "bq", tables, strides), _look_up(node[2], pair, "bq", tables, strides)
    return (pair[3] >= low) & (pair[3] < high)


def _added(node: Node, pair: Pair, tables: Sequence[Tensor], strides: Tensor, numbers: Tensor) -> Tensor:
    kind = node[0]
    if kind == "sum":
        return _added(node[1], pair, tables, strides, numbers) + _added(node[2], pair, tables, strides, numbers)
    if kind == "dense":
        return _look_up(node[1], pair, "bhqk", tables, strides).float()
    if kind == "gaussian":
        away = pair[3] - _look_up(node[1], pair, "bhq", tables, strides)
        return away * away * numbers[node[2]]
    table, start = node[1]
    return _entry(tables[table], pair[1] * strides[start + 1] + (pair[3] - pair[2] + strides[node[2]]))


def _look_up(place: Node, pair: Pair, axes: str, tables: Sequence[Tensor], strides: Tensor) -> Tensor:
    """The entry of a flat table for this pair; it depends on some of the axes only."""
    table, start = place
    index = sum([part * strides[start + axis] for axis, part in enumerate(pair) if "bhqk"[axis] in axes])
    return _entry(tables[table], index)


def _entry(table: Tensor, index: Tensor) -> Tensor:
    if table.device.type == "cpu":
        # Plain indexing writes the size of the table into the code of the kernel, in which torch (2.13) then mistakes
        # its name for another's. All our indices are inside of their tables, so nothing is left out.
        return torch.ops.aten._unsafe_masked_index(table, index >= 0, [index], 0)
    return table[index]


_KERNELS: dict[Any, Callable[..., Tensor]] = {}


def compiled(signature: Any) -> Callable[..., Tensor]:
    """A compiled `attention` for requests of one signature.

    torch keeps what it compiled with the code of a function, and stops after a few variants of it. Each signature
    gets a copy of the code, so that one request's variants do not use up another's.
    """
    if signature not in _KERNELS:
        copy = FunctionType(attention.__code__.replace(), attention.__globals__, "attention")
        _KERNELS[signature] = torch.compile(copy, dynamic=False, fullgraph=True)
    return _KERNELS[signature]

"""Rows into heads and back, in the layouts and with the parameters of torch's layer. TorchScript can compile this."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import linear

Result = TypeVar("Result")


def each_once(
    function: Callable[[Tensor], Result], query: Tensor, key: Tensor, value: Tensor
) -> tuple[Result, Result, Result]:
    """`function` of the three inputs, called once for inputs that are the same tensor: their results are the same, too.

    By `is` and not in a dict by `id`, which would make `torch.compile` compile again for every new tensor.
    """
    of_query = function(query)
    of_key = of_query if key is query else function(key)
    of_value = of_key if value is key else of_query if value is query else function(value)
    return of_query, of_key, of_value


def project(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: Tensor | None,
    separate: tuple[Tensor | None, Tensor | None, Tensor | None],
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (·,·,width) as projected rows (·,·,embed_dim), by one matrix product for inputs that are the same tensor.

    `packed` (3·embed_dim, embed_dim) or the three weights in `separate`; `bias` (3·embed_dim,).
    """
    if bias is not None:  # torch's linear refuses a bias of another dtype only for some strides of its input
        bias = bias.to(query.dtype)
    if packed is not None and query is key and key is value:
        together = linear(query, packed, bias).chunk(3, -1)
        return together[0], together[1], together[2]
    width = query.shape[-1]
    bias_query: Tensor | None = None
    bias_key: Tensor | None = None
    bias_value: Tensor | None = None
    if bias is not None:
        bias_query, bias_key, bias_value = bias[:width], bias[width : 2 * width], bias[2 * width :]
    if packed is None:
        query_weight, key_weight, value_weight = separate
        assert query_weight is not None and key_weight is not None and value_weight is not None
        rows = linear(key, key_weight, bias_key), linear(value, value_weight, bias_value)
        return linear(query, query_weight, bias_query), rows[0], rows[1]
    projected = linear(query, packed[:width], bias_query)
    if key is value:
        both = linear(key, packed[width:], None if bias is None else bias[width:]).chunk(2, -1)
        return projected, both[0], both[1]
    return (projected, linear(key, packed[width : 2 * width], bias_key), linear(value, packed[2 * width :], bias_value))


def split_heads(rows: Tensor, num_heads: int, batch_first: bool) -> Tensor:
    """(b,length,h·d), or (length,b,h·d), as (b,h,length,d)."""
    heads = rows.reshape(rows.shape[0], rows.shape[1], num_heads, rows.shape[2] // num_heads)
    return heads.permute(0, 2, 1, 3) if batch_first else heads.permute(1, 2, 0, 3)


def join_heads(heads: Tensor, batch_first: bool) -> Tensor:
    """(b,h,length,d) as (b,length,h·d), or as (length,b,h·d)."""
    order = heads.permute(0, 2, 1, 3) if batch_first else heads.permute(2, 0, 1, 3)
    return order.flatten(2)


def with_extra_rows(heads: Tensor, learned: Tensor | None, add_zeros: bool) -> Tensor:
    """Keys or values (b,h,k,d) with the learned row (1,1,h·d) and the row of zeros that torch adds, in front.

    torch appends them. In front they take no position from a causal mask.
    """
    batch, num_heads, _, width = heads.shape
    rows = [heads]
    if learned is not None:
        rows.insert(0, learned.to(heads.dtype).view(1, num_heads, 1, width).expand(batch, -1, -1, -1))
    if add_zeros:
        rows.insert(0, heads.new_zeros(batch, num_heads, 1, width))
    return heads if len(rows) == 1 else torch.cat(rows, 2)


def order_columns(weights: Tensor, extra: int) -> Tensor:
    """Weights (…,extra+k) in torch's order: the k keys first, then the learned row, then the row of zeros."""
    if extra == 0:
        return weights
    # In front stand, from left to right, the zeros and the learned row.
    return torch.cat([weights[..., extra:], weights[..., :extra].flip(-1)], -1)

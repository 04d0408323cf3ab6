"""`MultiheadAttention` in TorchScript, which knows no objects: masks are dense, the operator of `tiled` attends."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.interop.torch.projections import join_heads, order_columns, project, split_heads, with_extra_rows

# What `tiled` computes, as its operator is told: a dot product under softmax, without and with a mask and a bias.
PLAIN = '[["scores.dot"],null,null,["normalizers.softmax"]]'
MASKED = '[["scores.dot"],["masks.dense",{}],["biases.dense",{}],["normalizers.softmax"]]'


def forward_scripted(
    inputs: tuple[Tensor, Tensor, Tensor],
    packed: Tensor | None,
    separate: tuple[Tensor | None, Tensor | None, Tensor | None],
    bias: Tensor | None,
    learned: tuple[Tensor | None, Tensor | None],
    add_zeros: bool,
    num_heads: int,
    batch_first: bool,
    dropout: float,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    need_weights: bool,
    specs: tuple[str, str],
) -> tuple[Tensor, Tensor | None]:
    """The joined heads of batched inputs, (b,q,embed_dim) or (q,b,embed_dim), and, if wanted, the weights (b,h,q,k)."""
    query_rows, key_rows, value_rows = project(inputs[0], inputs[1], inputs[2], packed, separate, bias)
    query = split_heads(query_rows, num_heads, batch_first)
    key = with_extra_rows(split_heads(key_rows, num_heads, batch_first), learned[0], add_zeros)
    value = with_extra_rows(split_heads(value_rows, num_heads, batch_first), learned[1], add_zeros)
    extra = int(learned[0] is not None) + int(add_zeros)
    added: Tensor | None = None
    if key_padding_mask is not None:
        added = _as_added(key_padding_mask[:, None, None], extra, query)
    if attn_mask is not None:
        by_head = attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.unflatten(0, [-1, num_heads])
        by_pair = _as_added(by_head, extra, query)
        added = by_pair if added is None else added + by_pair
    tensors: list[Tensor] = []
    if added is not None:
        added = added.expand(-1, -1, query.shape[2], key.shape[2])
        tensors = [added > -math.inf, added]
    seed: Tensor | None = None
    if dropout > 0:
        seed = torch.randint(0, 4611686018427387904, [1], device=query.device, dtype=torch.int64)
    scale = 1.0 / math.sqrt(query.shape[3])
    spec = specs[0] if added is None else specs[1]
    output, _ = torch.ops.regard.tiled(query, key, value, None, seed, tensors, spec, scale, dropout, False)
    weights: Tensor | None = None
    if need_weights:
        scores = torch.matmul(query * scale, key.transpose(-2, -1))
        if added is None:
            weights = torch.softmax(scores, -1)
        else:
            empty = (added == -math.inf).all(-1, True)
            weights = torch.softmax((scores + added).masked_fill(empty, 0), -1).masked_fill(empty, 0)
        weights = order_columns(weights, extra)
    return join_heads(output, batch_first), weights


def _as_added(mask: Tensor, extra: int, query: Tensor) -> Tensor:
    """What a mask (b|1, h|1, q|1, k) adds to the scores, with `extra` columns of zeros in front."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, -math.inf)
    return torch.nn.functional.pad(mask.to(query.dtype), [extra, 0])

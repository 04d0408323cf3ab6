"""A dynamic memory between projected rows in plain torch: for second derivatives, and as the kernels' readable twin."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.nn.parts.heads import join_heads, split_heads


def mixed(
    heads: Sequence[Tensor],
    starts: Sequence[Tensor],
    weights: Sequence[Tensor],
    causal: bool,
    segment: int,
    scale: float,
    eps: float,
) -> Tensor:
    """What the elements read, (b,h,n,d).

    `heads` are the reader's queries, keys and values and the writer's keys and values, (b,h,n,d); `starts` the slots
    (m,dim) of each direction; `weights` are listed in `layout.MemorySizes.shapes`.
    """
    query, key, value, written_key, written_value = heads
    batch, _, length, width = query.shape
    ask, ask_bias, out, out_bias, to_key, key_bias, to_value, value_bias, *update = weights
    spans = [slice(at, min(at + segment, length)) for at in range(0, length, segment)]
    sides: list[list[Tensor]] = []
    for side, start in enumerate(starts):
        memories = [start.expand(batch, -1, -1)]
        order = spans if side == 0 else spans[::-1]
        for span in order[:-1]:  # no segment reads the memory after the last
            memory = memories[-1]
            ask_heads = split_heads(F.linear(memory, ask, ask_bias), width)
            scores = ask_heads @ written_key[:, :, span].mT * scale
            attended = join_heads(scores.softmax(-1) @ written_value[:, :, span])
            memories.append(_updated(F.linear(attended, out, out_bias), memory, update, eps))
        sides.append(memories if side == 0 else memories[::-1])
    read = []
    for number, span in enumerate(spans):
        memory = torch.cat([memories[number] for memories in sides], 1)
        slot_key, slot_value = (
            split_heads(F.linear(memory, *linear), width) for linear in ((to_key, key_bias), (to_value, value_bias))
        )
        scores = query[:, :, span] @ torch.cat([slot_key, key[:, :, span]], 2).mT * scale
        if causal:
            rows, columns = scores.shape[2:]
            later = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).triu(columns - rows + 1)
            scores = scores.masked_fill(later, float("-inf"))
        read.append(scores.softmax(-1) @ torch.cat([slot_value, value[:, :, span]], 2))
    return torch.cat(read, 2)


def _updated(candidate: Tensor, memory: Tensor, update: Sequence[Tensor], eps: float) -> Tensor:
    if len(update) == 2:
        return F.layer_norm(memory + candidate, memory.shape[2:], update[0], update[1], eps)
    updated: Tensor = torch.gru_cell(candidate.flatten(0, 1), memory.flatten(0, 1), *update)
    return updated.view(memory.shape)

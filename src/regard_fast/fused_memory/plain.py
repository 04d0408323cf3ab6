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
    parts = [slice(at, min(at + segment, length)) for at in range(0, length, segment)]
    sides: list[list[Tensor]] = []
    for side, start in enumerate(starts):
        memories = [start.expand(batch, -1, -1)]
        order = parts if side == 0 else parts[::-1]
        for part in order[:-1]:  # the last one is read by nobody
            memory = memories[-1]
            asked = split_heads(F.linear(memory, ask, ask_bias), width)
            scores = asked @ written_key[:, :, part].mT * scale
            attended = join_heads(scores.softmax(-1) @ written_value[:, :, part])
            memories.append(_updated(F.linear(attended, out, out_bias), memory, update, eps))
        sides.append(memories if side == 0 else memories[::-1])
    found = []
    for number, part in enumerate(parts):
        memory = torch.cat([memories[number] for memories in sides], 1)
        slot_key, slot_value = (
            split_heads(F.linear(memory, *each), width) for each in ((to_key, key_bias), (to_value, value_bias))
        )
        scores = query[:, :, part] @ torch.cat([slot_key, key[:, :, part]], 2).mT * scale
        if causal:
            rows, columns = scores.shape[2:]
            later = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).triu(columns - rows + 1)
            scores = scores.masked_fill(later, float("-inf"))
        found.append(scores.softmax(-1) @ torch.cat([slot_value, value[:, :, part]], 2))
    return torch.cat(found, 2)


def _updated(candidate: Tensor, memory: Tensor, update: Sequence[Tensor], eps: float) -> Tensor:
    if len(update) == 2:
        return F.layer_norm(memory + candidate, memory.shape[2:], update[0], update[1], eps)
    found: Tensor = torch.gru_cell(candidate.flatten(0, 1), memory.flatten(0, 1), *update)
    return found.view(memory.shape)

"""Recurrent layers step by step, for exported graphs, where torch cannot pack padded sequences.

At padding a state stays as it is. So the backward direction, which meets the padding on the right first, begins at the
last real position, and both directions end with the state after their last real one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.nn.parts.steps import run_steps

Cells = nn.RNN | nn.GRU | nn.LSTM


Memory = Tensor | tuple[Tensor, Tensor]  # hidden rows (layers · sides,b,width); of an LSTM also cells


def stepped(cells: Cells, rows: Tensor, keep: Tensor, before: Memory | None) -> tuple[Tensor, Memory]:
    """The hidden row at each position (b,n,width), zeros at padding, and the memory after the last real one.

    `keep` (b,n) is True where a position is real.
    """
    sides, after = 2 if cells.bidirectional else 1, []
    for layer in range(cells.num_layers):
        directions = []
        for side in range(sides):
            first = None if before is None else _of(before, layer * sides + side)
            hidden, memory = _side(cells, layer, side, rows, keep, first)
            directions.append(hidden)
            after.append(memory)
        rows = torch.cat(directions, -1)
    last = [torch.stack(list(states)) for states in zip(*after, strict=True)]
    return rows, (last[0], last[1]) if isinstance(cells, nn.LSTM) else last[0]


def _of(before: Memory, index: int) -> list[Tensor]:
    return [tensor[index] for tensor in ([before] if isinstance(before, Tensor) else before)]


def _side(
    cells: Cells, layer: int, side: int, rows: Tensor, keep: Tensor, before: list[Tensor] | None
) -> tuple[Tensor, Sequence[Tensor]]:
    """One layer in one direction: its hidden rows, and its memory after the last real position."""
    ending = f"_l{layer}" + ("_reverse" if side else "")
    weights = [getattr(cells, name + ending) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    zeros = rows.new_zeros(rows.shape[0], cells.hidden_size)
    first = before or ([zeros, zeros.clone()] if isinstance(cells, nn.LSTM) else [zeros])

    def step(carry: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        row, real = given[0], given[1][:, None]
        if isinstance(cells, nn.LSTM):
            after = list(torch.lstm_cell(row, list(carry), *weights))
        elif isinstance(cells, nn.GRU):
            after = [torch.gru_cell(row, carry[0], *weights)]
        else:
            after = [torch.rnn_tanh_cell(row, carry[0], *weights)]
        kept = [torch.where(real, new, old) for new, old in zip(after, carry, strict=True)]
        return kept, [kept[0].masked_fill(~real, 0)]

    last, (hidden,) = run_steps(step, first, [rows.transpose(0, 1), keep.mT], reverse=side == 1)
    return hidden.transpose(0, 1), last

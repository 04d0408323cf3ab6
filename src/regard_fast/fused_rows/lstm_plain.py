"""The layers of an LSTM in plain torch: what the kernels compute, for second derivatives and as their readable twin."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.formula import dropout
from regard_fast.fused_rows.plain import _grid


def layers(
    rows: Tensor, keep: Tensor | None, seed: Tensor | None, weights: Sequence[Tensor], sides: int, rate: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden rows (b,n,sides·width), and the last hidden rows and cells, (layers·sides,b,width).

    `weights` are those of torch's LSTM, in its order; `keep` (b,n) is True where a position is real.
    """
    rows = rows.to(weights[0].dtype)
    if keep is not None:
        rows = rows.masked_fill(~keep[..., None], 0)
    last: list[Tensor] = []
    cells: list[Tensor] = []
    for number in range(len(weights) // (4 * sides)):
        if number and seed is not None and rate:
            flat = rows.flatten(0, 1)
            rows = dropout.drop(flat[None, None], _grid(flat, 0, number), seed, rate).view(rows.shape)
        by_side = []
        for side in range(sides):
            start = 4 * (number * sides + side)
            hidden, memory, cell = _direction(rows, keep, weights[start : start + 4], backwards=side > 0)
            by_side.append(hidden)
            last.append(memory)
            cells.append(cell)
        rows = torch.cat(by_side, 2)
    return rows, torch.stack(last), torch.stack(cells)


def _direction(
    rows: Tensor, keep: Tensor | None, weights: Sequence[Tensor], backwards: bool
) -> tuple[Tensor, Tensor, Tensor]:
    w_x, w_h, b_x, b_h = weights
    inputs = F.linear(rows, w_x, b_x + b_h)
    hidden = cell = rows.new_zeros(rows.shape[0], w_h.shape[1])
    outputs: list[Tensor] = []
    steps = range(rows.shape[1])
    for at in reversed(steps) if backwards else steps:
        enter, forget, proposed, leave = (inputs[:, at] + F.linear(hidden, w_h)).chunk(4, -1)
        new = forget.sigmoid() * cell + enter.sigmoid() * proposed.tanh()
        out = leave.sigmoid() * new.tanh()
        if keep is None:
            hidden, cell = out, new
            outputs.append(out)
        else:
            real = keep[:, at, None]
            hidden, cell = torch.where(real, out, hidden), torch.where(real, new, cell)
            outputs.append(out.masked_fill(~real, 0))
    return torch.stack(outputs[::-1] if backwards else outputs, 1), hidden, cell

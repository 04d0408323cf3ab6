"""When torch's LSTM runs in our kernels, and how: small ones, whose time is launches and casts of weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.formula.dropout import draw_seed
from regard.support.differentiate import needs_plain_torch
from regard.support.tracing import exporting
from regard_fast.fused_rows.layers import MOST_ROWS, _dtype, hooked, refused_rows

WIDTHS = (16, 32, 64, 128)  # the recurrent weight of a direction must fit on one multiprocessor


def refusal(cells: nn.RNNBase, rows: Tensor, state: object = None) -> str:
    """Why `cells` must be called; empty if the kernels can run it on rows (b,n,·)."""
    if why := refused_rows(rows):
        return why
    if state is not None:
        return "there is a state to begin with"
    if needs_plain_torch() or exporting():
        return "the model is exported or transformed"
    if not 1 <= rows.shape[0] * rows.shape[1] <= MOST_ROWS:
        return f"there are more than {MOST_ROWS} rows, or none"
    return _refused_cells(cells, rows)


def _refused_cells(cells: nn.RNNBase, rows: Tensor) -> str:
    if type(cells) is not nn.LSTM:
        return f"a {type(cells).__name__} is not a plain nn.LSTM"
    if cells.proj_size or not cells.bias or not cells.batch_first:
        return "only an LSTM with biases, without projections and with the batch first is known"
    if cells.hidden_size not in WIDTHS:
        return f"its width is {cells.hidden_size}; known are {', '.join(map(str, WIDTHS))}"
    if cells.training and cells.dropout >= 1:
        return "everything is dropped"
    if hooked(cells):
        return "the module has hooks"
    weights = cells._flat_weights
    if len(weights) != 4 * cells.num_layers * (2 if cells.bidirectional else 1):
        return "its weights are not those of torch"
    for weight in weights:
        if type(weight) is not nn.Parameter or not weight.is_contiguous() or weight.device != rows.device:
            return "a weight is not a contiguous parameter on the device of the rows"
        if weight.dtype != (torch.float32 if rows.is_cuda else rows.dtype):
            return f"a weight is {weight.dtype}"
    return ""


def taken(
    cells: nn.LSTM, rows: Tensor, keep: Tensor | None = None, state: object = None
) -> tuple[Tensor, tuple[Tensor, Tensor]] | None:
    """`run` where the kernels can; None: `cells` must be called."""
    return None if refusal(cells, rows, state) else run(cells, rows, keep)


def run(cells: nn.LSTM, rows: Tensor, keep: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """What `cells` returns for rows (b,n,·); `refusal` must have been empty.

    `keep` (b,n) is True where a position is real: elsewhere hidden rows are zero, and states stay as they are.
    """
    from regard_fast.fused_rows import lstm_op

    rate = float(cells.dropout) if cells.training and cells.num_layers > 1 else 0.0
    seed = draw_seed(rows.device) if rate else None
    weights = [weight for weight in cells._flat_weights if weight is not None]
    hidden, last, cell = lstm_op.run(rows, keep, seed, weights, 2 if cells.bidirectional else 1, rate, _dtype(rows))
    return hidden, (last, cell)

"""Recurrent cells that take one step at a time, for decoders whose attention takes part in the recurrence.

The input of a step is a row (the last word) and a *fed* row (what the attention found). The rows of all steps are known
before the loop, so their share of the gates is one product for all of them; a step multiplies only what it alone knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import unknown_name
from regard.support.arguments import whole_number
from regard_workbench.models.parts.recurrent import RecurrentState

Memory = tuple[Tensor, Tensor | None]  # the hidden rows of one layer, and an LSTM's cells, (b,dim)


def _rnn(inputs: Tensor, recurrent: Tensor, memory: Memory) -> Memory:
    """Elman 1990: tanh(W x + U s)."""
    return torch.tanh(inputs + recurrent), None


def _gru(inputs: Tensor, recurrent: Tensor, memory: Memory) -> Memory:
    """Cho et al. 2014, as in `torch.nn.GRU`: the reset gate acts behind the product U s."""
    hidden, width = memory[0], memory[0].shape[-1]
    gates = torch.sigmoid(inputs[:, : 2 * width] + recurrent[:, : 2 * width])
    reset, update = gates[:, :width], gates[:, width:]
    proposed = torch.tanh(torch.addcmul(inputs[:, 2 * width :], reset, recurrent[:, 2 * width :]))
    return torch.lerp(proposed, hidden, update), None


def _lstm(inputs: Tensor, recurrent: Tensor, memory: Memory) -> Memory:
    """Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000, as in `torch.nn.LSTM`."""
    hidden, cell = memory
    assert cell is not None
    total, width = inputs + recurrent, hidden.shape[-1]
    enter, forget = torch.sigmoid(total[:, : 2 * width]).chunk(2, -1)
    proposed, leave = torch.tanh(total[:, 2 * width : 3 * width]), torch.sigmoid(total[:, 3 * width :])
    cell = torch.addcmul(forget * cell, enter, proposed)
    return leave * torch.tanh(cell), cell


CELLS: dict[str, tuple[Callable[[int, int], nn.RNNCellBase], Callable[[Tensor, Tensor, Memory], Memory]]] = {
    "rnn": (nn.RNNCell, _rnn),
    "gru": (nn.GRUCell, _gru),
    "lstm": (nn.LSTMCell, _lstm),
}


class FedCells(nn.Module):
    """Layers of recurrent cells; the input of the first layer is [row; fed], that of each other the layer below.

    The parameters are those of torch's cells, in the same order.
    """

    def __init__(self, dim: int, layers: int = 1, cell: str = "gru", *, dropout: float = 0.0) -> None:
        super().__init__()
        if cell not in CELLS:
            raise unknown_name("cell", cell, CELLS)
        make, self.advance = CELLS[cell]
        count = whole_number("layers", layers, 1)
        self.dim, self.dropout = dim, nn.Dropout(dropout if count > 1 else 0.0)
        self.cells = nn.ModuleList(make(2 * dim if layer == 0 else dim, dim) for layer in range(count))

    def state_from(self, hidden: Tensor) -> RecurrentState:
        """The state with these hidden rows, (b,layers,dim); the cells of an LSTM are zero."""
        is_lstm = isinstance(self.cells[0], nn.LSTMCell)
        return RecurrentState(hidden, torch.zeros_like(hidden) if is_lstm else None)

    def input_gates(self, rows: Tensor) -> Tensor:
        """The share of rows (b,t,dim) in the gates of the first layer, (b,t,gates), for all steps at once."""
        first: Any = self.cells[0]
        return F.linear(rows, first.weight_ih[:, : self.dim], first.bias_ih)

    def step(self, gates: Tensor, fed: Tensor, memories: list[Memory]) -> list[Memory]:
        """One step of all layers, from the input gates (b,gates) of a row and the fed row (b,dim)."""
        updated: list[Memory] = []
        for number, (cell, memory) in enumerate(zip(self.cells, memories, strict=True)):
            if number == 0:
                inputs = torch.addmm(gates, fed, cell.weight_ih[:, self.dim :].mT)  # type: ignore[index]
            else:
                inputs = F.linear(self.dropout(updated[-1][0]), cell.weight_ih, cell.bias_ih)  # type: ignore[arg-type]
            recurrent = F.linear(memory[0], cell.weight_hh, cell.bias_hh)  # type: ignore[arg-type]
            updated.append(self.advance(inputs, recurrent, memory))
        return updated


def memories_of(state: RecurrentState, dtype: torch.dtype) -> list[Memory]:
    """The memory of each layer in a state. Under autocast, cells compute in the `dtype` of their gates."""
    hidden = state.hidden.to(dtype).unbind(1)
    cells = [None] * len(hidden) if state.cell is None else state.cell.to(dtype).unbind(1)
    return list(zip(hidden, cells, strict=True))


def state_of(memories: list[Memory]) -> RecurrentState:
    """The state that holds these memories."""
    cells = [cell for _, cell in memories if cell is not None]
    hidden = torch.stack([hidden for hidden, _ in memories], 1)
    return RecurrentState(hidden, torch.stack(cells, 1) if cells else None)

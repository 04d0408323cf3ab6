"""Recurrent layers (plain RNN, GRU, LSTM) that respect padding and hand their state on, for models of that era."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from regard.errors import unknown_name
from regard.nn import fast_path
from regard.nn.parts.state import State
from regard.support.arguments import whole_number
from regard.support.tracing import exporting

if TYPE_CHECKING:
    from regard_workbench.models.parts.recurrent_steps import Cells, Memory

CELLS: dict[str, type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@dataclass(frozen=True)
class RecurrentState(State):
    """The hidden rows of each layer, batch first: (b,layers,dim); an LSTM also has cells."""

    hidden: Tensor
    cell: Tensor | None = None


class Recurrent(nn.Module):
    """An RNN, GRU or LSTM over rows (b,n,dim) → (b,n,dim), in one direction or both (then each has half the width)."""

    def __init__(
        self, dim: int, layers: int = 1, cell: str = "lstm", *, both: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if cell not in CELLS:
            raise unknown_name("cell", cell, CELLS)
        whole_number("layers", layers, 1)
        self.both = both
        self.cells = CELLS[cell](
            dim,
            dim // 2 if both else dim,
            layers,
            batch_first=True,
            bidirectional=both,
            dropout=dropout if layers > 1 else 0.0,
        )
        self.widen = nn.Linear(dim // 2 * 2, dim) if both and dim % 2 else None

    def forward(
        self, rows: Tensor, keep: Tensor | None = None, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """The hidden row at each position (zeros at padding), and the state after the last real one.

        Padding (`keep` (b,n), True = real) must stand on the right.
        """
        if torch.compiler.is_compiling() and not exporting():
            # torch does not compile its recurrent modules; what chooses between them and our kernels stays outside.
            return torch.compiler.disable(Recurrent._forward)(self, rows, keep, state)  # type: ignore[no-any-return]
        return self._forward(rows, keep, state)

    def _forward(
        self, rows: Tensor, keep: Tensor | None, state: RecurrentState | None
    ) -> tuple[Tensor, RecurrentState]:
        before = None if state is None else self._given(state)
        if rows.shape[0] == 0 or rows.shape[1] == 0:
            return rows, state if state is not None else self.initial_state(rows)
        after: Memory
        if (fast := fast_path.run(self.cells, rows, keep=keep, state=before)) is not None:
            hidden, after = fast
        elif keep is None:
            hidden, after = self._run(rows, before)
        elif exporting():
            from regard_workbench.models.parts.recurrent_steps import stepped

            hidden, after = stepped(self.cells, rows.masked_fill(~keep[..., None], 0), keep, before)
        else:
            lengths = keep.sum(1).clamp(min=1).cpu()  # pack_padded_sequence refuses empty sequences
            packed = pack_padded_sequence(
                rows.masked_fill(~keep[..., None], 0), lengths, batch_first=True, enforce_sorted=False
            )
            hidden, after = self._run(packed, before)
            hidden, _ = pad_packed_sequence(hidden, batch_first=True, total_length=rows.shape[1])
            hidden = hidden.masked_fill(~keep[..., None], 0)
        return (hidden if self.widen is None else self.widen(hidden)), self._kept(after)

    def _run(self, rows: Any, before: Tensor | tuple[Tensor, Tensor] | None) -> tuple[Any, Any]:
        if uses_dropout_of_cudnn(self.cells, rows):
            from regard_workbench.models.parts.recurrent_layers import by_layers

            hidden, after = by_layers(self.cells, rows, before)
        else:
            hidden, after = self.cells(rows, before)
        return hidden, after

    def initial_state(self, rows: Tensor) -> RecurrentState:
        """Zeros."""
        sides = 2 if self.both else 1
        return self.state_from(rows.new_zeros(rows.shape[0], self.cells.num_layers * sides, self.cells.hidden_size))

    def state_from(self, hidden: Tensor) -> RecurrentState:
        """The state with these hidden rows, (b,layers,dim); the cells of an LSTM are zero."""
        return RecurrentState(hidden, torch.zeros_like(hidden) if isinstance(self.cells, nn.LSTM) else None)

    def _given(self, state: RecurrentState) -> Tensor | tuple[Tensor, Tensor]:
        hidden = state.hidden.transpose(0, 1).contiguous()
        return hidden if state.cell is None else (hidden, state.cell.transpose(0, 1).contiguous())

    def _kept(self, after: Tensor | tuple[Tensor, Tensor]) -> RecurrentState:
        if isinstance(after, Tensor):
            return RecurrentState(after.transpose(0, 1))
        return RecurrentState(after[0].transpose(0, 1), after[1].transpose(0, 1))


class Joined(nn.Module):
    """Combine context and decoder row: tanh(W [c; h]) (Luong et al. 2015, equation 5)."""

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.map = nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, context: Tensor, row: Tensor) -> Tensor:
        joined: Tensor = self.dropout(torch.tanh(self.map(torch.cat([context, row], -1))))
        return joined


def uses_dropout_of_cudnn(cells: Cells, rows: Tensor | PackedSequence) -> bool:
    """Whether a call of these layers would draw random numbers by cuDNN."""
    data = rows.data if isinstance(rows, PackedSequence) else rows
    return cells.training and cells.dropout > 0 and cells.num_layers > 1 and data.is_cuda

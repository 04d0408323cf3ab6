"""Recurrent layers one by one, with torch's own dropout between them, for training on a GPU.

cuDNN's dropout between layers keeps its random state in memory of its own. No checkpoint holds that state, so a resumed
run would draw other numbers. And torch replaces the memory after every change of the generator's state (a restored
random state, a compilation), while a captured CUDA graph goes on reading and writing what was freed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence

if TYPE_CHECKING:
    from regard_workbench.models.parts.recurrent_steps import Cells, Memory

_CALLS: dict[str, Callable[..., Any]] = {"LSTM": torch._VF.lstm, "GRU": torch._VF.gru, "RNN_TANH": torch._VF.rnn_tanh}


def by_layers(cells: Cells, rows: Any, before: Memory | None) -> tuple[Any, Memory]:
    """The same as `cells(rows, before)` in training, for padded and for packed sequences."""
    packed = rows if isinstance(rows, PackedSequence) else None
    data: Tensor = rows if packed is None else packed.data
    initial = _given(cells, rows, before)
    sides, count = 2 if cells.bidirectional else 1, len(cells._flat_weights) // cells.num_layers
    after = []
    for layer in range(cells.num_layers):
        weights = cells._flat_weights[layer * count : (layer + 1) * count]
        # Under autocast the rows of an upper layer are narrower than those of the first.
        first = [memory[layer * sides : (layer + 1) * sides].to(data.dtype) for memory in initial]
        state = first if isinstance(cells, nn.LSTM) else first[0]
        # In both calls: one layer, no dropout, training.
        options = (cells.bias, 1, 0.0, True, cells.bidirectional)
        with warnings.catch_warnings():  # weights of one layer are not one piece of memory, and need not be
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            if packed is None:
                data, *ends = _CALLS[cells.mode](data, state, weights, *options, cells.batch_first)
            else:
                data, *ends = _CALLS[cells.mode](data, packed.batch_sizes, state, weights, *options)
        after.append(ends)
        if layer + 1 < cells.num_layers:
            data = dropout(data, cells.dropout)
    last = [torch.cat(memory) for memory in zip(*after, strict=True)]
    if packed is None:
        outputs: Any = data
    else:
        outputs = PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        last = [_ordered(memory, packed.unsorted_indices) for memory in last]
    return outputs, (last[0], last[1]) if isinstance(cells, nn.LSTM) else last[0]


def _given(cells: Cells, rows: Any, before: Memory | None) -> list[Tensor]:
    """The memory that the layers begin with, in the order of packed sequences."""
    packed = rows if isinstance(rows, PackedSequence) else None
    if before is not None:
        every = [before] if isinstance(before, Tensor) else list(before)
        return every if packed is None else [_ordered(memory, packed.sorted_indices) for memory in every]
    data = rows if packed is None else packed.data
    size = rows.shape[0 if cells.batch_first else 1] if packed is None else int(packed.batch_sizes[0])
    sides = 2 if cells.bidirectional else 1
    zeros = data.new_zeros(cells.num_layers * sides, size, cells.hidden_size)
    return [zeros, zeros] if isinstance(cells, nn.LSTM) else [zeros]


def _ordered(each: Tensor, order: Tensor | None) -> Tensor:
    return each if order is None else each.index_select(1, order)

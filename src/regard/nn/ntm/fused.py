"""`forward.run` and `backward.run` as one GPU kernel each, so that a step needs no kernel launch.

Arguments, results and record are the same, so that the two forms can be mixed, and compared field by field.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from regard.implementations import HAS_TRITON
from regard.nn.ntm.addressing import floor
from regard.nn.ntm.forward import Record, make_record
from regard.nn.ntm.layout import MachineLayout
from regard.nn.ntm.plain import Carried, Weights

LARGEST = 512 * 64  # entries of a memory, rounded up to powers of two, that one program can hold
on_cpu = False  # set by tests that run the kernels in Triton's interpreter


def takes(layout: MachineLayout, like: Tensor) -> bool:
    """Whether the kernels support this layout on the device and in the dtype of `like`."""
    if _up(layout.slots) * _up(layout.width) > LARGEST or like.shape[1] == 0:
        return False
    if like.device.type != "cuda":
        return on_cpu and like.device.type == "cpu"
    return like.dtype == torch.float32 and HAS_TRITON


def run_forward(
    layout: MachineLayout, drive: Tensor, trained: Weights, before: Carried, keep: Tensor | None, saves: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Record]:
    """`forward.run` by the kernel."""
    from regard.nn.ntm.fused_forward import forward_kernel

    steps, batch = drive.shape[:2]
    record = make_record(layout, drive, steps if saves else min(steps, 1))
    if keep is not None and saves:  # padded steps do not write to the record
        for buffer in record[4:]:
            buffer.zero_()
    read_hidden, cell, weights = (
        (record.seen, record.cell, record.weights)
        if saves
        else (drive.new_empty(steps + 1, *state.shape) for state in before[:3])
    )
    for buffer, first in zip((read_hidden, cell, weights, record.memory), before, strict=True):
        buffer[0] = first.mT if buffer is record.memory else first
    last = torch.empty_like(before.memory, memory_format=torch.contiguous_format)
    with _on(drive):
        forward_kernel[(batch,)](
            drive.contiguous(), trained.recurrent.mT.contiguous(), trained.heads.mT.contiguous(),
            trained.bias.contiguous(), _bytes(keep), read_hidden, cell, weights, *record[3:], last, steps, batch,
            SAVES=saves, TINY=torch.finfo(drive.dtype).tiny, FLOOR=floor(drive.dtype),
            WIDE=min(512, max(16, _up(layout.drive))), **_sizes(layout),
        )
    return read_hidden, cell, weights, last, record


def run_backward(
    layout: MachineLayout,
    trained: Weights,
    record: Record,
    keep: Tensor | None,
    d_seen: Tensor,
    d_cell: Tensor | None,
    d_weights: Tensor | None,
    d_memory: Tensor | None,
) -> tuple[Tensor, Weights, Carried]:
    """`backward.run` by the kernel."""
    from regard.nn.ntm.fused_backward import backward_kernel

    steps, batch = record.gates.shape[:2]
    new = torch.empty_like if keep is None else torch.zeros_like
    d_drive, d_parameters = new(record.gates), new(record.parameters)
    first = Carried(
        torch.zeros_like(record.seen[0]), torch.zeros_like(record.cell[0]), torch.zeros_like(record.weights[0]),
        record.memory.new_empty(batch, layout.slots, layout.width),
    )
    between = (*(torch.empty_like(first.weights) for _ in range(2)), d_seen.new_empty(batch, layout.heads))
    gradients = [None if grad is None else grad.contiguous() for grad in (d_seen, d_cell, d_weights, d_memory)]
    with _on(d_seen):
        backward_kernel[(batch,)](
            trained.recurrent.contiguous(), trained.heads.contiguous(), _bytes(keep), *record[1:], *gradients, d_drive,
            d_parameters, *first, *between, steps, batch, **_sizes(layout),
        )
    rows, flat = d_drive.flatten(0, 1), d_parameters.flatten(0, 1)
    fed = record.seen[:-1, :, : layout.fed_back].flatten(0, 1)
    hidden = record.seen[1:, :, layout.reads :].flatten(0, 1)
    return d_drive, Weights(rows.mT @ fed, flat.mT @ hidden, flat.sum(0)), first


@functools.cache
def _sizes(layout: MachineLayout) -> dict[str, Any]:
    """Return the compile-time constants of the kernels and their number of warps."""
    cells = _up(layout.slots) * _up(layout.width)
    return {
        "READS": layout.read_heads, "WRITES": layout.write_heads, "SLOTS": layout.slots, "WIDTH": layout.width,
        "REACH": layout.shift_range, "HIDDEN": layout.hidden, "LSTM": layout.lstm, "HEADS_UP": _up(layout.heads),
        "SLOTS_UP": _up(layout.slots), "WIDTH_UP": _up(layout.width), "OFFSETS_UP": _up(layout.offsets),
        "BLOCK": min(128, max(16, _up(layout.hidden))), "INNER": 64,
        "num_warps": 8 if cells <= 8192 else 16, "num_stages": 1,
    }


def _up(size: int) -> int:
    """Return the next power of two."""
    return 1 << max(0, size - 1).bit_length()


def _bytes(keep: Tensor | None) -> Tensor | None:
    return None if keep is None else keep.contiguous().view(torch.uint8)


def _on(like: Tensor) -> AbstractContextManager[Any]:
    """Make the device of a tensor current, because Triton launches on the current device."""
    return torch.cuda.device(like.device) if like.is_cuda else nullcontext()

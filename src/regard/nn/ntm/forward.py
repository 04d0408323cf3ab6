"""The steps of a machine without an autograd graph: few operations, each into a preallocated buffer.

At usual sizes (16 sequences, 128 slots of width 20) launching operations dominates the cost of a step. So all heads are
computed together, views of the buffers are created before the loop, and the memory is stored as (b,m,n), so that
products with weights read it contiguously.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.nn.ntm.addressing import floor
from regard.nn.ntm.layout import MachineLayout
from regard.nn.ntm.plain import Carried, Weights


class Record(NamedTuple):
    """Intermediate results of all steps, for the backward pass (t+1: with the state before the first step)."""

    seen: Tensor  # (t+1,b,R·m+hidden)
    cell: Tensor  # (t+1,b,hidden)
    weights: Tensor  # (t+1,b,K,n)
    memory: Tensor  # (t+1,b,m,n)
    gates: Tensor  # (t,b,drive), after the non-linearity
    bent_cell: Tensor  # (t,b,hidden), tanh of the cell
    parameters: Tensor  # (t,b,P), after the non-linearities
    kernel: Tensor  # (t,b,K,2r+1)
    key_length: Tensor  # (t,b,K,1), the norm of the key; infinite in place of zero
    inverse_length: Tensor  # (t,b,1,n), the inverse norm of each slot; 0 in place of infinity
    logits: Tensor  # (t,b,K,n): strength · similarity
    content: Tensor  # (t,b,K,n): their softmax
    around: Tensor  # (t,b,K,n+2r): the interpolated weights with circular padding of r
    moved: Tensor  # (t,b,K,n): the shifted weights, never below the floor


def make_record(layout: MachineLayout, drive: Tensor, steps: int) -> Record:
    """Allocate buffers for `steps` steps, with the batch and dtype of drive (t,b,·)."""
    b, k, n, m = drive.shape[1], layout.heads, layout.slots, layout.width
    cell = layout.hidden if layout.lstm else 0

    def states(*shape: int) -> Tensor:
        return drive.new_empty(steps + 1, b, *shape)

    def each(*shape: int) -> Tensor:
        return drive.new_empty(steps, b, *shape)

    return Record(
        states(layout.reads + layout.hidden),
        states(cell),
        states(k, n),
        states(m, n),
        each(layout.drive),
        each(cell),
        each(layout.parameters),
        each(k, layout.offsets),
        each(k, 1),
        each(1, n),
        each(k, n),
        each(k, n),
        each(k, n + 2 * layout.shift_range),
        each(k, n),
    )


def run(
    layout: MachineLayout, drive: Tensor, trained: Weights, before: Carried, keep: Tensor | None, saves: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Record]:
    """Return the states of `plain.sequence` (t+1,b,·): seen, cell, weights; the last memory (b,n,m); and the record.

    Without `saves` all steps share the buffers of one step, and the record is of no use for the backward pass.
    """
    steps = drive.shape[0]
    record = make_record(layout, drive, steps if saves else min(steps, 1))
    read_hidden, cell, weights = (
        (record.seen, record.cell, record.weights)
        if saves
        else (drive.new_empty(steps + 1, *state.shape) for state in before[:3])
    )
    for buffer, first in zip((read_hidden, cell, weights, record.memory), before, strict=True):
        buffer[0] = first.mT if buffer is record.memory else first
    views = _Views(layout, record, read_hidden, cell, weights, steps, saves)
    recurrent, heads = trained.recurrent.mT.contiguous(), trained.heads.mT.contiguous()
    scratch = drive.new_empty(drive.shape[1], layout.width, layout.slots)
    reads = drive.new_empty(drive.shape[1], layout.read_heads, layout.width)
    for t, step_drive in enumerate(drive.unbind(0)):
        torch.addmm(step_drive, views.fed[t], recurrent, out=views.gates[t])
        _controller(layout, views, t)
        torch.addmm(trained.bias, views.hidden[t + 1], heads, out=views.parameters[t])
        _addresses(layout, views, t, scratch)
        _write_and_read(layout, views, t, scratch, reads)
        if keep is not None:
            _restore(views, t, keep[t])
    last = views.memory[steps].mT.contiguous()
    return read_hidden, cell, weights, last, record


class _Views:
    """Views of the buffers of every step, created once, because creating one costs as much as a small operation."""

    def __init__(
        self,
        layout: MachineLayout,
        record: Record,
        seen: Tensor,
        cell: Tensor,
        weights: Tensor,
        steps: int,
        saves: bool,
    ) -> None:
        def each(buffer: Tensor) -> list[Tensor]:
            step_views = list(buffer.unbind(0))
            return step_views if saves else step_views * steps

        r, n, hidden = layout.shift_range, layout.slots, layout.hidden
        self.seen, self.cell, self.weights = seen.unbind(0), cell.unbind(0), weights.unbind(0)
        self.fed = seen[..., : layout.fed_back].unbind(0)
        self.read = seen[..., : layout.reads].unflatten(-1, (layout.read_heads, layout.width)).unbind(0)
        self.hidden = seen[..., layout.reads :].unbind(0)
        self.reading = weights[:, :, : layout.read_heads].unbind(0)
        self.writing = [weights[:, :, head : head + 1].unbind(0) for head in range(layout.read_heads, layout.heads)]
        # Two buffers are enough to go from one memory to the next.
        memory = list(record.memory.unbind(0))
        self.memory = memory if saves else (memory * (steps + 1))[: steps + 1]

        self.gates = each(record.gates)
        if layout.lstm:
            self.bounded, self.candidate = (
                each(record.gates[..., : 3 * hidden]),
                each(record.gates[..., 3 * hidden :]),
            )
            self.out, self.enter, self.forget = (
                each(record.gates[..., index * hidden : (index + 1) * hidden]) for index in range(3)
            )
        self.bent_cell = each(record.bent_cell)

        parameters, sections = record.parameters, layout.sections
        self.parameters = each(parameters)
        self.sigmoid = each(parameters[..., sections["erase"].start : sections["gate"].stop])
        self.softplus = each(parameters[..., sections["strength"].start : sections["gamma"].stop])
        self.keys, self.gate, self.strength, self.gamma, self.shift = (
            each(layout.rows(name, parameters)) for name in ("keys", "gate", "strength", "gamma", "shift")
        )
        erase, add = layout.rows("erase", parameters)[..., None], layout.rows("add", parameters)[..., None]
        self.erase = [each(erase[:, :, head]) for head in range(layout.write_heads)]  # (b,m,1)
        self.add = [each(add[:, :, head]) for head in range(layout.write_heads)]
        self.kernel = each(record.kernel)
        self.share = [each(record.kernel[..., j : j + 1]) for j in range(layout.offsets)]

        self.key_length, self.inverse_length = each(record.key_length), each(record.inverse_length)
        self.logits, self.content, self.moved = each(record.logits), each(record.content), each(record.moved)
        around = record.around
        self.middle = each(around[..., r : r + n])
        self.ends = [
            (each(around[..., :r]), each(around[..., n : n + r])),
            (each(around[..., n + r :]), each(around[..., r : 2 * r])),
        ]
        # Offset j − r comes from the slot j − r before, which is at index 2r − j of the padded weights.
        self.shifted = [each(around[..., 2 * r - j : 2 * r - j + n]) for j in range(layout.offsets)]


def _controller(layout: MachineLayout, views: _Views, t: int) -> None:
    if not layout.lstm:
        torch.tanh(views.gates[t], out=views.gates[t])
        views.hidden[t + 1].copy_(views.gates[t])
        return
    views.bounded[t].sigmoid_()
    views.candidate[t].tanh_()
    cell = torch.mul(views.forget[t], views.cell[t], out=views.cell[t + 1])
    cell.addcmul_(views.enter[t], views.candidate[t])
    bent = torch.tanh(cell, out=views.bent_cell[t])
    torch.mul(views.out[t], bent, out=views.hidden[t + 1])


def _addresses(layout: MachineLayout, views: _Views, t: int, scratch: Tensor) -> None:
    views.sigmoid[t].sigmoid_()
    F.softplus(views.softplus[t], out=views.softplus[t])  # type: ignore[call-arg]
    torch.softmax(views.shift[t], -1, out=views.kernel[t])

    memory, keys = views.memory[t], views.keys[t]
    # A norm of zero becomes infinite, so that its inverse, the similarity and its gradient are zero.
    tiny = torch.finfo(memory.dtype).tiny
    inverse = torch.sum(torch.mul(memory, memory, out=scratch), 1, keepdim=True, out=views.inverse_length[t])
    torch.threshold_(inverse, tiny, torch.inf).rsqrt_()
    length = torch.linalg.vector_norm(keys, dim=-1, keepdim=True, out=views.key_length[t])
    torch.threshold_(length, tiny, torch.inf)
    logits = torch.bmm(keys * (views.strength[t] / length), memory, out=views.logits[t]).mul_(inverse)
    content = torch.softmax(logits, -1, out=views.content[t])

    torch.lerp(views.weights[t], content, views.gate[t], out=views.middle[t])
    for end, opposite_end in views.ends:
        end[t].copy_(opposite_end[t])
    moved = torch.mul(views.shifted[0][t], views.share[0][t], out=views.moved[t])
    for source, share in zip(views.shifted[1:], views.share[1:], strict=True):
        moved.addcmul_(source[t], share[t])
    logs = moved.clamp_min_(floor(moved.dtype)).log()
    logs.addcmul_(logs, views.gamma[t])  # gamma = 1 + parameter
    torch.softmax(logs, -1, out=views.weights[t + 1])


def _write_and_read(layout: MachineLayout, views: _Views, t: int, scratch: Tensor, reads: Tensor) -> None:
    before, memory = views.memory[t], views.memory[t + 1]
    for writing, erase in zip(views.writing, views.erase, strict=True):
        torch.mul(writing[t + 1], erase[t], out=scratch)
        torch.addcmul(before, before, scratch, value=-1, out=memory)
        before = memory
    if before is not memory:  # no head writes
        memory.copy_(before)
    for writing, add in zip(views.writing, views.add, strict=True):
        memory.addcmul_(add[t], writing[t + 1])
    # bmm with out= would copy for a part of a row.
    views.read[t + 1].copy_(torch.bmm(views.reading[t + 1], memory.mT, out=reads))


def _restore(views: _Views, t: int, keep: Tensor) -> None:
    """Keep the previous state for padded batch entries."""
    for states in (views.seen, views.cell, views.weights, views.memory):
        before, after = states[t], states[t + 1]
        torch.where(keep.view(-1, *[1] * (after.dim() - 1)), after, before, out=after)

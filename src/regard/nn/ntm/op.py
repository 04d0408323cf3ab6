"""All steps of a machine as one custom operator, a single node for autograd and `torch.compile`.

On a GPU all steps are one kernel (`fused`), elsewhere a loop with few operations per step (`forward`, `backward`). For
second derivatives the steps in plain torch are differentiated instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.nn.ntm import backward, forward, fused, plain
from regard.nn.ntm.forward import Record, make_record
from regard.nn.ntm.layout import MachineLayout
from regard.nn.ntm.plain import Carried, Weights
from regard.support.autocast import without_autocast
from regard.support.batched_gradients import take_one_by_one
from regard.support.differentiate import fresh_views, gradients, needs_plain_torch

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_TRAINED = "Tensor recurrent, Tensor heads, Tensor bias"
_FIRST = "Tensor seen, Tensor cell, Tensor weights, Tensor memory"
_OPTIONS = "Tensor? keep, int read_heads, bool lstm"
_RECORD = len(Record._fields) - 3  # the first three are outputs
_RESULTS = ", ".join(["Tensor"] * (4 + _RECORD))
_GRADS = "Tensor d_seen, Tensor? d_cell, Tensor? d_weights, Tensor? d_memory"
_LIBRARY.define(f"ntm(Tensor drive, {_TRAINED}, {_FIRST}, {_OPTIONS}, bool saves) -> ({_RESULTS})")
_LIBRARY.define(f"ntm_backward({_GRADS}, {_TRAINED}, Tensor[] record, {_OPTIONS}) -> ({', '.join(['Tensor'] * 8)})")


def sequence(
    layout: MachineLayout, drive: Tensor, trained: Weights, before: Carried, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the states (t+1,b,·) around each step of drive (t,b,·), seen, cell and weights, and the last memory."""
    if needs_plain_torch():
        return _plain_sequence(layout, drive, trained, before, keep)
    inputs = (drive, *trained, *before)
    saves = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    states = torch.ops.regard.ntm.default(*inputs, keep, layout.read_heads, layout.lstm, saves)
    return states[0], states[1], states[2], states[3]


def layout_of(heads: Tensor, weights: Tensor, slots: int, width: int, read_heads: int, lstm: bool) -> MachineLayout:
    """Recover the layout from the sizes of the trained matrices and of a state (…,K,n)."""
    count = weights.shape[-2]
    writes = count - read_heads
    offsets = (heads.shape[0] - count * (width + 3) - 2 * writes * width) // count
    return MachineLayout(read_heads, writes, slots, width, offsets // 2, heads.shape[1], lstm)


def _forward(
    drive: Tensor, recurrent: Tensor, heads: Tensor, bias: Tensor, seen: Tensor, cell: Tensor, weights: Tensor,
    memory: Tensor, keep: Tensor | None, read_heads: int, lstm: bool, saves: bool,
) -> tuple[Tensor, ...]:
    layout = layout_of(heads, weights, memory.shape[1], memory.shape[2], read_heads, lstm)
    trained, before = Weights(recurrent, heads, bias), Carried(seen, cell, weights, memory)
    with without_autocast(drive.device):
        run = fused.run_forward if fused.takes(layout, drive) else forward.run
        *results, record = run(layout, drive, trained, before, keep, saves)
    return (*results, *(record[3:] if saves else [drive.new_empty(0) for _ in range(_RECORD)]))


def _forward_shapes(
    drive: Tensor, recurrent: Tensor, heads: Tensor, bias: Tensor, seen: Tensor, cell: Tensor, weights: Tensor,
    memory: Tensor, keep: Tensor | None, read_heads: int, lstm: bool, saves: bool,
) -> tuple[Tensor, ...]:
    layout = layout_of(heads, weights, memory.shape[1], memory.shape[2], read_heads, lstm)
    record = make_record(layout, drive, drive.shape[0])
    saved = record[3:] if saves else [drive.new_empty(0) for _ in range(_RECORD)]
    return (*record[:3], torch.empty_like(memory, memory_format=torch.contiguous_format), *saved)


def _backward(
    d_seen: Tensor, d_cell: Tensor | None, d_weights: Tensor | None, d_memory: Tensor | None, recurrent: Tensor,
    heads: Tensor, bias: Tensor, record: list[Tensor], keep: Tensor | None, read_heads: int, lstm: bool,
) -> tuple[Tensor, ...]:
    left = Record(*record)
    layout = layout_of(heads, left.weights, left.memory.shape[3], left.memory.shape[2], read_heads, lstm)
    with without_autocast(d_seen.device):
        run = fused.run_backward if fused.takes(layout, left.gates) else backward.run
        d_drive, d_trained, d_first = run(
            layout, Weights(recurrent, heads, bias), left, keep, d_seen, d_cell, d_weights, d_memory
        )
    return (d_drive, *d_trained, *d_first)


def _backward_shapes(
    d_seen: Tensor, d_cell: Tensor | None, d_weights: Tensor | None, d_memory: Tensor | None, recurrent: Tensor,
    heads: Tensor, bias: Tensor, record: list[Tensor], keep: Tensor | None, read_heads: int, lstm: bool,
) -> tuple[Tensor, ...]:
    left = Record(*record)
    first = [torch.empty_like(states[0]) for states in (left.seen, left.cell, left.weights)]
    trained = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (recurrent, heads, bias)]
    memory = left.memory
    return (
        torch.empty_like(left.gates), *trained, *first,
        memory.new_empty(memory.shape[1], memory.shape[3], memory.shape[2]),
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, keep, ctx.read_heads, ctx.lstm, ctx.saves = inputs
    record = [*output[:3], *output[4:]]
    ctx.save_for_backward(keep, *tensors, *record)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    keep, *tensors = ctx.saved_tensors
    inputs, record = tensors[:8], tensors[8:]
    wanted = grads[:4]
    if torch.is_grad_enabled():
        d_inputs = _recorded(inputs, keep, ctx.read_heads, ctx.lstm, wanted)
        return (*d_inputs, None, None, None, None)
    d_seen = torch.zeros_like(record[0]) if wanted[0] is None else wanted[0]
    d_inputs = torch.ops.regard.ntm_backward.default(
        d_seen, *wanted[1:], *inputs[1:4], record, keep, ctx.read_heads, ctx.lstm
    )
    return (*d_inputs, None, None, None, None)


def _recorded(
    inputs: list[Tensor], keep: Tensor | None, read_heads: int, lstm: bool,
    grads: tuple[Tensor | None, ...],
) -> list[Tensor | None]:
    """Return the same gradients with an autograd graph, from the steps in plain torch."""
    inputs = [view for view in fresh_views(inputs) if view is not None]
    layout = layout_of(inputs[2], inputs[6], inputs[7].shape[1], inputs[7].shape[2], read_heads, lstm)
    results = _plain_sequence(layout, inputs[0], Weights(*inputs[1:4]), Carried(*inputs[4:]), keep)
    return gradients(zip(results, grads, strict=True), inputs, again=True)


def _plain_sequence(
    layout: MachineLayout, drive: Tensor, trained: Weights, before: Carried, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute `sequence` by the steps in plain torch, which autograd records."""
    with without_autocast(drive.device):
        return plain.sequence(layout, drive, trained, before, keep)


_LIBRARY.impl("ntm", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("ntm_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::ntm", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::ntm_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::ntm", _differentiate, setup_context=_remember, lib=_LIBRARY)
take_one_by_one("ntm_backward", _LIBRARY)

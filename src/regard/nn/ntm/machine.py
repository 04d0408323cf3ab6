"""The Neural Turing Machine as a module: `MachineCore` has controller, heads and memory; `Machine` adds an output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import BadType, BadValue, unknown_name
from regard.formula.formula import accumulation_dtype
from regard.masks import Mask
from regard.nn.ntm import op
from regard.nn.ntm.controllers import CONTROLLERS, Controller, trained_unless_empty
from regard.nn.ntm.layout import MachineLayout
from regard.nn.ntm.plain import Carried, Weights
from regard.nn.parts.masking import without_padding
from regard.nn.parts.state import State, of_kind
from regard.support.arguments import described, float_tensor, whole_number

CONSTANT = 1e-6  # entries of a constant first memory: small, but with a direction (Collier and Beel 2018)
FIRST_SLOT = 5.0  # logit of the initial slot of a head with learned initial weights; 0 for other slots


@dataclass(frozen=True)
class MachineState(State):
    """The state of a machine between steps."""

    memory: Tensor  # (b,n,m)
    read_weights: Tensor  # (b,R,n)
    write_weights: Tensor  # (b,W,n)
    reads: Tensor  # (b,R,m): the last reads
    controller: tuple[Tensor, ...]  # hidden vector and cell (b,hidden) of an LSTM; empty for a feed-forward controller
    seen: int = 0  # number of steps so far, including padding


@dataclass(frozen=True)
class Trace:
    """The weights of the heads after each step; zeros for padded steps."""

    read: Tensor  # (b,t,R,n)
    write: Tensor  # (b,t,W,n)


class MachineCore(nn.Module):
    """A memory of `slots` × `width`, and a controller that moves read and write heads over it.

    Args:
        inputs: width of the input of a step.
        slots: number of slots of the memory (N of the paper).
        width: width of a slot (M of the paper).
        read_heads: number of heads that read.
        write_heads: number of heads that write; all erase before any adds.
        controller: lstm or feed-forward.
        hidden: width of the controller's hidden vector.
        shift_range: largest shift of a head in one step, in either direction.
        initial: constant (one small number) or learned initial memory, reads and head weights.
    """

    def __init__(
        self,
        inputs: int,
        *,
        slots: int = 128,
        width: int = 20,
        read_heads: int = 1,
        write_heads: int = 1,
        controller: str = "lstm",
        hidden: int = 100,
        shift_range: int = 1,
        initial: str = "constant",
    ) -> None:
        super().__init__()
        self.inputs = whole_number("inputs", inputs, 1)
        kind: type[Controller] = CONTROLLERS[controller]
        self.layout = MachineLayout(
            whole_number("read_heads", read_heads, 0),
            whole_number("write_heads", write_heads, 0),
            whole_number("slots", slots, 1),
            whole_number("width", width, 1),
            whole_number("shift_range", shift_range, 0),
            whole_number("hidden", hidden, 1),
            kind.lstm,
        )
        if self.layout.heads == 0:
            raise BadValue("read_heads: expected at least one read or write head, got none.")
        if shift_range > slots:
            raise BadValue(f"shift_range: expected at most the number of slots, {slots}, got {shift_range}.")
        if initial not in ("constant", "learned"):
            raise unknown_name("initial", initial, ["constant", "learned"])
        self.initial = initial
        self.places: Tensor  # initial head weights; determined by the sizes, so not saved in checkpoints
        self.register_buffer("places", None if initial == "learned" else self._places(), persistent=False)
        self.controller = kind(inputs, self.layout.fed_back, hidden)
        self.heads = nn.Linear(hidden, self.layout.parameters)
        nn.init.xavier_uniform_(self.heads.weight)
        nn.init.normal_(self.heads.bias, std=0.01)
        if initial == "learned":
            self.first_memory = nn.Parameter(torch.randn(slots, width) / (slots + width) ** 0.5)
            self.first_reads = trained_unless_empty(torch.zeros(read_heads, width))
            self.first_places = nn.Parameter(FIRST_SLOT * self._places())

    def forward(
        self, x: Tensor, state: MachineState | None = None, *, keep: Tensor | Mask | None = None
    ) -> tuple[Tensor, Trace, MachineState]:
        """Return reads and hidden vector of each step (b,t,R·m+hidden), the trace of the heads, and the last state.

        x (b,t,inputs). `keep` is (b,t), False = padding, or a mask that has one; padded steps give zeros.
        """
        layout, real = self.layout, self.real_steps(x, state, keep)
        state = self.initial_state(x.shape[0], x.device) if state is None else state
        drive = self.controller(without_padding(x, real))
        wide = accumulation_dtype(self.heads.weight.dtype)  # for sums over many steps, also under autocast
        trained = (self.controller.recurrent, self.heads.weight, self.heads.bias)
        read_hidden, cell, weights, memory = op.sequence(
            layout,
            drive.to(wide),
            Weights(*[tensor.to(wide) for tensor in trained]),
            Carried(*[tensor.to(wide) for tensor in _opened(layout, state)]),
            None if real is None else real.mT.contiguous(),
        )
        after = _closed(layout, Carried(read_hidden[-1], cell[-1], weights[-1], memory), state.seen + x.shape[1])
        state_dtype = state.memory.dtype
        outputs, places = without_padding(read_hidden[1:].transpose(0, 1), real), weights[1:].transpose(0, 1)
        if real is not None:
            places = places.masked_fill(~real[:, :, None, None], 0)
        trace = Trace(places[:, :, : layout.read_heads], places[:, :, layout.read_heads :])
        return outputs.to(self.heads.weight.dtype), trace, after.map(lambda tensor: tensor.to(state_dtype))

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> MachineState:
        """Return the state before the first step. Heads start evenly spaced over the slots, the first one on slot 0."""
        layout, weight = self.layout, self.heads.weight
        device, dtype = device or weight.device, dtype or weight.dtype
        memory: Tensor
        reads: Tensor
        places: Tensor
        if self.initial == "learned":
            memory, reads, places = self.first_memory, self.first_reads, self.first_places.softmax(-1)
        else:  # created on the device, because a CUDA graph cannot copy from the host
            memory = torch.full((layout.slots, layout.width), CONSTANT, dtype=dtype, device=device)
            reads, places = torch.zeros(layout.read_heads, layout.width, device=device), self.places
        empty = torch.zeros(batch, layout.hidden, device=device, dtype=dtype)
        memory, reads, places = (
            tensor.to(device=device, dtype=dtype).expand(batch, -1, -1) for tensor in (memory, reads, places)
        )
        reading, writing = places.split([layout.read_heads, layout.write_heads], 1)
        return MachineState(memory, reading, writing, reads, (empty, empty) if layout.lstm else ())

    def _places(self) -> Tensor:
        """Return the initial slot of each head as a one-hot row, (K,n)."""
        layout = self.layout
        most = max(layout.read_heads, layout.write_heads)
        spread = [
            head * layout.slots // most for count in (layout.read_heads, layout.write_heads) for head in range(count)
        ]
        return torch.eye(layout.slots)[spread]

    def real_steps(self, x: object, state: object, keep: Tensor | Mask | None) -> Tensor | None:
        """Check the inputs and return `keep` as a tensor (b,t)."""
        rows = float_tensor("x", x)
        if rows.dim() != 3 or rows.shape[2] != self.inputs:
            raise BadValue(f"x: expected (b,t,inputs) with inputs={self.inputs}, got shape {tuple(rows.shape)}.")
        batch, steps = rows.shape[:2]
        past = of_kind(MachineState, state)
        expected = (batch, self.layout.slots, self.layout.width)
        if past is not None and tuple(past.memory.shape) != expected:
            raise BadValue(f"state: expected a memory (b,slots,width) = {expected}, got {tuple(past.memory.shape)}.")
        if keep is None:
            return None
        real = keep.keep(steps, batch).to(rows.device) if isinstance(keep, Mask) else keep
        if not isinstance(real, Tensor) or real.dtype != torch.bool:
            raise BadType(f"keep: expected a bool tensor (b,t), True = real, or a Mask, got {described(real)}.")
        if real.dim() != 2 or real.shape[1] != steps or real.shape[0] not in (1, batch):
            raise BadValue(f"keep: expected shape (b,t) = {(batch, steps)}, got {tuple(real.shape)}.")
        return real.expand(batch, steps)

    def extra_repr(self) -> str:
        layout = self.layout
        return (
            f"slots={layout.slots}, width={layout.width}, read_heads={layout.read_heads}, "
            f"write_heads={layout.write_heads}, shift_range={layout.shift_range}, initial={self.initial!r}"
        )


class Machine(nn.Module):
    """A Neural Turing Machine: maps (b,t,inputs) to (b,t,outputs), step by step, with an external memory.

    `machine(x, state=None, keep=None)` returns outputs and state; with `return_trace=True` also the weights of the
    heads. A sequence may be split into several calls. The options are those of `MachineCore`.

    Paper: Graves, Wayne and Danihelka 2014.

    >>> import torch
    >>> machine = Machine(inputs=9, outputs=8, slots=32, width=10, hidden=40)
    >>> outputs, state, trace = machine(torch.randn(2, 5, 9), return_trace=True)
    >>> outputs.shape, state.memory.shape, trace.write.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 32, 10]), torch.Size([2, 5, 1, 32]))
    """

    def __init__(self, inputs: int, outputs: int, **tape: Any) -> None:
        super().__init__()
        self.tape = MachineCore(inputs, **tape)
        layout = self.tape.layout
        self.output = nn.Linear(layout.reads + layout.hidden, whole_number("outputs", outputs, 1))

    def forward(
        self,
        x: Tensor,
        state: MachineState | None = None,
        *,
        keep: Tensor | Mask | None = None,
        return_trace: bool = False,
    ) -> tuple[Tensor, MachineState] | tuple[Tensor, MachineState, Trace]:
        """Return outputs (b,t,outputs), zeros for padded steps, and the next state."""
        real = self.tape.real_steps(x, state, keep)
        read_hidden, trace, after = self.tape(x, state, keep=real)
        outputs = without_padding(self.output(read_hidden), real)
        return (outputs, after, trace) if return_trace else (outputs, after)

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> MachineState:
        """Return the state before the first step. Pass it as `state`; each call returns the next one."""
        return self.tape.initial_state(batch, device, dtype)


def _opened(layout: MachineLayout, state: MachineState) -> Carried:
    """Convert a state to the form that the steps use."""
    hidden, cell = (
        state.controller if layout.lstm else (state.memory.new_zeros(state.memory.shape[0], layout.hidden), None)
    )
    return Carried(
        torch.cat([state.reads.flatten(1), hidden], 1),
        state.memory.new_zeros(state.memory.shape[0], 0) if cell is None else cell,
        torch.cat([state.read_weights, state.write_weights], 1),
        state.memory,
    )


def _closed(layout: MachineLayout, carried: Carried, seen: int) -> MachineState:
    """Convert back to a state."""
    reads, hidden = carried.seen.split([layout.reads, layout.hidden], 1)
    reading, writing = carried.weights.split([layout.read_heads, layout.write_heads], 1)
    return MachineState(
        carried.memory,
        reading,
        writing,
        reads.unflatten(1, (layout.read_heads, layout.width)),
        (hidden, carried.cell) if layout.lstm else (),
        seen,
    )

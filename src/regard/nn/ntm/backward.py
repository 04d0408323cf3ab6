"""The derivative of `forward.run`, written by hand: backpropagation through time from its record.

Whatever does not depend on later steps (slopes of non-linearities, products of gates) is computed for all steps at
once before the loop; the gradients of the trained matrices are one product each after it. Inside the loop a name such
as `d_moved` is the gradient of the loss with respect to `moved`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.nn.ntm.forward import Record
from regard.nn.ntm.layout import MachineLayout
from regard.nn.ntm.plain import Carried, Weights


def run(
    layout: MachineLayout,
    trained: Weights,
    record: Record,
    keep: Tensor | None,
    d_seen: Tensor,
    d_cell: Tensor | None,
    d_weights: Tensor | None,
    d_memory: Tensor | None,
) -> tuple[Tensor, Weights, Carried]:
    """Return the gradients of drive, of the trained matrices and of the first state, from those of the outputs.

    d_seen, d_cell, d_weights are (t+1,b,·) and d_memory is (b,n,m); None: zero.
    """
    steps = record.gates.shape[0]
    controller = (_Lstm if layout.lstm else _FeedForward)(layout, record, trained)
    heads = _Heads(layout, record)
    carried = _Carried(layout, record, d_seen, d_cell, d_weights, d_memory)
    d_parameters = torch.empty_like(record.parameters)
    slope = parameter_slopes(layout, record.parameters)
    d_parameters_of, slope_of = d_parameters.unbind(0), slope.unbind(0)
    for t in range(steps - 1, -1, -1):
        carried.collect(t + 1)
        padded = None if keep is None else carried.hold(keep[t])
        heads.step(t, carried)
        torch.cat(heads.pieces, 1, out=d_parameters_of[t])
        d_parameters_of[t].mul_(slope_of[t])
        carried.hidden.addmm_(d_parameters_of[t], trained.heads)
        controller.step(t, carried)
        if padded is not None:
            carried.release(padded)
    carried.collect(0)
    d_drive = controller.d_drive
    rows = d_drive.flatten(0, 1)
    fed = record.seen[:-1, :, : layout.fed_back].flatten(0, 1)
    hidden = record.seen[1:, :, layout.reads :].flatten(0, 1)
    flat = d_parameters.flatten(0, 1)
    d_trained = Weights(rows.mT @ fed, flat.mT @ hidden, flat.sum(0))
    return (d_drive, d_trained, Carried(carried.seen, carried.cell, carried.weights, carried.memory.mT.contiguous()))


def parameter_slopes(layout: MachineLayout, parameters: Tensor) -> Tensor:
    """Return the derivative of each head parameter's non-linearity from its output; 1 without a non-linearity.

    That of erase is negative, because the steps compute the gradient of 1 − erase.
    """
    slope = torch.ones_like(parameters)
    sections = layout.sections
    bounded = slice(sections["erase"].start, sections["gate"].stop)
    positive = slice(sections["strength"].start, sections["gamma"].stop)
    slope[..., bounded] = parameters[..., bounded] * (1 - parameters[..., bounded])
    slope[..., sections["erase"]].neg_()
    slope[..., positive] = -torch.expm1(-parameters[..., positive])
    return slope


class _Carried:
    """The gradients that are passed from a step to the previous one."""

    def __init__(
        self,
        layout: MachineLayout,
        record: Record,
        d_seen: Tensor,
        d_cell: Tensor | None,
        d_weights: Tensor | None,
        d_memory: Tensor | None,
    ) -> None:
        self.seen, self.cell, self.weights = (
            torch.zeros_like(states[0]) for states in (record.seen, record.cell, record.weights)
        )
        self.memory = (
            torch.zeros_like(record.memory[0])
            if d_memory is None
            else d_memory.mT.clone(memory_format=torch.contiguous_format)
        )
        self.fed = self.seen[:, : layout.fed_back]
        self.hidden = self.seen[:, layout.reads :]
        self.read = self.seen[:, : layout.reads].unflatten(-1, (layout.read_heads, layout.width))
        self.reading, self.writing = self.weights.split([layout.read_heads, layout.write_heads], 1)
        state_gradients = ((self.seen, d_seen), (self.cell, d_cell), (self.weights, d_weights))
        self.outside = [(mine, theirs.unbind(0)) for mine, theirs in state_gradients if theirs is not None]

    def collect(self, t: int) -> None:
        """Add the gradient of the outputs of state t."""
        for mine, theirs in self.outside:
            mine.add_(theirs[t])

    def hold(self, keep: Tensor) -> list[Tensor]:
        """Zero the gradients of padded batch entries and return them, to be restored by `release`."""
        zeroed = []
        for mine in (self.seen, self.cell, self.weights, self.memory):
            real = keep.view(-1, *[1] * (mine.dim() - 1))
            zeroed.append(mine.masked_fill(real, 0))
            mine.masked_fill_(~real, 0)
        return zeroed

    def release(self, held: list[Tensor]) -> None:
        for mine, theirs in zip((self.seen, self.cell, self.weights, self.memory), held, strict=True):
            mine.add_(theirs)


class _FeedForward:
    """hidden = tanh(drive + recurrent · reads)."""

    def __init__(self, layout: MachineLayout, record: Record, trained: Weights) -> None:
        self.recurrent = trained.recurrent
        self.d_drive = torch.empty_like(record.gates)
        self.result = self.d_drive.unbind(0)
        self.slope = (1 - record.gates * record.gates).unbind(0)

    def step(self, t: int, carried: _Carried) -> None:
        torch.mul(carried.hidden, self.slope[t], out=self.result[t])
        carried.hidden.zero_()
        carried.fed.copy_(torch.mm(self.result[t], self.recurrent))


class _Lstm:
    """cell = forget · cell + enter · candidate, hidden = out · tanh(cell)."""

    def __init__(self, layout: MachineLayout, record: Record, trained: Weights) -> None:
        gates = record.gates.unflatten(-1, (4, layout.hidden))
        out, enter, forget, candidate = gates.unbind(2)
        bent = record.bent_cell
        self.recurrent = trained.recurrent
        self.d_drive = torch.empty_like(record.gates)
        result = self.d_drive.view_as(gates)
        self.result = self.d_drive.unbind(0)
        self.d_out, self.d_others = result[:, :, 0].unbind(0), result[:, :, 1:].unbind(0)
        self.hidden_by_cell = (out * (1 - bent * bent)).unbind(0)
        self.hidden_by_out = (bent * out * (1 - out)).unbind(0)
        factors = torch.empty_like(gates[:, :, 1:])  # of the cell by the gates: enter, forget, candidate
        torch.mul(candidate, enter * (1 - enter), out=factors[:, :, 0])
        torch.mul(record.cell[:-1], forget * (1 - forget), out=factors[:, :, 1])
        torch.mul(enter, 1 - candidate * candidate, out=factors[:, :, 2])
        self.cell_by_gates, self.forget = factors.unbind(0), forget.unbind(0)

    def step(self, t: int, carried: _Carried) -> None:
        cell = carried.cell.addcmul_(carried.hidden, self.hidden_by_cell[t])
        torch.mul(carried.hidden, self.hidden_by_out[t], out=self.d_out[t])
        torch.mul(cell[:, None], self.cell_by_gates[t], out=self.d_others[t])
        cell.mul_(self.forget[t])
        torch.mm(self.result[t], self.recurrent, out=carried.seen)


class _Heads:
    """Reading, writing and addressing of one step. `step` fills `pieces` with gradients of the head parameters."""

    def __init__(self, layout: MachineLayout, record: Record) -> None:
        self.layout = layout
        b, k, n, m, r = record.memory.shape[1], layout.heads, layout.slots, layout.width, layout.shift_range
        new = record.memory.new_empty
        first = layout.read_heads

        def rows(name: str) -> Tensor:
            return layout.rows(name, record.parameters)

        keys, strength, gamma = rows("keys"), rows("strength"), 1 + rows("gamma")
        # Quantities of all steps, computed at once.
        self.memory, self.weights = record.memory.unbind(0), record.weights.unbind(0)
        self.reading = record.weights[:, :, :first].unbind(0)
        self.writing = [record.weights[:, :, head : head + 1].unbind(0) for head in range(first, k)]
        self.all_writing = record.weights[:, :, first:].unbind(0)
        erase = rows("erase")
        self.erase_row = [erase[:, :, h : h + 1].unbind(0) for h in range(layout.write_heads)]
        self.erase_column = [erase[:, :, h, :, None].unbind(0) for h in range(layout.write_heads)]
        self.add = rows("add").unbind(0)
        self.logs = record.moved.log().unbind(0)
        self.moved_by_logs = (gamma / record.moved).unbind(0)
        self.gate = rows("gate").unbind(0)
        self.gate_slope = (record.content - record.weights[:-1]).unbind(0)
        self.content, self.logits = record.content.unbind(0), record.logits.unbind(0)
        self.kernel = record.kernel.unbind(0)
        self.share = [record.kernel[..., j : j + 1].unbind(0) for j in range(layout.offsets)]
        self.origin = [record.around[..., 2 * r - j : 2 * r - j + n].unbind(0) for j in range(layout.offsets)]
        self.inverse_length = record.inverse_length.unbind(0)
        self.inverse_square = record.inverse_length.square().unbind(0)
        inverse_key = record.key_length.reciprocal()
        scale = strength * inverse_key
        self.keys, self.scale, self.inverse_key = keys.unbind(0), scale.unbind(0), inverse_key.unbind(0)
        self.scaled_keys = (keys * scale).unbind(0)
        self.along_key = (inverse_key * inverse_key).unbind(0)

        # Output buffers of a step.
        self.d_read, self.d_reading = new(b, first, m), new(b, first, n)
        self.d_writing = new(b, layout.write_heads, n)
        self.product, self.outer = new(b, m, n), new(b, m, n)
        self.d_keys = new(b, k, m)
        # For erase, the gradient of 1 − erase; `parameter_slopes` changes its sign.
        self.d_add, self.d_kept = new(b, layout.write_heads, m), new(b, layout.write_heads, m)
        self.d_writing_of, self.d_kept_of = self.d_writing.split(1, 1), self.d_kept.split(1, 1)
        self.d_gate, self.d_strength, self.d_gamma = new(b, k, 1), new(b, k, 1), new(b, k, 1)
        self.d_kernel, self.d_shift = new(b, k, layout.offsets), new(b, k, layout.offsets)
        self.d_kernel_of = self.d_kernel.unbind(-1)
        self.pieces = [
            gradient.view(b, -1) if gradient.numel() else gradient.reshape(b, gradient.shape[1] * gradient.shape[2])
            for gradient in (
                self.d_keys,
                self.d_add,
                self.d_kept,
                self.d_gate,
                self.d_strength,
                self.d_gamma,
                self.d_shift,
            )
        ]
        self.d_around = new(b, k, n + 2 * r)
        self.d_moved = self.d_around[..., r : r + n]
        self.d_ends = [
            (self.d_around[..., :r], self.d_around[..., n : n + r]),
            (self.d_around[..., n + r :], self.d_around[..., r : 2 * r]),
        ]
        self.d_destination = [self.d_around[..., j : j + n] for j in range(layout.offsets)]
        self.small, self.other, self.column = new(b, k, n), new(b, k, n), new(b, 1, n)

    def step(self, t: int, carried: _Carried) -> None:
        self._read_and_write(t, carried)
        self._sharpen_and_shift(t, carried.weights)
        self._content(t, carried)

    def _read_and_write(self, t: int, carried: _Carried) -> None:
        d_memory = carried.memory
        if self.layout.read_heads:
            self.d_read.copy_(carried.read)
            carried.reading.add_(torch.bmm(self.d_read, self.memory[t + 1], out=self.d_reading))
            d_memory.baddbmm_(self.d_read.mT, self.reading[t + 1])
        if not self.layout.write_heads:
            return
        torch.bmm(self.add[t], d_memory, out=self.d_writing)
        torch.bmm(self.all_writing[t + 1], d_memory.mT, out=self.d_add)
        for head, before in reversed(list(enumerate(self._erased_so_far(t)))):
            # The result was before · (1 − weights ⊗ erase); product is the gradient of the second factor.
            product = torch.mul(d_memory, before, out=self.product)
            self.d_writing_of[head].baddbmm_(self.erase_row[head][t], product, alpha=-1)
            torch.bmm(self.writing[head][t + 1], product.mT, out=self.d_kept_of[head])
            erased = torch.mul(self.writing[head][t + 1], self.erase_column[head][t], out=self.outer)
            d_memory.addcmul_(d_memory, erased, value=-1)
        carried.writing.add_(self.d_writing)

    def _erased_so_far(self, t: int) -> list[Tensor]:
        """Return the memory before each write head erased."""
        memories = [self.memory[t]]
        for writing, erase in zip(self.writing[:-1], self.erase_column[:-1], strict=True):
            erased = torch.mul(writing[t + 1], erase[t], out=self.outer)
            memories.append(torch.addcmul(memories[-1], memories[-1], erased, value=-1))
        return memories

    def _sharpen_and_shift(self, t: int, d_weights: Tensor) -> None:
        """Compute the gradient of the interpolated weights, in self.small, from that of the final weights."""
        new = self.weights[t + 1]
        d_logs = torch._softmax_backward_data(d_weights, new, -1, new.dtype, grad_input=self.small)
        torch.linalg.vecdot(d_logs, self.logs[t], out=self.d_gamma.squeeze(-1))
        d_moved = torch.mul(d_logs, self.moved_by_logs[t], out=self.d_moved)
        for j, origin in enumerate(self.origin):
            torch.linalg.vecdot(d_moved, origin[t], out=self.d_kernel_of[j])
        kernel = self.kernel[t]
        torch._softmax_backward_data(self.d_kernel, kernel, -1, kernel.dtype, grad_input=self.d_shift)
        for end, opposite_end in self.d_ends:
            end.copy_(opposite_end)
        torch.mul(self.d_destination[0], self.share[0][t], out=self.small)
        for destination, share in zip(self.d_destination[1:], self.share[1:], strict=True):
            self.small.addcmul_(destination, share[t])

    def _content(self, t: int, carried: _Carried) -> None:
        """Compute the gradients of memory, keys and previous weights from that of the interpolated ones, self.small."""
        d_mixed = self.small
        torch.linalg.vecdot(d_mixed, self.gate_slope[t], out=self.d_gate.squeeze(-1))
        d_content = torch.mul(d_mixed, self.gate[t], out=self.other)
        torch.sub(d_mixed, d_content, out=carried.weights)
        content, memory, keys = self.content[t], self.memory[t], self.keys[t]
        d_logits = torch._softmax_backward_data(d_content, content, -1, content.dtype, grad_input=self.small)

        # logits = (keys · scale) @ memory · inverse norm; scaling a slot does not change them.
        along = torch.sum(torch.mul(d_logits, self.logits[t], out=self.other), 1, keepdim=True, out=self.column)
        along.mul_(self.inverse_square[t])
        d_products = d_logits.mul_(self.inverse_length[t])
        carried.memory.baddbmm_(self.scaled_keys[t].mT, d_products)
        carried.memory.addcmul_(memory, along, value=-1)
        d_scaled = torch.bmm(d_products, memory.mT, out=self.d_keys)
        by_scale = torch.linalg.vecdot(d_scaled, keys).unsqueeze(-1)
        torch.mul(by_scale, self.inverse_key[t], out=self.d_strength)
        # scale = strength / |key|, so that scaling a key does not change them either.
        self.d_keys.addcmul_(keys, by_scale.mul_(self.along_key[t]), value=-1).mul_(self.scale[t])

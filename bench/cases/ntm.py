"""A training step of a Neural Turing Machine: the gain of a hand-written backward pass through time.

The peer is the same machine as one writes it in plain torch: a loop over the steps, each vectorised over the batch and
the heads, differentiated by autograd. Both start from the same weights, and must agree before they are timed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.ntm import Machine
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import speedup

BATCH, STEPS, INPUTS, OUTPUTS = 16, 41, 9, 8
SLOTS, WIDTH, HIDDEN, REACH = 128, 20, 100, 1
WORK = f"NTM b{BATCH} {STEPS} steps, memory {SLOTS}×{WIDTH}, LSTM-{HIDDEN}, 1 read and 1 write head, forward+backward"


class PlainMachine(nn.Module):
    """One read head and one write head, step by step in plain torch, vectorised over the batch and both heads."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(INPUTS + WIDTH, HIDDEN)
        self.sections = [2 * WIDTH, WIDTH, WIDTH, 2, 2, 2, 2 * (2 * REACH + 1)]
        self.heads = nn.Linear(HIDDEN, sum(self.sections))
        self.output = nn.Linear(WIDTH + HIDDEN, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (b,t,outputs) for inputs (b,t,inputs)."""
        batch = x.shape[0]
        memory = x.new_full((batch, SLOTS, WIDTH), 1e-6)
        weights = x.new_zeros(batch, 2, SLOTS)
        weights[:, :, 0] = 1
        read, hidden, cell = x.new_zeros(batch, WIDTH), x.new_zeros(batch, HIDDEN), x.new_zeros(batch, HIDDEN)
        seen = []
        for given in x.unbind(1):
            hidden, cell = self.cell(torch.cat([given, read], 1), (hidden, cell))
            keys, add, erase, gate, strength, gamma, kernel = self.heads(hidden).split(self.sections, 1)
            weights = self.address(memory, weights, keys.view(batch, 2, WIDTH), gate, strength, gamma, kernel)
            reading, writing = weights.unbind(1)
            memory = memory * (1 - writing[:, :, None] * erase.sigmoid()[:, None]) + writing[:, :, None] * add[:, None]
            read = torch.bmm(reading[:, None], memory)[:, 0]
            seen.append(torch.cat([read, hidden], 1))
        outputs: Tensor = self.output(torch.stack(seen, 1))
        return outputs

    def address(
        self,
        memory: Tensor,
        before: Tensor,
        keys: Tensor,
        gate: Tensor,
        strength: Tensor,
        gamma: Tensor,
        kernel: Tensor,
    ) -> Tensor:
        """The weights (b,2,slots) of both heads. One product divided by the lengths beats F.cosine_similarity, which
        builds a (b,2,slots,width) array, and F.normalize; rolling beats a grouped convolution."""
        lengths = memory.norm(dim=-1)[:, None] * keys.norm(dim=-1, keepdim=True)
        similarity = torch.bmm(keys, memory.mT) / lengths.clamp_min(1e-12)
        content = torch.softmax(F.softplus(strength)[..., None] * similarity, -1)
        mixed = torch.lerp(before, content, gate.sigmoid()[..., None])
        shares = kernel.view(-1, 2, 2 * REACH + 1).softmax(-1)
        moved = mixed * shares[..., REACH, None]
        for offset in [j for j in range(-REACH, REACH + 1) if j != 0]:
            moved = moved + shares[..., offset + REACH, None] * mixed.roll(offset, -1)
        powered = moved ** (1 + F.softplus(gamma))[..., None]
        return powered / powered.sum(-1, keepdim=True)


def same_weights(machine: Machine) -> PlainMachine:
    """The plain machine with the weights of ours; the gates of torch's LSTM stand in another order."""
    plain = PlainMachine().to(machine.output.weight.device)
    controller = machine.tape.controller
    by_read, by_hidden = controller.recurrent.split([WIDTH, HIDDEN], 1)
    with torch.no_grad():
        plain.cell.weight_ih.copy_(_torchs_gates(torch.cat([controller.input.weight, by_read], 1)))
        plain.cell.weight_hh.copy_(_torchs_gates(by_hidden))
        plain.cell.bias_ih.copy_(_torchs_gates(controller.input.bias))
        plain.cell.bias_hh.zero_()
        for mine, theirs in ((plain.heads, machine.tape.heads), (plain.output, machine.output)):
            mine.load_state_dict(theirs.state_dict())
    return plain


def _torchs_gates(rows: Tensor) -> Tensor:
    """Rows for the gates output, input, forget, candidate as torch has them: input, forget, candidate, output."""
    out, enter, forget, candidate = rows.chunk(4)
    return torch.cat([enter, forget, candidate, out])


def differences(machine: Machine, plain: PlainMachine, x: Tensor) -> dict[str, float]:
    """How far the two are apart, relative to the largest number, in outputs and in the gradient of each weight."""
    results = []
    for module in (machine, plain):
        module.zero_grad()
        outputs = _outputs(module, x)
        outputs.square().sum().backward()
        results.append(outputs.detach())
    controller = machine.tape.controller
    joined = torch.cat([_grad(controller.input.weight), _grad(controller.recurrent)], 1)
    theirs = torch.cat([_grad(plain.cell.weight_ih), _grad(plain.cell.weight_hh)], 1)
    pairs = {
        "outputs": (results[0], results[1]),
        "controller": (_torchs_gates(joined), theirs),
        "controller bias": (_torchs_gates(_grad(controller.input.bias)), _grad(plain.cell.bias_ih)),
        "heads": (_grad(machine.tape.heads.weight), _grad(plain.heads.weight)),
        "heads bias": (_grad(machine.tape.heads.bias), _grad(plain.heads.bias)),
        "output": (_grad(machine.output.weight), _grad(plain.output.weight)),
    }
    return {name: float((a - b).abs().max() / b.abs().max()) for name, (a, b) in pairs.items()}


def _outputs(module: nn.Module, x: Tensor) -> Tensor:
    found = module(x)
    outputs: Tensor = found[0] if isinstance(found, tuple) else found
    return outputs


def _grad(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def training_step(module: nn.Module, x: Tensor) -> Callable[[], object]:
    """Forward and backward to every weight, as one call."""

    def step() -> None:
        module.zero_grad(set_to_none=True)
        _outputs(module, x).square().sum().backward()

    return step


def small_case(device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Machine, PlainMachine, Tensor]:
    """Both machines with the same weights, and inputs, as they are timed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        machine = Machine(
            INPUTS, OUTPUTS, slots=SLOTS, width=WIDTH, hidden=HIDDEN, shift_range=REACH, controller="lstm"
        ).to(device, dtype)
        x = torch.randn(BATCH, STEPS, INPUTS, dtype=dtype).to(device)
        return machine, same_weights(machine).to(dtype), x


@case("ntm-step", work=WORK, peer="plain torch, per step, batched", unit="× faster", at_least=2)
def step(setting: Setting) -> Measurement:
    """A training step without the optimiser."""
    machine, plain, x = small_case(setting.device)
    apart = differences(machine, plain, x)
    assert max(apart.values()) < 1e-3, f"the two machines differ: {apart}"
    return speedup(training_step(machine, x), training_step(plain, x), setting, "regard::ntm")

"""A whole training step of a Neural Turing Machine: forty-one steps of tiny operations, bound by launching them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.cases.gpu.capture import captured
from bench.cases.gpu.events import alone, first_line, side_by_side
from bench.cases.ntm import HIDDEN, INPUTS, OUTPUTS, REACH, SLOTS, STEPS, WIDTH, differences, same_weights
from regard.nn.ntm import Machine
from regard_workbench.bench.case import Measurement, Setting, Wrong, case
from regard_workbench.bench.timing import TimedCall

BATCH = 64
NOT_CAPTURED = "ours, not captured"
CLOSE = 1e-3


def _machine(batch: int, steps: int, device: str) -> tuple[Machine, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = Machine(INPUTS, OUTPUTS, slots=SLOTS, width=WIDTH, hidden=HIDDEN, shift_range=REACH, controller="lstm")
        x = torch.randn(batch, steps, INPUTS)
    return made.to(device), x.to(device)


def training_step(module: nn.Module, x: Tensor) -> TimedCall:
    """Forward, backward and the update of every weight."""
    capturable = x.is_cuda
    rule = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True, capturable=capturable)

    def step() -> None:
        rule.zero_grad(set_to_none=True)
        found = module(x)
        outputs = found[0] if isinstance(found, tuple) else found
        outputs.square().mean().backward()
        rule.step()

    return step


def measured(setting: Setting, batch: int = BATCH, steps: int = STEPS) -> Measurement:
    """Milliseconds of a step. Ours and the plain machine start from the same weights and must agree first."""
    machine, x = _machine(batch, steps, setting.device)
    apart = differences(machine, same_weights(machine), x)
    if not max(apart.values()) < CLOSE:
        raise Wrong(f"not timed, because it is wrong: the machine differs from plain torch by {apart}.")
    ours, plain = training_step(machine, x), training_step(same_weights(machine), x)
    sides: dict[str, TimedCall] = {"ours": ours, "plain torch": plain}
    refused: dict[str, str] = {}
    if setting.device == "cuda":
        sides[NOT_CAPTURED] = training_step(_machine(batch, steps, setting.device)[0], x)
        _capture(sides, "ours", "ours", ours, refused)
        again = training_step(same_weights(machine), x)
        _capture(sides, "plain torch", "plain torch in one CUDA graph", again, refused)
    times = side_by_side(sides, setting)
    details = {"errors": apart, "not_captured": refused}
    return alone(times, impl="regard::ntm", scale=1e3, details=details)


def _capture(sides: dict[str, TimedCall], name: str, label: str, step: TimedCall, refused: dict[str, str]) -> None:
    try:
        sides[label] = captured(step).replay  # as our training loop runs it
    except RuntimeError as trouble:
        refused[name] = first_line(trouble)
        torch.cuda.synchronize()


def compiled(setting: Setting) -> None:
    """Have the kernels compiled."""
    machine, x = _machine(BATCH, STEPS, setting.device)
    training_step(machine, x)()


_run: Callable[[Setting], Measurement] = measured
case(
    "ntm-train",
    device="cuda",
    peer="plain torch (eager / in one CUDA graph)",
    unit="ms",
    at_most=10,
    ahead=compiled,
    work=f"NTM training step, b{BATCH}, {STEPS} steps, memory {SLOTS}×{WIDTH}, LSTM-{HIDDEN}",
)(_run)

"""A training step of a Neural Turing Machine on a GPU, by every way there is to take it.

    python benchmarks/ntm.py [--batch 64] [--steps 41] [--train]

The work of docs/results.md: sequences of the copy task, memory 128×20, LSTM-100, one read and one write head; forward,
backward, clipping and RMSprop. Ways: plain torch differentiated by autograd, the loop of few operations a step, and
the kernels; each as it is and as one CUDA graph. Results and gradients are compared with float64 first, and nothing is
timed that is wrong. `--train` adds steps per second of `regard train copy`, whose batches differ in length.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.ntm import Machine, fused
from regard_workbench.bench.gpu.capture import captured
from regard_workbench.bench.gpu.events import group
from regard_workbench.bench.ntm import HIDDEN, INPUTS, OUTPUTS, SLOTS, WIDTH, PlainMachine, same_weights
from regard_workbench.training import train as run
from regard_workbench.training.engines.cuda_graph.rmsprop import SkippableRMSprop
from regard_workbench.training.loop import Trainer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def machine(dtype: torch.dtype = torch.float32) -> Machine:
    """The same one every time."""
    torch.manual_seed(0)
    return Machine(INPUTS, OUTPUTS, slots=SLOTS, width=WIDTH, hidden=HIDDEN).to(DEVICE, dtype)


def plain_machine() -> PlainMachine:
    """The same weights in plain torch."""
    return same_weights(machine())


def task(batch: int, steps: int) -> tuple[Tensor, Tensor]:
    """Random bits, in and out."""
    random = torch.Generator().manual_seed(1)
    bits = torch.rand(batch, steps, INPUTS + OUTPUTS, generator=random).round().to(DEVICE)
    return bits[..., :INPUTS].contiguous(), bits[..., INPUTS:].contiguous()


def without_kernels() -> AbstractContextManager[object]:
    """Every machine runs through the loop."""
    return mock.patch.object(fused, "takes", lambda layout, like: False)


def loss_of(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What a training step minimises."""
    found = module(x)
    return F.binary_cross_entropy_with_logits(found[0] if isinstance(found, tuple) else found, y)


def error(x: Tensor, y: Tensor) -> float:
    """How far the gradients by the kernels are from those in float64 through the loop, as a share of their size."""
    grads = []
    for dtype in (torch.float32, torch.float64):
        module = machine(dtype)
        loss_of(module, x.to(dtype), y.to(dtype)).backward()
        grads.append(torch.cat([p.grad.double().flatten() for p in module.parameters() if p.grad is not None]))
    return float((grads[0] - grads[1]).norm() / grads[1].norm())


def training_step(module: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """Forward, backward, clip, update."""
    weights = list(module.parameters())
    optimizer = SkippableRMSprop(weights, lr=1e-4, alpha=0.95, momentum=0.9)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(module, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 10.0)
        optimizer.step()
        return loss.detach()

    return step


def milliseconds(step: Callable[[], object], calls: int, groups: int = 5) -> float:
    """The median over groups of back-to-back calls, by events on the device."""
    step()
    return 1e3 * statistics.median([group(step, calls, DEVICE) for _ in range(groups)])


def train(graph: bool, steps: int) -> float:
    """Steps per second of `regard train copy`, over the second half of a short run."""
    marks: list[float] = []
    advance = Trainer.advance

    def noted(self: Trainer) -> None:
        advance(self)
        if len(marks) in (steps // 2, steps - 2):
            torch.cuda.synchronize()
        marks.append(time.perf_counter())

    never = 10**6
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Trainer, "advance", noted):
        run(
            {
                "task": "copy",
                "device": DEVICE,
                "steps": steps,
                "out": folder,
                "graph": graph,
                "log_every": never,
                "eval_every": never,
                "save_every": never,
                "eval_limit": 1,
            },
            quiet=True,
        )
    return (steps - 2 - steps // 2) / (marks[steps - 2] - marks[steps // 2])


def main() -> None:
    """Compare, then time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=41)
    parser.add_argument("--train", action="store_true")
    asked = parser.parse_args()
    x, y = task(asked.batch, asked.steps)
    apart = error(x, y)
    print(f"gradients against float64: {apart:.1e}", flush=True)
    assert apart < 1e-4, "what is wrong is not timed"
    work = f"b{asked.batch} {asked.steps} steps"
    for name, module, kernels, calls in (
        ("kernels", machine, True, 20),
        ("loop of few operations", machine, False, 3),
        ("plain torch", plain_machine, False, 2),
    ):
        for recorded in (False, True):
            with nullcontext() if kernels else without_kernels():
                step = training_step(module(), x, y)
                found = milliseconds(captured(step).replay if recorded else step, calls)
            print(f"{work}  {name:24s} {'one graph' if recorded else 'eager':10s} {found:8.3f} ms", flush=True)
    if asked.train:
        for graph, kernels, steps in ((True, True, 1200), (False, True, 300), (False, False, 40)):
            with nullcontext() if kernels else without_kernels():
                speed = train(graph, steps)
            how = f"{'kernels' if kernels else 'loop'}, {'graphs' if graph else 'no graph'}"
            print(f"regard train copy  {how:20s} {speed:8.1f} steps/s  {1e3 / speed:.3f} ms", flush=True)


if __name__ == "__main__":
    main()

"""The additive (Bahdanau) score: tanh of every query plus every key, which the formula spells as an n×n×d tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch

import regard
from bench.cases.memory import extra_memory
from regard import scores
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import slowdown

D = 64
SHORT, LONG = 1024, 8192


def _inputs(device: str, length: int) -> list[torch.Tensor]:
    """Query, key, value and the score's weight, all of which receive gradient; then the output's gradient."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 1, length, D)] * 3 + [(D,)]
    leaves = [torch.randn(s, generator=generator).to(device).requires_grad_() for s in shapes]
    return [*leaves, torch.randn(1, 1, length, D, generator=generator).to(device)]


def plain_formula(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The peer: the formula as a paper prints it."""
    score = torch.tanh(query[..., :, None, :] + key[..., None, :, :]) @ weight  # (b, h, q, k)
    return torch.softmax(score, dim=-1) @ value


def _ours(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    return regard.attend(query, key, value, score=scores.additive(weight))


def _impl(setting: Setting, length: int) -> str:
    query, key, value, weight, _ = _inputs(setting.device, length)
    return regard.explain(query, key, value, score=scores.additive(weight)).impl


@case(
    "additive-time",
    work=f"additive, b1 h1 n{SHORT} d{D}, forward+backward",
    peer="plain formula",
    unit="× time",
    at_most=0.7,
)
def time(setting: Setting) -> Measurement:
    """Forward and all four gradients."""
    *leaves, upstream = _inputs(setting.device, SHORT)
    return slowdown(
        lambda: torch.autograd.grad(_ours(*leaves), leaves, upstream),
        lambda: torch.autograd.grad(plain_formula(*leaves), leaves, upstream),
        setting,
        _impl(setting, SHORT),
    )


def train(device: str, small: bool) -> Callable[[], object]:
    """The call whose memory is measured."""
    *leaves, upstream = _inputs(device, 128 if small else LONG)
    return lambda: torch.autograd.grad(_ours(*leaves), leaves, upstream)


@case(
    "additive-memory",
    work=f"additive, b1 h1 n{LONG} d{D}, forward+backward",
    peer="(plain formula: 17 GB)",
    unit="MiB extra",
    at_most=256,
)
def memory(setting: Setting) -> Measurement:
    """Peak memory beyond the inputs, gradients included."""
    return extra_memory(train, setting, _impl(setting, LONG))

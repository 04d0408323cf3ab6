"""Sigmoid, sparsemax, entmax15 and hard under Triton on a GPU: against float64, and whether bits repeat.

`auto` takes these kernels up to the widths for which this stage has passed on a GPU: `_CHECKED` in
`implementations/triton/normalized_attention.py`, which docs/design.md mentions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

import regard
from bench.gpu_checking.formula import BOUNDS, options, rows, same, trained
from bench.gpu_checking.report import Report

NAMES = ("sigmoid", "entmax15", "sparsemax", "hard")
MASKS = ("full", "causal", "window", "documents", "padding", "softcap", "alibi")
LENGTH = 777


def configurations() -> list[tuple[str, str, int, torch.dtype]]:
    """Normaliser, mask, width and dtype of every comparison with float64."""
    found = [(name, mask, 64, torch.bfloat16) for name in NAMES for mask in MASKS]
    found += [
        (name, "causal", d, dtype)
        for name in NAMES
        for d, dtype in (
            (64, torch.float32),
            (128, torch.float32),
            (40, torch.float16),
            (128, torch.bfloat16),
            (256, torch.bfloat16),
        )
    ]
    return found


def compare(name: str, mask: str, d: int, dtype: torch.dtype) -> dict[str, Any]:
    """The relative error of output and gradients beside that of the plain formula, and whether bits repeat."""
    given, asked = rows(2, 4, LENGTH, d, dtype=dtype), options(mask, LENGTH, 4)
    first, second = (trained(*given, normalize=name, **asked) for _ in range(2))
    exact = _by_reference([part.double() for part in given], name, asked)
    # `hard` chooses another key where rounding makes two scores equal; such rows are left out.
    errors = [_error(a, b, name == "hard") for a, b in zip(first, exact, strict=True)]
    equal, off = same(first, second), max(errors)
    return {"error": off, "each": errors, "same_bits": equal, "ok": equal and off < BOUNDS[dtype]}


def _by_reference(given: list[Tensor], name: str, asked: dict[str, Any]) -> list[Tensor]:
    q, k, v, grad = [part.detach().requires_grad_() for part in given]
    output = regard.attend(q, k, v, normalize=name, impl="reference", **asked)
    return [output.detach(), *torch.autograd.grad(output, (q, k, v), grad, allow_unused=True, materialize_grads=True)]


def _error(found: Tensor, true: Tensor, by_row: bool) -> float:
    difference = found.double() - true
    if by_row:
        away = difference.norm(dim=-1) / (true.norm(dim=-1) + 1e-9)
        return float(away.flatten().kthvalue(max(1, int(0.98 * away.numel()))).values)
    size = float(true.norm())
    off = float(difference.norm()) / size if size else float(difference.norm())
    return off if off == off else 9.0


def normalizers(report: Report) -> None:
    """Compare all of them."""
    for name, mask, d, dtype in configurations():
        report.try_case("normalizers", f"{name} {mask} d{d} {str(dtype)[6:]}", partial(compare, name, mask, d, dtype))


def compile_once(name: str, mask: str, d: int, dtype: torch.dtype) -> None:
    """Compile the kernels of a comparison."""
    trained(*rows(2, 4, LENGTH, d, dtype=dtype), normalize=name, **options(mask, LENGTH, 4))

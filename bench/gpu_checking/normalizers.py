"""Sigmoid, sparsemax, entmax15 and hard under Triton on a GPU: against float64, bits, memory, time beside softmax.

`auto` takes these kernels up to the widths for which this stage has passed on a GPU: `_CHECKED` in
`implementations/triton/normalized_attention.py`, which docs/design.md mentions.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import regard
from bench.gpu_checking.formula import BOUNDS, options, rows, same, trained
from bench.gpu_checking.report import Report
from bench.gpu_checking.timing import milliseconds

NAMES = ("sigmoid", "entmax15", "sparsemax", "hard")
BARS = {"sigmoid": 1.05, "entmax15": 2.5}  # times our softmax
MASKS = ("full", "causal", "window", "documents", "padding", "softcap", "alibi")
LENGTH = 777
TIMED = {"4k": (4, 16, 4096), "16k": (1, 16, 16384)}


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


def linear_memory(name: str) -> dict[str, Any]:
    """Extra memory at two lengths: twice the length must take about twice the memory."""
    found = []
    for n in (8192, 16384):
        given = rows(1, 4, n, 64)
        trained(*given, normalize=name)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        trained(*given, normalize=name)
        found.append(torch.cuda.max_memory_allocated() - before)
    return {"bytes": found, "ok": found[1] < 2.3 * found[0]}


def beside_softmax(name: str, size: str, d: int, mask: str) -> dict[str, Any]:
    """Time beside our softmax kernels and beside `tiled`, forward and training."""
    b, h, n = TIMED[size]
    q, k, v, grad = rows(b, h, n, d)
    asked = options(mask, n, h)
    found: dict[str, Any] = {}
    for kind in ("forward", "training"):
        calls: dict[str, Callable[[], Any]] = {}
        for label, normalize, impl in (
            ("ours", name, "triton"),
            ("softmax", "softmax", "triton"),
            ("tiled", name, "tiled"),
        ):
            if label == "tiled" and size != "4k":
                continue
            calls[label] = partial(_call, q, k, v, grad, kind, normalize=normalize, impl=impl, **asked)
        times = milliseconds(calls, count=5, groups=3)
        ratio = times["ours"] / times["softmax"]
        found[kind] = {**{label: round(one, 4) for label, one in times.items()}, "times_softmax": round(ratio, 3)}
    if name in BARS:
        found["bar"], found["met"] = BARS[name], found["forward"]["times_softmax"] <= BARS[name]
    return found


def _call(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, kind: str, **asked: Any) -> Any:
    if kind == "training":
        return torch.autograd.grad(regard.attend(q, k, v, **asked), (q, k, v), grad, allow_unused=True)
    with torch.no_grad():
        return regard.attend(q, k, v, **asked)


def normalizers(report: Report) -> None:
    """Check, then time."""
    for name, mask, d, dtype in configurations():
        report.try_case("normalizers", f"{name} {mask} d{d} {str(dtype)[6:]}", partial(compare, name, mask, d, dtype))
    for name in NAMES:
        report.try_case("normalizers", f"{name} memory", partial(linear_memory, name))
    for name in NAMES:
        for size, d, mask in (("4k", 64, "causal"), ("4k", 128, "causal"), ("16k", 64, "window")):
            report.try_case(
                "normalizers", f"{name} {size} d{d} {mask} time", partial(beside_softmax, name, size, d, mask)
            )
            gc.collect()
            torch.cuda.empty_cache()


def compile_once(name: str, mask: str, d: int, dtype: torch.dtype) -> None:
    """Compile the kernels of a comparison."""
    trained(*rows(2, 4, LENGTH, d, dtype=dtype), normalize=name, **options(mask, LENGTH, 4))

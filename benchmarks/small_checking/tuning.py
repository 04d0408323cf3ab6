"""Times of the kernels of small models for several sizes of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.small_checking.timing import replayed_us

TUNINGS: tuple[dict[str, int], ...] = (
    {},
    {"tile": 64, "stages": 5},
    {"warps": 4},
    {"stages": 4},
    {"tile": 64, "stages": 2, "warps": 4},
    {"grad_tall": 64},
    {"grad_tall": 64, "grad_rows": 64, "grad_stages": 4},
    {"grad_tall": 64, "grad_rows": 64, "grad_stages": 4, "grad_warps": 8},
    {"grad_width": 128},
    {"grad_width": 128, "grad_rows": 64, "grad_stages": 4},
    {"grad_tall": 64, "grad_width": 128, "grad_rows": 64, "grad_stages": 3},
)


def read_tuning(text: str) -> dict[str, int]:
    """Sizes of blocks by the names of `regard_fast.fused_rows.op.Tuning`."""
    return {name: int(number) for name, number in (part.split("=") for part in text.split(","))}


def tuning_cases(device: str) -> list[tuple[tuple[int, int, int, int], dict[str, int]]]:
    """Sizes of rows and of blocks to time."""
    if device == "cpu":
        return [((1, 2, 32, 2), {})]
    long, short = (32, 64, 128, 4), (32, 8, 128, 4)
    return [*((long, tuning) for tuning in TUNINGS), *((short, tuning) for tuning in TUNINGS[:5])]


def bound_piece(sizes: tuple[int, int, int, int], device: str) -> dict[str, Callable[[], Any]]:
    """Functions that launch the kernels between two attentions forward and backward, and those of a stack's weights."""
    from regard_fast.fused_rows import op
    from regard_fast.fused_rows.layout import Stages

    batch, length, dim, heads = sizes
    narrow = torch.bfloat16 if device == "cuda" else torch.float32
    options = op.RowOptions(True, True, 3, "gelu", [0.1] * 3, [1e-5] * 2, 1, heads, narrow)
    x = torch.randn(batch, length, dim, device=device)
    mixed = torch.randn(batch, heads, length, dim // heads, device=device).to(narrow)
    pieces = [Stages(one, one, maps, dim, 4 * dim * one) for one, maps in ((False, 3), (True, 3), (True, 0))]
    weights = [torch.randn(shape, device=device).to(narrow) * 0.1 for shape in pieces[1].shapes()]
    seed = torch.tensor([3], device=device)
    last, middle, ys = op._forward(x, mixed, seed, weights, *options.listed())
    pulls = [torch.randn(one.shape, device=device).to(one.dtype) for one in ys]
    factors = op.Factors(pieces, x, narrow)
    factors.kept.zero_(), factors.sums.zero_()
    grads = x.new_empty(sum(torch.Size(shape).numel() for one in pieces for shape in one.shapes()))

    def backward() -> None:
        op.rows_back(x, pulls, x, mixed, seed, middle, last, weights, options, factors, 1)

    return {
        "forward": lambda: op._forward(x, mixed, seed, weights, *options.listed()),
        "backward": backward,
        "weights": lambda: factors.weight_gradients(grads),
    }


def compile_tuning(number: int, device: str) -> dict[str, Any]:
    """In a process of its own: compile the kernels of one case into Triton's cache."""
    from regard_fast.fused_rows import op

    sizes, tuning = tuning_cases(device)[number]
    vars(op.TUNING).update(tuning)
    for function in bound_piece(sizes, device).values():
        function()
    return {}


def timed_pieces(device: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Microseconds of the kernels for several sizes of blocks."""
    from regard_fast.fused_rows import op

    usual = dict(vars(op.TUNING))
    for sizes, tuning in tuning_cases(device):
        vars(op.TUNING).update(usual | tuning)
        row: dict[str, Any] = {"sizes": sizes, **tuning}
        try:
            for name, function in bound_piece(sizes, device).items():
                row[f"{name}_us"] = round(replayed_us(function, device), 2)
        except Exception as trouble:
            row["error"] = f"{type(trouble).__name__}: {trouble}"[:300]
        rows.append(row)
        print(row, flush=True)
    vars(op.TUNING).update(usual)
    return rows

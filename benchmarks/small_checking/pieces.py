"""Row-wise pieces of small models, and attention over few keys, against float64 and beside torch in bf16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

KINDS = ((False, False, 3), (True, True, 3), (True, True, 0), (True, False, 2))
# Batch, length, width, outputs, and whether the logits are those of the mean of all rows.
HEADS = (
    (32, 64, 128, 67, False),
    (5, 13, 256, 131, False),
    (3, 7, 64, 307, False),
    (32, 8, 128, 10, True),
    (32, 64, 128, 10, True),
)
SHORT = ((64, 64, True), (16, 8, False), (8, 16, False), (4, 36, False))  # queries, keys, causal


def piece(kind: tuple[bool, bool, int], sizes: tuple[int, int, int, int], device: str) -> Any:
    """One set of stages: a function that runs it by some way, in some dtype, forward and backward."""
    from regard_fast.fused_rows import op, plain
    from regard_fast.fused_rows.layout import Stages

    (out, feed, maps), (batch, length, dim, heads) = kind, sizes
    stages = Stages(out, feed, maps, dim, 4 * dim if feed else 0)
    torch.manual_seed(1)
    exact = [torch.randn(shape, dtype=torch.float64, device=device) * shape[-1] ** -0.5 for shape in stages.shapes()]
    x = torch.randn(batch, length, dim, dtype=torch.float64, device=device)
    mixed = torch.randn(batch, heads, length, dim // heads, dtype=torch.float64, device=device)
    seed = torch.tensor([987654321987], device=device)
    rates, eps = [0.1, 0.2, 0.1], [1e-5, 1e-5]
    shape = (batch, heads, length, dim // heads)
    pulls = [torch.randn_like(x)] * bool(out or feed) + [
        torch.randn(shape, dtype=torch.float64, device=device) for _ in range(maps)
    ]

    def run(way: str) -> list[torch.Tensor]:
        wide = torch.float64 if way == "truth" else torch.float32
        weights = [one.to(wide).requires_grad_() for one in exact]
        rows, narrow = x.to(wide).requires_grad_(), torch.bfloat16 if device == "cuda" else torch.float32
        inner = mixed.to(wide if way == "truth" else narrow).requires_grad_()
        if way == "kernels":
            options = op.RowOptions(out, feed, maps, "gelu", rates, eps, 1, heads, narrow)
            last, ys = op.run(rows, inner if out else None, seed, weights, options)
            found = [*([last] if out or feed else []), *ys]
        else:
            with torch.autocast(device, torch.bfloat16, enabled=way == "torch"):
                found = plain.rows(
                    rows, inner if out else None, seed, weights, stages, "gelu", rates, eps, 1, [heads] * maps
                )
        ends = [rows, *([inner] if out else []), *weights]
        grads = torch.autograd.grad(found, ends, [pull.to(one.dtype) for pull, one in zip(pulls, found, strict=True)])
        return [*found, *grads]

    return run


def piece_cases(device: str) -> list[tuple[Any, Any]]:
    """Stages and sizes to check."""
    if device == "cpu":
        return [(kind, (2, 3, 32, 2)) for kind in KINDS]
    return [*((kind, (32, 64, 128, 4)) for kind in KINDS), (KINDS[1], (3, 7, 64, 2)), (KINDS[1], (5, 13, 256, 8))]


def checked_piece(number: int, device: str) -> dict[str, Any]:
    """The largest relative error of outputs and gradients of one piece, beside that of torch in bf16."""
    kind, sizes = piece_cases(device)[number]
    run = piece(kind, sizes, device)
    truth = run("truth")

    def off(way: str) -> float:
        found = zip(run(way), truth, strict=True)
        return max(float((mine.detach().double() - one.detach()).norm() / one.detach().norm()) for mine, one in found)

    again = all(torch.equal(a, b) for a, b in zip(run("kernels"), run("kernels"), strict=True))
    mine, usual = off("kernels"), off("torch")
    right = mine < 1.5 * usual + 1e-3 and again
    return {"kind": kind, "sizes": sizes, "kernels": mine, "torch bf16": usual, "repeats": again, "right": right}


def checked_short(number: int, device: str) -> dict[str, Any]:
    """The largest relative error of attention over few keys and its gradients, beside that of torch in bf16."""
    from regard_fast.fused_rows.short_attention import PlainAttention, plain

    queries, keys, causal = SHORT[number]
    torch.manual_seed(2)
    batch = 32 if device == "cuda" else 2
    exact = [
        torch.randn(batch, n, 4, 32, dtype=torch.float64, device=device).transpose(1, 2) for n in (queries, keys, keys)
    ]
    pull = torch.randn_like(exact[0])
    narrow = torch.bfloat16 if device == "cuda" else torch.float32

    def run(way: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        given = [one.to(dtype).requires_grad_() for one in exact]
        found = way(*given)
        return [found.detach(), *torch.autograd.grad(found, given, pull.to(dtype))]

    truth = run(lambda *given: plain(*given, causal, 0.2), torch.float64)

    def off(way: Callable[..., torch.Tensor]) -> float:
        pairs = zip(run(way, narrow), truth, strict=True)
        return max(float((mine.double() - one).norm() / one.norm()) for mine, one in pairs)

    kernels = PlainAttention(causal, 0.2).run
    mine, usual = off(kernels), off(lambda *given: plain(*given, causal, 0.2))
    again = all(torch.equal(a, b) for a, b in zip(run(kernels, narrow), run(kernels, narrow), strict=True))
    right = mine < 1.5 * usual + 1e-3 and again
    return {"short": SHORT[number], "kernels": mine, "torch bf16": usual, "repeats": again, "right": right}


def checked_head(number: int, device: str) -> dict[str, Any]:
    """The largest relative error of a loss without logits and its gradients, beside that of torch in bf16."""
    from regard_fast.fused_rows import head_op, plain

    batch, length, dim, outputs, pooled = HEADS[number]
    if device == "cpu":
        batch, length, dim = 2, 3, 32
    torch.manual_seed(3)
    exact = [
        torch.randn(shape, dtype=torch.float64, device=device) * shape[-1] ** -0.5
        for shape in ((batch, length, dim), (dim,), (dim,), (outputs, dim), (outputs,))
    ]
    targets = torch.randint(0, outputs, (batch,) if pooled else (batch, length), device=device)
    keep = torch.rand(targets.shape, device=device) < 0.9
    narrow = torch.bfloat16 if device == "cuda" else torch.float32

    def run(way: str) -> list[torch.Tensor]:
        rows, *weights = [one.to(torch.float64 if way == "truth" else torch.float32).requires_grad_() for one in exact]
        if way == "kernels":
            options = head_op.HeadOptions(1e-5, 0.1, narrow)
            total, _, _ = head_op.run(rows, targets, keep, weights, options)
        else:
            with torch.autocast(device, torch.bfloat16, enabled=way == "torch"):
                total, _ = plain.head(rows, targets, keep, weights, 1e-5, 0.1)
        return [total.detach(), *torch.autograd.grad(total / 7, [rows, *weights])]

    truth = run("truth")

    def off(way: str) -> float:
        pairs = zip(run(way), truth, strict=True)
        return max(float((mine.double() - one).norm() / one.norm()) for mine, one in pairs)

    again = all(torch.equal(a, b) for a, b in zip(run("kernels"), run("kernels"), strict=True))
    mine, usual = off("kernels"), off("torch")
    right = mine < 1.5 * usual + 1e-3 and again
    return {"head": HEADS[number], "kernels": mine, "torch bf16": usual, "repeats": again, "right": right}

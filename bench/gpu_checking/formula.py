"""What the checks on a GPU compute: inputs, the arguments of `attend`, and the same formula in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import regard
from bench.cases.gpu.dot import CAUSAL, FULL
from bench.cases.gpu.host import PADDING
from bench.cases.gpu.structured import SPARSE, STRUCTURED, causal_mask
from bench.cases.gpu.work import Size

DEVICE = "cuda"
NAMES = ("window", "global", "documents", "alibi", "prefix")
OTHERS = {torch.float32: (64,), torch.float16: (40, 128), torch.bfloat16: (16, 256)}  # besides bfloat16 of 64 and 128
BOUNDS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


WORKS = {work.name: work for work in (*SPARSE, *STRUCTURED, PADDING)}
WORKS |= {"full": FULL, "causal": replace(CAUSAL, mask=causal_mask)}


def options(name: str, n: int, heads: int) -> dict[str, Any]:
    """The arguments of `attend` for a case."""
    return dict(WORKS[name].options(Size(1, heads, n, 0), DEVICE))


def rows(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 7) -> list[Tensor]:
    """Queries, keys and values that require a gradient, and a gradient of the output."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    made = [torch.randn(*shape, device=DEVICE, generator=generator).to(dtype) for _ in range(4)]
    return [*[one.requires_grad_() for one in made[:3]], made[3]]


def trained(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, **options: Any) -> list[Tensor]:
    """Output and gradients."""
    output = regard.attend(q, k, v, impl="triton", **options)
    return [output.detach(), *torch.autograd.grad(output, (q, k, v), grad)]


def error(name: str, found: list[Tensor], given: list[Tensor], head: int) -> float:
    """The largest relative error of one head of the last entry, from the formula in float64.

    What is visible and how scores are changed is said once more by the functions that FlexAttention is given.
    """
    q, k, v, grad = given
    work, size = WORKS[name], Size(*q.shape)
    exact = [part[-1, head].detach().double().requires_grad_() for part in (q, k, v)]
    entry, row = len(q) - 1, torch.arange(size.length, device=DEVICE)[:, None]
    column = row.T
    score = exact[0] @ exact[1].mT / size.width**0.5
    if work.score is not None:
        score = work.score(size, DEVICE)(score, entry, head, row, column)
    if work.mask is not None:
        score = score.masked_fill(~work.mask(size, DEVICE)(entry, head, row, column), -torch.inf)
    output = score.softmax(-1) @ exact[2]
    true = [output.detach(), *torch.autograd.grad(output, exact, grad[-1, head].double())]
    errors = [float((a[-1, head].double() - b).norm() / b.norm()) for a, b in zip(found, true, strict=True)]
    return max(one if one == one else 9.0 for one in errors)


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """Whether all bits are equal."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def configurations() -> list[tuple[str, int, torch.dtype, int]]:
    """Mask, width, dtype and length of every comparison with float64."""
    found = [(name, d, torch.bfloat16, 1009) for name in NAMES for d in (64, 128)]
    found += [(name, 64, torch.bfloat16, 1009) for name in ("causal", "full", "padding", "softcap")]
    found += [(name, 64, torch.bfloat16, 4096) for name in NAMES]
    for dtype, widths in OTHERS.items():
        found += [(name, d, dtype, 777) for d in widths for name in ("window", "global")]
    return found

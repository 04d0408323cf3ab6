"""What the checks on a GPU compute: inputs, the arguments of `attend`, and the same formula in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import regard
from regard import biases, masks, scores

DEVICE, WINDOW, GLOBALS, CAP = "cuda", 512, 16, 30.0
NAMES = ("window", "global", "documents", "alibi", "prefix")
OTHERS = {torch.float32: (64,), torch.float16: (40, 128), torch.bfloat16: (16, 256)}  # besides bfloat16 of 64 and 128
BOUNDS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def document_ids(n: int) -> Tensor:
    """Eight documents of unequal lengths."""
    shares = torch.tensor([0.025, 0.1, 0.2, 0.05, 0.25, 0.075, 0.15, 0.15])
    ends = (shares.cumsum(0) * n).round().long()
    return torch.bucketize(torch.arange(n), ends, right=True).clamp(max=7).to(DEVICE)


def options(name: str, n: int, heads: int) -> dict[str, Any]:
    """The arguments of `attend` for a case."""
    window = masks.window(WINDOW - 1, 0)
    return {
        "full": lambda: {},
        "causal": lambda: {"mask": masks.causal()},
        "window": lambda: {"mask": window},
        "global": lambda: {"mask": window | masks.global_tokens(range(GLOBALS))},
        "documents": lambda: {"mask": masks.causal() & masks.documents(document_ids(n))},
        "alibi": lambda: {"mask": masks.causal(), "bias": biases.alibi(heads)},
        "prefix": lambda: {"mask": masks.causal() | masks.prefix(n // 4)},
        "softcap": lambda: {"mask": masks.causal(), "score": scores.softcap(CAP)},
        "padding": lambda: {"mask": masks.lengths(torch.tensor([n - n // 3], device=DEVICE))},
    }[name]()


def visible(name: str, n: int, q: Tensor, k: Tensor) -> Tensor:
    """The same masks written down once more."""
    ids = document_ids(n)
    causal = q >= k
    near = causal & (q - k < WINDOW)
    return {
        "full": lambda: (q >= 0) & (k >= 0),
        "window": lambda: near,
        "global": lambda: near | (q < GLOBALS) | (k < GLOBALS),
        "documents": lambda: causal & (ids[q] == ids[k]),
        "prefix": lambda: causal | (k < n // 4),
        "padding": lambda: (q >= 0) & (k < n - n // 3),
    }.get(name, lambda: causal)()


def slopes(heads: int) -> Tensor:
    """How fast ALiBi falls in each head."""
    return torch.tensor([2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads)], device=DEVICE)


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
    """The largest relative error of one head of the last entry, from the formula in float64."""
    q, k, v, grad = given
    n, d = q.shape[2:]
    exact = [part[-1, head].detach().double().requires_grad_() for part in (q, k, v)]
    row, column = torch.arange(n, device=DEVICE)[:, None], torch.arange(n, device=DEVICE)[None]
    score = exact[0] @ exact[1].mT / d**0.5
    if name == "softcap":
        score = CAP * torch.tanh(score / CAP)
    if name == "alibi":
        score = score - slopes(q.shape[1])[head].double() * (row - column).abs()
    output = score.masked_fill(~visible(name, n, row, column), -torch.inf).softmax(-1) @ exact[2]
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

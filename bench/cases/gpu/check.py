"""Right before fast: what is to be timed, beside the formula in float64.

A whole batch of long sequences would not fit in float64, so the last entry of the batch is compared, in its first and
its last head, over all rows: errors at the ends of ranges (the last block, the last head's slope) show there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import regard
from regard_workbench.bench.case import Wrong

Options = Mapping[str, Any]
attend: Callable[..., Any] = regard.attend  # returns one tensor unless return_logsumexp is given

# Largest ‖found − wanted‖ / ‖wanted‖: bfloat16 operands give 1e-3 to 1e-2, float32 far less, tf32 about 3e-4.
LIMITS = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4, torch.float64: 1e-10}


def distance(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖ in float64; of nothing but zeros, ‖found‖."""
    found, wanted = found.detach().double(), wanted.detach().double()
    size, apart = float(wanted.norm()), float((found - wanted).norm())
    return apart / size if size else apart


def require(distances: Mapping[str, float], limit: float) -> None:
    """Raise `Wrong` unless every distance is within the limit; NaN never is."""
    bad = {name: far for name, far in distances.items() if not far <= limit}
    if bad:
        told = ", ".join(f"{name} {far:.2g}" for name, far in bad.items())
        raise Wrong(f"not timed, because it is wrong: relative error of {told}; at most {limit:g} is allowed.")


def attention(
    inputs: Sequence[Tensor], options: Options, one_head: Callable[[int], Options], upstream: Tensor | None = None
) -> dict[str, float]:
    """How far outputs (and gradients, where `upstream` is given) are from the float64 reference; raises `Wrong`.

    `options` are those of the call, `one_head(h)` those of its head h alone.
    """
    query, key, value = inputs
    leaves = [tensor.detach().requires_grad_(upstream is not None) for tensor in inputs]
    output: Tensor = attend(*leaves, **options)
    found = {"output": output.detach()}
    if upstream is not None:
        grads = torch.autograd.grad(output, leaves, upstream)
        found |= dict(zip(("query's gradient", "key's gradient", "value's gradient"), grads, strict=True))
    heads = query.shape[1]
    shared = heads // key.shape[1]
    worst: dict[str, float] = {}
    for head in sorted({0, heads - 1}) if shared == 1 else [heads - 1]:
        wanted = _reference(query, key, value, head, shared, one_head(head), upstream)
        for name, exact in wanted.items():
            if name in ("key's gradient", "value's gradient") and shared > 1:
                continue  # other heads add to them
            own = head if name in ("output", "query's gradient") else head // shared
            worst[name] = _worse(worst.get(name, 0.0), distance(found[name][-1:, own : own + 1], exact))
    require(worst, LIMITS[query.dtype])
    return worst


def _reference(
    query: Tensor, key: Tensor, value: Tensor, head: int, shared: int, options: Options, upstream: Tensor | None
) -> dict[str, Tensor]:
    places = (head, head // shared, head // shared)
    leaves = [
        tensor.detach()[-1:, place : place + 1].double().requires_grad_(upstream is not None)
        for tensor, place in zip((query, key, value), places, strict=True)
    ]
    output: Tensor = attend(*leaves, impl="reference", **options)
    found = {"output": output.detach()}
    if upstream is not None:
        grads = torch.autograd.grad(output, leaves, upstream[-1:, head : head + 1].double())
        found |= dict(zip(("query's gradient", "key's gradient", "value's gradient"), grads, strict=True))
    return found


def _worse(one: float, other: float) -> float:
    return other if not other <= one else one

"""Summaries on a GPU against weights in float64: masks, widths, more queries than one launch takes, equal bits."""

from __future__ import annotations

from typing import Any

import torch

import regard
from bench.gpu_checking.formula import options, rows

TOP = 8
CASES = (
    *[(name, 64, 1009) for name in ("full", "causal", "window", "documents", "global", "alibi", "softcap")],
    ("full", 128, 1009),
    ("causal", 256, 777),
    ("full", 40, 777),
    ("window", 64, 9001),
    ("full", 128, 9001),
)


def summarized(name: str, d: int, n: int) -> dict[str, Any]:
    """Relative errors of one head, and whether a second summary has the same bits."""
    q, k, _, _ = (part.detach() for part in rows(1, 2, n, d))
    asked = options(name, n, 2)
    found, again = (regard.summarize(q, k, top=TOP, **asked) for _ in range(2))
    if name == "alibi":  # one head alone would be given another slope
        weights = regard.weights(q.double(), k.double(), **asked)[:, -1:]
    else:
        weights = regard.weights(q[:, -1:].double(), k[:, -1:].double(), **asked)
    top = weights.topk(TOP, -1).values
    chosen = weights.gather(-1, found.top_keys[:, -1:].clamp(min=0))
    pairs = {
        "received": (found.received[:, -1:], weights.mean(-2)),
        "entropy": (found.entropy[:, -1:], -torch.xlogy(weights, weights).sum(-1)),
        "top weights": (found.top_weights[:, -1:], top),
        "top keys": (chosen.where(top > 0, 0.0), top),
    }
    errors = {part: float((ours.double() - true).norm() / true.norm()) for part, (ours, true) in pairs.items()}
    names = ("received", "entropy", "top_weights", "top_keys", "logsumexp")
    equal = all(torch.equal(getattr(found, part), getattr(again, part)) for part in names)
    return {"ok": equal and all(off < 1e-3 for off in errors.values()), "errors": errors, "same_bits": equal}

"""Which implementation is fastest on a GPU, by a table that was measured and checked in.

`measured.json` holds one row for each cell of a small grid of requests, with milliseconds for everyone who ran it and
was right; `python -m regard.benchmarks.choose` makes it. A request takes the row that is most like it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from regard.core.request import Request
from regard.masks.positional import Causal, Full
from regard.scores.dot import Softcap

_TABLE = Path(__file__).parent / "measured.json"
_ROWS: list[dict[str, Any]] = json.loads(_TABLE.read_text()) if _TABLE.exists() else []
_PLAIN = ("sdpa", "triton", "tiled", "reference")  # where torch's own kernels take a mask as it is
_OTHERWISE = ("triton", "sdpa", "tiled", "reference")
FEW = 16  # queries that one tile of a kernel holds


def kind_of(request: Request) -> str:
    """What a row of the table calls a request like this."""
    if isinstance(request.score, Softcap):
        return "softcap"
    if request.bias is not None:
        return "bias"
    if request.mask is None or isinstance(request.mask, Full):
        return "full"
    return "causal" if isinstance(request.mask, Causal) else "window"


def order(request: Request) -> tuple[tuple[str, ...], str]:
    """The implementations to ask, fastest first, and what that is based on."""
    kind = kind_of(request)
    default = _PLAIN if kind in ("full", "causal") else _OTHERWISE
    if request.sizes[2] <= FEW and not request.needs_grad:
        return default, ""  # a step of decoding: what matters is to start quickly
    row = _nearest(
        "float32" if request.query.dtype == torch.float32 else "bfloat16", kind, request.needs_grad,
        request.query.shape[3], max(1, request.sizes[3]),
    )  # fmt: skip
    if row is None:
        return default, ""
    times: dict[str, float] = {}
    for name, spent in row["ms"].items():
        family = name.split("-")[0]
        times[family] = min(spent, times.get(family, math.inf))
    fastest = sorted(times, key=lambda name: times[name])
    told = ", ".join(f"{name} {times[name]:.3g} ms" for name in fastest)
    basis = f"measured on an {row['device'].upper()} for {row['dtype']}, {kind}, n {row['n']}, d {row['d']}: {told}"
    return (*fastest, *[name for name in default if name not in fastest]), basis


def _nearest(dtype: str, kind: str, grad: bool, width: int, length: int) -> dict[str, Any] | None:
    """The row of this dtype and kind whose width and length are nearest, in powers of two."""

    def distance(row: dict[str, Any]) -> float:
        return abs(math.log2(row["d"] / width)) * 4 + abs(math.log2(row["n"] / length))

    alike = [
        row for row in _ROWS if (row["dtype"], row["mask"], row["grad"]) == (dtype, kind, grad) and row["ms"]
    ]
    return min(alike, key=distance, default=None)

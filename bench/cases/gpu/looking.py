"""Looking at the weights of a long sequence: a summary of every row, beside a forward pass that keeps none of them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import regard
from bench.cases.gpu import check
from bench.cases.gpu.events import compared, extra_bytes, side_by_side
from bench.cases.gpu.work import LONG_128, Size, inputs
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import TimedCall

TOP = 8
FORWARD = "attend, forward"


def _summary(query: Tensor, key: Tensor) -> TimedCall:
    return lambda: regard.summarize(query, key, top=TOP)


def checked(query: Tensor, key: Tensor) -> dict[str, float]:
    """All numbers of the last head against the weights in float64."""
    found = regard.summarize(query, key, top=TOP)
    last = slice(-1, None)
    queries, keys = query[last, last].double(), key[last, last].double()
    weights = regard.weights(queries, keys)
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    top = weights.topk(min(TOP, weights.shape[-1]), -1).values
    chosen = weights.gather(-1, found.top_keys[last, last].clamp(min=0))
    errors = {
        "entropy": check.distance(found.entropy[last, last], -torch.xlogy(weights, weights).sum(-1)),
        "received": check.distance(found.received[last, last], weights.mean(-2)),
        "top weights": check.distance(found.top_weights[last, last], top),
        "weights of the top keys": check.distance(chosen, top),
        "log-sum-exp": check.distance(found.logsumexp[last, last], scores.logsumexp(-1)),
    }
    check.require(errors, 1e-3)  # computed in float32 whatever the inputs are, which float64 takes as they are
    return errors


def time(setting: Setting, size: Size = LONG_128, dtype: torch.dtype = torch.bfloat16) -> Measurement:
    """The time of a summary divided by that of one forward pass."""
    query, key, value = inputs(size, setting.device, dtype)
    errors = checked(query, key)
    times = side_by_side({"ours": _summary(query, key), FORWARD: lambda: regard.attend(query, key, value)}, setting)
    impl = regard.explain(query, key, value).impl
    return compared(times, [FORWARD], faster=False, impl=f"forward: {impl}", details={"errors": errors})


def growth(setting: Setting, size: Size = LONG_128, dtype: torch.dtype = torch.bfloat16) -> Measurement:
    """Extra memory of a summary, divided by that at half the length."""
    used = []
    for length in (size.length // 2, size.length):
        query, key, _ = inputs(Size(size.batch, size.heads, length, size.width), setting.device, dtype)
        used.append(extra_bytes(_summary(query, key), setting.device) / 2**20)
    found = used[1] / used[0] if used[0] else 0.0
    return Measurement(found, found, found, 1, details={"mib": used[1], "mib_at_half_the_length": used[0]})


def compiled(setting: Setting) -> None:
    """Have the kernels compiled."""
    query, key, _ = inputs(LONG_128, setting.device, torch.bfloat16)
    _summary(query, key)()


_WORK = f"summarize(top={TOP}), {LONG_128}, bf16"
case("summarize-time-16k", work=_WORK, peer=FORWARD, unit="× time", at_most=1.9, device="cuda", ahead=compiled)(
    partial(time)
)
case(
    "summarize-memory-16k",
    work=_WORK,
    peer="itself at half the length",
    unit="× extra memory",
    at_most=2.2,
    device="cuda",
)(partial(growth))

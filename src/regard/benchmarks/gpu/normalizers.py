"""Other normalisers by our kernels beside softmax by our kernels: fused, so that memory is linear."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import regard
from regard import masks
from regard.benchmarks.case import Measurement, Setting, case
from regard.benchmarks.gpu import check
from regard.benchmarks.gpu.compare import RANKS
from regard.benchmarks.gpu.events import compared, side_by_side
from regard.benchmarks.gpu.work import SHORT_64, SHORT_128, Size, gradient, inputs, timed_call

BARS = {"sigmoid": 1.05, "entmax15": 2.5}  # × the time of softmax
SOFTMAX, TILED = "softmax by our kernels", "tiled"


def _call(impl: str, normalize: str) -> Callable[..., Tensor]:
    return partial(regard.attend, impl=impl, normalize=normalize, mask=masks.causal())  # type: ignore[return-value]


def measured(
    setting: Setting, name: str, size: Size, train: bool, dtype: torch.dtype = torch.bfloat16
) -> Measurement:
    """The time over that of softmax, under a causal mask."""
    impl = "triton" if setting.device == "cuda" else "tiled"
    tensors = inputs(size, setting.device, dtype, grad=train)
    upstream = gradient(size, setting.device, dtype) if train else None
    options = {"normalize": name, "mask": masks.causal(), "impl": impl}
    errors = check.attention(
        tensors, options, lambda head: {"normalize": name, "mask": masks.causal()}, upstream
    )
    sides = {
        label: timed_call(_call(impl, normalize), tensors, upstream)
        for label, normalize in (("ours", name), (SOFTMAX, "softmax"))
    }
    if not train and size.width <= 64:  # what `auto` would take without these kernels; it is slow
        sides[TILED] = timed_call(_call("tiled", name), tensors, None)
    times = side_by_side(sides, setting)
    return compared(times, [SOFTMAX], faster=False, impl=impl, details={"errors": errors})


def compiled(setting: Setting, name: str, size: Size, train: bool) -> None:
    """Have the kernels compiled."""
    tensors = inputs(size, setting.device, torch.bfloat16, grad=train)
    upstream = gradient(size, setting.device, torch.bfloat16) if train else None
    timed_call(_call("triton", name), tensors, upstream)()


for _name, _bar in BARS.items():
    for _size in (SHORT_128, SHORT_64):
        for _ending, _words in (("forward", "forward"), ("train", "forward+backward")):
            _train = _ending == "train"
            case(f"{_name}-{_size.label}-{_ending}", work=f"{_name}, causal, {_size}, bf16, {_words}", peer=SOFTMAX,
                 unit="× time", at_most=_bar, device="cuda", rank=RANKS[_size.label],
                 ahead=partial(compiled, name=_name, size=_size, train=_train))(
                partial(measured, name=_name, size=_size, train=_train)
            )  # fmt: skip

"""Other normalisers by our kernels beside softmax by our kernels: fused, so that memory is linear."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import regard
from bench.cases.gpu import check
from bench.cases.gpu.compare import PASSES, RANKS
from bench.cases.gpu.events import compared, extra_bytes, side_by_side
from bench.cases.gpu.work import SHORT_64, SHORT_128, Size, gradient, inputs, timed_call
from regard import masks
from regard_workbench.bench.case import Measurement, Setting, case

BARS = {"sigmoid": 1.05, "entmax15": 2.5}  # × the time of softmax
SOFTMAX, TILED = "softmax by our kernels", "tiled"
ALL = ("sigmoid", "entmax15", "sparsemax", "hard")
FEW_128, LONG_64 = Size(1, 16, 4096, 128, "4k-d128"), Size(1, 4, 16384, 64)


def _call(impl: str, normalize: str) -> Callable[..., Tensor]:
    return partial(regard.attend, impl=impl, normalize=normalize, mask=masks.causal())  # type: ignore[return-value]


def measured(
    setting: Setting, name: str, size: Size, train: bool, dtype: torch.dtype = torch.bfloat16, against: str = SOFTMAX
) -> Measurement:
    """The time over that of softmax, or how many times faster than `tiled`, under a causal mask."""
    impl = "triton" if setting.device == "cuda" else "tiled"
    tensors = inputs(size, setting.device, dtype, grad=train)
    upstream = gradient(size, setting.device, dtype) if train else None
    options = {"normalize": name, "mask": masks.causal(), "impl": impl}
    errors = check.attention(tensors, options, lambda head: {"normalize": name, "mask": masks.causal()}, upstream)
    sides = {
        label: timed_call(_call(impl, normalize), tensors, upstream)
        for label, normalize in (("ours", name), (SOFTMAX, "softmax"))
    }
    if against == TILED or (not train and size.width <= 64):  # what `auto` would take without these kernels; it is slow
        sides[TILED] = timed_call(_call("tiled", name), tensors, upstream)
    times = side_by_side(sides, setting)
    return compared(times, [against], faster=against == TILED, impl=impl, details={"errors": errors})


def growth(setting: Setting, size: Size = LONG_64, dtype: torch.dtype = torch.bfloat16) -> Measurement:
    """Extra memory of a training call over that at half the length: the largest of all normalisers."""
    impl = "triton" if setting.device == "cuda" else "tiled"
    used: dict[str, list[float]] = {name: [] for name in ALL}
    for name in ALL:
        for length in (size.length // 2, size.length):
            here = Size(size.batch, size.heads, length, size.width)
            tensors = inputs(here, setting.device, dtype, grad=True)
            call = partial(_trained, _call(impl, name), tensors, gradient(here, setting.device, dtype))
            used[name].append(extra_bytes(call, setting.device) / 2**20)
    grown = {name: long / short if short else 0.0 for name, (short, long) in used.items()}
    found = max(grown.values())
    return Measurement(found, found, found, len(ALL), impl=impl, details={"mib": used, "times": grown})


def _trained(attend: Callable[..., Tensor], tensors: list[Tensor], upstream: Tensor) -> object:
    """`hard` has no gradient of queries and keys."""
    return torch.autograd.grad(attend(*tensors), tensors, upstream, allow_unused=True)


def compiled(setting: Setting, name: str, size: Size, train: bool) -> None:
    """Have the kernels compiled."""
    tensors = inputs(size, setting.device, torch.bfloat16, grad=train)
    upstream = gradient(size, setting.device, torch.bfloat16) if train else None
    timed_call(_call("triton", name), tensors, upstream)()


for _name, _bar in BARS.items():
    for _size in (SHORT_128, SHORT_64):
        for _ending, _words in PASSES.items():
            _train = _ending == "train"
            case(
                f"{_name}-{_size.label}-{_ending}",
                work=f"{_name}, causal, {_size}, bf16, {_words}",
                peer=SOFTMAX,
                unit="× time",
                at_most=_bar,
                device="cuda",
                rank=RANKS[_size.label],
                ahead=partial(compiled, name=_name, size=_size, train=_train),
            )(partial(measured, name=_name, size=_size, train=_train))

for _ending, _words in PASSES.items():
    _train = _ending == "train"
    case(
        f"sparsemax-4k-d128-{_ending}",
        work=f"sparsemax, causal, {FEW_128}, bf16, {_words}",
        peer=TILED,
        unit="× faster",
        at_least=1.0,
        device="cuda",
        rank=RANKS[FEW_128.label],
        ahead=partial(compiled, name="sparsemax", size=FEW_128, train=_train),
    )(partial(measured, name="sparsemax", size=FEW_128, train=_train, against=TILED))
case(
    "normalizers-memory",
    work=f"{', '.join(ALL)}, causal, {LONG_64}, bf16, forward+backward",
    device="cuda",
    peer="itself at half the length",
    unit="× extra memory",
    at_most=2.2,
)(partial(growth))

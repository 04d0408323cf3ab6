"""The additive score on a GPU: without an n×n×d array it is bound by special functions, with one by memory."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import regard
from bench.cases.additive import plain_formula
from bench.cases.gpu import check
from bench.cases.gpu.events import alone, compared, extra_bytes, side_by_side
from bench.cases.gpu.peers import many_shapes
from bench.cases.gpu.work import Size, timed_call
from regard import scores
from regard_workbench.bench.case import Ahead, Measurement, Setting, case

LONG, MANY = Size(1, 1, 4096, 128), Size(64, 1, 256, 256)
ROWS = 256  # queries that are checked, with all keys and all gradients
EAGER, COMPILED = "eager", "torch.compile"
NAMES = ("query", "key", "value", "weight")


def _leaves(size: Size, device: str) -> tuple[list[Tensor], Tensor]:
    """Query, key, value, the score's weight; and the gradient of the output."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (size.batch, size.heads, size.length, size.width)
    made = [torch.randn(shape, generator=generator, device=device) for _ in range(4)]
    weight = torch.randn(size.width, generator=generator, device=device)
    return [*[tensor.requires_grad_() for tensor in made[:3]], weight.requires_grad_()], made[3]


def _ours(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    found = regard.attend(query, key, value, score=scores.additive(weight))
    assert isinstance(found, Tensor)
    return found


def checked(leaves: list[Tensor], upstream: Tensor) -> dict[str, float]:
    """Outputs of the last rows, and every gradient of a loss that reads those rows alone, against float64."""
    rows = slice(-ROWS, None)
    told = torch.zeros_like(upstream)
    told[-1:, :, rows] = upstream[-1:, :, rows]
    output = _ours(*leaves)
    found = torch.autograd.grad(output, leaves, told)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    query, key, value, weight = exact
    part = regard.attend(query[-1:, :, rows], key[-1:], value[-1:], score=scores.additive(weight), impl="reference")
    assert isinstance(part, Tensor)
    wanted = torch.autograd.grad(part, exact, told[-1:, :, rows].double())
    errors = {"output": check.distance(output[-1:, :, rows], part)}
    errors |= {f"{n}'s gradient": check.distance(a, b) for n, a, b in zip(NAMES, found, wanted, strict=True)}
    check.require(errors, check.LIMITS[torch.float32])
    return errors


def measured(setting: Setting, size: Size, train: bool, against_compiled: bool = False) -> Measurement:
    """Milliseconds of ours, or how many times faster than the compiled formula."""
    leaves, upstream = _leaves(size, setting.device)
    errors = checked(leaves, upstream)
    many_shapes()
    sides = {"ours": _ours, EAGER: plain_formula, COMPILED: torch.compile(plain_formula, dynamic=False)}
    times = side_by_side(
        {name: timed_call(side, leaves, upstream if train else None) for name, side in sides.items()}, setting
    )
    impl = regard.explain(*leaves[:3], score=scores.additive(leaves[3])).impl
    details = {"errors": errors, "dtype": "float32"}
    if against_compiled:
        return compared(times, [COMPILED], faster=True, impl=impl, details=details)
    return alone(times, impl=impl, scale=1e3, details=details)


def memory(setting: Setting, size: Size = LONG) -> Measurement:
    """Peak memory of a forward and backward pass beyond the inputs, in MiB."""
    leaves, upstream = _leaves(size, setting.device)
    errors = checked(leaves, upstream)
    found = extra_bytes(timed_call(_ours, leaves, upstream), setting.device) / 2**20
    impl = regard.explain(*leaves[:3], score=scores.additive(leaves[3])).impl
    return Measurement(found, found, found, 1, impl=impl, details={"errors": errors})


def compiled(setting: Setting, size: Size, train: bool, ours: bool) -> None:
    """Have our kernels or the formula compiled, as `measured` will call them."""
    leaves, upstream = _leaves(size, setting.device)
    side = _ours if ours else torch.compile(plain_formula, dynamic=False)
    timed_call(side, leaves, upstream if train else None)()


def _jobs(size: Size, train: bool) -> tuple[Ahead, ...]:
    return tuple(partial(compiled, size=size, train=train, ours=ours) for ours in (True, False))


_PEERS = f"{EAGER} / {COMPILED}"
_WORK = f"additive, {LONG}, fp32, "
for _ending, _words, _bar in (("forward", "forward", 0.8), ("train", "forward+backward", 3.6)):
    _train = _ending == "train"
    case(
        f"additive-4k-{_ending}",
        work=_WORK + _words,
        peer=_PEERS,
        unit="ms",
        at_most=_bar,
        device="cuda",
        ahead=_jobs(LONG, _train),
    )(partial(measured, size=LONG, train=_train))
case(
    "additive-4k-memory",
    work=_WORK + "forward+backward",
    peer="(torch.compile: 8.3 GB)",
    unit="MiB extra",
    at_most=64,
    device="cuda",
)(memory)
case(
    "additive-many-train",
    work=f"additive, {MANY}, fp32, forward+backward",
    peer=COMPILED,
    unit="× faster",
    at_least=3.3,
    device="cuda",
    ahead=_jobs(MANY, True),
)(partial(measured, size=MANY, train=True, against_compiled=True))

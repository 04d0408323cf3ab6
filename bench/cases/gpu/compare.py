"""One attention by us and by every peer: checked, then timed alternately."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

import regard
from bench.cases.gpu import check, peers
from bench.cases.gpu.events import compared, first_line, side_by_side
from bench.cases.gpu.work import Size, Work, gradient, inputs, timed_call
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import TimedCall

PASSES = {"forward": "forward", "train": "forward+backward"}
RANKS = {"4k-d128": 0, "16k-d128": 1, "4k-d64": 2, "16k-d64": 3}


def measured(
    setting: Setting, work: Work, size: Size, train: bool, faster: bool, dtype: torch.dtype = torch.bfloat16
) -> Measurement:
    """Our time against the best of the peers that the bar is set against."""
    device, begun = setting.device, time.perf_counter()
    tensors = inputs(size, device, dtype, grad=train)
    upstream = gradient(size, device, dtype) if train else None
    options = work.options(size, device)
    errors = check.attention(tensors, options, work.for_head(size, device), upstream)
    checked = time.perf_counter()
    calls: dict[str, TimedCall] = {"ours": timed_call(partial(_ours, options), tensors, upstream)}
    wrong: dict[str, str] = {}
    for name, peer in peers.of(work, size, device).items():
        given, came = tensors, upstream
        if name == peers.VARLEN:
            given = peers.flattened(tensors)
            came = None if upstream is None else peers.flattened([upstream])[0]
        try:
            _same(peer, given, tensors, options, size, name)
            calls[name] = timed_call(peer, given, came)
        except Exception as trouble:
            wrong[name] = first_line(trouble)
    prepared = time.perf_counter()
    times = side_by_side(calls, setting)
    spent = {"check": checked - begun, "peers": prepared - checked, "timing": time.perf_counter() - prepared}
    times = type(times)(times.seconds, {**times.refused, **wrong})
    details = {"errors": errors, "dtype": str(dtype).removeprefix("torch."), "spent": spent}
    impl = regard.explain(*tensors, **options).impl
    return compared(times, list(work.against), faster=faster, impl=impl, details=details)


def _ours(options: Mapping[str, Any], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    found = regard.attend(query, key, value, impl="auto", **options)
    assert isinstance(found, Tensor)
    return found


def _same(
    peer: Callable[..., Tensor],
    given: list[Tensor],
    tensors: list[Tensor],
    options: Mapping[str, Any],
    size: Size,
    name: str,
) -> None:
    """A peer that computes something else says nothing. Ours is known to be right by now."""
    with torch.no_grad() if not given[0].requires_grad else torch.enable_grad():
        theirs = peer(*given).detach()
    with torch.no_grad():
        wanted = _ours(options, *tensors)
    if name == peers.VARLEN:
        theirs = peers.unflattened(theirs, size)
    check.require({f"{name}'s output": check.distance(theirs, wanted)}, 2 * check.LIMITS[wanted.dtype])


def compiled(setting: Setting, work: Work, size: Size, train: bool, ours: bool) -> None:
    """Compile our kernels for this work, or FlexAttention's, as `measured` calls them."""
    tensors = inputs(size, setting.device, torch.bfloat16, grad=train)
    upstream = gradient(size, setting.device, torch.bfloat16) if train else None
    side = partial(_ours, work.options(size, setting.device)) if ours else peers.flex(work, size, setting.device)
    timed_call(side, tensors, upstream)()


def register(
    work: Work,
    size: Size,
    *,
    bar: float,
    faster: bool,
    train_bar: float | None = None,
    remarks: Mapping[str, str] | None = None,
    by_name: bool = False,
) -> None:
    """Two cases: the forward pass alone, and with the gradients of query, key and value, which may have another bar.

    `remarks` are words after the work of each pass.
    """
    rank = RANKS.get(size.label, 0)
    for ending, words in PASSES.items():
        train = ending == "train"
        bar = train_bar if train and train_bar is not None else bar
        bars: dict[str, Any] = {"at_least": bar, "unit": "× faster"} if faster else {"at_most": bar, "unit": "× time"}
        text = f"{work.words}, {size}, bf16, {words}{(remarks or {}).get(ending, '')}"
        label = f"{work.name}-{size.label}-{ending}"
        job = partial(compiled, work=work, size=size, train=train)
        ahead = (partial(job, ours=True), partial(job, ours=False)) if work.mask is not None else ()
        case(
            label,
            work=text,
            peer=" / ".join(work.against),
            device="cuda",
            ahead=ahead,
            rank=rank,
            by_name=by_name,
            **bars,
        )(partial(measured, work=work, size=size, train=train, faster=faster))

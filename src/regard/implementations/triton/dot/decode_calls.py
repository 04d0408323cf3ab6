"""Repeated calls of the kernels for decoding: one or two launches by arguments that are kept, and nothing else.

`dispatch/repeated_calls.py` finds these functions. For one token over a cache of thousands of keys the kernels take
a few microseconds, less than torch's own function takes to start its kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.formula.request import FEW_QUERIES, Request
from regard.implementations.triton.dot.decode import (
    FAR,
    STRIDES,
    DecodeLaunch,
    count_splits,
    launches,
    stride_numbers,
    wide_strides,
)
from regard.implementations.triton.launch.block_sizes import INTERPRETED, SMALL
from regard.implementations.triton.launch.launching import Launch, aligned_rows, launch_again, prototype
from regard.implementations.triton.launch.raw_launches import watched
from regard.masks.from_tensors import LengthsMask
from regard.masks.positional import CausalMask, FullMask, WindowMask
from regard.normalizers import Softmax
from regard.scores.dot import DotScore, ScaledDotScore

_empty_like = torch.empty_like
_SCORES = (DotScore, ScaledDotScore)
_MOST_LAYOUTS = 256  # of one signature: a cache that grows has another one in each step


def bind(request: Request) -> DecodeCalls | None:
    """How to run calls with the signature of this request again; None where they need one."""
    plain = (
        type(request.score) in _SCORES
        and isinstance(request.normalizer, Softmax)
        and request.sizes[2] <= FEW_QUERIES
        and request.bias is None
        and request.sink is None
        and request.dropout == 0
        and not request.needs_grad
        and not request.want_logsumexp
        and request.query.dtype != torch.float64
        and not (SMALL and request.query.dtype == torch.bfloat16)  # which it cannot multiply
    )
    reach = _reach(request)
    return DecodeCalls(request, reach) if plain and reach is not None else None


def _reach(request: Request) -> dict[str, Any] | None:
    """The numbers by which `launches` expresses a mask whatever the number of keys; None where there are none."""
    mask = request.mask
    if mask is None or isinstance(mask, FullMask):
        return {}
    if isinstance(mask, (CausalMask, WindowMask)):
        if mask.offset is not None or mask.align != "bottom-right":
            return None
        if isinstance(mask, CausalMask):
            return {"after": 0}
        return {"before": min(mask.before, FAR), "after": min(mask.reach, FAR)}
    one_each = isinstance(mask, LengthsMask) and mask.query_lengths is None
    if one_each and mask.key_lengths.shape[0] == request.sizes[0]:  # type: ignore[attr-defined]
        return {} if mask.tensors[0].dtype in (torch.int32, torch.int64) else None
    return None


class DecodeLaunches(NamedTuple):
    """The launches for rows that lie in memory in one way."""

    first: Launch
    second: Launch | None
    scratch: Tensor  # a prototype of what both need: the log-sum-exp, and the parts of the splits
    begin: int  # where the parts begin


class DecodeCalls:
    """Calls of one signature. Launches are kept by layout: the number of keys and how rows lie in memory."""

    def __init__(self, request: Request, reach: dict[str, Any]) -> None:
        self.scale, self.reach = request.scale, reach
        self.has_lengths = isinstance(request.mask, LengthsMask)
        self.index = request.query.get_device()
        self.layouts: dict[Any, DecodeLaunches] = {}
        self.forms: dict[Any, DecodeLaunches] = {}  # one layout of each compiled code
        shape = (*request.query.shape[:3], request.value.shape[3])
        self.like_output = prototype(shape, request.query.dtype, request.query.device)

    def run(self, query: Tensor, key: Tensor, value: Tensor, given: Mapping[str, Any]) -> Tensor | None:
        """The output; None if the call must go through a request after all."""
        rows = aligned_rows(query, key, value)
        if rows is None or (not INTERPRETED and torch._C._cuda_getDevice() != self.index):
            return None
        lengths: tuple[Tensor, ...] = ()
        at_lengths: tuple[int, ...] = ()
        if self.has_lengths:
            lengths = (given["mask"].key_lengths,)
            at_lengths = (lengths[0].data_ptr(),)
            if at_lengths[0] % 16:
                return None
        layout = (key.shape[2], query.stride(), key.stride(), value.stride())
        launches_of_layout = self.layouts.get(layout)
        if launches_of_layout is None:
            if query.stride(3) != 1 or key.stride(3) != 1 or value.stride(3) != 1:
                return None
            launches_of_layout = self._launches(layout, query, key, value, *lengths)
        first, second, like_scratch, begin = launches_of_layout
        output, scratch = _empty_like(self.like_output), _empty_like(like_scratch)
        if not first.ready or (second is not None and not second.ready) or watched():
            logsumexp, partial_rows = scratch[:begin], scratch[begin:]
            first(query, key, value, output, logsumexp, logsumexp if second is None else partial_rows, *lengths)
            if second is not None:
                second(partial_rows, output, logsumexp)
            return output
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        at_output, at_logsumexp = output.data_ptr(), scratch.data_ptr()
        at_parts = at_logsumexp if second is None else at_logsumexp + 4 * begin
        first.at(stream, (*rows, at_output, at_logsumexp, at_parts, *at_lengths))
        if second is not None:
            second.at(stream, (at_parts, at_output, at_logsumexp))
        return output

    def _launches(
        self, layout: Any, query: Tensor, key: Tensor, value: Tensor, high: Tensor | None = None
    ) -> DecodeLaunches:
        """The launches for a layout, which are kept for the next call."""
        step, strides = stride_numbers(query, key, value)
        splits = count_splits(query, key, value, **self.reach)
        form = (step, splits, wide_strides(strides))
        similar = self.forms.get(form)
        if similar is None:
            layout_launches = self._compiled(query, key, value, high)
            if len(self.forms) < _MOST_LAYOUTS:
                self.forms[form] = layout_launches
        else:  # a cache that has grown: the same code with other numbers
            numbers = dict(zip(STRIDES, strides, strict=True), keys=key.shape[2])
            layout_launches = similar._replace(first=similar.first.with_numbers(numbers))
        if len(self.layouts) >= _MOST_LAYOUTS:
            self.layouts.clear()
        self.layouts[layout] = layout_launches
        return layout_launches

    def _compiled(self, query: Tensor, key: Tensor, value: Tensor, high: Tensor | None) -> DecodeLaunches:
        output = _empty_like(self.like_output)
        logsumexp = query.new_empty(query.shape[:3], dtype=torch.float32)
        plans = launches(query, key, value, output, logsumexp, self.scale, high=high, **self.reach)
        changing = ["QUERY", "KEY", "VALUE", "OUT", "LSE", "PARTS"]
        first = _again(plans[0], changing if high is None else [*changing, "HIGH"])
        begin = -(-logsumexp.numel() // 4) * 4  # whole units of 16 bytes, for which code is compiled
        second = None if len(plans) == 1 else _again(plans[1], ["PARTS", "OUT", "LSE"])
        numbers = begin + (0 if second is None else plans[1].values[0].numel())
        return DecodeLaunches(first, second, prototype((numbers,), torch.float32, query.device), begin)


def _again(one: DecodeLaunch, changing: list[str]) -> Launch:
    return launch_again(one.kernel, one.grid, one.values, changing, key=one.key, **one.options)

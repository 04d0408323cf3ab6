"""Repeated calls of the kernels for decoding: one or two launches by arguments that are kept, and nothing else.

`core/repeated_calls.py` finds these functions. For one token over a cache of thousands of keys the kernels take a few
microseconds, less than torch's own function takes to start its kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.core.call import Call, Repeated
from regard.core.request import Request
from regard.implementations.triton.block_sizes import INTERPRETED
from regard.implementations.triton.decode import (
    FAR,
    STRIDES,
    DecodeLaunch,
    count_splits,
    launches,
    stride_numbers,
)
from regard.implementations.triton.decode_requests import MOST_QUERIES
from regard.implementations.triton.launching import Launch, launch_again
from regard.masks.from_tensors import LengthsMask
from regard.masks.positional import CausalMask, FullMask, WindowMask
from regard.normalizers import Softmax
from regard.scores.dot import DotScore, ScaledDotScore

_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_SCORES = (DotScore, ScaledDotScore)
_MOST_LAYOUTS = 256  # of one signature: a cache that grows has another one in each step


def repeated(call: Call, request: Request) -> Repeated | None:
    """How to run calls with the signature of this request again; None where they need one."""
    plain = (
        type(request.score) in _SCORES
        and isinstance(request.normalizer, Softmax)
        and request.sizes[2] <= MOST_QUERIES
        and request.bias is None
        and request.sink is None
        and request.dropout == 0
        and not request.needs_grad
        and not request.want_logsumexp
        and request.query.dtype != torch.float64
        and not (INTERPRETED and request.query.dtype == torch.bfloat16)  # which it cannot multiply
    )
    reach = _reach(request)
    return DecodeCalls(request, reach).run if plain and reach is not None else None


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


class DecodeCalls:
    """Calls of one signature. Launches are kept by layout: the number of keys and how rows lie in memory."""

    def __init__(self, request: Request, reach: dict[str, Any]) -> None:
        self.scale, self.reach = request.scale, reach
        self.has_lengths = isinstance(request.mask, LengthsMask)
        self.device = request.query.device.index
        self.layouts: dict[Any, tuple[Launch, Launch | None, Tensor]] = {}
        self.forms: dict[Any, tuple[Launch, Launch | None, Tensor]] = {}  # one layout of each compiled code
        # Single numbers, spread out: `empty_like` makes new tensors from them faster than others make them from sizes.
        self.number = request.query.new_empty(1, dtype=torch.float32)
        rows = request.query.shape[:3]
        self.like_output = request.query.new_empty(1).expand(*rows, request.value.shape[3])
        self.like_logsumexp = self.number.expand(rows)

    def run(self, query: Tensor, key: Tensor, value: Tensor, given: Mapping[str, Any]) -> Tensor | None:
        """The output; None if the call must go through a request after all."""
        if _is_wrapped(query) or _is_wrapped(key) or _is_wrapped(value):  # left over from torch.func
            return None
        if not INTERPRETED and torch._C._cuda_getDevice() != self.device:
            return None
        addresses = query.data_ptr() | key.data_ptr() | value.data_ptr()
        lengths: tuple[Tensor, ...] = ()
        if self.has_lengths:
            lengths = (given["mask"].key_lengths,)
            addresses |= lengths[0].data_ptr()
        if addresses % 16:
            return None
        layout = (key.shape[2], query.stride(), key.stride(), value.stride())
        known = self.layouts.get(layout)
        if known is None:
            if query.stride(3) != 1 or key.stride(3) != 1 or value.stride(3) != 1:
                return None
            known = self._launches(layout, query, key, value, *lengths)
        first, second, like_parts = known
        output, logsumexp = torch.empty_like(self.like_output), torch.empty_like(self.like_logsumexp)
        if second is None:
            first(query, key, value, output, logsumexp, logsumexp, *lengths)
        else:
            parts = torch.empty_like(like_parts)
            first(query, key, value, output, logsumexp, parts, *lengths)
            second(parts, output, logsumexp)
        return output

    def _launches(
        self, layout: Any, query: Tensor, key: Tensor, value: Tensor, high: Tensor | None = None
    ) -> tuple[Launch, Launch | None, Tensor]:
        """The launches for a layout, which are kept for the next call, and a pattern for the tensor of the parts."""
        step, strides = stride_numbers(query, key, value)
        splits = count_splits(query, key, value, **self.reach)
        form = (step, splits, max(strides) >> 31)
        similar = self.forms.get(form)
        if similar is None:
            found = self._compiled(query, key, value, high)
            if len(self.forms) < _MOST_LAYOUTS:
                self.forms[form] = found
        else:  # a cache that has grown: the same code with other numbers
            numbers = dict(zip(STRIDES, strides, strict=True), keys=key.shape[2])
            found = similar[0].with_numbers(numbers), *similar[1:]
        if len(self.layouts) >= _MOST_LAYOUTS:
            self.layouts.clear()
        self.layouts[layout] = found
        return found

    def _compiled(
        self, query: Tensor, key: Tensor, value: Tensor, high: Tensor | None
    ) -> tuple[Launch, Launch | None, Tensor]:
        output, logsumexp = torch.empty_like(self.like_output), torch.empty_like(self.like_logsumexp)
        found = launches(query, key, value, output, logsumexp, self.scale, high=high, **self.reach)
        changing = ["QUERY", "KEY", "VALUE", "OUT", "LSE", "PARTS"]
        first = _again(found[0], changing if high is None else [*changing, "HIGH"])
        if len(found) == 1:
            return first, None, self.number
        return (
            first,
            _again(found[1], ["PARTS", "OUT", "LSE"]),
            self.number.expand(found[1].values[0].numel()),
        )


def _again(one: DecodeLaunch, changing: list[str]) -> Launch:
    return launch_again(one.kernel, one.grid, one.values, changing, key=one.key, **one.options)

"""Softmax attention over few keys as one kernel forward and one backward, between the kernels of fused rows.

torch's kernels for long sequences take four launches and more for this, each longer than the work is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.implementations.gpu import is_off, may_transpose_wrongly
from regard.support.batched_gradients import take_one_by_one
from regard.support.differentiate import fresh_views, gradients
from regard.support.tracing import constant_when_traced

LONGEST = 64  # queries or keys of a head; all scores of a head are in the registers of one program
WIDTHS = (16, 32, 64, 128)  # of a head

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_LIBRARY.define("short_attention(Tensor query, Tensor key, Tensor value, bool causal, float scale) -> Tensor")
_LIBRARY.define(
    "short_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, bool causal, float scale) "
    "-> (Tensor, Tensor, Tensor)"
)


@dataclass(frozen=True)
class PlainAttention:
    """softmax(scale · q kᵀ) v, also with a causal mask whose last query is at the last key."""

    causal: bool
    scale: float

    def refusal(self, queries: int, keys: int, width: int) -> str:
        """Why the kernels cannot run it for these sizes; empty if they can."""
        if not 1 <= min(queries, keys) <= max(queries, keys) <= LONGEST:
            return f"a head has {queries} queries and {keys} keys; known are 1 to {LONGEST} of each"
        if self.causal and keys < queries:
            return "the first queries see nothing"
        if width not in WIDTHS:
            return f"a head is {width} wide; known are {', '.join(map(str, WIDTHS))}"
        if may_transpose_wrongly(_padded(queries), _padded(keys)) and _is_wrong(_padded(queries), _padded(keys), width):
            return f"this Triton computes the gradients of {queries} queries and {keys} keys wrongly on this GPU"
        return ""

    def run(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The attended values (b,h,q,d), of which the heads of a row lie side by side."""
        attended: Tensor = torch.ops.regard.short_attention.default(query, key, value, self.causal, self.scale)
        return attended


def plain(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Tensor:
    """The same in plain torch, for second derivatives and as the readable twin of the kernels."""
    scores = query @ key.mT * scale
    if causal:
        rows, columns = scores.shape[2:]
        later = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).triu(columns - rows + 1)
        scores = scores.masked_fill(later, float("-inf"))
    return scores.softmax(-1) @ value


def triton_dtype(dtype: torch.dtype) -> Any:
    """Triton's name of a dtype."""
    import triton.language as tl

    return {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float64: tl.float64}[dtype]


@constant_when_traced
@cache
def _is_wrong(queries: int, keys: int, width: int) -> bool:
    """Whether the backward kernel is compiled wrongly for blocks of these sizes: run once, and compared."""
    source = torch.Generator().manual_seed(0)
    sizes = (queries, queries, keys, keys)
    pull, query, key, value = (
        torch.randn(1, 1, size, width, generator=source, dtype=torch.float64).cuda().bfloat16() for size in sizes
    )
    with torch.no_grad():
        gradients = _backward(pull, query, key, value, False, width**-0.5)
    with torch.enable_grad():
        heads = [rows.double().requires_grad_() for rows in (query, key, value)]
        output = plain(heads[0], heads[1], heads[2], False, width**-0.5)
        exact = torch.autograd.grad(output, heads, pull.double())
    return is_off(gradients, exact)


def _padded(length: int) -> int:
    """The rows of a block: the next power of two, at least what a matrix unit takes."""
    return max(16, 1 << (length - 1).bit_length())


def _sizes(query: Tensor, key: Tensor, causal: bool) -> dict[str, Any]:
    from regard.implementations.triton.launch import block_sizes

    rows, columns = _padded(query.shape[2]), _padded(key.shape[2])
    constants: dict[str, Any] = {
        "CAUSAL": causal, "DT": triton_dtype(query.dtype), "ROWS": rows, "COLUMNS": columns, "WIDTH": query.shape[3]
    }
    if not block_sizes.INTERPRETED:
        constants["num_warps"] = 4 if rows * columns > 1024 else 2 if rows * columns > 256 else 1
    return constants


def as_rows(shape: Sequence[int], like: Tensor) -> Tensor:
    """An empty (b,h,n,d) in which the heads of a row lie side by side."""
    batch, heads, length, width = shape
    return like.new_empty((batch, length, heads, width)).transpose(1, 2)


def strides(tensor: Tensor) -> tuple[int, int, int]:
    """The strides of all axes but the last, which is 1."""
    return tensor.stride(0), tensor.stride(1), tensor.stride(2)


def _last_contiguous(*tensors: Tensor) -> list[Tensor]:
    """The same tensors with equal strides, the last of which is 1."""
    if tensors[0].stride(3) == 1 and len({tensor.stride() for tensor in tensors}) == 1:
        return list(tensors)
    return [tensor.contiguous() for tensor in tensors]


def _forward(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Tensor:
    from regard_fast.fused_rows.short_kernels import short_forward

    (query,), (key, value) = _last_contiguous(query), _last_contiguous(key, value)
    mixed = as_rows(query.shape, query)
    batch, heads, length, _ = query.shape
    short_forward[(batch * heads,)](
        query, key, value, mixed, heads, length, key.shape[2], scale, *strides(query), *strides(key), *strides(mixed),
        **_sizes(query, key, causal),
    )
    return mixed


def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    from regard_fast.fused_rows.short_kernels import short_backward

    (grad,), (query,), (key, value) = (_last_contiguous(grad), _last_contiguous(query), _last_contiguous(key, value))
    d_inputs = _backward_shapes(grad, query, key, value, causal, scale)
    batch, heads, length, _ = query.shape
    short_backward[(batch * heads,)](
        query, key, value, grad, *d_inputs, heads, length, key.shape[2], scale, *strides(query), *strides(key),
        *strides(grad), *strides(d_inputs[0]), *strides(d_inputs[1]), **_sizes(query, key, causal),
    )
    return d_inputs


def _forward_shapes(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Tensor:
    return as_rows(query.shape, query)


def _backward_shapes(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return as_rows(query.shape, query), as_rows(key.shape, key), as_rows(value.shape, value)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    if torch.is_grad_enabled():
        views = fresh_views(tensors)
        query, key, value = views
        assert query is not None and key is not None and value is not None
        attended = plain(query, key, value, ctx.causal, ctx.scale)
        return *gradients([(attended, grad)], views, again=True), None, None
    d_rows = torch.ops.regard.short_attention_backward.default(grad, *tensors, ctx.causal, ctx.scale)
    return *d_rows, None, None


_LIBRARY.impl("short_attention", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("short_attention_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::short_attention", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::short_attention_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::short_attention", _differentiate, setup_context=_remember, lib=_LIBRARY)
take_one_by_one("short_attention_backward", _LIBRARY)

"""`sdpa`: torch's own fused kernels, behind guards.

The kernels are fast but break promises in some cases: short rows lose a NaN query, hidden keys are multiplied by zero,
and unusual shapes fall back silently to a path that needs quadratic memory. `refuse` rejects such requests; `run`
reshapes the others so that torch takes a fused path.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as scaled_dot_product_attention

from regard.biases import DenseBias
from regard.formula.call import Call, Repeated
from regard.formula.request import Request
from regard.implementations.infinities import restore_nan_rows
from regard.masks import Mask
from regard.masks.positional import CausalMask, FullMask
from regard.normalizers import Softmax
from regard.support.arguments import readable
from regard.support.differentiate import forbid_second_derivative, transforming
from regard.support.tracing import exporting

name = "sdpa"

SHORTEST_ROW = 16  # with fewer keys than a vector register holds, the CPU kernel turns a NaN query into zeros
_BOUND = 1e15  # products of numbers below this stay finite
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # kernels compute in float32, where less than this is zero
_CALLS_BEFORE_PLANNING = 8  # of one shape, before cuDNN may spend a tenth of a second on a plan for it
_MATH = 0  # torch._fused_sdp_choice's number of the unfused path


def refuse(request: Request) -> str | None:
    """Why torch's kernels cannot run this request and keep the promises, or None."""
    return _refuse_value(request) or _refuse_mask(request) or _refuse_shape(request)


def _refuse_value(request: Request) -> str | None:
    if not request.score.is_dot:
        return f"torch's kernels compute dot products, not {request.score.name}"
    if not isinstance(request.normalizer, Softmax):
        return f"torch's kernels normalise by softmax, not by {request.normalizer.name}"
    if request.forward_mode:
        return "torch's kernels have no forward-mode derivative"
    if transforming():
        return "a transform of torch.func records every backward pass, and torch's kernels have no second derivative"
    if request.sink is not None:
        return "torch's kernels have no sink"
    if request.want_logsumexp:
        return "torch's kernels return no differentiable log-sum-exp"
    on_cpu = request.query.device.type in ("cpu", "meta")
    if request.dropout > 0 and on_cpu:
        return "with dropout, torch's CPU path needs quadratic memory"
    if request.dropout >= 1:
        return "torch's kernels divide by zero when everything is dropped"
    if (
        not on_cpu
        and (request.query.dtype == torch.float32 or request.leaves_range)
        and torch.get_float32_matmul_precision() == "highest"
    ):
        return (
            "torch's float32 kernels round products more coarsely than float32 does; "
            'torch.set_float32_matmul_precision("high") accepts that'
        )
    if request.bias is not None:
        if not isinstance(request.bias, DenseBias):
            return f"the {request.bias.name} bias would have to be written out as a dense tensor"
        if request.bias.tensor.requires_grad and torch.is_grad_enabled():
            return "a bias that needs gradient sends torch to its quadratic path"
        if request.mask is not None and not isinstance(request.mask, FullMask):
            return "a mask and a bias together would have to be written out as one dense tensor"
    return None


def _refuse_mask(request: Request) -> str | None:
    mask = request.mask
    if mask is None or isinstance(mask, (FullMask, CausalMask)) or mask.by_key:
        if isinstance(mask, CausalMask) and _diagonal(mask, request) is None:
            return "torch's causal flag aligns query 0 with key 0 and takes no offset"
        return None
    return "torch's kernels know causal masks and key padding; this mask would have to be written out as a dense tensor"


def _refuse_shape(request: Request) -> str | None:
    batch, heads, queries, keys = request.sizes
    if 0 in (batch, heads, queries, keys, request.value.shape[3]):
        return "torch's kernels refuse empty tensors"
    if isinstance(request.mask, CausalMask):
        queries, keys = _visible_part(request.mask, request)
    if queries <= 0:
        return "no query sees a key"
    if request.query.device.type in ("cpu", "meta"):
        if _may_be_short(keys):
            return f"with fewer than {SHORTEST_ROW} keys (here {keys}) torch's CPU kernel turns a NaN query into zeros"
        return None
    if torch.compiler.is_compiling():
        return None
    query, key, value, mask, causal, scale = _prepared(request)
    grouped = query.shape[1] != key.shape[1]
    choice = torch._fused_sdp_choice(query, key, value, mask, request.dropout, causal, scale=scale, enable_gqa=grouped)
    return None if choice != _MATH else "torch has no fused kernel for this and would need quadratic memory"


def _may_be_short(keys: int) -> bool:
    """Whether a row has fewer keys than torch's CPU kernel needs, in some length that an exported graph serves."""
    if exporting():
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return not statically_known_true(keys >= SHORTEST_ROW)
    return keys < SHORTEST_ROW


def is_direct(request: Request) -> bool:
    """Whether torch's function can be called with the arguments as they are: the case that has to be cheap."""
    return request.mask is None and takes_rows(request)


def takes_rows(request: Request) -> bool:
    """Whether torch's function takes queries, keys, values and the scale as they are."""
    return (
        request.bias is None
        and not request.score.transforms
        and request.scale >= _SMALLEST_SCALE
        and request.query.shape[3] == request.value.shape[3]
        and (request.query.device.type == "cpu" or request.query.shape[3] % 8 == 0)
    )


def direct(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float, causal: bool = False
) -> Tensor:
    """`run` for a request that `is_direct`, or with torch's own causal mask; a scale of None is torch's own default."""
    if query.stride(3) != 1 or key.stride(3) != 1 or value.stride(3) != 1:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    options: dict[str, Any] = {}
    if (
        scale is None and query.shape[1] == key.shape[1] and query.is_cpu and not causal
    ):  # keyword arguments cost a microsecond
        output = scaled_dot_product_attention(query, key, value)
    else:
        grouped = as_bool(query.shape[1] != key.shape[1])
        options = {"dropout_p": dropout, "scale": scale, "enable_gqa": grouped}
        if causal:
            options["is_causal"] = True
        output = call_kernel(query, key, value, options)
    output = restore_nan_rows(output, scaled_dot_product_attention, query, key, value, options)
    forbid_second_derivative(output, "torch's fused attention")
    return output


def repeated(call: Call, request: Request) -> Repeated | None:
    """How to run calls of the same signature again; None where they need a request."""
    from regard.implementations import sdpa_calls  # which builds on this file

    return sdpa_calls.bind(request)


def run(request: Request) -> tuple[Tensor, None]:
    """The output (b,h,q,v)."""
    if is_direct(request):
        return direct(request.query, request.key, request.value, request.scale, request.dropout), None
    queries, width, dtype = request.query.shape[2], request.value.shape[3], request.query.dtype
    query, key, value, mask, causal, scale = _prepared(request)
    options: dict[str, Any] = {}  # only those that differ from the default: each costs microseconds
    if mask is not None:
        options["attn_mask"] = mask
    if causal:
        options["is_causal"] = True
    if request.dropout > 0:
        options["dropout_p"] = request.dropout
    if query.shape[1] != key.shape[1]:
        options["enable_gqa"] = True
    if scale != 1 / math.sqrt(query.shape[3]):
        options["scale"] = scale
    output = call_kernel(query, key, value, options)
    output = restore_nan_rows(output, scaled_dot_product_attention, query, key, value, options)
    forbid_second_derivative(output, "torch's fused attention")
    if output.shape[3] != width:
        output = output[..., :width]
    if output.shape[2] != queries:  # the first rows of a causal mask with more queries than keys see nothing
        output = pad(output, (0, 0, queries - output.shape[2], 0))
    if mask is not None and mask.dtype == torch.bool and request.query.device.type != "cpu":
        output = output.masked_fill(~mask.any(-1, keepdim=True), 0)
    return output.to(dtype), None


_SEEN: dict[tuple[Any, ...], int] = {}


def call_kernel(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
    """torch's function. On a GPU a new shape goes to a kernel that needs no plan.

    cuDNN has the fastest kernels but plans for every new shape: 50 ms forward and 80 ms backward on an H200, too much
    for texts of many lengths. In deterministic mode the choice must not depend on earlier calls.
    """
    if not query.is_cuda or torch.compiler.is_compiling() or not _both_enabled():
        # Where the user has disabled kernels (`torch.nn.attention.sdpa_kernel`), theirs is the choice.
        return scaled_dot_product_attention(query, key, value, **options)
    if seen_often(query, key, value, options):
        return scaled_dot_product_attention(query, key, value, **options)
    if not torch.cuda.is_current_stream_capturing():
        if len(_SEEN) > 4096:
            _SEEN.clear()
        shape = _shape(query, key, value, options)
        _SEEN[shape] = _SEEN.get(shape, 0) + 1
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        return scaled_dot_product_attention(query, key, value, **options)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def seen_often(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> bool:
    """Whether calls of this shape may now go to any of torch's kernels."""
    often = _SEEN.get(_shape(query, key, value, options), 0) >= _CALLS_BEFORE_PLANNING
    return often and _both_enabled() and not torch.are_deterministic_algorithms_enabled()


def _shape(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> tuple[Any, ...]:
    return (query.shape, key.shape, value.shape, query.dtype, query.requires_grad, *options)


def _both_enabled() -> bool:
    """Whether torch may choose between cuDNN and a kernel that needs no plan."""
    return bool(torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled())


def as_bool(flag: bool) -> bool:
    """A comparison of sizes as a bool: under `torch.compile` it is symbolic, which torch's functions refuse."""
    return True if flag else False  # noqa: SIM210


def _prepared(request: Request) -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool, float]:
    """Queries, keys, values, mask, causal flag and scale in a form for which torch takes a fused kernel."""
    reduced = request.for_kernels() if request.score.transforms else request
    query, key, value, mask = reduced.query, reduced.key, reduced.value, reduced.mask
    query, scale = _scaled(query, request.scale)
    flag: Tensor | None = None
    causal = False
    if isinstance(request.bias, DenseBias):
        bias = request.bias.tensor
        if bias.device.type != "cpu":
            # These kernels compute in base 2, where the lowest numbers would overflow to −inf and empty a row.
            lowest = torch.finfo(bias.dtype).min / 4
            bias = torch.where(bias == -torch.inf, bias, bias.clamp(min=lowest))
        flag = bias[(None,) * (4 - bias.dim())].expand(*request.sizes).to(query.dtype)
    elif isinstance(mask, CausalMask):
        queries, keys = _visible_part(mask, reduced)
        causal = as_bool(_diagonal(mask, reduced) == 0 and queries > 1)
        query, key, value = query[:, :, query.shape[2] - queries :], key[:, :, :keys], value[:, :, :keys]
    elif mask is not None and not isinstance(mask, FullMask):
        keep = mask.real_keys(key.shape[2], key.shape[0], key.device)
        key, value = _without_hidden(key, value, keep)
        flag = keep.reshape(-1, 1, 1, key.shape[2])
        flag = flag if flag.shape[0] == query.shape[0] else flag.expand(query.shape[0], -1, -1, -1)
    width, out = query.shape[3], value.shape[3]
    step = 1 if query.device.type == "cpu" else 8
    target = -(-max(width, out) // step) * step
    if width != target:
        query, key = pad(query, (0, target - width)), pad(key, (0, target - width))
    if out != target:
        value = pad(value, (0, target - out))
    if query.stride(3) != 1 or key.stride(3) != 1 or value.stride(3) != 1:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    return query, key, value, flag, causal, scale


def _scaled(query: Tensor, scale: float) -> tuple[Tensor, float]:
    """Queries and a scale above zero that give the same scores.

    The kernels mask with −inf before they scale, or search the largest product before it: with a scale below zero the
    hidden scores would be the largest, with zero they would be NaN.
    """
    if scale >= _SMALLEST_SCALE:
        return query, scale
    return (-query, -scale) if -scale >= _SMALLEST_SCALE else (query * scale, 1.0)


def _without_hidden(key: Tensor, value: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with zeros where `keep` (b,k) hides them: the kernels would multiply what is there by zero."""
    if is_bounded(key) and is_bounded(value):
        return key, value
    hidden = keep.logical_not().reshape(-1, 1, key.shape[2], 1)
    return key.masked_fill(hidden, 0), value.masked_fill(hidden, 0)


def is_bounded(rows: Tensor) -> bool:
    """Whether no entry is NaN, infinite or large enough for an infinite product; False on a GPU, to avoid a wait.

    Computing the norm is several times as fast as filling the hidden rows.
    """
    return readable(rows) and has_bounded_norm(rows)


def has_bounded_norm(rows: Tensor) -> bool:
    """`is_bounded` for rows that can be read."""
    return float(torch.linalg.vector_norm(rows.detach() if rows.requires_grad else rows)) < _BOUND


def _diagonal(mask: Mask, request: Request) -> int | None:
    """How many keys beyond index 0 the first query sees; None where torch's causal flag cannot express it."""
    assert isinstance(mask, CausalMask)
    _, _, queries, keys = request.sizes
    if isinstance(mask.offset, Tensor):
        return None
    shift = mask.offset if mask.offset is not None else keys - queries if mask.align == "bottom-right" else 0
    if shift <= 0:
        return 0
    return shift if queries == 1 or shift >= keys - 1 else None


def is_square(mask: CausalMask, request: Request) -> bool:
    """Whether a causal mask is torch's: query i sees the keys up to i, and no query or key is left over."""
    _, _, queries, keys = request.sizes
    return queries > 1 and _diagonal(mask, request) == 0 and _visible_part(mask, request) == (queries, keys)


def _visible_part(mask: CausalMask, request: Request) -> tuple[int, int]:
    """How many of the last queries see a key, and how many of the first keys are seen."""
    _, _, queries, keys = request.sizes
    assert not isinstance(mask.offset, Tensor)
    shift = mask.offset if mask.offset is not None else keys - queries if mask.align == "bottom-right" else 0
    return queries + min(shift, 0), min(keys, queries + shift)

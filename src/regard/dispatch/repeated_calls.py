"""Calls that repeat, as steps of decoding and training do: found by one look into a table, run without a request.

The first call of a signature is checked, planned and run as any other. If its implementation knows a shorter way for
calls like it (`repeated`), that function is kept, and the next call of the same signature goes straight to it. A
signature holds all that the checks and the plan depend on; a call in surroundings that it does not describe (a trace, a
transform, a mode that watches torch's functions, a subclass of Tensor, autocast to another dtype) has none and takes
the usual way.

The number of keys is part of a signature but for few queries without a gradient, where it is only if a mask makes a
difference by it: each step of decoding adds one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.dispatch.plan import FEW_ELEMENTS
from regard.formula.call import Call, Repeated
from regard.formula.request import FEW_QUERIES, Request
from regard.implementations.sdpa import SHORTEST_ROW
from regard.masks import Mask
from regard.values.value import Value

KNOWN: dict[Any, Repeated] = {}
_MOST_KNOWN = 4096

# Looked up once: each of these takes less time than finding it inside of torch.
_autocasting = torch._C._is_any_autocast_enabled
_transform_level = torch._C._functorch.maybe_current_level
_tracing = torch._C._is_tracing
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_mode = torch._C._is_torch_function_mode_enabled
_grad_enabled = torch.is_grad_enabled
_inference = torch.is_inference_mode_enabled
_is_on_gpu = Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_layout = Tensor.layout.__get__  # type: ignore[attr-defined]
_STRIDED = torch.strided


def signature(query: Any, key: Any, value: Any, options: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What a call has to share with an earlier one to be run as it was; None if it must take the usual way."""
    if type(query) is not Tensor or type(key) is not Tensor or type(value) is not Tensor:
        return None
    if _tracing() or _dispatch_modes() or _function_mode():
        return None
    if _transform_level() is not None or forward_ad._current_level >= 0:
        return None
    if _layout(query) is not _STRIDED or _layout(key) is not _STRIDED or _layout(value) is not _STRIDED:
        return None
    try:
        rows, keys, across, dtype, device = query.shape, key.shape, value.shape, query.dtype, query.device
    except RuntimeError:  # a nested tensor has no shape
        return None
    if len(rows) != 4 or len(keys) != 4 or (across != keys and (len(across) != 4 or across[:3] != keys[:3])):
        return None
    if key.dtype != dtype or value.dtype != dtype or key.device != device or value.device != device:
        return None
    batch, groups, length, width = keys
    if not length:
        return None
    on_gpu = _is_on_gpu(query)
    if _autocasting() and not (on_gpu and _autocast_keeps(dtype)):
        return None
    trains = _grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    counted = length if trains or rows[2] > FEW_QUERIES else None
    option_signature: Any = None
    if options:
        named: list[Any] = []
        for name, argument in options.items():
            kind = type(argument)
            if kind is str or kind is float or argument is None:
                named += (name, argument)
            elif kind is bool or kind is int:  # False and True are equal to 0 and 1, which may be refused
                named += (name, kind, argument)
            elif isinstance(argument, Mask):
                if argument.tensors:
                    named += (name, argument.structure(), length)
                else:
                    named += (name, argument.spec, None if rows[2] == 1 else length)
            elif kind is Tensor and name == "mask" and not on_gpu:
                if _layout(argument) is not _STRIDED or argument.is_nested:
                    return None
                named += (name, argument.shape, argument.dtype, argument.device, length)
            elif isinstance(argument, Value) and not argument.tensors:
                named += (name, argument.spec, length)
            else:
                return None
        option_signature = tuple(named)
    enough: Any = length >= SHORTEST_ROW
    if on_gpu:
        few = counted is None and key.numel() <= FEW_ELEMENTS
        enough = (enough, few, *_switches(dtype))
    elif not query.is_cpu:
        return None
    return rows, batch, groups, counted, width, across[3], enough, dtype, device, trains, _inference(), option_signature


def _autocast_keeps(dtype: torch.dtype) -> bool:
    """Whether autocast on a GPU leaves rows of a dtype as they are."""
    return not torch.is_autocast_enabled("cuda") or torch.get_autocast_dtype("cuda") == dtype


def _switches(dtype: torch.dtype) -> tuple[Any, ...]:
    """What decides on a GPU which kernel runs: torch's switches (torch.nn.attention.sdpa_kernel) and modes."""
    return (
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_cudnn_sdp_enabled(),
        torch._C._get_deterministic_algorithms(),
        dtype is torch.bfloat16 or torch._C._get_float32_matmul_precision(),
    )


def remember(signature: tuple[Any, ...], implementation: Any, call: Call, request: Request) -> None:
    """Keep how to run calls of this signature, of which `request` was made and run by an implementation."""
    bind: Callable[[Call, Request], Repeated | None] | None = getattr(implementation, "repeated", None)
    bound = None if bind is None else bind(call, request)
    if len(KNOWN) >= _MOST_KNOWN:
        KNOWN.clear()
    KNOWN[signature] = _never if bound is None else bound


def _never(query: Tensor, key: Tensor, value: Tensor, options: Mapping[str, Any]) -> None:
    """Stands for calls that have no shorter way, so that it is not searched again."""
    return None

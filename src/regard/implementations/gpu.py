"""What decides which kernels a GPU can run: its shared memory, and faults of its compiler."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.support.tracing import constant_when_traced

_SHARED_MEMORY: dict[torch.device, int] = {}


@constant_when_traced
def shared_memory(device: torch.device) -> int:
    """The most bytes that a program may have: 227 KiB on an H100, 163 on an A100, 99 on gaming cards."""
    if device not in _SHARED_MEMORY:
        properties: Any = torch.cuda.get_device_properties(device)
        _SHARED_MEMORY[device] = properties.shared_memory_per_block_optin
    return _SHARED_MEMORY[device]


def may_transpose_wrongly(rows: int, columns: int) -> bool:
    """Whether `dot(trans(f(dot(a, b))), c)` may be compiled wrongly where `dot(a, b)` is a block rows × columns.

    Triton 3.4.0 to 3.7.0 does so on Hopper: alone, this product of blocks of 64 or 128 rows by 16 or 32 columns had
    errors of 25 to 72 % on an H200. Inside a kernel it may be right; only running the kernel tells.
    """
    return rows in (64, 128) and columns in (16, 32) and _has_faulty_compiler()


def is_off(results: Sequence[Tensor], exact: Sequence[Tensor]) -> bool:
    """Whether kernels of bfloat16 are further from exact results than rounding explains, which is up to 2 %."""
    pairs = zip(results, exact, strict=True)
    return any(bool((mine.double() - right).norm() > 0.1 * right.norm()) for mine, right in pairs)


@constant_when_traced
@cache
def _has_faulty_compiler() -> bool:
    from triton import __version__, knobs

    version = tuple(int(number) for number in re.findall(r"\d+", __version__)[:3])
    if knobs.runtime.interpret or not (3, 4, 0) <= version < (3, 7, 1) or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability()[0] == 9

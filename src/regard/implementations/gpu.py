"""What a GPU has that decides which kernels fit on it."""

from __future__ import annotations

from typing import Any

import torch

from regard.core.tracing import constant_when_traced

_SHARED_MEMORY: dict[torch.device, int] = {}


@constant_when_traced
def shared_memory(device: torch.device) -> int:
    """The most bytes that a program may have: 227 KiB on an H100, 163 on an A100, 99 on gaming cards."""
    if device not in _SHARED_MEMORY:
        properties: Any = torch.cuda.get_device_properties(device)
        _SHARED_MEMORY[device] = properties.shared_memory_per_block_optin
    return _SHARED_MEMORY[device]

"""torch.autocast for any device, `meta` included, for which torch has no autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which autocast is off."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else nullcontext()


def autocasts(device: torch.device) -> bool:
    """Whether torch.autocast is on for a device."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype to which torch's own attention casts a tensor here; autocast leaves float64 as it is."""
    if tensor.dtype == torch.float64 or not autocasts(tensor.device):
        return tensor.dtype
    return torch.get_autocast_dtype(tensor.device.type)

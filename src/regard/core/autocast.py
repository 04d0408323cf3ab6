"""torch.autocast for any device: on `meta`, where tensors have shapes and no contents, torch has none."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which dtypes stay as they are."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def autocasts(device: torch.device) -> bool:
    """Whether torch.autocast is on for a device."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which torch's own attention would take a tensor: autocast casts all but float64."""
    if tensor.dtype == torch.float64 or not autocasts(tensor.device):
        return tensor.dtype
    return torch.get_autocast_dtype(tensor.device.type)

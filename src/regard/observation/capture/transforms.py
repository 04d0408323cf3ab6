"""Transforms of functions around a call, such as torch.vmap."""

from __future__ import annotations

import torch
from torch._C._functorch import TransformType


def is_vmapped() -> bool:
    """Whether torch.vmap runs the current call; its tensors cannot be read outside of it."""
    levels = torch._C._functorch.get_interpreter_stack()
    return levels is not None and any(level.key() == TransformType.Vmap for level in levels)

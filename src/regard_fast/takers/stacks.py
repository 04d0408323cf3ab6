"""A stack of layers in the kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.masks import Mask
from regard_fast.fused_rows import layers
from regard_workbench.models.parts.stack import Stack


def run(stack: Stack, rows: Tensor, *, mask: Mask | None = None, **source: Any) -> Tensor | None:
    """The rows after all layers and the last normalisation."""
    if layers.refusal(stack.layers, rows, mask, source):  # type: ignore[arg-type]
        return None
    normalised: Tensor = stack.norm(layers.run(stack.layers, rows))  # type: ignore[arg-type]
    return normalised

"""Inputs of an example replaced by other rows, one copy for each choice of inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.observation.causes.input_rows import InputRows

NUMBERS = 1 << 24  # input numbers in one batch


class Erasure:
    """Runs an example with some inputs replaced by rows without information."""

    def __init__(self, entering: InputRows, baseline: Tensor, grid: tuple[int, int] | None) -> None:
        self.entering, self.baseline, self.grid = entering, baseline, grid

    def measured(self, masks: Tensor, measure: Any) -> Tensor:
        """The measure of the example with the inputs of each mask (m, positions) removed; equal masks run once."""
        unique, back = masks.unique(dim=0, return_inverse=True)
        few = max(1, min(256, NUMBERS // max(1, 16 * self.entering.rows.numel())))
        measures = [measure.each(self.entering.run(self.rows(block)), len(block), 1) for block in unique.split(few)]
        return torch.cat(measures)[back]

    def rows(self, masks: Tensor) -> Tensor:
        """The rows of the example, once for each mask, with the marked inputs replaced."""
        flat = self.entering.flat(self.entering.rows)
        if self.grid is not None and self.entering.picture is not None:
            high, wide = (self.entering.picture[at] // self.grid[at] for at in (0, 1))
            masks = masks.view(-1, *self.grid).repeat_interleave(high, 1).repeat_interleave(wide, 2).flatten(1)
        mixed = torch.where(masks[..., None].to(flat.device), self.entering.flat(self.baseline), flat)
        return self.entering.unflat(mixed)

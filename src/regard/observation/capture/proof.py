"""The proof of a call: a row of its output, and the values it was mixed from.

Whatever a function does inside, its weights w satisfy w @ v = output. So for every call that returns mixed values, a
few columns of the last row of the first example are stored, with the same columns of its values. Weights that are
computed later must reproduce this row; otherwise something has changed since, or the function does more than is known
of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.observation.capture.storage import Storage, StoredKeys, StoredTensor
from regard.scores.base import spread_heads

# Tolerances relative to the largest possible output. Kernels in half precision round weights before mixing.
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-4}
COARSE = 3e-2


@dataclass
class Proof:
    """One row of the first example of a call, for each head."""

    values: StoredKeys  # (1,g,k,c): some columns of the values
    output: Tensor  # (h,c): the same of the output's last row
    count: int  # keys of the call
    kept: Tensor | None = None  # (h,k): the factor that dropout applied to each weight
    coarse: float = COARSE  # the tolerance in half precision

    def holds(self, row: Tensor) -> bool:
        """Whether weights (h,k) of the last row reproduce the output."""
        values = spread_heads(self.values.first(self.count), len(self.output))[0].to(row.device)
        wide = torch.promote_types(row.dtype, torch.float32)
        row, values, output = row.to(wide), values.to(wide), self.output.to(row.device, wide)
        if self.kept is not None:
            row = row * self.kept.to(row)
        # A hidden non-finite value is not part of the output.
        values = values.masked_fill((row == 0)[..., None] & ~values.isfinite(), 0)
        mixed = (row[:, None] @ values)[:, 0]
        bound = (row[:, None].abs() @ values.abs())[:, 0].amax(-1, keepdim=True)
        bound = torch.maximum(bound, output.abs().amax(-1, keepdim=True))
        close = (mixed - output).abs() <= self.tolerance * bound
        return bool((close | ~output.isfinite()).all())

    @property
    def tolerance(self) -> float:
        """The tolerance for this output's dtype and device."""
        close = CLOSE.get(self.output.dtype, self.coarse)
        is_float = self.output.dtype == torch.float32 and self.output.device.type != "cpu"
        return COARSE if is_float else close  # an accelerator may multiply in less than float32


def proof_of(
    keep: Storage,
    value: Tensor,
    output: Tensor,
    seen: Tensor | None = None,
    kept: Tensor | None = None,
    columns: int = 1,
) -> Proof | None:
    """The proof of a call with values (b,g,k,v) and output (b,h,q,v); None where there is none.

    `seen`: the keys visible to any query. `kept` (h,k): the factors that dropout applied to the last row. One column is
    enough for a known function, where only a later change must be detected.
    """
    if value.dim() != 4 or output.dim() != 4:
        return None
    _, groups, keys, width = value.shape
    _, heads, queries, output_width = output.shape
    if not (width == output_width and output.numel() and value.numel()) or heads % groups:
        return None
    if keep.dtype is not None and keep.dtype.itemsize < value.dtype.itemsize:
        return None  # queries and keys are stored rounded, so their weights differ slightly
    value, output = value.detach(), output.detach()
    if columns == 1 and type(value) is type(output) is Tensor:  # runs for every call: as few operations as possible
        middle, (_, by_group, by_key, by_column) = width // 2, value.stride()
        at = value.storage_offset() + middle * by_column
        mixed = value.as_strided((1, groups, keys, 1), (1, by_group, by_key, 1), at)
        _, by_head, by_row, by_column = output.stride()
        at = output.storage_offset() + (queries - 1) * by_row + middle * by_column
        row = output.as_strided((heads, 1), (by_head, 1), at)
    else:
        step = max(1, width // columns)
        mixed, row = value[:1, :, :, step // 2 :: step], output[0, :, -1, step // 2 :: step]
    mixed = mixed.clone() if keep.device is None else mixed.to(keep.device, copy=True)
    return Proof(StoredKeys(StoredTensor(mixed, None, mixed.dtype, "the value"), seen), row.clone(), keys, kept)

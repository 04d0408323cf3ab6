"""Encode a sequence at a lower rate, and bring the rows back to the rate of the input."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import pad

from regard.nn.parts import masking
from regard.support.arguments import whole_number


class LowerRate(nn.Module):
    """Groups of `rate` consecutive rows become one row by a linear map, and each row a group of rows by another.

        down: z_g = W_d [x_{g·rate}; …; x_{g·rate + rate − 1}]        up: [y_{g·rate}; …] = W_u z_g

    A group is real if one of its positions is; padding counts as zeros and must stand on the right.
    """

    def __init__(self, dim: int, rate: int) -> None:
        super().__init__()
        self.rate = whole_number("upsample", rate, 1)
        self.down = nn.Linear(self.rate * dim, dim)
        self.up = nn.Linear(dim, self.rate * dim)

    def lowered(self, rows: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Rows (b,n,dim) as (b,⌈n/rate⌉,dim), and which of those are real; None: all."""
        missing = -rows.shape[1] % self.rate
        rows = pad(masking.without_padding(rows, keep), (0, 0, 0, missing))
        groups = rows.shape[1] // self.rate
        if keep is not None:
            keep = pad(keep, (0, missing)).unflatten(1, (groups, self.rate)).any(-1)
        return self.down(rows.unflatten(1, (groups, self.rate)).flatten(2)), keep

    def raised(self, rows: Tensor, length: int) -> Tensor:
        """Rows (b,⌈n/rate⌉,dim) as the first `length` of (b,⌈n/rate⌉·rate,dim)."""
        upsampled: Tensor = self.up(rows).unflatten(-1, (self.rate, rows.shape[-1])).flatten(1, 2)
        return upsampled[:, :length]

    def extra_repr(self) -> str:
        return f"rate={self.rate}"

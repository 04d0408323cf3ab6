"""Intervals of shares that were counted on one test split: Wilson's, and Bonett and Price's for a paired difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from regard_workbench.comparison.statistics import LEVEL

Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


@dataclass(frozen=True)
class Share:
    """A share with its 95 % interval: what another test set of this size might have given."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"

    @property
    def points(self) -> str:
        """A difference of shares, in percentage points."""
        return f"{100 * self.value:+.1f} ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


def share(hits: int, count: int) -> Share:
    """hits / count with Wilson's interval (Wilson 1927), which stays within 0 and 1 and has a width at 0 and 1, too."""
    if not count:
        return Share(math.nan, math.nan, math.nan)
    value, over = hits / count, Z**2 / count
    middle = (value + over / 2) / (1 + over)
    reach = Z / (1 + over) * math.sqrt(value * (1 - value) / count + over / (4 * count))
    # At 0 and 1 an end is the value itself, which the formula only meets up to rounding.
    low = 0.0 if hits == 0 else middle - reach
    high = 1.0 if hits == count else middle + reach
    return Share(value, low, high)


def paired_difference(first: Sequence[bool], second: Sequence[bool]) -> Share:
    """The share of `first` minus that of `second` on the same examples, with its interval (Bonett & Price 2012)."""
    count = len(first)
    if not count:
        return Share(math.nan, math.nan, math.nan)
    only_first = sum(a and not b for a, b in zip(first, second, strict=True))
    only_second = sum(b and not a for a, b in zip(first, second, strict=True))
    p, q = (only_first + 1) / (count + 2), (only_second + 1) / (count + 2)
    reach = Z * math.sqrt((p + q - (p - q) ** 2) / (count + 2))
    return Share((only_first - only_second) / count, max(-1.0, p - q - reach), min(1.0, p - q + reach))

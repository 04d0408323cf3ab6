"""The correction of p values when several hypotheses are tested at once."""

from __future__ import annotations

import math
from collections.abc import Sequence


def holm(probabilities: Sequence[float]) -> list[float]:
    """Holm's correction for several tests at once; NaN marks a test that was not made, and stays NaN.

    The smallest p is multiplied by the number of tests, the next by one less, and so on; the results never decrease.
    """
    ascending = sorted((p, index) for index, p in enumerate(probabilities) if not math.isnan(p))
    corrected = [math.nan] * len(probabilities)
    highest = 0.0
    for rank, (p, index) in enumerate(ascending):
        highest = max(highest, min(1.0, (len(ascending) - rank) * p))
        corrected[index] = highest
    return corrected

"""Generated hourly readings of machines: saw teeth whose period each machine changes now and then, with noise.

How long a period is must be read off the window, and what follows repeats it: no fixed weighted sum of past values can
do that for all periods.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.generated.draws import Draws

NAMES = ("press", "kiln", "pump")
ROWS = 20 * 30 * 24  # 20 months of 30 days
SHORTEST, LONGEST = 6, 24  # hours of a period
KEPT = (10, 20)  # periods until it changes: fewest and most
COINS = 16  # of a noise: heads less tails are nearly normal
NOISE = 0.1  # standard deviation, of a saw tooth from −1 to 1
BEGIN = 1_451_606_400.0  # 2016-01-01


def readings(seed: int) -> NDArray[np.float64]:
    """(rows, machines): level + height · tooth + noise."""
    return np.stack([_machine(seed, name) for name in NAMES], 1)


def _machine(seed: int, name: str) -> NDArray[np.float64]:
    draws = Draws("machines", seed, name)
    values: list[float] = []
    while len(values) < ROWS:
        period = SHORTEST + draws.below(LONGEST - SHORTEST + 1)
        rising = 1 + draws.below(period - 1)  # hours; the rest of the period it falls
        times = KEPT[0] + draws.below(KEPT[1] - KEPT[0] + 1)
        up = np.linspace(-1, 1, rising, endpoint=False)
        down = np.linspace(1, -1, period - rising, endpoint=False)
        values += np.tile(np.concatenate([up, down]), times).tolist()
    tooth = np.array(values[:ROWS])
    coins = draws.bits(ROWS, COINS).sum(1).astype(np.float64)
    noise = (coins - COINS / 2) / (COINS**0.5 / 2) * NOISE
    level, height = 10 * (1 + draws.below(10)), 1 + draws.below(5)
    return np.asarray(level + height * (tooth + noise))

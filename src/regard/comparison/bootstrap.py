"""A paired bootstrap over the blocks of the test split and over the seeds.

Every resample draws as many blocks as there are, with replacement, and as many seeds; both contestants get the same
draw, so that what is hard for both cancels out. `Metric.resampled` makes the metric of a resample from the merged
states of its blocks, as it is made of the whole split: a mean of per-sentence BLEU is not BLEU.

With a handful of seeds, drawing from them understates how much seeds scatter. This is why `statistics.judge` asks the
t test as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from regard.comparison.statistics import LEVEL, Bootstrap
from regard.tasks.metrics import Numbers

# The smallest p there can be is 2 / RESAMPLES; Holm's correction over the pairs of some twenty must leave it small.
RESAMPLES = 10_000
_SEED = 20141


def draws(blocks: int) -> NDArray[np.int64]:
    """How often each block comes in each resample, (resamples, blocks); the same for every run of that many blocks."""
    return np.random.default_rng(_SEED).multinomial(blocks, [1 / blocks] * blocks, size=RESAMPLES)


def bootstrap(first: Mapping[int, Numbers], second: Mapping[int, Numbers], blocks: int) -> Bootstrap:
    """The difference first − second over resamples, from what `resampled` gave for each seed of both.

    p is twice the share of resamples on the rarer side of zero; one that is no number speaks for neither side.
    """
    seeds = sorted(first.keys() & second.keys())
    differences = np.stack([first[seed] - second[seed] for seed in seeds], 1)  # (resamples, seeds)
    count = len(differences)
    chosen = np.random.default_rng(_SEED + 1).integers(0, len(seeds), (count, len(seeds)))
    means = np.take_along_axis(differences, chosen, 1).mean(1)
    if np.isnan(means).any():
        low = high = math.nan
    else:
        low, high = (float(end) for end in np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    rarer = min(int((~(means > 0)).sum()), int((~(means < 0)).sum()))
    return Bootstrap(low, high, min(1.0, 2 * (1 + rarer) / (1 + count)), count, blocks)

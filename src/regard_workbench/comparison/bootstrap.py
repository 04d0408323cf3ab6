"""A paired bootstrap over the blocks of the test split and over the seeds.

Every resample draws blocks and seeds with replacement, as many as there are; both contestants get the same draw, so
that variation in difficulty cancels out. `Metric.resampled` computes the metric of a resample from the merged states of
its blocks, as for the whole split: a mean of per-sentence BLEU is not BLEU.

Resampling a handful of seeds underestimates their variance. This is why `statistics.judge` requires the t test as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from regard_workbench.comparison.statistics import LEVEL, Bootstrap
from regard_workbench.tasks.measures.metrics import Numbers

# The smallest possible p is 2 / RESAMPLES; it must stay small after Holm's correction over the pairs of 20 contestants.
RESAMPLES = 10_000
_SEED = 20141


def draws(blocks: int) -> NDArray[np.int64]:
    """How often each block is drawn in each resample, (resamples, blocks); the same for every run."""
    return np.random.default_rng(_SEED).multinomial(blocks, [1 / blocks] * blocks, size=RESAMPLES)


def bootstrap(first: Mapping[int, Numbers], second: Mapping[int, Numbers], blocks: int) -> Bootstrap:
    """The difference first − second over resamples, from the resampled metric of each seed of both.

    p is twice the share of resamples on the rarer side of zero; a non-finite one counts for both sides.
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

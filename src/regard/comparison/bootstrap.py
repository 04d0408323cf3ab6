"""A paired bootstrap over the blocks of the test split and over the seeds.

Every resample draws as many blocks as there are, with replacement, and as many seeds; both contestants get the same
draw, so that what is hard for both cancels out. The metric of a resample is made from its summed blocks, as it is made
of the whole split: a mean of per-sentence BLEU is not BLEU.

With a handful of seeds, drawing from them understates how much seeds scatter. This is why `statistics.judge` asks the
t test as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from regard.comparison.job import Sums
from regard.comparison.statistics import LEVEL, Bootstrap

Finish = Callable[[Sums], dict[str, float]]
Numbers = NDArray[np.float64]

# The smallest p there can be is 2 / RESAMPLES; Holm's correction over the pairs of some twenty must leave it small.
RESAMPLES = 10_000
_SEED = 20141


def draws(blocks: int) -> NDArray[np.int64]:
    """How often each block comes in each resample, (resamples, blocks); the same for every run of that many blocks."""
    return np.random.default_rng(_SEED).multinomial(blocks, [1 / blocks] * blocks, size=RESAMPLES)


def resampled(blocks: Sequence[Sums], metric: str, finish: Finish, drawn: NDArray[np.int64]) -> Numbers:
    """The metric of one run in each resample; a plain mean takes no call of `finish`."""
    if is_mean(blocks, metric, finish):
        totals, counts = (np.array([block[metric][part] for block in blocks]) for part in (0, 1))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((drawn @ totals) / (drawn @ counts), dtype=np.float64)
    names = list(dict.fromkeys(name for block in blocks for name in block))
    pieces = np.array([[block.get(name, (0.0, 0.0)) for name in names] for block in blocks])
    sums = np.einsum("rb,bmp->rmp", drawn, pieces).tolist()
    found = [
        finish({name: (pair[0], pair[1]) for name, pair in zip(names, resample, strict=True)})
        for resample in sums
    ]
    return np.array([made.get(metric, math.nan) for made in found])


def is_mean(blocks: Sequence[Sums], metric: str, finish: Finish) -> bool:
    """Whether `finish` makes the metric by dividing its own sum by its own count; seen from all blocks and from one."""
    if not all(metric in block for block in blocks):
        return False
    whole: Sums = {metric: (0.0, 0.0)}
    for block in blocks:
        for name, (total, count) in block.items():
            before = whole.get(name, (0.0, 0.0))
            whole[name] = (before[0] + total, before[1] + count)
    for sums in (whole, blocks[0]):
        total, count = sums[metric]
        if not count or not math.isclose(finish(sums).get(metric, math.nan), total / count, rel_tol=1e-12):
            return False
    return True


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

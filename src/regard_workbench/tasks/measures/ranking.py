"""Ranking metrics: the place of the item that a user took next among others, and what is made of places.

The place is 1 + the number of other items that do *not* score lower: an item that ties with others is placed behind
them, and one whose score is not a number is last. So a model that scores everything alike gets nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from regard_workbench.tasks.measures.metrics import SHARE, Answered, Mean

AT = 10
NEGATIVES, SEEN = "negatives", "seen"  # names in `Batch.answers`


def sampled_places(scores: Tensor, true: Tensor, negatives: Tensor, keep: Tensor | None = None) -> Tensor:
    """Places (b,) among negatives (b,m): scores (b,items), true (b,); `keep` (b,m) is False where there is none."""
    target_scores = scores.gather(1, true[:, None])
    ahead = ~(scores.gather(1, negatives) < target_scores)
    return 1 + (ahead if keep is None else ahead & keep).sum(1)


def full_places(scores: Tensor, true: Tensor, seen: Tensor) -> Tensor:
    """Places (b,) among all items but id 0 (padding) and those `seen` (b,m), padded with 0."""
    ahead = ~(scores < scores.gather(1, true[:, None]))
    ahead = ahead.scatter(1, seen, False).scatter(1, true[:, None], False)
    ahead[:, 0] = False
    return 1 + ahead.sum(1)


def hits(places: Tensor) -> Tensor:
    """1 where the item is among the first ten."""
    return (places <= AT).double()


def gains(places: Tensor) -> Tensor:
    """NDCG of one right item: 1 / log2(place + 1) among the first ten, else 0."""
    return torch.where(places <= AT, 1 / torch.log2(places.double() + 1), 0.0)


def _scored(answered: Answered) -> tuple[Tensor, Tensor]:
    targets = answered.batch.targets
    assert targets is not None
    return answered.outputs[:, -1].float(), targets[:, -1]


def _sampled(answered: Answered) -> Tensor:
    negatives = answered.batch.answers[NEGATIVES]
    return sampled_places(*_scored(answered), negatives.data, negatives.keep)


def _full(answered: Answered) -> Tensor:
    return full_places(*_scored(answered), answered.batch.answers[SEEN].data)


def _mean(
    places: Callable[[Answered], Tensor], worth: Callable[[Tensor], Tensor], answered: Answered
) -> tuple[float, float] | None:
    if NEGATIVES not in answered.batch.answers:  # a training batch
        return None
    worths = worth(answered.once(places))
    return float(worths.sum()), float(len(worths))


HIT = Mean("hit_at_10", unit=SHARE, over="users", look=partial(_mean, _sampled, hits))
NDCG = Mean("ndcg_at_10", over="users", look=partial(_mean, _sampled, gains))
FULL_HIT = Mean("full_hit_at_10", unit=SHARE, over="users", look=partial(_mean, _full, hits))
FULL_NDCG = Mean("full_ndcg_at_10", over="users", look=partial(_mean, _full, gains))

"""Which examples make which batch: a pure function of the seed and a counter, so that a position is one number.

An epoch is shuffled as a whole. Pools of `bucket` batches are then sorted by length and cut into batches of similar
length, which come in random order. Only the pool at hand asks examples for their length, and none does if they say that
they are `even`: all of one length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue


def generator(*purpose: object) -> torch.Generator:
    """A random generator that depends on nothing but `purpose`, for instance (seed, "order", epoch)."""
    digest = hashlib.blake2b("/".join(map(str, purpose)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


class Order:
    """The order in which training sees the examples; `order[position]` are the indices of one batch."""

    def __init__(
        self,
        examples: Sequence[Any],
        batch_size: int,
        seed: int,
        length: Callable[[Any], int] | None = None,
        bucket: int = 0,
    ) -> None:
        if not len(examples):
            raise BadValue("data: the training split holds no examples.")
        self.examples, self.batch_size, self.seed = examples, batch_size, seed
        self.length = length if bucket > 1 else None
        self.bucket = max(1, bucket)
        self.per_epoch = -(-len(examples) // batch_size)  # the last batch of an epoch may be smaller
        self._epoch: tuple[int, Tensor] = (-1, torch.empty(0))
        self._pool: tuple[int, int, list[list[int]]] = (-1, -1, [])

    def __getitem__(self, position: int) -> list[int]:
        epoch, place = divmod(position, self.per_epoch)
        number, within = divmod(place, self.bucket)
        if self._pool[:2] != (epoch, number):
            self._pool = (epoch, number, self._cut(epoch, number))
        return self._pool[2][within]

    def epoch(self, position: int) -> int:
        """How many whole passes over the data came before this position."""
        return position // self.per_epoch

    def _shuffled(self, epoch: int) -> Tensor:
        if self._epoch[0] != epoch:
            random = generator(self.seed, "order", epoch)
            self._epoch = (epoch, torch.randperm(len(self.examples), generator=random))
        return self._epoch[1]

    def _cut(self, epoch: int, number: int) -> list[list[int]]:
        """The batches of one pool."""
        width = self.bucket * self.batch_size
        pool = self._shuffled(epoch)[number * width : (number + 1) * width].tolist()
        if self.length is not None and not getattr(self.examples, "even", False):
            sizes = {index: self.length(self.examples[index]) for index in pool}
            pool = sorted(pool, key=sizes.__getitem__)
        batches = [pool[i : i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
        if self.length is None:
            return batches
        random = generator(self.seed, "pool", epoch, number)
        return [batches[i] for i in torch.randperm(len(batches), generator=random).tolist()]

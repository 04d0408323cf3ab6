"""Random draws from a key, the same on every machine and in every version: what generated data are made of.

A key such as ("copy", seed, "train", 17) names a stream of bytes (SHAKE-128). Nothing global is read or changed, and
the 17th example needs none of the sixteen before it.

    >>> from regard_workbench.tasks.generated.draws import Draws
    >>> Draws("example", 1).below(100), Draws("example", 1).below(100)
    (49, 49)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")


def _stream(key: tuple[object, ...], count: int) -> bytes:
    # repr keeps ("a", "b") and ("a/b",) apart; lone surrogates of hostile text must not stop it
    return hashlib.shake_128(repr(key).encode("utf-8", "surrogatepass")).digest(count)


def rank(*key: object) -> int:
    """A number that orders things at random, but always in the same way."""
    return int.from_bytes(_stream(key, 16), "big")


class Draws:
    """A stream of random numbers that belongs to a key."""

    def __init__(self, *key: object) -> None:
        self._key = key
        self._bytes = b""
        self._used = 0

    def _take(self, count: int) -> bytes:
        until = self._used + count
        if until > len(self._bytes):
            self._bytes = _stream(self._key, max(64, 2 * until))
        chunk, self._used = self._bytes[self._used : until], until
        return chunk

    def below(self, bound: int) -> int:
        """A whole number from 0 to bound − 1."""
        return int.from_bytes(self._take(8), "big") * bound >> 64

    def several(self, bound: int, count: int) -> list[int]:
        """`count` whole numbers from 0 to bound − 1 (at most 2³² different ones); faster than `below` for each."""
        raw = np.frombuffer(self._take(4 * count), dtype=">u4").astype(np.uint64)
        numbers: list[int] = (raw * np.uint64(bound) >> np.uint64(32)).tolist()
        return numbers

    def among(self, things: Sequence[Item]) -> Item:
        """One of several things."""
        return things[self.below(len(things))]

    def happens(self, percent: int) -> bool:
        """True with a probability of `percent` percent."""
        return self.below(100) < percent

    def bits(self, *shape: int) -> NDArray[np.uint8]:
        """Zeros and ones, each as likely."""
        count = int(np.prod(shape))
        raw = np.frombuffer(self._take((count + 7) // 8), dtype=np.uint8)
        return np.unpackbits(raw)[:count].reshape(shape)


class Generated(Sequence[Item], Generic[Item]):
    """A sequence whose items are computed when asked for, so that it may be as long as one likes.

    even: all items are of one length, so that none has to be computed to know how long it is
    """

    def __init__(self, length: int, make: Callable[[int], Item], even: bool = False) -> None:
        self._length = length
        self._make = make
        self.even = even

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        places = range(self._length)[index]  # counts from the end, refuses what is outside
        return self._make(places) if isinstance(places, int) else [self._make(place) for place in places]

    def __iter__(self) -> Iterator[Item]:
        return map(self._make, range(self._length))


def shares(keys: Iterable[str], seed: int, parts: Sequence[float]) -> dict[str, int]:
    """Which part each key belongs to; `parts` are the fractions of all parts but the last, which takes the rest.

    Equal keys go together, so that no text stands on both sides of a split. Every part gets at least one where there
    are enough.
    """
    order = sorted(set(keys), key=lambda key: rank("split", seed, key))
    assigned: dict[str, int] = {}
    begin = 0
    for index, fraction in enumerate(parts):
        end = min(len(order), begin + max(1, round(fraction * len(order))))
        assigned.update(dict.fromkeys(order[begin:end], index))
        begin = end
    assigned.update(dict.fromkeys(order[begin:], len(parts)))
    return assigned

"""Masks that reach across blocks of 64, and sizes that end inside of one."""

import contextlib
from unittest import mock

import pytest
import torch

from regard import masks
from tests.contracts import entries
from tests.contracts.entries import MaskEntry, Sizes, numbers, structured
from tests.contracts.harness import check
from tests.triton.conftest import DEVICE

BF16, HALF, SINGLE = torch.bfloat16, torch.float16, torch.float32
AT_NIGHT = [pytest.param(HALF, marks=pytest.mark.nightly), pytest.param(SINGLE, marks=pytest.mark.nightly)]
DTYPES = pytest.mark.parametrize("dtype", [BF16, *AT_NIGHT], ids=str)  # where one of them has been seen to be enough
NARROW = Sizes(b=1, h=2, g=1, q=131, k=197, d=64, v=64)  # three blocks of queries, four of keys
WIDE = Sizes(b=1, h=2, g=2, q=67, k=131, d=128, v=128)
SQUARE = Sizes(b=1, h=2, g=1, q=197, k=197, d=64, v=64)
BATCH = Sizes(b=3, h=2, g=1, q=67, k=131, d=64, v=64)  # three entries, for masks that differ between them
UNEVEN = Sizes(b=1, h=2, g=1, q=67, k=131, d=37, v=43)  # not read by the copy engine


def documents(s, device):
    ends = [0, 61, 62, 140, s.k - 1, s.k]
    number = [sum(j >= end for end in ends) for j in range(s.k)]
    return masks.packed(numbers(ends, device)), lambda n, m, i, j: number[i] == number[j]


def global_tokens(s, device):
    index = [0, 70, s.k - 1]

    def predicate(n, m, i, j):
        p = i + s.k - s.q
        return -9 <= j - p <= 9 or p in index or j in index

    return masks.window(9) | masks.global_tokens(index), predicate


def lengths(s, device):
    keys, queries = [s.k, 65, 1], [s.q, 64, s.q - 2]
    mask = masks.lengths(numbers(keys, device), numbers(queries, device))
    return mask, lambda n, m, i, j: j < keys[n] and i < queries[n]


MASKS = {
    "wide window": structured(lambda: masks.window(70, 3), lambda p, j, s: p - 70 <= j <= p + 3),
    "narrow window": structured(lambda: masks.window(9, 0), lambda p, j, s: p - 9 <= j <= p),
    "long prefix": structured(lambda: masks.causal() | masks.prefix(70), lambda p, j, s: j <= p or j < 70),
    "long documents": MaskEntry(documents, square=True),
    "global tokens": MaskEntry(global_tokens, square=True),
    "long lengths": MaskEntry(lengths),
}


@contextlib.contextmanager
def masks_known():
    """While this lasts, cases may name the masks above."""
    with mock.patch.dict(entries.MASKS, MASKS):
        yield


def held(case, **options):
    """Hold a case to promise 7."""
    with masks_known():
        check(case, "triton", DEVICE, **options)

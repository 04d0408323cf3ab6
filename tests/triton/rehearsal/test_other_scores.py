"""Other normalisers than softmax, and additive scores, with an H200's blocks and instructions, under promise 7."""

import pytest
import torch

from regard import masks
from regard.implementations.triton.additive import strips as additive_strips
from tests.contracts.entries import Sizes
from tests.contracts.harness import Case
from tests.triton import test_additive, test_short_additive
from tests.triton.conftest import DEVICE
from tests.triton.rehearsal.cases import BATCH, BF16, DTYPES, HALF, NARROW, SINGLE, UNEVEN, WIDE, held

NORMALIZED = {
    "sigmoid": Case(normalize="sigmoid", mask="causal", dtype=BF16, sizes=NARROW),
    "sigmoid, wide": Case(normalize="sigmoid", mask="wide window", dtype=HALF, sizes=WIDE),
    "sparsemax": Case(normalize="sparsemax", mask="causal", dtype=BF16, sizes=NARROW),
    "sparsemax, lengths": Case(normalize="sparsemax", mask="long lengths", dtype=HALF, sizes=BATCH),
    "entmax15": Case(normalize="entmax15", mask="narrow window", dtype=BF16, sizes=NARROW),
    "entmax15, capped": Case(normalize="entmax15", score="softcap", mask="causal", dtype=BF16, sizes=UNEVEN),
    "hard": Case(normalize="hard", mask="long lengths", dtype=BF16, sizes=BATCH),
    "float32": Case(
        normalize="entmax15", mask="causal", bias="alibi", dtype=SINGLE, sizes=Sizes(1, 2, 1, 67, 131, 64, 64)
    ),
}


@pytest.mark.parametrize("name", NORMALIZED)
def test_other_normalizers(name):
    held(NORMALIZED[name], with_lse=False, bias_gradient=False)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [BF16, HALF, SINGLE], ids=str)
@pytest.mark.parametrize("width", [64, 128, 256, 37])
@pytest.mark.parametrize("mask", ["none", "causal", "wide window", "long lengths", "nested"])
@pytest.mark.parametrize("name", ["sigmoid", "sparsemax", "entmax15", "hard"])
def test_every_normalizer_width_and_mask(name, mask, width, dtype):
    sizes = Sizes(b=3, h=2, g=1, q=67, k=131, d=width, v=width)
    held(Case(normalize=name, mask=mask, dtype=dtype, sizes=sizes), with_lse=False, bias_gradient=False)


LONG = (1, 1, 1, 67, 71, 19, 37)  # two by two tiles of 64, ended inside


@DTYPES
def test_additive_attention_over_many_keys(dtype):
    assert additive_strips.BLOCK == 64
    test_additive.check(test_additive.request(shape=LONG, dtype=dtype, mask=masks.causal()))


@pytest.mark.nightly
def test_additive_scores_that_are_kept():
    asked = test_additive.request(shape=(1, 1, 1, 67, 67, 211, 197), dtype=SINGLE, mask=masks.window(9))
    test_additive.check(asked)


@DTYPES
def test_additive_attention_over_few_keys(dtype):
    keep = torch.tensor([5, 11, 1], device=DEVICE)
    shape = test_short_additive.SHAPE
    asked = test_additive.request(shape=shape, dtype=dtype, mask=masks.causal() & masks.lengths(keep))
    test_short_additive.check(asked)

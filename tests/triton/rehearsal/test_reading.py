"""Decoding, weights and summaries with an H200's blocks and 132 processors, in its dtypes, beside float64."""

import math

import pytest
import torch

import regard
from regard import biases, masks
from regard.dispatch.summary import Summary
from regard.implementations.triton.dot import decode
from regard.implementations.triton.summary import op as summaries
from tests.triton import test_decode, test_summary, test_weights
from tests.triton.conftest import DEVICE
from tests.triton.rehearsal.cases import BF16, DTYPES, HALF, SINGLE

ERROR = {BF16: 2**-8, HALF: 2**-10, SINGLE: 2e-5}  # of numbers of size one


@DTYPES
@pytest.mark.parametrize(("queries", "keys", "width"), [(1, 2179, 128), (5, 1237, 64), (1, 131, 37)])
def test_decoding(queries, keys, width, dtype):
    torch.manual_seed(3)
    size = (2, 6, 2, queries, keys, width, width)
    query, key, value = test_decode.drawn(size, dtype)
    if keys > 2000:
        assert decode.count_splits(query, key, value) > 1
    high = torch.tensor([keys, 71], device=DEVICE, dtype=torch.int32)
    with torch.no_grad():
        key[1, :, 71:], value[1, :, 71:] = math.nan, math.inf  # hidden
    sink = torch.randn(6).to(DEVICE, dtype)
    found = decode.decode(query, key, value, 0.1, high=high, after=0, sink=sink)
    seen = test_decode.positions(queries, keys) <= 0
    seen = seen & (torch.arange(keys) < high.cpu().view(-1, 1, 1, 1))
    key, value = key.nan_to_num(0, 0, 0), value.nan_to_num(0, 0, 0)
    expected = test_decode.formula(query, key, value, 0.1, seen, sink=sink)
    assert (found[0].cpu() - expected[0]).abs().max() <= ERROR[dtype]
    torch.testing.assert_close(found[1].cpu().double(), expected[1], rtol=1e-5, atol=1e-5)


@DTYPES
@pytest.mark.parametrize("name", ["none", "causal", "window"])
def test_repeated_calls_of_decoding_are_the_first(name, dtype):
    torch.manual_seed(5)
    mask = {"none": None, "causal": masks.causal(), "window": masks.window(700, 0)}[name]
    query, key, value = test_decode.drawn((1, 4, 2, 1, 1301, 64, 64), dtype)
    with torch.no_grad():
        found = [regard.attend(query, key, value, mask=mask, impl="triton") for _ in range(3)]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    seen = test_decode.positions(1, 1301) >= (-700 if name == "window" else -1301)
    expected = test_decode.formula(query, key, value, 1 / 8, seen)[0]
    assert (found[0].cpu() - expected).abs().max() <= ERROR[dtype]


@DTYPES
@pytest.mark.parametrize("rows", [None, [7, -1, 3]], ids=["all rows", "some rows"])
def test_weights_of_rows(rows, dtype):
    torch.manual_seed(7)
    query, key = torch.randn(1, 4, 67, 64).to(DEVICE, dtype), torch.randn(1, 2, 389, 64).to(DEVICE, dtype)
    sink = torch.randn(4).to(DEVICE, dtype)
    options = {"mask": masks.causal(), "bias": biases.alibi(4)}
    found = test_weights.fused(query, key, rows, sink=sink, **options)
    exact = regard.weights(query.double(), key.double(), rows=rows, sink=sink.double(), **options)
    assert found.dtype == dtype and (found.double() - exact).abs().max() <= ERROR[dtype] / 2


@DTYPES
@pytest.mark.parametrize("name", ["none", "window", "global"])
def test_summaries(name, dtype):
    torch.manual_seed(9)
    mask = {"none": None, "window": masks.window(71, 3), "global": masks.window(5) | masks.global_tokens([0, 200])}[
        name
    ]
    query, key = torch.randn(1, 2, 261, 64).to(DEVICE, dtype), torch.randn(1, 1, 261, 64).to(DEVICE, dtype)
    assert summaries.rows_shape(64, dtype).block_q in (64, 128)
    found = test_summary.fused(query, key, top=3, mask=mask)
    exact = regard.summarize(query.double(), key.double(), top=3, mask=mask)
    for part in Summary.__dataclass_fields__:
        mine, theirs = getattr(found, part), getattr(exact, part)
        if part == "top_keys":
            clear = exact.top_weights[..., :2] - exact.top_weights[..., 1:] > 1e-4
            assert torch.equal(mine[..., :2][clear], theirs[..., :2][clear])
        else:
            torch.testing.assert_close(mine.double(), theirs, rtol=2e-5, atol=2e-5)

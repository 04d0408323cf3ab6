"""Decoding by kernels: a few queries over a cache, against the formula in float64, and what may never leak."""

import math

import pytest
import torch

from regard.implementations.triton.dot.decode import decode
from tests.triton.conftest import DEVICE, GPU

SIZES = {"one query": (2, 6, 2, 1, 131, 24, 40), "some": (3, 4, 2, 5, 97, 16, 16), "own keys": (2, 3, 3, 2, 67, 7, 5)}
MANY = {"more rows than a tile": (1, 14, 1, 13, 71, 16, 16), "a cache of thousands": (2, 8, 2, 1, 5003, 128, 128)}


def drawn(size, dtype=torch.float32):
    b, h, g, q, k, d, v = size
    return [torch.randn(*shape).to(DEVICE, dtype) for shape in ((b, h, q, d), (b, g, k, d), (b, g, k, v))]


def positions(q, k, first=None):
    """Distances (b|1,1,q,k) from each query to each key; the last query stands at the last key."""
    first = torch.tensor([k - q]) if first is None else first.cpu()
    return torch.arange(k) - (first[:, None] + torch.arange(q)).view(-1, 1, q, 1)


def formula(query, key, value, scale, seen, cap=None, sink=None):
    """Loops over nothing: the definition in float64 on a CPU."""
    query, key, value = (x.double().cpu() for x in (query, key, value))
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    powers = torch.where(seen, scores, -math.inf).exp()
    lse = powers.sum(-1).log()
    total = powers.sum(-1, keepdim=True)
    if sink is not None:
        total = total + sink.double().cpu().view(1, -1, 1, 1).exp() * (total > 0)
    return (powers / torch.where(total > 0, total, 1)) @ value, lse


def agree(found, expected, rtol=1e-5):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double().cpu(), other, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("splits", [0, 1, 3])
@pytest.mark.parametrize("name", SIZES if not GPU else {**SIZES, **MANY})
def test_every_split_gives_the_formula(name, splits):
    size = {**SIZES, **MANY}[name]
    query, key, value = drawn(size)
    seen = torch.ones(1, 1, size[3], size[4], dtype=torch.bool)
    agree(decode(query, key, value, 0.3, splits=splits), formula(query, key, value, 0.3, seen))


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("before, after", [(None, 0), (9, 0), (4, 3), (0, 0), (1000, 1000)])
def test_windows(before, after, splits):
    query, key, value = drawn(SIZES["some"])
    distance = positions(5, 97)
    seen = (distance >= -(1000 if before is None else before)) & (distance <= after)
    found = decode(query, key, value, 0.3, before=before, after=after, splits=splits)
    agree(found, formula(query, key, value, 0.3, seen))


@pytest.mark.parametrize("splits", [1, 4])
def test_spans_padding_cap_and_sink_together(splits):
    query, key, value = drawn(SIZES["some"])
    low, high = (torch.tensor([0, 13, 90]).int(), torch.tensor([97, 60, 20]).int())  # the last entry sees nothing
    keep, sink = torch.rand(3, 97) > 0.3, torch.randn(4)
    j = torch.arange(97)
    seen = ((j >= low[:, None]) & (j < high[:, None]) & keep)[:, None, None]
    found = decode(
        query,
        key,
        value,
        0.7,
        low.to(DEVICE),
        high.to(DEVICE),
        keep=keep.to(DEVICE),
        cap=2.0,
        sink=sink.to(DEVICE),
        splits=splits,
    )
    agree(found, formula(query, key, value, 0.7, seen, cap=2.0, sink=sink))
    assert (found[0][2] == 0).all()
    assert (found[1][2] == -math.inf).all()


def test_queries_of_a_preallocated_cache_stand_where_they_are_told():
    query, key, value = drawn(SIZES["some"])
    first = torch.tensor([3, 50, 92]).int()
    found = decode(query, key, value, 0.3, position=first.to(DEVICE), before=11, after=0)
    distance = positions(5, 97, first)
    agree(found, formula(query, key, value, 0.3, (distance >= -11) & (distance <= 0)))


@pytest.mark.parametrize("splits", [1, 4])
def test_what_is_hidden_is_never_read(splits):
    query, key, value = drawn(SIZES["some"])
    keep = torch.rand(3, 97, device=DEVICE) > 0.3
    low, high = (torch.full((3,), n, dtype=torch.int32, device=DEVICE) for n in (10, 80))
    clean = decode(query, key, value, 0.3, low, high, keep=keep, splits=splits)
    hidden = ~keep
    hidden[:, :10] = hidden[:, 80:] = True
    for x, poison in ((key, math.nan), (value, math.inf)):
        x.masked_fill_(hidden[:, None, :, None], poison)
    dirty = decode(query, key, value, 0.3, low, high, keep=keep, splits=splits)
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])


@pytest.mark.parametrize("splits", [1, 4])
def test_what_is_seen_and_not_finite_stays_so(splits):
    query, key, value = drawn(SIZES["some"])
    key[0, 0, 40] = math.nan
    value[1, 1, 20, 3] = math.inf
    out, lse = decode(query, key, value, 0.3, splits=splits)
    assert out[0, :2].isnan().all()
    assert lse[0, :2].isnan().all()
    assert out[0, 2:].isfinite().all()
    assert not out[1, 2:, :, 3].isfinite().any()
    assert out[1, :2].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype):
    query, key, value = drawn(SIZES["one query"], dtype)
    out, lse = decode(query, key, value, 0.3, splits=2)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    expected = formula(query, key, value, 0.3, torch.ones(1, 1, 1, 131, dtype=torch.bool))
    agree((out, lse), expected, rtol=2 * torch.finfo(dtype).eps)


def test_strided_inputs_and_empty_ones():
    query, key, value = drawn(SIZES["some"])
    expected = decode(query, key, value, 0.3)
    turned = [x.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0) for x in (query, key, value)]
    for one, other in zip(decode(*turned, 0.3), expected, strict=True):
        assert torch.equal(one, other)
    shared = torch.tensor([50], dtype=torch.int32, device=DEVICE).expand(3)  # one number in memory for three entries
    for one, other in zip(
        decode(query, key, value, 0.3, high=shared), decode(query, key[:, :, :50], value[:, :, :50], 0.3), strict=True
    ):
        torch.testing.assert_close(one, other)
    out, lse = decode(query, key[:, :, :0], value[:, :, :0], 0.3)
    assert (out == 0).all()
    assert (lse == -math.inf).all()
    assert decode(query[:, :, :0], key, value, 0.3)[0].shape == (3, 4, 0, 16)


def test_the_operator_is_registered_as_torch_wants_it():
    query, key, value = drawn(SIZES["own keys"])
    rest = (None, None, None, None, None, 1 << 30, 0, 0.0, 0)
    torch.library.opcheck(torch.ops.regard.decode.default, (query, key, value, 0.3, *rest))

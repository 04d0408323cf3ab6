"""Promise 3: NaN in something that is attended stays visible: the row becomes NaN, never zeros."""

import math

import pytest
import torch

import regard
from regard import masks, scores
from tests.contracts import entries
from tests.contracts.harness import EVERYTHING

B, H, Q, D, V = 2, 3, 5, 4, 6
LENGTHS = [1, 2, 7, 15, 16, 17, 31]
EVERY = {**entries.NORMALIZERS, **entries.CUSTOM_NORMALIZERS}


def draw(k, device, dtype=torch.float32):
    return [torch.randn(B, H, n, m, dtype=dtype).to(device) for n, m in ((Q, D), (k, D), (k, V))]


def assert_only_these_rows_are_nan(out, rows):
    expected = torch.zeros(out.shape, dtype=torch.bool)
    expected[1, 2, rows] = True
    assert torch.equal(out.isnan().cpu(), expected)


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("normalize", EVERY)
def test_a_nan_query_gives_a_nan_row(normalize, k, impl, device):
    query, key, value = draw(k, device)
    query[1, 2, 3, 1] = math.nan
    out, lse = regard.attend(query, key, value, normalize=EVERY[normalize][0], impl=impl, return_logsumexp=True)
    assert_only_these_rows_are_nan(out, [3])
    assert_only_these_rows_are_nan(lse, [3])


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("normalize", EVERY)
@pytest.mark.parametrize("place", ["key", "value"])
def test_a_nan_key_or_value_gives_nan_to_every_row_that_sees_it(place, normalize, k, impl, device):
    """Also where a sparse or hard normaliser gives that key no weight."""
    query, key, value = draw(k, device)
    if place == "key":
        key[1, 2, k // 2, 1] = math.nan
    else:
        value[1, 2, k - 1] = math.nan
    out = regard.attend(query, key, value, normalize=EVERY[normalize][0], impl=impl)
    assert_only_these_rows_are_nan(out, list(range(Q)))


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("normalize", EVERY)
def test_an_infinite_value_leaves_no_finite_row(normalize, impl, device):
    query, key, value = draw(17, device)
    value[1, 2, 8] = math.inf
    out = regard.attend(query, key, value, normalize=EVERY[normalize][0], impl=impl)
    assert not out[1, 2].isfinite().any()
    assert out[0].isfinite().all()


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("score", entries.SCORES)
def test_a_nan_shows_through_every_score(score, impl, device):
    sizes = entries.Sizes(b=B, h=H, g=H, q=Q, k=17, d=D, v=V)
    entry = entries.SCORES[score]
    value = entry.build({name: torch.randn(shape, device=device) for name, shape in entry.shapes(sizes).items()})
    for part, rows in ((0, [3]), (1, list(range(Q))), (2, list(range(Q)))):
        qkv = draw(17, device)
        qkv[part][1, 2, 3] = math.nan
        assert_only_these_rows_are_nan(regard.attend(*qkv, score=value, impl=impl), rows)


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("name", ["causal", "window both", "lengths", "raw q k", "blocks"])
@pytest.mark.parametrize("normalize", entries.NORMALIZERS)
def test_a_nan_shows_under_every_kind_of_mask(normalize, name, impl, device):
    """Rows that see the NaN are NaN; batches and heads apart from it are not."""
    sizes = entries.Sizes(b=3, h=H, g=H, q=19, k=19, d=D, v=V)
    mask, predicate = entries.MASKS[name].build(sizes, device)
    for part in (1, 2):
        qkv = [torch.randn(3, H, 19, n, device=device) for n in (D, D, V)]
        qkv[part][1, 2, 5] = math.nan
        out = regard.attend(*qkv, mask=mask, normalize=EVERY[normalize][0], impl=impl)
        sees = [i for i in range(19) if predicate(1, 2, i, 5)]
        assert sees
        assert out[1, 2, sees].isnan().all()
        assert out[:, :2].isfinite().all()
        assert out[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("k", [16, 17, 31, 64])
def test_sdpa_shows_a_nan_or_refuses(k, dtype, device):
    for part, rows in ((0, [3]), (1, list(range(Q))), (2, list(range(Q)))):
        qkv = draw(k, device, dtype)
        qkv[part][1, 2, 3] = math.nan
        try:
            out = regard.attend(*qkv, impl="sdpa")
        except regard.Unsupported as refusal:
            assert dtype == torch.float16 or device == "cuda", refusal
            continue
        assert_only_these_rows_are_nan(out, rows)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_a_nan_in_a_bias_or_a_sink_shows(impl, device):
    qkv = draw(17, device)
    bias = torch.zeros(B, H, Q, 17, device=device)
    bias[1, 2, 3, 8] = math.nan
    assert_only_these_rows_are_nan(regard.attend(*qkv, bias=bias, impl=impl), [3])
    sink = torch.tensor([0.0, 0.0, math.nan], device=device)
    assert regard.attend(*qkv, sink=sink, impl=impl)[:, 2].isnan().all()


@pytest.mark.parametrize("impl", EVERYTHING)
def test_a_nan_weight_shows(impl, device):
    qkv = draw(17, device)
    weight = torch.ones(D, device=device)
    weight[1] = math.nan
    assert regard.attend(*qkv, score=scores.additive(weight), mask=masks.full(), impl=impl).isnan().all()

"""Promise 3 for infinities: a row that attends to an infinite score is not finite, and never zeros.

A score of −inf has weight 0, whatever made it. Only where nothing else is left, and no mask or bias asked for it, the
weights are 0 / 0 and the row is NaN.
"""

import math

import pytest
import torch

import regard
from regard import masks
from tests.contracts.harness import EVERYTHING

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
B, H, G, Q, K, D, V = 2, 4, 2, 5, 37, 8, 8
MASKS = {
    "no mask": lambda: None,
    "causal": masks.causal,
    "lengths": lambda: masks.lengths(torch.tensor([K, K - 6])),
    "window": lambda: masks.window(40, 0),
}


def draw(dtype, k=K):
    return [torch.randn(B, h, n, d).to(dtype) for h, n, d in ((H, Q, D), (G, k, D), (G, k, V))]


def rows_by_definition(query, key, mask=None, bias=None):
    """Per row: "finite", "nan" or "empty", from the scores in float64 and nothing else."""
    scores = query.double() @ key.double().repeat_interleave(H // G, 1).mT / math.sqrt(D)
    seen = torch.ones(()).bool() if mask is None else mask.dense(Q, key.shape[2], batch=B, heads=H)
    given = scores + (0 if bias is None else bias.double())
    given = given.masked_fill(~seen, -math.inf)
    own = (scores == -math.inf) & seen
    found = []
    for row, by_itself in zip(given.flatten(0, 2), own.flatten(0, 2), strict=True):
        highest = max(row.tolist(), key=lambda x: math.inf if x != x else x)
        if highest == -math.inf:
            found.append("nan" if by_itself.any() else "empty")
        else:
            found.append("finite" if highest < math.inf else "nan")
    return found


def assert_rows(out, kinds):
    for row, kind in zip(out.flatten(0, 2), kinds, strict=True):
        if kind == "empty":
            assert (row == 0).all()
        else:
            assert row.isfinite().all() == (kind == "finite"), (kind, row)
            assert kind == "finite" or not row.isfinite().any()


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("number", [math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_infinite_query_or_key_leaves_no_row_of_zeros(dtype, number, name, impl):
    mask = MASKS[name]()
    if impl == "sdpa" and name in ("causal", "window"):
        with pytest.raises(regard.Unsupported):
            regard.attend(*draw(dtype), mask=mask, impl=impl)
        return
    for part in (0, 1):
        qkv = draw(dtype)
        qkv[part][1, 1, 3, 2] = number
        kinds = rows_by_definition(*qkv[:2], mask)
        assert "nan" in kinds
        assert_rows(regard.attend(*qkv, mask=mask, impl=impl), kinds)


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("k", [17, 64, 600])  # within, across and far beyond a block of torch's kernel
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_infinite_bias_leaves_no_row_of_zeros(dtype, k, impl):
    qkv = draw(dtype, k)
    bias = torch.randn(B, 1, Q, k).to(dtype)
    bias[1, 0, 3, k // 2] = math.inf
    bias[0, 0, 2, :] = -math.inf
    kinds = rows_by_definition(*qkv[:2], bias=bias)
    assert {"nan", "empty", "finite"} == set(kinds)
    assert_rows(regard.attend(*qkv, bias=bias, impl=impl), kinds)


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("mask", [None, masks.lengths(torch.tensor([K, K - 6]))], ids=["all", "lengths"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_whose_own_scores_are_all_minus_infinity_is_nan(dtype, mask, impl):
    """An infinite query over keys of one sign; and every key infinite."""
    for part in (0, 1):
        qkv = draw(dtype)
        qkv[0], qkv[1] = qkv[0].abs(), -qkv[1].abs()
        if part == 0:
            qkv[0][1, 1, 3, 2] = math.inf
        else:
            qkv[1][1, 1, :, 2] = -math.inf
        kinds = rows_by_definition(*qkv[:2], mask)
        assert "nan" in kinds and "finite" in kinds
        assert_rows(regard.attend(*qkv, mask=mask, impl=impl), kinds)


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_finite_rows_whose_product_overflows_float32_do_not_become_zeros(dtype, impl):
    qkv = draw(dtype)
    qkv[0][1, 1, 3], qkv[1][1, 0, 5] = 1e30, 1e30
    assert not regard.attend(*qkv, impl=impl)[1, 1, 3].isfinite().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_infinity_shows_in_the_gradients_too(dtype):
    for impl in (*EVERYTHING, "sdpa"):
        qkv = draw(dtype)
        qkv[0][1, 1, 3, 2] = math.inf
        leaves = [x.requires_grad_() for x in qkv]
        grads = torch.autograd.grad(regard.attend(*leaves, impl=impl).sum(), leaves)
        assert not all(grad.isfinite().all() for grad in grads), impl


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_an_infinity_shows_in_a_compiled_call(dtype):
    qkv = draw(dtype)
    qkv[1][1, 0, 5, 2] = math.inf
    compiled = torch.compile(lambda *x: regard.attend(*x), backend="aot_eager", fullgraph=True)
    assert_rows(compiled(*qkv), rows_by_definition(*qkv[:2]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_of_zero_are_no_sign_of_an_infinity(dtype):
    """The guard looks for rows of zeros; these are right."""
    query, key, value = draw(dtype)
    assert torch.equal(regard.attend(query, key, torch.zeros_like(value)), torch.zeros(B, H, Q, V, dtype=dtype))
    bias = torch.zeros(Q, K, dtype=dtype)
    bias[2] = -math.inf
    assert (regard.attend(query, key, value, bias=bias)[:, :, 2] == 0).all()
    key[:, :, K - 1] = math.inf  # hidden, so it must have no effect
    lengths = masks.lengths(torch.tensor([0, K - 1]))
    out = regard.attend(query, key, value, mask=lengths)
    assert (out[0] == 0).all() and out[1].isfinite().all()

"""The fused kernels at the edges: a sink far above the scores, infinities, float16 rows that leave their range."""

import pytest
import torch

import regard
from regard import masks, scores
from tests.triton.conftest import DEVICE


def drawn(*shape, dtype=torch.float32, grad=True):
    return torch.randn(*shape).to(DEVICE, dtype).requires_grad_(grad)


@pytest.mark.parametrize(
    ("score", "dtype"),
    [
        ("scaled-dot", torch.float32),
        ("scaled-dot", torch.bfloat16),
        ("scaled-dot", torch.float16),
        ("additive", torch.float32),
    ],
)
@pytest.mark.parametrize("below", [95.0, 1e4])
def test_a_sink_far_above_the_scores_leaves_the_gradients_finite(below, score, dtype):
    """The share of the log-sum-exp in the gradient must not pass through exp(sink − score), which overflows at 89."""
    query, key, value = (drawn(2, 1, n, 5, dtype=dtype) for n in (13, 17, 17))
    sink, weight = drawn(1), drawn(5, dtype=dtype)
    bias = torch.zeros(13, 17, device=DEVICE, dtype=dtype)
    bias[3] = -below
    mask = masks.lengths(torch.tensor([17, 5], device=DEVICE))
    leaves = [query, key, value, sink, *([weight] if score == "additive" else [])]
    found = {}
    for impl in ("triton", "reference"):
        out, lse = regard.attend(
            query,
            key,
            value,
            bias=bias,
            sink=sink,
            mask=mask,
            impl=impl,
            return_logsumexp=True,
            score=scores.additive(weight) if score == "additive" else score,
        )
        found[impl] = torch.autograd.grad(out.float().square().sum() + lse.sin().sum(), leaves)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 5e-3}[dtype]
    tolerance = max(tolerance, 8 * below * torch.finfo(torch.float32).eps)  # a score is rounded by that much
    for mine, theirs in zip(found["triton"], found["reference"], strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("queries", [3, 19])  # few go to the kernel for decoding
@pytest.mark.parametrize("grad", [False, True])
def test_an_infinite_query_key_or_bias_leaves_no_row_of_zeros(grad, queries, dtype):
    for place in ("query", "key", "bias", "query over keys of one sign"):
        query, key, value = (drawn(1, 2, n, 16, dtype=dtype, grad=False) for n in (queries, 21, 21))
        bias = None
        if place == "key":
            key[0, 1, 4, 3] = torch.inf
        elif place == "bias":
            bias = torch.zeros(queries, 21, device=DEVICE, dtype=dtype)
            bias[2, 1] = torch.inf
        else:
            key = -key.abs() if place != "query" else key
            query[0, 1, 2, 3] = torch.inf
        leaves = [x.requires_grad_(grad) for x in (query, key, value)]
        found, true = (
            regard.attend(*leaves, bias=bias, mask=masks.causal(), impl=impl).isfinite()
            for impl in ("triton", "reference")
        )
        assert not true.all()
        assert torch.equal(found, true), place


@pytest.mark.parametrize("score", ["general", "cosine"])
@pytest.mark.parametrize("queries", [3, 19])
def test_float16_rows_that_leave_their_range_are_computed_in_float32(queries, score):
    query, key, value = (drawn(1, 2, n, 16, dtype=torch.float16) for n in (queries, 21, 21))
    weight = (torch.eye(16, device=DEVICE) * 3e4).half()
    value_of = {"general": scores.general(weight), "cosine": scores.cosine(1e6)}[score]
    out = regard.attend(query, key, value, score=value_of, mask=masks.causal(), impl="triton")
    assert out.dtype == torch.float16
    exact = scores.general(weight.double()) if score == "general" else value_of
    rows = [x.detach().double() for x in (query, key, value)]
    true = regard.attend(*rows, score=exact, mask=masks.causal(), impl="reference")
    torch.testing.assert_close(out.double(), true, rtol=2e-3, atol=2e-3)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), (query, key, value)))
    with torch.no_grad():
        again = regard.attend(query, key, value, score=value_of, mask=masks.causal(), impl="triton")
    torch.testing.assert_close(again.double(), true, rtol=2e-3, atol=2e-3)

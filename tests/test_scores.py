"""What each score computes, read back exactly through the sigmoid weights of single pairs."""

import math

import pytest
import torch

import regard
from regard import masks, scores

B, H, Q, K, D = 2, 3, 5, 7, 4


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64) * 0.6  # small enough for the logit to keep nine digits


def read(query, key, score, scale=None):
    """The score of every pair: the logit of a sigmoid weight."""
    return torch.logit(regard.weights(query, key, score=score, normalize="sigmoid", scale=scale))


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def qk():
    return draw(B, H, Q, D), draw(B, H, K, D)


def test_a_scale_may_be_negative_zero_or_an_integer():
    query, key = qk()
    close(read(query, key, "dot", scale=-1), -read(query, key, "dot"))
    close(read(query, key, "dot", scale=0), torch.zeros(B, H, Q, K, dtype=torch.float64))


def test_softcap_never_passes_its_cap():
    query, key = qk()
    found = read(query * 100, key * 100, scores.softcap(3.0))
    assert found.abs().max() <= 3 + 1e-9
    assert found.abs().max() > 2.9


def test_concat_may_mix_shared_and_per_head_weights():
    query, key = qk()
    left, right, weight = draw(H, 6, D), draw(6, D), draw(H, 6)
    expected = torch.stack(
        [
            read(query[:, m : m + 1], key[:, m : m + 1], scores.concat(left[m], right, weight[m]))[:, 0]
            for m in range(H)
        ],
        dim=1,
    )
    close(read(query, key, scores.concat(left, right, weight)), expected)


def test_cosine_of_a_zero_vector_is_zero_and_its_gradient_finite():
    query, key, value = (x.requires_grad_() for x in (draw(B, H, Q, D), draw(B, H, K, D), draw(B, H, K, 3)))
    with torch.no_grad():
        query[0, 0, 0] = 0
        key[1, 2, 3] = 0
    found = read(query, key, scores.cosine(2.0))
    assert (found[0, 0, 0] == 0).all()
    assert (found[1, 2, :, 3] == 0).all()
    for impl in ("reference", "tiled"):
        out = regard.attend(query, key, value, score=scores.cosine(2.0), impl=impl)
        for grad in torch.autograd.grad(out.sum(), (query, key, value)):
            assert grad.isfinite().all()


@pytest.mark.parametrize("impl", ["reference", "tiled"])
@pytest.mark.parametrize("magnitude", [1e-15, 1e-6, 1e15])
def test_cosine_survives_tiny_and_huge_vectors(magnitude, impl):
    query, key, value = (torch.randn(1, 2, n, 4) for n in (5, 7, 7))
    found = regard.attend(query * magnitude, key * magnitude, value, score=scores.cosine(2.0), impl=impl)
    torch.testing.assert_close(found, regard.attend(query, key, value, score=scores.cosine(2.0), impl=impl))


@pytest.mark.parametrize("shape", [(H,), (1, H, 1, 1), (B, H, Q, 1), (B, 1, 1, 1), (Q, 1), (1,), ()])
def test_the_strength_of_cosine_broadcasts(shape):
    query, key = qk()
    strength = torch.rand(shape, dtype=torch.float64) + 0.5
    full = strength[:, None, None] if strength.dim() == 1 else strength
    unit = read(query, key, scores.cosine(1.0))
    close(read(query, key, scores.cosine(strength)), (unit * full).expand(B, H, Q, K))


def test_shaw_adds_the_row_of_the_clipped_distance():
    """One-hot rows: the added score names the row."""
    query, key = torch.ones(1, 1, 2, 5, dtype=torch.float64), torch.zeros(1, 1, 4, 5, dtype=torch.float64)
    table = torch.diag(torch.arange(5, dtype=torch.float64))
    # queries stand at 2 and 3; distances key − query are −2…1 and −3…0, clipped to ±2, plus 2
    close(read(query, key, scores.shaw(table))[0, 0], torch.tensor([[0, 1, 2, 3], [0, 0, 1, 2]], dtype=torch.float64))


def test_additive_ignores_hidden_keys():
    query, key, value = draw(B, H, Q, D), draw(B, H, K, D), draw(B, H, K, 3)
    mask = masks.lengths(torch.tensor([3, K]))
    score = scores.additive(draw(D))
    clean = regard.attend(query, key, value, score=score, mask=mask)
    key[0, :, 3:] = math.nan
    value[0, :, 3:] = math.inf
    assert torch.equal(regard.attend(query, key, value, score=score, mask=mask), clean)


def attend(score, h=H, d=D):
    query = torch.randn(2, h, 5, d)
    return regard.attend(query, query, query, score=score)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: attend(scores.general(torch.randn(D, D + 1))), "weight"),
        (lambda: attend(scores.general(torch.randn(D + 1, D + 1))), "weight"),
        (lambda: attend(scores.general(torch.randn(H + 1, D, D))), "weight"),
        (lambda: attend(scores.general(torch.randn(D))), "weight"),
        (lambda: attend(scores.additive(torch.randn(D + 1))), "weight"),
        (lambda: attend(scores.additive(torch.randn(H + 1, D))), "weight"),
        (lambda: attend(scores.concat(torch.randn(6, D), torch.randn(5, D), torch.randn(6))), "weight"),
        (lambda: attend(scores.concat(torch.randn(6, D + 1), torch.randn(6, D), torch.randn(6))), "weight_query"),
        (lambda: attend(scores.cosine(torch.randn(H + 1))), "strength"),
        (lambda: attend(scores.shaw(torch.randn(4, D))), "table"),
        (lambda: attend(scores.shaw(torch.randn(5, D + 1))), "table"),
        (lambda: attend(scores.transformer_xl(torch.randn(D + 1), torch.randn(D), torch.randn(5, D))), "content_bias"),
        (lambda: attend(scores.softcap(0.0)), "cap"),
        (lambda: attend(scores.softcap(-1.0)), "cap"),
        (lambda: attend(scores.softcap(math.nan)), "cap"),
        (lambda: attend("scaled_dott"), "scaled-dot"),
        (lambda: attend("additive"), "additive"),
        (lambda: attend(3), "score"),
    ],
)
def test_weights_of_the_wrong_shape_are_refused_by_name(call, word):
    with pytest.raises(regard.RegardError, match=word) as caught:
        call()
    assert isinstance(caught.value, (ValueError, TypeError))


def test_a_zero_row_has_cosine_zero_and_gradient_zero():
    query = torch.zeros(1, 1, 2, 3, dtype=torch.float64, requires_grad=True)
    key = torch.randn(1, 1, 5, 3, dtype=torch.float64)
    out = regard.attend(query, key, key, score=regard.scores.cosine(2.0))
    assert torch.allclose(out, key.mean(2, keepdim=True).expand_as(out))
    assert torch.autograd.grad(out.square().sum(), query)[0].abs().max() == 0

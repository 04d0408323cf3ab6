"""The oracle against something else again: Python loops, torch, brute force, finite differences."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from tests import oracle

B, H, Q, K, D, A, R = 2, 3, 5, 7, 4, 6, 2


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def vector_dot(x, y):
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def matrix_vector(matrix, x):
    return [vector_dot(row, x) for row in matrix]


def distance(i, j):
    return max(-R, min(R, j - (i + K - Q))) + R


def tanh_score(x, y, w):
    return vector_dot(w, [math.tanh(a + b) for a, b in zip(x, y, strict=True)])


def unit(x):
    norm = math.sqrt(vector_dot(x, x))
    return [a / norm for a in x]


def added(x, y):
    return [a + b for a, b in zip(x, y, strict=True)]


W, WQ, WK, WA = draw(H, D, D), draw(H, A, D), draw(H, A, D), draw(H, A)
TABLE, U, V, WD = draw(H, 2 * R + 1, D), draw(H, D), draw(H, D), draw(H, D)
STRENGTH = draw(B, H, Q, 1)


def rows(m, i, j):
    return TABLE[m, distance(i, j)].tolist()


PAIRWISE = {
    # name: (formula, tensors, scale, one pair by hand)
    "scaled_dot": (oracle.scaled_dot, {}, None, lambda x, y, n, m, i, j: vector_dot(x, y) / math.sqrt(D)),
    "scaled_dot scale": (oracle.scaled_dot, {}, 0.3, lambda x, y, n, m, i, j: 0.3 * vector_dot(x, y)),
    "dot": (oracle.dot, {}, None, lambda x, y, n, m, i, j: vector_dot(x, y)),
    "softcap": (
        oracle.softcap,
        {"cap": 1.5},
        0.3,
        lambda x, y, n, m, i, j: 1.5 * math.tanh(0.3 * vector_dot(x, y) / 1.5),
    ),
    "general": (
        oracle.general,
        {"weight": W},
        0.3,
        lambda x, y, n, m, i, j: 0.3 * vector_dot(x, matrix_vector(W[m].tolist(), y)),
    ),
    "general shared": (
        oracle.general,
        {"weight": W[0]},
        None,
        lambda x, y, n, m, i, j: vector_dot(x, matrix_vector(W[0].tolist(), y)),
    ),
    "additive": (oracle.additive, {"weight": WD}, None, lambda x, y, n, m, i, j: tanh_score(x, y, WD[m].tolist())),
    "additive shared": (
        oracle.additive,
        {"weight": WD[0]},
        2.0,
        lambda x, y, n, m, i, j: 2 * tanh_score(x, y, WD[0].tolist()),
    ),
    "concat": (
        oracle.concat,
        {"weight_query": WQ, "weight_key": WK, "weight": WA},
        None,
        lambda x, y, n, m, i, j: tanh_score(
            matrix_vector(WQ[m].tolist(), x), matrix_vector(WK[m].tolist(), y), WA[m].tolist()
        ),
    ),
    "concat shared": (
        oracle.concat,
        {"weight_query": WQ[0], "weight_key": WK[0], "weight": WA[0]},
        None,
        lambda x, y, n, m, i, j: tanh_score(
            matrix_vector(WQ[0].tolist(), x), matrix_vector(WK[0].tolist(), y), WA[0].tolist()
        ),
    ),
    "cosine": (
        oracle.cosine,
        {"strength": STRENGTH},
        None,
        lambda x, y, n, m, i, j: STRENGTH[n, m, i, 0].item() * vector_dot(unit(x), unit(y)),
    ),
    "cosine per head": (
        oracle.cosine,
        {"strength": STRENGTH[0, :, 0, 0]},
        2.0,
        lambda x, y, n, m, i, j: 2 * STRENGTH[0, m, 0, 0].item() * vector_dot(unit(x), unit(y)),
    ),
    "shaw": (
        oracle.shaw,
        {"table": TABLE},
        None,
        lambda x, y, n, m, i, j: vector_dot(x, y) + vector_dot(x, rows(m, i, j)),
    ),
    "shaw shared": (
        oracle.shaw,
        {"table": TABLE[0]},
        0.3,
        lambda x, y, n, m, i, j: 0.3 * (vector_dot(x, y) + vector_dot(x, rows(0, i, j))),
    ),
    "transformer_xl": (
        oracle.transformer_xl,
        {"content_bias": U, "position_bias": V, "table": TABLE},
        None,
        lambda x, y, n, m, i, j: (
            vector_dot(added(x, U[m].tolist()), y) + vector_dot(added(x, V[m].tolist()), rows(m, i, j))
        ),
    ),
    "transformer_xl shared": (
        oracle.transformer_xl,
        {"content_bias": U[0], "position_bias": V[0], "table": TABLE[0]},
        None,
        lambda x, y, n, m, i, j: (
            vector_dot(added(x, U[0].tolist()), y) + vector_dot(added(x, V[0].tolist()), rows(0, i, j))
        ),
    ),
}


@pytest.mark.parametrize("name", PAIRWISE)
def test_scores_equal_the_pair_by_pair_definition(name):
    formula, tensors, scale, pair = PAIRWISE[name]
    query, key = draw(B, H, Q, D), draw(B, H, K, D)
    expected = oracle.entries(
        lambda n, m, i, j: pair(query[n, m, i].tolist(), key[n, m, j].tolist(), n, m, i, j), B, H, Q, K
    )
    torch.testing.assert_close(formula(query, key, scale, tensors), expected, rtol=1e-12, atol=1e-12)


def test_attention_equals_torch_with_grouped_heads_mask_and_bias():
    query, key, value = draw(B, 6, Q, D), draw(B, 2, K, D), draw(B, 2, K, 11)
    seen, bias = torch.rand(B, 6, Q, K) > 0.3, draw(B, 6, Q, K)
    out, lse, weights, _ = oracle.attend(query, key, value, seen=seen, bias=bias)
    joined = bias.masked_fill(~seen, -math.inf)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=joined, enable_gqa=True)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    full = query @ key.repeat_interleave(3, 1).transpose(-1, -2) / math.sqrt(D) + joined
    torch.testing.assert_close(lse, torch.log(torch.exp(full).sum(-1)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, 6, Q, dtype=torch.float64))


def brute_projection(z, alpha):
    """argmax over supports of <p,z> + entropy: try every support, keep the feasible one that fits."""
    best, best_value = None, -math.inf
    for size in range(1, len(z) + 1):
        for support in itertools.combinations(range(len(z)), size):
            chosen = [z[j] for j in support]
            if alpha == 2:
                tau = (math.fsum(chosen) - 1) / size
                p = [v - tau for v in chosen]
            else:  # Σ(z/2 − τ)² = 1, the smaller root: every term positive
                half = [v / 2 for v in chosen]
                mean, square = math.fsum(half) / size, math.fsum(v * v for v in half) / size
                inside = mean * mean - square + 1 / size
                if inside < 0:
                    continue
                tau = mean - math.sqrt(inside)
                if min(half) < tau:
                    continue
                p = [(v - tau) ** 2 for v in half]
            if min(p) < 0:
                continue
            power = math.fsum(v**alpha for v in p)
            value = vector_dot(p, chosen) + (math.fsum(p) - power) / (alpha * (alpha - 1))
            if value > best_value + 1e-15:
                best_value, best = (value, [p[support.index(j)] if j in support else 0.0 for j in range(len(z))])
    return best


@pytest.mark.parametrize(("name", "alpha"), [("sparsemax", 2), ("entmax15", 1.5)])
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_sparse_normalizers_equal_the_best_of_all_supports(name, alpha, spread):
    scores = draw(4, K) * spread
    everything = torch.ones(4, K, dtype=torch.bool)
    expected = torch.tensor([brute_projection(row.tolist(), alpha) for row in scores], dtype=torch.float64)
    for normalizer in (oracle.EXACT[name], oracle.PLAIN[name]):
        torch.testing.assert_close(normalizer(scores, everything), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "sparsemax", "entmax15"])
@pytest.mark.parametrize("which", ["EXACT", "PLAIN"])
def test_normalizers_have_the_gradient_of_finite_differences(name, which):
    normalizer = getattr(oracle, which)[name]
    seen = torch.rand(3, K) > 0.3
    seen[1] = False
    scores = draw(3, K).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: normalizer(s, seen), (scores,))


@pytest.mark.parametrize("name", oracle.EXACT)
@pytest.mark.parametrize("which", ["EXACT", "PLAIN"])
def test_rows_without_a_score_get_zeros(name, which):
    normalizer = getattr(oracle, which)[name]
    scores, seen = draw(3, K), torch.ones(3, K, dtype=torch.bool)
    seen[0], scores[1] = False, -math.inf
    weights = normalizer(scores, seen)
    assert (weights[:2] == 0).all()
    assert weights[2].sum() > 0.5


def test_hard_takes_the_first_of_equal_scores_and_a_larger_sink_takes_all():
    scores = torch.tensor([[[[1.0, 3.0, 3.0, 2.0]]]])
    seen = torch.tensor([True, True, True, False])
    assert oracle.weigh(oracle.hard, scores, seen, torch.tensor([3.0])).tolist() == [[[[0, 1, 0, 0]]]]
    assert oracle.weigh(oracle.hard, scores, seen, torch.tensor([3.1])).tolist() == [[[[0, 0, 0, 0]]]]


def test_softmax_with_a_sink_adds_one_term_to_the_denominator():
    scores, sink = draw(B, H, Q, K), draw(H)
    expected = scores.exp() / (scores.exp().sum(-1, keepdim=True) + sink.exp()[:, None, None])
    seen = torch.ones(B, H, Q, K, dtype=torch.bool)
    torch.testing.assert_close(oracle.weigh(oracle.softmax, scores, seen, sink), expected)


def test_alibi_slopes_are_those_of_the_paper():
    assert oracle.alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert oracle.alibi_slopes(1) == [1 / 256]
    assert oracle.alibi_slopes(3) == [1 / 16, 1 / 256, 1 / 4]
    sixteen = [2 ** (-(i + 1) / 2) for i in range(16)]
    assert oracle.alibi_slopes(16) == sixteen
    assert oracle.alibi_slopes(12) == oracle.alibi_slopes(8) + sixteen[0:8:2]


def test_t5_buckets_in_whole_numbers_equal_hugging_face_in_floats():
    """The published code (T5Attention._relative_position_bucket), retold with torch's float32 logarithm."""
    for bidirectional, buckets, furthest in itertools.product([True, False], [8, 20, 32], [30, 100, 128]):
        relative = torch.arange(-300, 301)
        count, start, x = buckets, torch.zeros_like(relative), relative
        if bidirectional:
            count //= 2
            start, x = (x > 0).long() * count, x.abs()
        else:
            x = -torch.min(x, torch.zeros_like(x))
        exact = count // 2
        large = torch.log(x.float() / exact) / math.log(furthest / exact) * (count - exact)
        large = (exact + large.clamp(min=0).long()).clamp(max=count - 1)
        expected = start + torch.where(x < exact, x, large)
        found = [oracle.t5_bucket(int(r), buckets, bidirectional, furthest) for r in relative]
        assert found == expected.tolist(), (bidirectional, buckets, furthest)


def test_gaussian_is_the_logarithm_of_an_unnormalised_bell():
    center = draw(B, H, Q) * 3
    expected = oracle.entries(lambda n, m, i, j: -((j - center[n, m, i].item()) ** 2) / (2 * 1.7**2), B, H, Q, K)
    torch.testing.assert_close(oracle.gaussian(center, 1.7, K), expected)

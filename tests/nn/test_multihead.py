"""Multi-head attention and its presets, against torch's own layer and against loops written from the papers."""

import math

import pytest
import torch

import regard
from regard.nn import build
from regard.nn.parts.multihead_positions import SCHEMES
from tests import oracle

Q = 7


def with_biases(layer):
    """The layer in float64, with biases that are not zero, so that a forgotten one shows."""
    layer.double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return layer


def by_loops(layer, x, visible, score):
    """Attention of one layer by loops over entries, heads and pairs. `score(q, k, i, j, head)` is one number."""
    width, wide = layer.head_dim, layer.value_dim
    shared = layer.num_heads // layer.kv_heads
    query, key, value = layer.query_map(x), layer.key_map(x), layer.value_map(x)
    joined = torch.zeros(*x.shape[:2], layer.num_heads * wide, dtype=x.dtype)
    for b in range(x.shape[0]):
        for h in range(layer.num_heads):
            mine, theirs = (slice(h * width, (h + 1) * width), slice(h // shared * width, (h // shared + 1) * width))
            for i in range(x.shape[1]):
                seen = [j for j in range(x.shape[1]) if visible(i, j)]
                numbers = [score(query[b, i, mine], key[b, j, theirs], i, j, h) for j in seen]
                if seen:
                    weights = torch.stack(numbers).softmax(0)
                    column = h // shared * wide
                    joined[b, i, h * wide : (h + 1) * wide] = sum(
                        w * value[b, j, column : column + wide] for w, j in zip(weights, seen, strict=True)
                    )
    return layer.output_map(joined)


def plain(q, k, *_):
    return q @ k / math.sqrt(len(q))


@pytest.mark.parametrize(
    ("name", "options", "visible"),
    [
        ("global", {}, lambda i, j: True),
        ("soft", {}, lambda i, j: True),
        ("causal", {}, lambda i, j: j <= i),
        ("causal", {"window": 4}, lambda i, j: 0 <= i - j < 4),
        ("local", {"window": 3}, lambda i, j: abs(i - j) <= 1),
        ("local", {"window": 4, "causal": True}, lambda i, j: 0 <= i - j < 4),
        ("multihead", {"num_heads": 4, "kv_heads": 2}, lambda i, j: True),
        ("multihead", {"num_heads": 4, "kv_heads": 1, "causal": True}, lambda i, j: j <= i),
        ("multihead", {"num_heads": 3, "value_dim": 5}, lambda i, j: True),
        ("multihead", {"num_heads": 4, "kv_heads": 2, "value_dim": 1}, lambda i, j: True),
        ("causal", {"value_dim": 7}, lambda i, j: j <= i),
    ],
)
def test_presets_equal_loops(name, options, visible):
    layer = with_biases(build(name, dim=12, **{"num_heads": 2, **options}))
    x = torch.randn(2, Q, 12, dtype=torch.float64)
    assert torch.allclose(layer(x), by_loops(layer, x, visible, plain), atol=1e-12)


def test_heads_with_wider_values_refuse_no_width():
    layer = build("multihead", dim=12, num_heads=2, value_dim=7)
    assert layer.value_map.weight.shape == (14, 12) and layer.output_map.weight.shape == (12, 14)
    with pytest.raises(regard.RegardError, match="value_dim: expected a whole number of at least 1"):
        build("multihead", dim=12, value_dim=0)


def sinusoid(position, dim):
    return torch.tensor(
        [
            math.sin(position / 10000 ** (c / dim)) if c % 2 == 0 else math.cos(position / 10000 ** ((c - 1) / dim))
            for c in range(dim)
        ],
        dtype=torch.float64,
    )


def turned(vector, position):
    """Rotary embedding by complex numbers: columns c and c + d/2 are one number, which is rotated."""
    half = len(vector) // 2
    angles = position / 10000 ** (torch.arange(half, dtype=torch.float64) / half)
    number = torch.complex(vector[:half], vector[half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([number.real, number.imag])


def test_relative_positions_equal_their_formulas():
    heads, dim, reach = 2, 12, 2
    x = torch.randn(2, Q, dim, dtype=torch.float64)

    def layer(kind, **options):
        made = with_biases(build("relative", dim=dim, num_heads=heads, positions=kind, max_distance=reach, **options))
        with torch.no_grad():
            for name in ("content_bias", "position_bias"):
                if hasattr(made, name):
                    getattr(made, name).normal_()
        return made

    def check(made, score):
        assert torch.allclose(made(x), by_loops(made, x, lambda i, j: True, score), atol=1e-10)

    shaw = layer("shaw")
    check(shaw, lambda q, k, i, j, h: q @ (k + shaw.key_table[max(-reach, min(reach, j - i)) + reach]) / math.sqrt(6))
    learned = layer("relative")
    check(learned, lambda q, k, i, j, h: plain(q, k) + learned.bias_table[h, max(-reach, min(reach, j - i)) + reach])
    # Two heads: the slopes of the paper are 2^-4 and 2^-8.
    check(layer("alibi"), lambda q, k, i, j, h: plain(q, k) - 2.0 ** (-4 * (h + 1)) * abs(i - j))
    check(layer("rotary"), lambda q, k, i, j, h: turned(q, i) @ turned(k, j) / math.sqrt(6))
    xl = layer("transformer-xl")

    def xl_score(q, k, i, j, h):
        distance = (xl.distance_map.weight @ sinusoid(j - i, dim))[h * 6 : (h + 1) * 6]
        return ((q + xl.content_bias[h]) @ k + (q + xl.position_bias[h]) @ distance) / math.sqrt(6)

    check(xl, xl_score)


def test_t5_buckets_of_a_layer_are_one_sided_when_it_is_causal():
    for causal in (False, True):
        layer = with_biases(build("relative(positions=t5)", dim=8, num_heads=2, causal=causal, max_distance=20))
        x = torch.randn(1, 31, 8, dtype=torch.float64)
        distance = torch.arange(31)[None] - torch.arange(31)[:, None]
        bias = oracle.t5(layer.bias_table.detach(), 31, 31, not causal, 20)[0]
        view = layer.prepare(x, None, None, None)
        scores = view.query @ view.key.mT / 2 + bias
        if causal:
            scores = scores.masked_fill(distance > 0, -torch.inf)
        assert torch.allclose(layer.weights(x), scores.softmax(-1), atol=1e-12)


def test_qk_norm_makes_scores_independent_of_the_scale_of_the_input():
    layer = build("multihead(qk_norm=True, bias=False)", dim=12, num_heads=2).double()
    x = torch.randn(2, Q, 12, dtype=torch.float64)
    assert torch.allclose(layer.weights(x), layer.weights(100 * x), atol=1e-6)


def test_the_window_of_a_layer_is_its_number_of_visible_keys():
    x = torch.randn(1, 9, 8)
    for window in (1, 3, 5):
        assert int((build("local", dim=8, window=window).weights(x)[0, 0, 4] > 0).sum()) == window
    for window in (1, 2, 4):
        assert int((build("local", dim=8, window=window, causal=True).weights(x)[0, 0, 6] > 0).sum()) == window


def test_keywords_override_options_in_the_name():
    layer = build("local(window=5, positions=transformer-xl, qk_norm=True)", dim=8, window=7)
    assert (layer.window, layer.positions.name, layer.query_norm is not None) == (7, "transformer-xl", True)


@pytest.mark.parametrize(
    "name", ["local(window)", "local(5)", "local(window=[x for x in y])", "lo cal", "local(**x)", ""]
)
def test_a_name_that_cannot_be_read_is_refused(name):
    with pytest.raises(regard.RegardError, match="expected NAME"):
        build(name, dim=8)


def test_errors_name_the_argument():
    for build_it, word in [
        (lambda: build("multihead", dim=0), "dim"),
        (lambda: build("multihead", dim=8, num_heads=3), "num_heads"),
        (lambda: build("multihead", dim=8, num_heads=4, kv_heads=3), "kv_heads"),
        (lambda: build("multihead", dim=8, positions="rotari"), "Did you mean 'rotary'"),
        (lambda: build("multihead", dim=6, num_heads=2, positions="rotary"), "even"),
        (lambda: build("multihead", dim=8, dropout=1.5), "dropout"),
        (lambda: build("multihead", dim=8, dropout="no"), "dropout"),
        (lambda: build("multihead", dim=8, normalize="softmin"), "softmin"),
        (lambda: build("local", dim=8, window=3, align="left"), "align"),
        (lambda: build("global", dim=8, window=3), "window"),
        (lambda: build("causal", dim=8, causal=False), "causal"),
        (lambda: build("multihed", dim=8), "Did you mean 'multihead'"),
    ]:
        with pytest.raises(regard.RegardError, match=word):
            build_it()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["relative", "multihead"])
@pytest.mark.parametrize("positions", SCHEMES.names())
def test_every_scheme_of_positions_runs_far_beyond_its_largest_distance(positions, name, causal):
    for distance in ({}, {"max_distance": 1}, {"max_distance": 5}):
        layer = build(name, dim=8, num_heads=2, positions=positions, causal=causal, **distance)
        assert layer(torch.randn(2, 53, 8)).isfinite().all()


def test_distances_from_max_distance_on_share_a_bucket_of_t5():
    layer = build("relative", dim=8, positions="t5", causal=True).double()
    rows = torch.zeros(1, 29, 8, dtype=torch.float64)
    weights = layer.weights(rows, rows=[28])[0, 0, 0].flip(0).log()  # by distance
    expected = layer.bias_table[:, 0].log_softmax(0)
    found = weights - weights[0]
    for distance in range(29):
        bucket = distance if distance < 16 else 31
        assert found[distance].item() == pytest.approx((expected[bucket] - expected[0]).item(), abs=1e-9)

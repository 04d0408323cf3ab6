"""What each bias adds, read back exactly through the sigmoid weights of zero queries."""

import math

import pytest
import torch

import regard
from regard import biases
from regard.values.grid import full_grid
from tests import oracle

B, H, Q, K, D = 2, 3, 5, 7, 4


def read(bias, q=Q, k=K, h=H, b=B):
    """The bias of every pair, (b,h,q,k)."""
    query, key = torch.zeros(b, h, q, D, dtype=torch.float64), torch.zeros(b, h, k, D, dtype=torch.float64)
    return torch.logit(regard.weights(query, key, bias=bias, normalize="sigmoid"))


def close(found, expected):
    torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-9, atol=1e-9)


def test_alibi_falls_with_distance_by_the_slopes_of_the_paper():
    found = read(biases.alibi(8), q=3, k=3, h=8, b=1)[0]
    for m in range(8):
        distance = torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]], dtype=torch.float64)
        close(found[m], -distance / 2 ** (m + 1))


@pytest.mark.parametrize("h", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 32, 40])
def test_alibi_has_slopes_for_any_number_of_heads(h):
    found = read(biases.alibi(h), q=1, k=2, h=h, b=1)[0, :, 0, 0]
    close(found, -torch.tensor(oracle.alibi_slopes(h), dtype=torch.float64))


def test_relative_counts_keys_after_the_query_upwards():
    table = torch.arange(5, dtype=torch.float64)[None]
    assert read(biases.relative(table), 1, 4, b=1, h=1)[0, 0].round().tolist() == [[0, 0, 1, 2]]
    assert read(biases.relative(table), 4, 4, b=1, h=1)[0, 0, 0].round().tolist() == [2, 3, 4, 4]


def hugging_face_bucket(relative_position, bidirectional, num_buckets, max_distance):
    """The rule as published, one distance at a time, float32 logarithms included."""
    bucket, n = 0, int(relative_position)
    if bidirectional:
        num_buckets //= 2
        bucket = num_buckets if n > 0 else 0
        n = abs(n)
    else:
        n = -min(n, 0)
    max_exact = num_buckets // 2
    if n < max_exact:
        return bucket + n
    ratio = torch.log(torch.tensor(n, dtype=torch.float32) / max_exact) / math.log(max_distance / max_exact)
    return bucket + min(max_exact + int((ratio * (num_buckets - max_exact)).item()), num_buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20), (20, 64), (32, 64), (6, 11)])
def test_t5_buckets_are_those_of_hugging_face(bidirectional, buckets, furthest):
    """300 keys on either side of the queries; the bias names its own bucket."""
    table = torch.arange(buckets, dtype=torch.float64)[:, None].expand(buckets, 2) / 4
    bias = biases.t5(table, bidirectional=bidirectional, max_distance=furthest)
    found = (read(bias, q=301, k=301, h=2, b=1)[0, 1] * 4).round().long()
    for i in (0, 150, 300):
        expected = [hugging_face_bucket(j - i, bidirectional, buckets, furthest) for j in range(301)]
        whole = [oracle.t5_bucket(j - i, buckets, bidirectional, furthest) for j in range(301)]
        assert found[i].tolist() == expected == whole


def buckets_by_distance(count, bidirectional, furthest):
    """The bucket of each key for a query in the middle of 81 keys."""
    table = torch.arange(float(count))[:, None]
    bias = biases.t5(table, bidirectional=bidirectional, max_distance=furthest)
    return bias.values(full_grid((1, 1, 81, 81), "cpu"), torch.float32)[0, 40].long().tolist()


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 32])
def test_t5_buckets_rise_with_the_distance_for_every_number_of_them(count, bidirectional):
    if bidirectional and count == 1:
        with pytest.raises(regard.RegardError, match="at least 2 buckets, one for each side"):
            biases.t5(torch.zeros(1, 3))
        return
    side = count // 2 if bidirectional else count
    for furthest in (1, 2, 3, 7, 15, 16, 17, 40, 128):
        found = buckets_by_distance(count, bidirectional, furthest)
        behind = found[40::-1]
        assert behind == sorted(behind) and behind[0] == 0 and max(behind) <= side - 1
        assert all(bucket == side - 1 for distance, bucket in enumerate(behind) if distance >= furthest)
        exact = min(side // 2, furthest)
        assert behind[:exact] == list(range(exact))
        assert found[41:] == ([bucket + side for bucket in behind[1:]] if bidirectional else [0] * 40)


def test_t5_without_a_logarithmic_part_by_hand():
    assert buckets_by_distance(8, False, 3)[40:32:-1] == [0, 1, 2, 7, 7, 7, 7, 7]
    assert buckets_by_distance(8, False, 4)[40:32:-1] == [0, 1, 2, 3, 7, 7, 7, 7]
    assert buckets_by_distance(2, True, 9)[38:43] == [0, 0, 0, 1, 1]


def test_an_empty_table_of_t5_is_refused():
    with pytest.raises(regard.RegardError, match="at least 1 bucket, got"):
        biases.t5(torch.zeros(0, 3), bidirectional=False)


def test_t5_defaults_are_both_directions_and_128():
    table = torch.randn(32, H, dtype=torch.float64)
    close(read(biases.t5(table), 200, 200, b=1), oracle.t5(table, 200, 200, True, 128))


def test_gaussian_is_centred_on_key_indexes():
    center = torch.rand(B, H, Q, dtype=torch.float64) * K
    close(read(biases.gaussian(center, 1.5)), oracle.gaussian(center, 1.5, K))
    found = read(biases.gaussian(torch.full((1, 1, 1), 2.0, dtype=torch.float64), 0.5), 1, 5, h=1, b=1)
    close(found[0, 0, 0], torch.tensor([-8.0, -2.0, 0.0, -2.0, -8.0], dtype=torch.float64))


def test_a_sum_of_biases_is_the_bias_of_sums():
    table, dense = torch.randn(H, 5, dtype=torch.float64), torch.randn(Q, K, dtype=torch.float64)
    parts = [biases.alibi(H), biases.relative(table), biases.dense(dense)]
    total = sum((read(part) for part in parts[1:]), read(parts[0]))
    close(read(parts[0] + parts[1] + parts[2]), total)
    close(read(parts[0] + (parts[1] + parts[2])), total)
    close(read(parts[1] + parts[1]), 2 * read(parts[1]))


def test_a_bias_is_added_after_soft_capping_and_scaling():
    query, key = (torch.randn(B, H, Q, D, dtype=torch.float64) * 50, torch.randn(B, H, K, D, dtype=torch.float64) * 50)
    bias = torch.randn(Q, K, dtype=torch.float64)
    arguments = {"score": regard.scores.softcap(2.0), "scale": 0.7, "normalize": "sigmoid"}
    capped = torch.logit(regard.weights(query, key, **arguments))
    close(torch.logit(regard.weights(query, key, bias=bias, **arguments)), capped + bias)


def attend(bias, h=H):
    query = torch.randn(B, h, Q, D)
    return regard.attend(query, torch.randn(B, h, K, D), torch.randn(B, h, K, 3), bias=bias)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: biases.alibi(0), "num_heads"),
        (lambda: attend(biases.alibi(H + 1)), "alibi|num_heads|heads"),
        (lambda: attend(biases.relative(torch.randn(H + 1, 5))), "table"),
        (lambda: attend(biases.relative(torch.randn(H, 4))), "table"),
        (lambda: attend(biases.relative(torch.randn(5))), "table"),
        (lambda: attend(biases.t5(torch.randn(8, H + 1))), "table"),
        (lambda: attend(biases.t5(torch.randn(8))), "table"),
        (lambda: attend(biases.gaussian(torch.randn(B, H, Q + 1), 1.0)), "center"),
        (lambda: attend(biases.gaussian(torch.randn(B, H, Q), 0.0)), "sigma"),
        (lambda: attend(biases.gaussian(torch.randn(B, H, Q), -1.0)), "sigma"),
        (lambda: attend(torch.randn(Q, K + 1)), "bias"),
        (lambda: attend(torch.ones(Q, K, dtype=torch.bool)), "mask="),
        (lambda: attend(torch.ones(Q, K, dtype=torch.long)), "bias"),
        (lambda: attend(3.0), "bias"),
    ],
)
def test_biases_of_the_wrong_shape_are_refused_by_name(call, word):
    with pytest.raises(regard.RegardError, match=word) as caught:
        call()
    assert isinstance(caught.value, (ValueError, TypeError))

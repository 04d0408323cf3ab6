"""The Fréchet distance, against scipy's matrix root and by hand; its states and resamples."""

import numpy as np
import pytest
from scipy import linalg

from regard_workbench.tasks.measures.frechet import Frechet, frechet_distance, mean_and_covariance, moments

DISTANCE = Frechet("frechet")


def clouds(seed, count=53, width=7):
    random = np.random.default_rng(seed)
    return random.normal(size=(count, width)) @ random.normal(size=(width, width)) + random.normal(size=width)


def by_scipy(one, other):
    means, covariances = zip(*((x.mean(0), np.cov(x, rowvar=False)) for x in (one, other)), strict=True)
    root = linalg.sqrtm(covariances[0] @ covariances[1])
    return ((means[0] - means[1]) ** 2).sum() + np.trace(covariances[0] + covariances[1] - 2 * root.real)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_distance_is_that_of_scipys_matrix_root(seed):
    one, other = clouds(seed), clouds(seed + 10, count=31)
    assert DISTANCE.value([moments(one), moments(other)]) == pytest.approx(by_scipy(one, other), rel=1e-9)


def test_in_one_dimension_it_is_the_distance_of_means_and_of_deviations():
    """(μ₁ − μ₂)² + (σ₁ − σ₂)²"""
    one, other = (np.array([[3.0]]), np.array([[4.0]])), (np.array([[7.0]]), np.array([[25.0]]))
    assert frechet_distance(one[0][0], one[1], other[0][0], other[1]) == pytest.approx((3 - 7) ** 2 + (2 - 5) ** 2)


def test_it_sees_a_collapse_that_the_means_do_not_show():
    real = clouds(4)
    alike = np.repeat(real.mean(0)[None], len(real), 0)
    assert DISTANCE.value([moments(alike), moments(real)]) == pytest.approx(np.trace(np.cov(real, rowvar=False)))
    assert DISTANCE.value([moments(real), moments(real[::-1])]) == pytest.approx(0, abs=1e-6)


def test_fewer_examples_than_features_have_a_distance_too():
    one, other = clouds(5, count=4), clouds(6, count=3)
    assert DISTANCE.value([moments(one), moments(other)]) == pytest.approx(by_scipy(one, other), rel=1e-5)


def test_states_of_batches_merge_into_that_of_all():
    one, other = clouds(7), clouds(8)
    states = [[moments(one[a:b]), moments(other[a:b])] for a, b in ((0, 11), (11, 12), (12, 53))]
    merged = DISTANCE.merge(states)
    assert np.allclose(merged, [moments(one), moments(other)]) and DISTANCE.count(merged) == 53
    mean, covariance = mean_and_covariance(np.array(merged[0]))
    assert np.allclose(mean, one.mean(0)) and np.allclose(covariance, np.cov(one, rowvar=False))
    drawn = np.array([[1, 1, 1], [0, 2, 1], [3, 0, 0]])
    expected = [
        DISTANCE.value(DISTANCE.merge([s for s, n in zip(states, row, strict=True) for _ in range(n)])) for row in drawn
    ]
    assert np.allclose(DISTANCE.resampled(states, drawn), expected)


def test_too_few_or_broken_numbers_have_no_distance():
    one = clouds(9)
    assert np.isnan(DISTANCE.value([moments(one[:1]), moments(one)]))
    broken = one.copy()
    broken[3, 2] = np.nan
    assert np.isnan(DISTANCE.value([moments(broken), moments(one)])) and not DISTANCE.higher_is_better

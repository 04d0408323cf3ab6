"""Budgets hold for the stored numbers in exact arithmetic: fractions, not rounded differences, are compared."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import RegardError
from regard_workbench.attacks.ball import ball

SHAPE = (3, 5, 7)


def pictures(seed, dtype=torch.float32):
    made = torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)
    made[0, 0] = 0  # black, white and tiny pixels, where limits and rounding meet
    made[1, 1] = 1
    made[2, 2] *= 1e-8
    return made


def points(seed, dtype=torch.float32):
    return (3 * torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed + 1))).to(dtype)


def exact(tensor):
    return [Fraction(value) for value in tensor.flatten().tolist()]


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-9, 2, allow_nan=False), st.integers(0, 10**6), st.sampled_from([torch.float32, torch.float64]))
def test_no_pixel_leaves_the_linf_ball_or_the_range_by_a_single_bit(eps, seed, dtype):
    centre = pictures(seed, dtype)
    found = ball("linf", centre, eps).project(points(seed, dtype))
    for new, old in zip(exact(found), exact(centre), strict=True):
        assert abs(new - old) <= Fraction(eps) and 0 <= new <= 1


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-9, 5, allow_nan=False), st.integers(0, 10**6))
def test_no_picture_leaves_the_l2_ball_or_the_range_by_a_single_bit(eps, seed):
    centre = pictures(seed)
    found = ball("l2", centre, eps).project(points(seed))
    assert float(found.min()) >= 0 and float(found.max()) <= 1
    for new, old in zip(found, centre, strict=True):
        squares = sum((a - b) ** 2 for a, b in zip(exact(new), exact(old), strict=True))
        assert squares <= Fraction(eps) ** 2


@pytest.mark.parametrize("eps", [0.01, 0.03, 0.1, 1 / 3, 8 / 255])
def test_the_linf_ball_reaches_as_far_as_a_stored_number_can(eps):
    centre = pictures(3)
    around = ball("linf", centre, eps)
    for end, sign in ((around.high, 1), (around.low, -1)):
        further = torch.nextafter(end, torch.tensor(sign * torch.inf))
        pairs = zip(exact(further), exact(centre), strict=True)
        assert all(abs(new - old) > Fraction(eps) or not 0 <= new <= 1 for new, old in pairs)


def test_the_l2_ball_is_used_up_to_rounding():
    centre = torch.full(SHAPE, 0.5)
    around = ball("l2", centre, 0.3)
    sizes = around.size(around.project(centre + points(7)))
    assert torch.allclose(sizes, torch.full((3,), 0.3, dtype=torch.float64), rtol=1e-6)
    near = centre + 1e-3 * points(7)  # inside: left as it is
    assert torch.allclose(around.project(near), near, atol=1e-7)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pixels_that_may_not_change_keep_their_bits(norm):
    centre = pictures(5)
    chosen = torch.zeros(SHAPE, dtype=torch.bool)
    chosen[:, 2] = True
    around = ball(norm, centre, 0.1, chosen)
    for found in (around.project(points(5)), around.random(torch.Generator().manual_seed(11))):
        assert torch.equal(found[~chosen], centre[~chosen])
        assert not torch.equal(found[chosen], centre[chosen])
    assert float(around.ascent(points(5))[~chosen].abs().max()) == 0 or norm == "linf"


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_random_starts_are_inside_and_fill_the_ball(norm):
    centre = torch.full((400, 1, 3), 0.5)
    around = ball(norm, centre, 0.2)
    sizes = around.size(around.random(torch.Generator().manual_seed(2)))
    assert float(sizes.max()) <= 0.2
    # In both balls the share within r is (r/ε)³ for three pixels, so that the median is at ε/∛2.
    assert abs(float(sizes.median()) - 0.2 / 2 ** (1 / 3)) < 0.01


def test_the_steepest_direction_of_each_norm():
    centre, gradient = torch.full((1, 1, 2), 0.5), torch.tensor([[[3.0, -4.0]]])
    assert ball("linf", centre, 0.1).ascent(gradient).tolist() == [[[1.0, -1.0]]]
    assert torch.allclose(ball("l2", centre, 0.1).ascent(gradient), torch.tensor([[[0.6, -0.8]]]))
    assert not ball("l2", centre, 0.1).ascent(torch.zeros(1, 1, 2)).any()  # no gradient, no step, no NaN


def test_an_unknown_norm_is_refused():
    with pytest.raises(RegardError, match=r"norm: there is no 'l3'.*l2, linf"):
        ball("l3", pictures(1), 0.1)

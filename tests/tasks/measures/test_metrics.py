"""What `look` returns to a metric: two numbers, or numbers by name; everything else is refused with words."""

import math

import numpy as np
import pytest
import torch

from regard.errors import BadType, BadValue
from regard_workbench.tasks.measures.metrics import SHARE, Counts, Mean, exponential


def state_of(returned, kind=Mean, **options):
    return kind("mine", look=lambda answered: returned, **options).of(None)


@pytest.mark.parametrize(
    "pair",
    [
        (5, 7),
        [5.0, 7.0],
        (torch.tensor(5.0), torch.tensor([7])),
        (torch.tensor([[5]], dtype=torch.int64), 7),
        (np.float32(5), np.array([7])),
    ],
)
def test_a_sum_and_a_count_are_numbers_or_tensors_of_one_element(pair):
    state = state_of(pair)
    assert state == [5.0, 7.0] and all(type(number) is float for number in state)
    assert Mean("mine").value(state) == pytest.approx(0.7142857142857143)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (torch.tensor([5.0, 3.0, 1.0]), r"a tensor of shape \(3,\)"),  # once read as 5 / 3
        (torch.tensor([5.0, 7.0]), r"a tensor of shape \(2,\)"),  # a batch of two
        (np.array([5.0, 7.0]), r"an array of shape \(2,\)"),
        ((torch.tensor([1.0, 0.0]), 2), r"a tensor of shape \(2,\)"),
        ((5.0, np.array([1.0, 2.0, 3.0])), r"an array of shape \(3,\)"),
        (0.7142857, "float"),
        ((5.0,), "1 of them"),
        ((5.0, 7.0, 1.0), "3 of them"),
        ({"sum": 5.0, "count": 7.0}, "dict"),
        ("57", "str"),
        (("5", "7"), "str"),
        ((5.0, None), "NoneType"),
        ((1j, 2), "complex"),
    ],
)
def test_anything_but_two_numbers_is_refused(returned, words):
    with pytest.raises(BadType, match=words) as refused:
        state_of(returned)
    text = str(refused.value)
    assert "metric 'mine'" in text and "the sum over the batch and the count" in text


def test_a_batch_that_says_nothing_is_left_out():
    assert state_of(None) is None and state_of(None, Counts) is None


@pytest.mark.parametrize("count", [-1, math.nan, math.inf])
def test_a_count_that_counts_nothing_is_refused(count):
    with pytest.raises(BadValue, match=r"metric 'mine': .*count"):
        state_of((1.0, count))


def test_a_sum_may_be_non_finite_and_a_count_zero():
    assert math.isnan(Mean("mine").value(state_of((math.nan, 2))))
    assert math.isnan(Mean("mine").value(state_of((0.0, 0))))


@pytest.mark.parametrize("pair", [(5.0, 3.0), (-1.0, 7.0), (1.001, 1.0), (math.inf, 3.0)])
def test_a_share_lies_between_0_and_1(pair):
    assert state_of(pair) == list(pair)  # as a plain mean it may be anything
    with pytest.raises(BadValue, match=r"metric 'mine': .* from 0 to 1"):
        state_of(pair, unit=SHARE)


def test_a_share_may_be_rounded_and_unknown():
    metric = Mean("mine", unit=SHARE)
    for pair in ((1.0 + 2**-23, 1.0), (0.0, 0.0), (math.nan, 3.0), (-(2**-60), 1.0)):
        metric.value(state_of(pair, unit=SHARE))


def test_a_share_made_of_a_mean_is_checked_once_it_is_made():
    metric = Mean("mine", unit=SHARE, look=lambda answered: (5.0, 2.0), made=exponential)
    state = metric.of(None)
    with pytest.raises(BadValue, match=r"metric 'mine': .* from 0 to 1"):
        metric.value(state)


def test_numbers_by_name_are_numbers():
    assert state_of({"hits": torch.tensor([3]), "all": 5}, Counts) == {"hits": 3.0, "all": 5.0}
    for returned, words in ((torch.tensor([3.0]), "tensor"), ((3.0, 5.0), "tuple"), (3.0, "float")):
        with pytest.raises(BadType, match=f"metric 'mine': .*numbers by name.*{words}"):
            state_of(returned, Counts)
    with pytest.raises(BadType, match=r"metric 'mine': .*'hits'.*a tensor of shape \(2,\)"):
        state_of({"hits": torch.ones(2)}, Counts)

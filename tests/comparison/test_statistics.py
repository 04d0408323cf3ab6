"""Intervals, paired differences, corrections and the bootstrap, against scipy, hand-worked numbers and plain loops."""

import math
import random

import numpy as np
import pytest
from scipy import stats

from regard.support.multiple_tests import holm
from regard_workbench.comparison import bootstrap as boot
from regard_workbench.comparison.bootstrap import bootstrap, draws
from regard_workbench.comparison.statistics import Bootstrap, Interval, PairedDifference, interval, judge, paired
from regard_workbench.tasks.measures.metrics import ACCURACY, PERPLEXITY, Metric

THREE = [0.91, 0.95, 0.93]
FIVE = [4.31, 4.28, 4.40, 4.35, 4.29]


@pytest.mark.parametrize("values", [THREE, FIVE, [1.0, 2.0], list(np.random.default_rng(3).normal(size=10))])
def test_the_interval_is_scipys_t_interval(values):
    found = interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(values), low, high), rel=1e-12)


def test_the_interval_of_one_two_three_is_as_worked_by_hand():
    found = interval([1.0, 2.0, 3.0])  # sd 1, √3 values, t of 2 degrees at 97.5 %: 4.302653
    assert found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6) and found.mean == 2.0


def test_one_seed_has_no_interval_and_says_so():
    found = interval([0.9])
    assert (found.mean, found.low, found.high) == (0.9, 0.9, 0.9)
    assert "one seed: no interval" in str(found)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.nan, 1.0], [1.0, math.inf]])
def test_non_finite_values_give_a_nan_mean(values):
    found = interval(values)
    assert math.isnan(found.mean) and math.isnan(found.low) and math.isnan(found.high)
    assert str(found) == "not finite"


def test_paired_differences_are_scipys_paired_t_test():
    first, second = [0.91, 0.95, 0.93, 0.90], [0.90, 0.91, 0.92, 0.90]
    found = paired(dict(enumerate(first)), dict(enumerate(second)))
    scipys = stats.ttest_rel(first, second)
    assert found.p == pytest.approx(scipys.pvalue, rel=1e-10)
    low, high = scipys.confidence_interval(0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), rel=1e-9)


def test_only_seeds_that_both_finished_are_paired():
    found = paired({0: 1.0, 1: 2.0, 3: 5.0}, {1: 1.5, 2: 9.0, 3: 4.0})
    assert found.seeds == [1, 3] and found.interval.mean == pytest.approx(0.75)


def test_equal_differences_leave_the_t_test_nothing_to_judge_by():
    same = paired({0: 0.5, 1: 0.7}, {0: 0.5, 1: 0.7})
    assert same.p == 1.0
    shifted = paired({0: 0.50 + 0.1, 1: 0.70 + 0.1, 2: 0.30 + 0.1}, {0: 0.50, 1: 0.70, 2: 0.30})
    assert math.isnan(shifted.p)  # not 1e-30, which rounding would make of it


def test_a_result_that_is_no_number_spoils_its_pair_visibly():
    found = paired({0: 0.5, 1: math.nan}, {0: 0.4, 1: 0.4})
    assert math.isnan(found.interval.mean) and math.isnan(found.p)


def test_holms_correction_on_a_known_example():
    # Four tests: .01·4, .005·4 → the smallest first: .005·4 = .02, .01·3 = .03, .03·2 = .06, .04·1 → not below .06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_tests_that_were_not_made_do_not_count_in_holms_correction():
    found = holm([0.02, math.nan, 0.03])
    assert found[0] == pytest.approx(0.04) and found[2] == pytest.approx(0.04) and math.isnan(found[1])


# The bootstrap.


def block_sums(generator, blocks, chance):
    return [[float(generator.binomial(10, chance)), 10.0] for _ in range(blocks)]


def test_resampled_means_are_those_of_a_plain_loop():
    generator = np.random.default_rng(0)
    blocks = [[float(generator.integers(0, 9)), float(generator.integers(1, 9))] for _ in range(7)]
    drawn = draws(len(blocks))[:50]
    found = ACCURACY.resampled(blocks, drawn)
    for row, value in zip(drawn, found, strict=True):
        total = count = 0.0
        for block, times in zip(blocks, row, strict=True):
            for _ in range(times):
                total += block[0]
                count += block[1]
        assert value == pytest.approx(total / count)


def test_a_metric_that_is_no_mean_is_computed_from_the_merged_blocks_of_each_resample():
    generator = np.random.default_rng(1)
    blocks = [[float(generator.uniform(0, 30)), 10.0] for _ in range(6)]
    drawn = draws(6)
    found = PERPLEXITY.resampled(blocks, drawn)
    assert len(found) == boot.RESAMPLES
    for row, value in zip(drawn[:20], found[:20], strict=True):
        loss = sum(times * block[0] for times, block in zip(row, blocks, strict=True))
        assert value == pytest.approx(math.exp(loss / 60.0))


def test_the_bootstrap_agrees_with_a_plain_python_one():
    generator = np.random.default_rng(5)
    first = {seed: block_sums(generator, 30, 0.80) for seed in range(4)}
    second = {seed: block_sums(generator, 30, 0.77) for seed in range(4)}
    drawn = draws(30)
    ours = bootstrap(
        *[{seed: ACCURACY.resampled(blocks, drawn) for seed, blocks in side.items()} for side in (first, second)],
        blocks=30,
    )
    dice, differences = random.Random(1), []
    for _ in range(3000):
        seeds = [dice.randrange(4) for _ in range(4)]
        places = [dice.randrange(30) for _ in range(30)]

        def score(side, seeds=seeds, places=places):
            return sum(sum(side[s][place][0] for place in places) / 300 for s in seeds) / 4

        differences.append(score(first) - score(second))
    differences.sort()
    share = min(sum(d <= 0 for d in differences), sum(d >= 0 for d in differences)) / 3000
    assert ours.low == pytest.approx(differences[75], abs=0.003)
    assert ours.high == pytest.approx(differences[-75], abs=0.003)
    assert ours.p == pytest.approx(2 * share, abs=0.03)
    assert (ours.resamples, ours.blocks) == (boot.RESAMPLES, 30)


def test_the_bootstrap_gives_the_same_numbers_every_time():
    blocks = block_sums(np.random.default_rng(2), 20, 0.5)
    once, twice = (ACCURACY.resampled(blocks, draws(20)) for _ in range(2))
    assert (once == twice).all()
    assert bootstrap({0: once}, {0: once * 0.9}, 20) == bootstrap({0: twice}, {0: twice * 0.9}, 20)


def test_block_difficulty_shared_by_both_cancels_out():
    """Blocks of very different difficulty: unpaired they would drown a difference that holds in every block."""
    generator = np.random.default_rng(4)
    chances = generator.uniform(10, 90, 40).round()
    first = [[chance + 1.0, 100.0] for chance in chances]
    second = [[float(chance), 100.0] for chance in chances]
    sides = [{0: ACCURACY.resampled(side, draws(40))} for side in (first, second)]
    found = bootstrap(*sides, blocks=40)
    assert (found.low, found.high) == pytest.approx((0.01, 0.01)) and found.p < 0.001


def test_a_resample_that_is_no_number_speaks_for_neither_side():
    better = np.ones(100)
    better[:10] = math.nan
    found = bootstrap({0: better}, {0: np.zeros(100)}, 5)
    assert found.p == pytest.approx(2 * 11 / 101) and math.isnan(found.low)


def test_the_paired_bootstrap_rejects_no_difference_at_about_its_level():
    """Two contestants of equal skill, fresh test sets: p < 0.05 should come about one time in twenty."""
    generator = np.random.default_rng(11)
    drawn, rejected = draws(50), 0
    for _ in range(200):
        sides = [{0: ACCURACY.resampled(block_sums(generator, 50, 0.7), drawn)} for _ in range(2)]
        rejected += bootstrap(*sides, blocks=50).p < 0.05
    assert 2 <= rejected <= 22  # binomial(200, 0.05): outside with probability 0.001


# What can be claimed.

SURE = Bootstrap(0.01, 0.03, 0.001, 10_000, 200)
UNSURE = Bootstrap(-0.01, 0.03, 0.3, 10_000, 200)


def difference(mean, half, seeds=3, p=0.01):
    return PairedDifference(list(range(seeds)), Interval(mean, mean - half, mean + half, seeds), p)


def test_a_claim_needs_seeds_and_examples_to_agree():
    both = judge(("a", "b"), difference(0.02, 0.01), SURE, (0.01, 0.002), ACCURACY)
    assert both.better == "a" and both.sentence.startswith("a is better than b by 2.00 points")
    assert "1.00 points to 3.00 points" in both.sentence
    assert judge(("a", "b"), difference(0.02, 0.01), UNSURE, (0.01, 0.3), ACCURACY).better is None
    assert judge(("a", "b"), difference(0.02, 0.03, p=0.2), SURE, (0.2, 0.002), ACCURACY).better is None


def test_lower_may_be_better():
    found = judge(("a", "b"), difference(0.5, 0.1), SURE, (0.01, 0.002), Metric("loss", higher_is_better=False))
    assert found.better == "b" and found.sentence.startswith("b is better than a by 0.5")


def test_a_wide_interval_says_how_large_a_difference_would_have_shown():
    found = judge(("a", "b"), difference(0.02, 0.05, p=0.3), UNSURE, (0.3, 0.3), ACCURACY)
    assert "only differences above about 5.00 points would show" in found.sentence
    assert "3 seeds" in found.sentence


def test_a_difference_that_only_the_number_of_comparisons_takes_away_is_not_called_too_small():
    found = judge(("a", "b"), difference(0.047, 0.023, p=0.012), SURE, (0.051, 0.001), ACCURACY)
    assert found.better is None and "would show" not in found.sentence
    assert "2.40 points to 7.00 points" in found.sentence and "corrected for their number" in found.sentence


@pytest.mark.parametrize(
    ("given", "p", "words"),
    [
        (difference(0.02, 0.0, seeds=1), math.nan, "One seed says nothing about the models"),
        (difference(0.02, 0.0, seeds=3), math.nan, "undefined without variance"),
        (difference(math.nan, 0.0), math.nan, "not finite"),
        (PairedDifference([], Interval(math.nan, math.nan, math.nan, 0), math.nan), math.nan, "no seed finished"),
        (difference(0.0, 0.1, p=1.0), 1.0, "the means are equal"),
    ],
)
def test_nothing_is_claimed_without_evidence(given, p, words):
    found = judge(("a", "b"), given, SURE, (p, 0.001), Metric("f1"))
    assert found.better is None and words in found.sentence


def test_the_smallest_p_survives_holms_correction_over_the_pairs_of_twenty():
    """With fewer resamples nothing could ever be claimed among many contestants."""
    pairs_of_twenty = 20 * 19 // 2
    assert holm([2 / (1 + boot.RESAMPLES)] * pairs_of_twenty)[0] < 0.05

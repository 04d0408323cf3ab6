"""Settings of an attack are checked against what the run reads; intervals against numbers from elsewhere."""

import math

import pytest
from scipy.stats import binomtest

from regard import RegardError
from regard_workbench.attacks.intervals import paired_difference, share
from regard_workbench.attacks.settings import AttackSettings, Level, planned


@pytest.mark.parametrize(("hits", "count"), [(0, 7), (7, 7), (3, 11), (50, 101), (999, 1000)])
def test_the_interval_of_a_share_is_wilsons(hits, count):
    found = share(hits, count)
    expected = binomtest(hits, count).proportion_ci(method="wilson")
    assert found.value == hits / count
    assert math.isclose(found.low, expected.low, abs_tol=1e-12) and math.isclose(found.high, expected.high)


def test_the_interval_of_a_paired_difference_is_bonett_and_prices():
    # 40 examples: 5 only the first has right, 1 only the second. By hand: p = 6/42, q = 2/42,
    # half width 1.959964 · √((8/42 − (4/42)²) / 42) = 0.128810.
    first = [True] * 20 + [True] * 5 + [False] * 1 + [False] * 14
    second = [True] * 20 + [False] * 5 + [True] * 1 + [False] * 14
    found = paired_difference(first, second)
    assert found.value == 0.1
    assert math.isclose(found.low, 4 / 42 - 0.128810, abs_tol=1e-5)
    assert math.isclose(found.high, 4 / 42 + 0.128810, abs_tol=1e-5)
    assert math.isnan(paired_difference([], []).value)


@pytest.mark.parametrize(
    ("level", "length", "limit"),
    [
        (Level(eps=0.29), 100, 29),  # 0.29 · 100 is 28.999999999999996 in floats
        (Level(eps=0.1), 9, 0),
        (Level(eps=0.7), 10, 7),
        (Level(eps=1.0), 13, 13),
        (Level(words=3), 2, 3),
    ],
)
def test_a_share_of_words_is_rounded_down_from_the_number_as_written(level, length, limit):
    assert level.limit(length) == limit


def test_the_usual_attack_is_pgd_on_pictures_and_words_on_texts():
    pictures, texts = (planned(AttackSettings(), kind) for kind in ("pictures", "texts"))
    assert pictures.method == "pgd" and [level.eps for level in pictures.levels] == [0.01, 0.03, 0.1]
    assert pictures.step_of(0.08) == pytest.approx(2.5 * 0.08 / 40)
    assert texts.method == "words" and [level.words for level in texts.levels] == [1, 2, 3]
    assert pictures.place_count(9) == 3 and pictures.place_count(8) == 2


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("texts", {"method": "fgsm"}, r"method: this run reads texts, which 'fgsm' does not attack. Try words or"),
        ("pictures", {"method": "words"}, r"method: this run reads pictures"),
        ("pictures", {"method": "pgb"}, r"method: there is no 'pgb'. Did you mean 'pgd'"),
        ("pictures", {"method": "fgsm", "steps": 3}, r"steps: fgsm does not use it; pgd and attention on pictures do"),
        ("pictures", {"places": 3}, r"places: pgd does not use it"),
        ("pictures", {"words": (3,)}, r"words: pgd does not use it"),
        ("texts", {"norm": "l2"}, r"norm: words does not use it"),
        ("texts", {"eps": (0.1,), "words": (1,)}, r"eps, words: expected one of them"),
        ("texts", {"eps": (3.0,)}, r"eps: expected shares of the words up to 1, got 3"),
        ("texts", {"words": (0,)}, r"words: expected a whole number of at least 1, got 0"),
        ("texts", {"cosine": 2.0}, r"cosine: expected a number from -1 to 1, got 2"),
        ("pictures", {"eps": (0.1, -0.1)}, r"eps: expected a finite number above 0, got -0.1"),
        ("pictures", {"eps": ()}, r"eps: expected at least one number"),
        ("pictures", {"steps": 0}, r"steps: expected a whole number of at least 1, got 0"),
        ("pictures", {"restarts": 0}, r"restarts: expected a whole number of at least 1"),
        ("pictures", {"start": "clean", "restarts": 2}, r"restarts: from the clean picture all 2 would be equal"),
        ("pictures", {"norm": "l1"}, r"norm: there is no 'l1'"),
        ("pictures", {"step_size": 0.0}, r"step_size: expected a finite number above 0"),
    ],
)
def test_what_an_attack_does_not_use_or_cannot_be_is_refused(kind, given, message):
    with pytest.raises(RegardError, match=message):
        planned(AttackSettings(**given), kind)


def test_more_places_than_positions_are_refused():
    plan = planned(AttackSettings(method="attention", places=9), "pictures")
    assert plan.place_count(9) == 9
    with pytest.raises(RegardError, match=r"places: this run reads 8 positions, got 9"):
        plan.place_count(8)

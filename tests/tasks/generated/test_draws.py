"""Draws: a key names a stream; equal keys stay together in a split."""

import numpy as np
import pytest

from regard_workbench.tasks.generated.draws import Draws, Generated, rank, shares


def test_equal_keys_draw_the_same_and_other_keys_do_not():
    one, two = Draws("a", 1), Draws("a", 1)
    assert [one.below(1000) for _ in range(50)] == [two.below(1000) for _ in range(50)]
    assert [Draws("a", 1).below(2**60)] != [Draws("a", 2).below(2**60)]
    assert rank("ab", "c") != rank("a", "bc")


def test_the_stream_is_the_same_for_ever():
    """Written down once; a change here would change every generated data set."""
    draws = Draws("for ever", 7)
    assert [draws.below(1000) for _ in range(5)] == [946, 344, 720, 765, 188]
    assert Draws("bits").bits(2, 5).tolist() == [[0, 0, 0, 0, 1], [0, 1, 1, 1, 1]]
    assert rank("for ever") % 1_000_003 == 657_563


def test_a_long_draw_goes_on_where_a_short_one_ended():
    """The stream does not depend on how it is cut into draws."""
    whole = Draws("s").bits(8 * 500)
    parts = Draws("s")
    assert np.array_equal(whole, np.concatenate([parts.bits(8 * 13), parts.bits(8 * 487)]))


def test_numbers_are_even_and_bits_are_fair():
    draws = Draws("even")
    counts = np.bincount([draws.below(7) for _ in range(7000)], minlength=7)
    assert counts.min() > 850 and counts.max() < 1150
    assert abs(draws.bits(20_011).mean() - 0.5) < 0.02
    assert draws.below(1) == 0


def test_generated_items_count_from_both_ends_and_slice():
    squares = Generated(11, lambda n: n * n)
    assert squares[3] == 9 and squares[-1] == 100 and squares[8:] == [64, 81, 100]
    assert list(squares) == [n * n for n in range(11)]
    with pytest.raises(IndexError):
        squares[11]
    assert Generated(10**18, lambda n: n)[10**17] == 10**17


def test_shares_have_exact_sizes_and_keep_equal_keys_together():
    keys = [f"text {n % 53}" for n in range(211)]
    where = shares(keys, 5, [0.1, 0.1])
    assert set(where) == set(keys)
    assert [list(where.values()).count(part) for part in range(3)] == [5, 5, 43]
    assert where == shares(reversed(keys), 5, [0.1, 0.1])
    assert where != shares(keys, 6, [0.1, 0.1])


def test_several_draws_at_once_are_even_and_stay_below_the_bound():
    found = Draws("several", 3).several(7, 7000)
    assert set(found) == set(range(7)) and all(900 < found.count(number) < 1100 for number in range(7))
    assert found == Draws("several", 3).several(7, 7000) != Draws("several", 4).several(7, 7000)
    assert Draws("several", 3).several(7, 0) == []

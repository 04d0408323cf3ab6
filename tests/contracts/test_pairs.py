"""Every two entries together: score, mask, bias, normaliser, dtype, lengths, sink, implementation."""

import itertools

import pytest

from tests.contracts.harness import check
from tests.contracts.pairs import CASES, FACTORS, ROWS, allowed


@pytest.mark.parametrize(("case", "impl"), CASES, ids=[f"{impl}: {case}" for case, impl in CASES])
def test_two_entries_together_equal_the_definition(case, impl, device):
    check(case, impl, device)


def test_every_two_entries_meet():
    for a, b in itertools.combinations(FACTORS, 2):
        met = {(str(row[a]), str(row[b])) for row in ROWS}
        missing = [
            (x, y)
            for x, y in itertools.product(FACTORS[a], FACTORS[b])
            if allowed({a: x}, b, y) and (str(x), str(y)) not in met
        ]
        assert not missing, f"{a} × {b}: {missing[:5]}"


def test_each_implementation_runs_enough_of_the_cases():
    share = {name: sum(impl == name for _, impl in CASES) / len(CASES) for name in FACTORS["impl"]}
    assert min(share.values()) > 0.25, share

"""IBM model 2 with a diagonal prior, against sums written out in loops."""

import math

import pytest

from regard_workbench.tasks.measures.word_models import IBM1, NULL, SMOOTHING, DiagonalModel

PAIRS = [([0, 1, 2], [3, 1]), ([2, 0], [1, 0, 3, 2]), ([1], [1])]


def prior(sources, targets, tension):
    """By target word: that of no word, then those of the source words."""
    found = []
    for target in range(targets):
        near = [
            math.exp(-tension * abs((source + 0.5) / sources - (target + 0.5) / targets)) for source in range(sources)
        ]
        found.append([NULL, *((1 - NULL) * one / sum(near) for one in near)])
    return found


def by_hand(pairs, rounds, tension):
    """Likelihoods by (source word, target word); source word None is no word."""
    targets = {word for _, other in pairs for word in other}
    likely = {(one, other): 1.0 for one in (None, 0, 1, 2) for other in targets}
    for _ in range(rounds):
        counts = dict.fromkeys(likely, SMOOTHING)
        for source, target in pairs:
            origins = [None, *source]
            for place, word in enumerate(target):
                weights = prior(len(source), len(target), tension)[place]
                odds = [likely[one, word] * weight for one, weight in zip(origins, weights, strict=True)]
                for one, odd in zip(origins, odds, strict=True):
                    counts[one, word] += odd / sum(odds)
        likely = {
            (one, word): count / sum(counts[one, other] for other in targets) for (one, word), count in counts.items()
        }
    return likely


@pytest.mark.parametrize(("rounds", "tension"), [(1, 4.0), (7, 2.5)])
def test_shares_of_a_pair_are_those_worked_out_word_by_word(rounds, tension):
    found = DiagonalModel(PAIRS, rounds, tension)
    likely = by_hand(PAIRS, rounds, tension)
    for source, target in PAIRS:
        weights = prior(len(source), len(target), tension)
        shares = found.shares(source, target)
        assert shares.shape == (len(target), len(source))
        for place, word in enumerate(target):
            odds = [likely[one, word] * weights[place][n] for n, one in enumerate([None, *source])]
            assert shares[place] == pytest.approx([odd / sum(odds) for odd in odds[1:]])
            best = max(range(len(odds)), key=odds.__getitem__)
            linked = {(a, b) for a, b in found.links(source, target) if b == place}
            assert linked == ({(best - 1, place)} if best else set())


def test_a_word_that_stands_twice_is_linked_to_the_nearer_one():
    pairs = [([5, 1, 2, 5], [7, 8, 9, 7]), ([5], [7]), ([1], [8]), ([2], [9])]
    assert DiagonalModel(pairs).links([5, 1, 2, 5], [7, 8, 9, 7]) == {(0, 0), (1, 1), (2, 2), (3, 3)}
    assert IBM1(pairs).links([5, 1, 2, 5], [7, 8, 9, 7]) >= {(0, 0), (0, 3)}, "without a prior the first of equals"


def test_nothing_seen_gives_no_links_and_no_shares():
    found = DiagonalModel(PAIRS)
    assert found.links([0], [99]) == set() and found.shares([0], [99]).tolist() == [[0.0]]
    assert found.links([], [1]) == set() and found.shares([], [1]).shape == (1, 0)
    assert DiagonalModel([]).links([0], [1]) == set()

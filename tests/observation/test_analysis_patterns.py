"""Patterns of heads: each is found in a head made to show it, scores are those of the definition, causal maps too."""

import math

import pytest
import torch

from regard.errors import BadValue
from regard.observation.analysis.clustering import cluster
from regard.observation.analysis.geometry import geometry
from regard.observation.analysis.patterns import MIXED, PATTERNS, SAMPLED, THRESHOLD, rank, recognise, recognise_all
from regard.observation.analysis.sites import JoinedCalls
from tests.observation.maps import Map, Maps, pointing, soft

N, PERIOD = 23, 11
TOKENS = [i % PERIOD for i in range(N)]


def made(causal, n=N, period=PERIOD, leak=0.1):
    """A head for each pattern: (heads named by pattern, (1,h,n,n))."""
    edge = 2 * n // 5
    before = {
        "previous token": [max(i - 1, 0) for i in range(n)],
        "next token": [min(i + 1, n - 1) for i in range(n)],
        "diagonal": list(range(n)),
        "first token": [0] * n,
        "one column": [7] * n,
        "induction": [i - period + 1 if i >= period else 0 for i in range(n)],
        "duplicate token": [
            i - period if i >= period else (None if causal or i + period >= n else i + period) for i in range(n)
        ],
        "block": [range(edge) if i < edge else range(edge, n) for i in range(n)],
        "local": [range(max(0, i - 2), min(n, i + 3)) for i in range(n)],
        "uniform": [None] * n,
    }
    if causal:
        del before["next token"]
    return list(before), torch.cat([pointing(one, n, causal, leak) for one in before.values()], 1)


@pytest.mark.parametrize("causal", [False, True])
def test_every_pattern_is_found_by_name_in_a_head_that_shows_it(causal):
    names, weights = made(causal)
    found = recognise(Map(weights), TOKENS)
    assert [one.pattern for one in found] == names
    assert [one.head for one in found] == list(range(len(names)))
    for one in found:
        assert all(0 <= score <= 1 for score in one.scores.values())
        if one.pattern not in ("local", "uniform"):
            assert one.scores[one.pattern] == pytest.approx(0.9, abs=1e-5)  # a tenth was given by chance


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [331, 1009])
def test_sampled_rows_of_long_maps_give_the_same_patterns(causal, length):
    names, weights = made(causal, length, 151)
    site = Map(weights)
    found = recognise(site, [i % 151 for i in range(length)])
    assert [one.pattern for one in found] == names
    assert all(one.sampled and one.rows <= SAMPLED for one in found)


def score_by_hand(table, targets, causal):
    """The definition, row by row in Python numbers."""
    gain = room = 0.0
    for i, row in enumerate(table.tolist()):
        seen = range(i + 1) if causal else range(len(row))
        named = {j for j in targets(i) if j in seen}
        if not named or len(named) == len(seen):
            continue
        chance = len(named) / len(seen)
        gain += sum(row[j] for j in named) / sum(row) - chance
        room += 1 - chance
    return None if room == 0 else max(0.0, gain / room)


@pytest.mark.parametrize("causal", [False, True])
def test_scores_of_any_map_are_those_of_the_definition(causal):
    weights = soft(2, 5, N, N, causal=causal, sharp=2.0)
    tokens = torch.randint(0, 7, (N,))
    same = [[j for j in range(N) if tokens[j] == tokens[i]] for i in range(N)]
    rules = {
        "previous token": lambda i: {i - 1},
        "next token": lambda i: {i + 1},
        "diagonal": lambda i: {i},
        "first token": lambda i: {0},
        "induction": lambda i: {j + 1 for j in same[i] if j + 1 < i},
        "duplicate token": lambda i: set(same[i]) - {i},
    }
    for head, one in enumerate(recognise(Map(weights), tokens, batch=1)):
        table = weights[1, head]
        for name, rule in rules.items():
            expected = score_by_hand(table, rule, causal)
            assert one.scores.get(name) == (None if expected is None else pytest.approx(expected, abs=1e-5))
        entropy = -sum(w * math.log(w) for row in table.tolist() for w in row if w > 0) / N
        assert one.entropy == pytest.approx(entropy, abs=1e-5)
        distance = sum(abs(i - j) * table[i, j].item() for i in range(N) for j in range(N))
        chance = sum(
            sum(abs(i - j) for j in (range(i + 1) if causal else range(N))) / (i + 1 if causal else N) for i in range(N)
        )
        assert one.scores["local"] == pytest.approx(max(0, 1 - distance / chance), abs=1e-5)
        even = [
            [min(table[i, j].item(), 1 / (i + 1 if causal else N)) for j in range(N)]
            for i in range(1 if causal else 0, N)
        ]
        least = [1 / (i + 1 if causal else N) for i in range(1 if causal else 0, N)]
        gain = sum(sum(row) - low for row, low in zip(even, least, strict=True))
        assert one.scores["uniform"] == pytest.approx(gain / sum(1 - low for low in least), abs=1e-5)


def test_a_head_with_half_of_its_weight_on_one_key_is_not_uniform():
    """Of 13 keys one has 0.46 of each row and the others share the rest: it overlaps with equal weights by 0.58."""
    weights = torch.full((1, 1, 11, 13), 0.54 / 12)
    weights[..., 4] = 0.46
    (one,) = recognise(Map(weights))
    assert one.scores["uniform"] == pytest.approx((0.54 + 1 / 13 - 1 / 13) / (1 - 1 / 13), abs=1e-5)
    assert one.pattern == "mixed"
    even = recognise(Map(torch.full((1, 1, 11, 13), 1 / 13)))[0]
    assert even.pattern == "uniform"


def test_a_uniform_causal_head_is_no_sink_although_its_first_rows_look_at_the_first_token():
    (one,) = recognise(Map(pointing([None] * 13, 13, causal=True)))
    assert one.pattern == "uniform"
    assert one.scores["first token"] == pytest.approx(0, abs=1e-6)
    assert "next token" not in one.scores  # no row sees it


def test_columns_of_equal_tokens_are_added_up():
    seps = [5, 12, 18]
    site = Map(pointing([seps] * N, N))
    (without,), (given,) = recognise(site), recognise(site, ["[SEP]" if i in seps else i for i in range(N)])
    assert without.pattern != "one column"
    assert (given.pattern, given.column in seps) == ("one column", True)
    assert given.scores["one column"] == pytest.approx(1, abs=1e-5)


def test_a_head_that_does_several_things_is_mixed():
    previous, sink, own = (pointing(rows, N) for rows in ([max(i - 1, 0) for i in range(N)], [0] * N, [19] * N))
    (one,) = recognise(Map((previous + sink + own) / 3))
    assert one.pattern == MIXED
    assert max(one.scores[name] for name in ("previous token", "first token", "one column")) < THRESHOLD


def test_padding_on_either_side_changes_nothing():
    names, weights = made(causal=True)
    for left, right in ((5, 0), (0, 3)):
        padded = torch.zeros(1, weights.shape[1], N + left + right, N + left + right)
        padded[:, :, left : left + N, left : left + N] = weights
        tokens = [-1] * left + TOKENS + [-1] * right
        shifted, plain = recognise(Map(padded), tokens), recognise(Map(weights), TOKENS)
        assert [one.pattern for one in shifted] == names
        for name in ("previous token", "first token", "induction", "uniform"):
            for one, other in zip(shifted, plain, strict=True):
                assert one.scores[name] == pytest.approx(other.scores[name], abs=1e-5)


def test_steps_of_a_generation_are_scored_as_one_map():
    names, weights = made(causal=True)
    steps = [weights[:, :, :7, :7], *(weights[:, :, i : i + 1, : i + 1] for i in range(7, N))]
    site = Map(*steps)
    joined = JoinedCalls(site, len(steps))
    assert torch.equal(joined.weights(), weights)
    assert torch.equal(joined.weights([20, 3, -1], [1, 0]), weights[:, [1, 0]][:, :, [20, 3, 22]])
    assert joined.weights([], [0]).shape == (1, 1, 0, N)
    assert recognise(site, TOKENS, call=None) == recognise(Map(weights), TOKENS)
    last = recognise(site, TOKENS)  # a single step has scores too
    assert [one.pattern for one in last][:2] == names[:2]


def test_the_position_of_a_step_in_a_longer_cache_is_found():
    step = torch.zeros(1, 1, 1, 31)
    step[..., :17] = 0.02
    step[..., 15] += 1 - 0.02 * 17
    assert geometry(Map(step)).offset == 16
    (one,) = recognise(Map(step))
    assert one.pattern == "previous token"


def test_queries_and_keys_of_different_kinds_have_no_positions_to_compare():
    for site in (Map(soft(1, 2, 7, 11), name="decoder.cross"), Map(soft(1, 2, 7, 7), columns="slot")):
        for one in recognise(site):
            assert set(one.scores) == {"first token", "one column", "uniform"}
    assert set(recognise(Map(soft(1, 1, 13, 7)))[0].scores) == {"first token", "one column", "uniform"}


def test_rows_without_weight_and_non_finite_rows_are_left_out():
    for causal in (False, True):
        names, weights = made(causal)
        damaged = weights.clone()
        damaged[:, :, 4], damaged[:, :, 9] = 0.0, torch.nan
        found = recognise(Map(damaged), TOKENS)
        assert [one.pattern for one in found] == names
        assert {one.rows for one in found} == {N - 2}
        damaged[:, :, 9] = weights[:, :, 9]
        damaged[:, :, 11, :2] = torch.tensor([-0.1, 0.2])  # effective weights may be negative
        assert all(one.rows == N - 2 and one.entropy >= 0 for one in recognise(Map(damaged), TOKENS))


def test_no_rows_and_no_keys_give_facts_without_scores():
    for shape in ((1, 2, 0, 5), (1, 2, 5, 0), (1, 0, 5, 5)):
        for one in recognise(Map(torch.zeros(shape))):
            assert (one.pattern, one.scores, one.entropy) == (MIXED, {}, 0.0)


def test_recognising_takes_memory_linear_in_the_length():
    site = Map(torch.full((1, 2, 3001, 3001), 1 / 3001))
    recognise(site)
    assert site.largest <= 2 * SAMPLED * 3001


def test_heads_are_ranked_by_any_score():
    names, weights = made(causal=False)
    facts = recognise_all(Maps(Map(weights[:, :5], name="a"), Map(weights[:, 5:], name="b")), TOKENS)
    for place, name in enumerate(names):
        best = rank(facts, name)[0]
        if name == "local":
            assert best.pattern == "diagonal"  # what is nearest
            continue
        assert (best.site, best.head) == (("a", place) if place < 5 else ("b", place - 5))
    entropies = [one.entropy for one in rank(facts, "entropy")]
    assert entropies == sorted(entropies, reverse=True)
    with pytest.raises(BadValue, match="Did you mean 'induction'"):
        rank(facts, "inducton")


def test_wrong_tokens_and_batches_are_refused():
    site = Map(soft(2, 1, 5, 5))
    with pytest.raises(BadValue, match="tokens: expected one for each of the 5 keys, got 3"):
        recognise(site, [1, 2, 3])
    with pytest.raises(BadValue, match="batch: expected a number below 2"):
        recognise(site, batch=2)


def test_similar_heads_of_different_models_form_one_cluster_and_are_adjacent():
    parts, truth = [], []
    for length in (23, 37, 53):
        names, weights = made(causal=True, n=length, leak=0.2)
        chosen = [names.index(name) for name in ("previous token", "first token", "uniform", "diagonal")]
        parts.append(Map(weights[:, chosen], name=f"model{length}"))
        truth += range(4)
    facts = recognise_all(Maps(*parts))
    found = cluster(facts)
    groups = {kind: {found.labels[i] for i, own in enumerate(truth) if own == kind} for kind in range(4)}
    assert all(len(group) == 1 for group in groups.values())
    assert len(set(found.labels)) == 4
    assert sorted(found.order) == list(range(12))
    along = [found.labels[i] for i in found.order]
    assert along == sorted(along)  # clusters are contiguous and numbered along the order
    assert cluster(facts) == found
    assert len(set(cluster(facts, 2).labels)) == 2


def test_clusters_of_few_or_equal_heads():
    facts = recognise(Map(soft(1, 2, 7, 7)))
    assert cluster([]).order == []
    assert cluster(facts[:1]).labels == [0]
    assert sorted(cluster(facts).order) == [0, 1]
    equal = recognise(Map(soft(1, 1, 7, 7).expand(1, 5, 7, 7)))
    assert cluster(equal).labels == [0] * 5
    with pytest.raises(BadValue, match="count"):
        cluster(facts, 0)


def test_every_pattern_has_its_definition_in_words():
    from regard.observation.analysis import patterns

    assert all(f"    {name} " in patterns.__doc__ for name in PATTERNS)

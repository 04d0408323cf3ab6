"""The difference of two observations, row by row, against scipy's distance."""

import pytest
import torch
from scipy.spatial.distance import jensenshannon

from regard.errors import BadValue
from regard.observation.analysis import sites
from regard.observation.analysis.difference import compare, difference, divergence, matched
from tests.observation.maps import Map, Maps, soft


def test_divergence_of_every_row_is_scipys_distance_squared(monkeypatch):
    monkeypatch.setattr(sites, "BLOCK", 200)  # several blocks
    first, second = soft(2, 3, 7, 11, sharp=2.0), soft(2, 3, 7, 11, sharp=2.0)
    one, two = Map(first), Map(second)
    found = compare(one, two)
    expected = jensenshannon(first.double().numpy(), second.double().numpy(), base=2, axis=-1) ** 2
    assert torch.allclose(found.divergence, torch.from_numpy(expected), atol=1e-7)
    assert torch.allclose(found.heads, torch.from_numpy(expected).mean((0, 2)), atol=1e-7)
    assert found.mean == pytest.approx(expected.mean(), abs=1e-7)
    assert max(one.largest, two.largest) <= 200
    example, head, row, value = found.largest(1)[0]
    assert value == found.divergence.max() == found.divergence[example, head, row]
    assert [one[3] for one in found.largest(50)] == sorted(found.divergence.flatten().tolist(), reverse=True)


def test_divergence_is_0_for_equal_and_1_for_disjoint_rows():
    unit = torch.eye(3)
    assert divergence(unit, unit).tolist() == [0, 0, 0]
    assert divergence(unit, unit.roll(1, 0)).tolist() == [1, 1, 1]
    assert divergence(unit, 5 * unit).tolist() == [0, 0, 0]  # shares are compared
    nothing = torch.zeros(3, 3)
    assert divergence(nothing, nothing).tolist() == [0, 0, 0]
    assert divergence(nothing, unit).tolist() == [1, 1, 1]
    spoilt = torch.tensor([[torch.nan, 0, 0], [-0.5, 0.5, 1.0]])
    assert bool(divergence(spoilt, unit[:2]).isnan().all())
    # ½·log₂(2/1.5) + ½·(½·log₂(1/1.5) + ½·log₂ 2), by hand.
    by_hand = 0.31127812
    assert divergence(torch.tensor([1.0, 0]), torch.tensor([0.5, 0.5])).item() == pytest.approx(by_hand)


def test_sites_are_matched_by_name_and_then_in_order():
    assert matched(["a", "b", "c"], ["c", "a", "x"]) == ([("a", "a"), ("b", "x"), ("c", "c")], [], [])
    assert matched(["a", "b"], ["a"]) == ([("a", "a")], ["b"], [])
    assert matched(["q"], ["x", "y"]) == ([("q", "x")], [], ["y"])


def test_heads_are_ranked_by_how_much_they_differ():
    same = soft(1, 3, 5, 5)
    changed = same.clone()
    changed[:, 2] = changed[:, 2].flip(-1)
    first = Maps(Map(same, name="a"), Map(same, name="b"), Map(same, name="only"))
    second = Maps(Map(same, name="a"), Map(changed, name="b"))
    found = difference(first, second)
    assert [site.name for site in found.sites] == ["a", "b"]
    assert (found.only_first, found.only_second) == (["only"], [])
    assert found.ranked()[0][:2] == ("b", 2)
    assert [value for *_, value in found.ranked()[1:]] == pytest.approx([0] * 5, abs=1e-9)


def test_rows_that_cannot_be_compared_are_left_out_of_means_and_ranks():
    first, second = soft(1, 2, 5, 5), soft(1, 2, 5, 5)
    first[0, 1] = torch.nan
    first[0, 0, 3] = torch.nan
    found = difference(Maps(Map(first)), Maps(Map(second)))
    (site,) = found.sites
    assert site.heads[0] == pytest.approx(site.divergence[0, 0, [0, 1, 2, 4]].mean().item())
    assert [head for _, head, _ in found.ranked()] == [0, 1]
    assert len(site.largest()) == 4


def test_the_steps_of_two_generations_are_compared_as_one_map():
    first, second = soft(1, 2, 5, 7), soft(1, 2, 5, 7)
    steps = [Map(*one.split(1, 2)) for one in (first, second)]
    assert torch.equal(compare(*steps, call=None).divergence, compare(Map(first), Map(second)).divergence)


def test_different_shapes_are_refused():
    one = Map(soft(1, 2, 5, 5), name="layer.0")
    with pytest.raises(BadValue, match=r"5 and 7 queries, 5 and 7 keys\. Rows are compared one by one"):
        compare(one, Map(soft(1, 2, 7, 7), name="other"))
    with pytest.raises(BadValue, match=r"2 and 3 heads\. Their heads do not correspond"):
        compare(one, Map(soft(1, 3, 5, 5)))

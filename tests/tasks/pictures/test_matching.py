"""Matchings, on the host and on the device, against all permutations."""

import itertools

import pytest
import torch

from regard_workbench.tasks.answers import Boxes
from regard_workbench.tasks.answers.matching import assigned, enumerated, matched
from regard_workbench.tasks.parts.batch import Batch

WAYS = pytest.mark.parametrize("match", [assigned, enumerated])


def cheapest(costs):
    """The least total cost over all ways to give each box a query of its own, by trying all of them."""
    queries, boxes = costs.shape
    return min(
        sum(costs[query, box] for box, query in enumerate(chosen))
        for chosen in itertools.permutations(range(queries), boxes)
    )


@WAYS
@pytest.mark.parametrize("ties", [False, True])
def test_the_matching_costs_as_little_as_the_best_of_all_permutations(match, ties) -> None:
    generator = torch.Generator().manual_seed(7)
    layers = [torch.randn(40, queries, 4, generator=generator) for queries in (7, 4, 5)]
    if ties:
        layers = [one.round() for one in layers]
    real = torch.rand(40, 4, generator=generator) < 0.7
    real[0], real[1] = False, True
    found = match(layers, real)
    for costs, query in zip(layers, found, strict=True):
        assert query.shape == real.shape and torch.equal(query >= 0, real)
        for picture, (table, own) in enumerate(zip(costs, real, strict=True)):
            chosen = query[picture, own]
            assert len(set(chosen.tolist())) == int(own.sum())  # no query has two boxes
            spent = float(table[chosen, own.nonzero()[:, 0]].sum())
            least = cheapest(table[:, own].numpy()) if own.any() else 0.0
            assert spent == pytest.approx(least, abs=1e-5)


@WAYS
@pytest.mark.parametrize(("queries", "boxes"), [(144, 5), (25, 3), (6, 1), (5, 5)])
def test_host_and_device_spend_the_same(match, queries, boxes) -> None:
    costs = torch.randn(64, queries, boxes, generator=torch.Generator().manual_seed(queries))
    real = torch.ones(64, boxes, dtype=torch.bool)
    (found,), (other,) = match([costs], real), assigned([costs], real)
    spent = [costs.mT.gather(2, one[..., None]).sum((1, 2)) for one in (found, other)]
    assert torch.allclose(*spent, atol=1e-5)


def test_more_boxes_than_queries_leave_the_dearest_boxes_out() -> None:
    costs = torch.tensor([[[5.0, 1.0, 9.0], [2.0, 8.0, 9.0]]])
    (query,) = matched([costs], torch.ones(1, 3, dtype=torch.bool))
    assert query.tolist() == [[1, 0, -1]]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_costs_of_a_diverged_model_are_matched_too(value) -> None:
    costs = torch.full((2, 6, 3), value)
    real = torch.tensor([[True, True, False], [False, False, False]])
    (query,) = matched([costs], real)
    assert torch.equal(query >= 0, real) and len(set(query[0, :2].tolist())) == 2


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11
def test_the_set_loss_with_the_matching_of_the_device_waits_for_no_number(monkeypatch) -> None:
    # So a step can be a CUDA graph. `nonzero` stands for shapes that depend on data.
    monkeypatch.setattr("regard_workbench.tasks.answers.boxes.matched", enumerated)
    layers = tuple(torch.rand(4, count, 3 + 5, requires_grad=True) for count in (12, 6))
    given = Batch.of(torch.zeros(4, 1, 1)).answered(torch.rand(4, 5, 6), torch.ones(4, 5) > 0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        total, _ = Boxes(3).head().loss(layers, given)
        total.backward()
    names = {event.name for event in seen.events()}
    assert "aten::topk" in names  # so the names are those of operators
    assert names.isdisjoint({"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"})


def test_the_set_loss_is_the_same_with_either_matching(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(3)
    layers = tuple(torch.rand(6, count, 3 + 5, generator=generator) for count in (12, 6))
    rows = torch.rand(6, 5, 6, generator=generator)
    rows[..., 0], rows[..., 5] = torch.randint(3, (6, 5), generator=generator), 0
    rows[..., 3:5] += rows[..., 1:3]
    target = Batch.of(torch.zeros(6, 1, 1)).answered(rows, torch.rand(6, 5, generator=generator) < 0.6)
    totals = []
    for match in (assigned, enumerated):
        monkeypatch.setattr("regard_workbench.tasks.answers.boxes.matched", match)
        totals.append(float(Boxes(3).head().loss(layers, target)[0]))
    assert totals[0] == pytest.approx(totals[1], rel=1e-6)

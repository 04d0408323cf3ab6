"""Where attacks are made, and how far they move the attention: against weights and sums written out by hand."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

import regard
from regard_workbench import models
from regard_workbench.attacks import places
from regard_workbench.attacks.movement import movement
from regard_workbench.tasks import Batch, OneOf
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Patches, Tokens
from tests.attacks.toy import digits


def test_the_highest_scores_are_chosen_among_the_allowed_and_ties_go_to_the_first():
    scores = torch.tensor([[0.1, 0.9, 0.9, 0.9, 0.2], [5.0, 4.0, 3.0, 2.0, 1.0]])
    allowed = torch.tensor([[True] * 5, [False, True, False, True, True]])
    found = places.highest(scores, torch.tensor([2, 2]), allowed)
    assert found.tolist() == [[False, True, True, False, False], [False, True, False, True, False]]
    few = places.highest(scores, torch.tensor([0, 4]), allowed)
    assert few.tolist() == [[False] * 5, allowed[1].tolist()]


def test_the_attended_positions_are_the_mean_of_the_weights_of_all_layers():
    task, target = digits()
    found = places.attended(places.observed(target.model, target.batch), target.batch, task.problem.inputs)
    with regard.observe(target.model) as seen, torch.no_grad():
        target.model(target.batch)
    maps = torch.stack([seen[name].weights() for name in seen.names()])  # (layers,b,h,q,k)
    assert maps.shape == (2, 11, 2, 8, 8)
    assert torch.allclose(found, maps.double().mean((0, 2, 3)), atol=1e-6)
    assert torch.allclose(found.sum(1), torch.ones(11, dtype=torch.float64), atol=1e-6)


def of_tokens():
    """An untrained encoder on two texts, one of them padded."""
    torch.manual_seed(2)
    problem = Problem.of(Tokens(13, 0, 7), OneOf(3))
    model = models.build("encoder(dim=8, layers=1, num_heads=2)", problem).eval()
    inputs = torch.tensor([[5, 6, 7, 8, 9], [6, 11, 12, 0, 0]])
    return model, Batch.of(inputs, inputs > 0, torch.tensor([0, 1])), problem.inputs


def test_padding_neither_attends_nor_is_attended_to():
    model, batch, spec = of_tokens()
    found = places.attended(places.observed(model, batch), batch, spec)
    alone = Batch.of(batch.inputs[1:, :3], None, batch.targets[1:])
    expected = places.attended(places.observed(model, alone), alone, spec)
    assert torch.allclose(found[1, :3], expected[0], atol=1e-6)
    assert not found[1, 3:].any()


def test_the_movement_is_the_divergence_of_rows_without_padding():
    model, batch, _ = of_tokens()
    other = Batch.of(torch.tensor([[5, 6, 7, 8, 9], [7, 11, 10, 0, 0]]), batch.keep, batch.targets)
    before, after = (places.observed(model, one) for one in (batch, other))
    (name,) = before.names()
    found = movement(before, after, batch)[name]
    rows = [site[name].weights()[1, :, :3, :3].double().numpy() for site in (before, after)]
    expected = np.mean(
        [jensenshannon(p, q, base=2) ** 2 for p, q in zip(*(r.reshape(-1, 3) for r in rows), strict=True)]
    )
    assert float(found[0]) == 0 and abs(float(found[1]) - expected) < 1e-6


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (6, [1.0, 2, 3, 4, 5, 6]),  # the patches themselves
        (7, [2.0, 3, 4, 5, 6, 7]),  # a class token before them
        (24, [4.5, 6.5, 8.5, 16.5, 18.5, 20.5]),  # a grid twice as fine, 4 × 6: the mean of four
        (5, None),
        (8, None),  # 2 × 4 is another form than 2 × 3
    ],
)
def test_weights_over_another_grid_become_weights_of_the_patches(keys, expected):
    spec = Patches.of(channels=1, height=8, width=12, side=4)  # 2 × 3 patches
    found = places._over_positions(torch.arange(1.0, keys + 1)[None].double(), 6, spec)
    assert expected == (None if found is None else found[0].tolist())


def test_a_coarser_grid_gives_each_patch_the_weight_of_its_cell():
    spec = Patches.of(channels=3, height=16, width=16, side=4)
    found = places._over_positions(torch.tensor([[1.0, 2.0, 3.0, 4.0]]).double(), 16, spec)
    assert found.view(4, 4).tolist() == [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]


@pytest.mark.parametrize(
    ("model", "sites"),
    [
        ("vit(dim=8, layers=2, num_heads=2, pool=class)", 2),
        ("cnn-attention(dim=16, num_heads=2)", 7),  # a gate of channels and one of places in each of three blocks
        ("cnn-attention(dim=16, channel=false, self_attention=false)", 3),
    ],
)
def test_models_of_pictures_say_which_patches_they_attend_to(model, sites):
    spec = Patches.of(channels=1, height=20, width=20, side=4)
    torch.manual_seed(3)
    made = models.build(model, Problem.of(spec, OneOf(3))).eval()
    batch = Batch.of(torch.rand(2, 25, 16))
    seen = places.observed(made, batch)
    assert len(seen) == sites
    found = places.attended(seen, batch, spec)
    assert found.shape == (2, 25) and torch.allclose(found.sum(1), torch.ones(2, dtype=torch.float64))

"""Features of pictures: a row for each patch, places, what a row sees."""

import pytest
import torch

import regard
from regard_workbench import tasks
from regard_workbench.models.parts.picture_features import PictureFeatures, cell_centres, factors, waves
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.pictures.patches import fold


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("blocks", [0, 2])
@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 6, 8])
def test_there_is_a_row_of_features_for_each_patch_whatever_its_side(side, blocks, norm):
    spec = Patches.of(1, 2 * side, 3 * side, side)
    features = PictureFeatures(spec, 16, width=4, blocks=blocks, layers=1, num_heads=2, norm=norm)
    rows, maps = features(torch.rand(2, 6, side * side))
    assert rows.shape == (2, 6, 16)
    assert maps[0].shape == (2, features.widths[0], 2 * side, 3 * side)
    assert len(maps) == max(1, len(factors(side)))
    rows.square().sum().backward()
    assert all(weight.grad is not None for weight in features.parameters())


@pytest.mark.parametrize("blocks", [0, 1])
def test_convolutions_see_beyond_the_borders_of_a_patch(blocks):
    features = PictureFeatures(Patches.of(3, 16, 16, 4), 16, width=4, blocks=blocks)
    data = torch.rand(3, 16, 48, generator=torch.Generator().manual_seed(2)).requires_grad_()
    rows, _ = features(data)
    (slope,) = torch.autograd.grad(rows[0, 5].sum(), data)
    assert slope[0, 5].any() and slope[0, 6].any() and not slope[1].any()


@pytest.mark.parametrize(
    ("options", "why"),
    [({"blocks": -1}, "blocks"), ({"width": 0}, "width"), ({"layers": -1}, "layers"), ({"norm": "none"}, "norm")],
    ids=["blocks", "width", "layers", "norm"],
)
def test_wrong_sizes_are_refused_by_name(options, why):
    with pytest.raises(regard.RegardError, match=why):
        PictureFeatures(Patches.of(1, 8, 8, 4), 16, **{"width": 4, **options})


@pytest.mark.parametrize("blocks", [0, 1])
def test_batch_normalisation_is_by_the_batch_in_training_and_by_running_statistics_afterwards(blocks):
    features = PictureFeatures(Patches.of(1, 12, 12, 4), 16, width=4, blocks=blocks, norm="batch")
    assert not [part for part in features.modules() if isinstance(part, torch.nn.GroupNorm)]
    data = torch.rand(7, 9, 16, generator=torch.Generator().manual_seed(2))
    maps = features.first[0](2 * fold(data, features.spec) - 1)
    for _ in range(200):
        features(data)
    norm = features.first[1]
    mean, spread = maps.mean((0, 2, 3)), maps.var((0, 2, 3))
    assert torch.allclose(norm.running_mean, mean, atol=1e-5) and torch.allclose(norm.running_var, spread, rtol=1e-4)
    together, _ = features.eval()(data)
    alone, _ = features(data[3:4])
    assert torch.allclose(alone[0], together[3], atol=1e-5)


def test_the_mean_of_a_mostly_empty_scene_tells_pictures_apart_better_with_batch_normalisation():
    """Why `norm` exists: the mean of all places is what a decoder sees before its attention has learned."""
    task = tasks.build("caption")
    scenes = task.examples("train")
    data = task.collate([scenes[number] for number in range(101)], torch.Generator()).inputs
    shares = {}
    for norm in ("group", "batch"):
        torch.manual_seed(5)
        features = PictureFeatures(task.spec, 32, width=8, norm=norm)
        rows = (features(data)[0] - features.places).mean(1).detach()
        shares[norm] = float(rows.var(0).mean() / rows.mean(0).square().mean())
    assert shares["batch"] > 2 * shares["group"]


def test_factors_and_places_by_hand():
    assert [factors(number) for number in (1, 2, 12, 7, 16)] == [[], [2], [2, 2, 3], [7], [2, 2, 2, 2]]
    assert cell_centres(2, 4)[[0, 1, 3, 4]].tolist() == [[0.125, 0.25], [0.375, 0.25], [0.875, 0.25], [0.125, 0.75]]
    places = waves(cell_centres(8, 8), 32)
    likeness = places @ places.T
    assert likeness.argmax(1).tolist() == list(range(64))  # a place is most like itself
    assert likeness[27, 28] > likeness[27, 31] and likeness[27, 35] > likeness[27, 59]
    assert waves(cell_centres(2, 3), 10).shape == (6, 10) and not waves(cell_centres(2, 3), 10)[:, 8:].any()

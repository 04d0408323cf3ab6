"""Features of pictures: a row for each patch, places, what a row sees."""

import pytest
import torch

import regard
from regard.models.picture_features import PictureFeatures, cell_centres, factors, waves
from regard.tasks.streams import Patches


@pytest.mark.parametrize("blocks", [0, 2])
@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 6, 8])
def test_there_is_a_row_of_features_for_each_patch_whatever_its_side(side, blocks):
    spec = Patches.of(1, 2 * side, 3 * side, side)
    features = PictureFeatures(spec, 16, width=4, blocks=blocks, layers=1, num_heads=2)
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
    [({"blocks": -1}, "blocks"), ({"width": 0}, "width"), ({"layers": -1}, "layers")],
    ids=["blocks", "width", "layers"],
)
def test_wrong_sizes_are_refused_by_name(options, why):
    with pytest.raises(regard.RegardError, match=why):
        PictureFeatures(Patches.of(1, 8, 8, 4), 16, **{"width": 4, **options})


def test_factors_and_places_by_hand():
    assert [factors(number) for number in (1, 2, 12, 7, 16)] == [[], [2], [2, 2, 3], [7], [2, 2, 2, 2]]
    assert cell_centres(2, 4)[[0, 1, 3, 4]].tolist() == [
        [0.125, 0.25],
        [0.375, 0.25],
        [0.875, 0.25],
        [0.125, 0.75],
    ]
    places = waves(cell_centres(8, 8), 32)
    likeness = places @ places.T
    assert likeness.argmax(1).tolist() == list(range(64))  # a place is most like itself
    assert likeness[27, 28] > likeness[27, 31] and likeness[27, 35] > likeness[27, 59]
    assert waves(cell_centres(2, 3), 10).shape == (6, 10) and not waves(cell_centres(2, 3), 10)[:, 8:].any()

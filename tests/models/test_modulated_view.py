"""The coarse view that a question modulates: by hand, patch by patch, and which words change it."""

import pytest
import torch

from regard_workbench.models.parts.modulated_view import ModulatedView, Modulation
from regard_workbench.tasks.parts.streams import Patches, Tokens

WORDS, LONGEST, DIM = 11, 5, 12
ASKED = Tokens(WORDS, 0, LONGEST)


def view(spec, **options):
    torch.manual_seed(4)
    return ModulatedView(spec, ASKED, DIM, **{"width": 7, "norm": "batch", **options}).double().eval()


def test_modulation_by_hand_and_another_word_changes_the_scales_at_once():
    torch.manual_seed(3)
    part = Modulation(DIM, 5)
    maps, row = torch.randn(2, 5, 3, 7), torch.randn(2, DIM)
    found, told = part(maps, row), row @ part.scales.weight.T
    for example in range(2):
        for channel in range(5):
            expected = (1 + told[example, channel]) * maps[example, channel] + told[example, 5 + channel]
            assert torch.allclose(found[example, channel], expected, atol=1e-6)
    big = Modulation(64, 256).scales(torch.nn.functional.layer_norm(torch.randn(100, 64), (64,)))
    assert big[:, :256].std() > 0.8  # as large as the 1 that they are added to


@pytest.mark.parametrize(("side", "parts"), [(4, 2), (3, 1)])
def test_a_patch_is_the_means_of_its_parts_and_rows_are_in_the_order_of_the_patches(side, parts):
    """The first convolution by loops over a view whose pixels are the means of squares of the picture."""
    spec = Patches.of(3, 2 * side, 5 * side, side)
    made = view(spec)
    data, words = (torch.rand(2, spec.length, spec.width, dtype=torch.float64), torch.tensor([[3, 7, 0], [2, 5, 9]]))
    seen = {}
    made.convolutions[0].register_forward_pre_hook(lambda _, given: seen.update(view=given[0]))
    assert made(data, words).shape == (2, 10, DIM)
    step = side // parts
    for number in range(10):
        row, column = divmod(number, 5)
        patch = data[1, number].view(3, side, side)
        for y in range(parts):
            for x in range(parts):
                mean = patch[:, y * step : (y + 1) * step, x * step : (x + 1) * step].mean((1, 2))
                at = seen["view"][1, :, row * parts + y, column * parts + x]
                assert torch.allclose(at, 2 * mean - 1)


def test_a_change_of_a_patch_reaches_the_rows_of_two_patches_around_it_and_no_further():
    spec = Patches.of(1, 28, 28, 4)  # 7 × 7
    made, words = view(spec), torch.tensor([[3, 7]])
    data = torch.rand(1, 49, 16, dtype=torch.float64)
    other = data.clone()
    other[0, 24] = 0.9  # in the middle
    moved = (made(data, words) - made(other, words)).abs().amax(-1)[0].view(7, 7) > 1e-9
    rows, columns = (moved.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
    assert moved[3, 3] and rows == columns == [1, 2, 3, 4, 5]


def test_the_question_is_a_bag_of_words_without_its_padding():
    spec = Patches.of(3, 8, 12, 4)
    made, data = view(spec), torch.rand(1, 6, 48, dtype=torch.float64)
    found = made(data, torch.tensor([[3, 7, 0, 0]]))
    assert torch.allclose(found, made(data, torch.tensor([[7, 3]])))
    assert not torch.allclose(found, made(data, torch.tensor([[7, 4]])), atol=1e-3)


def test_norms_of_the_view_are_those_of_its_option():
    kinds = {"batch": torch.nn.BatchNorm2d, "group": torch.nn.GroupNorm}
    for norm, kind in kinds.items():
        made = view(Patches.of(3, 8, 12, 4), norm=norm)
        assert all(isinstance(one, kind) for one in made.norms)
    assert [one.num_groups for one in made.norms] == [1, 4, 4]  # of 7, 12 and 12 channels

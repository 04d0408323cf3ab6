"""Pictures of one size, and training pictures that differ each time."""

import numpy as np
import pytest
import torch
from PIL import Image

from regard_workbench.tasks.figures.overlay import overlays, shaded
from regard_workbench.tasks.pictures.crops import LIGHT, varied
from regard_workbench.tasks.pictures.pixels import numbers, packed, shown, square


def test_a_wide_image_is_cut_in_the_middle_and_keeps_its_colours():
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, :10], pixels[:, 10:20], pixels[:, 20:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    found = square(Image.fromarray(pixels), 10)
    assert found.shape == (10, 10, 3) and (found == (0, 255, 0)).all()
    grey = square(Image.fromarray(pixels), 10, channels=1)
    assert grey.shape == (10, 10, 1) and set(grey.flatten().tolist()) == {150}, "0.587 · 255"


def test_pixels_and_numbers_are_the_same_picture():
    picture = np.arange(2 * 3 * 5, dtype=np.float32).reshape(1, 6, 5).repeat(3, 0) / 255
    back = numbers([packed(picture)])
    assert torch.allclose(back[0], torch.from_numpy(picture))
    assert shown(packed(picture)).shape == (6, 5, 3) and shown(packed(picture[:1])).shape == (6, 5)


def test_varied_pictures_come_from_the_generator_alone_and_stay_pictures():
    given = torch.rand(4, 3, 11, 13, generator=torch.Generator().manual_seed(1))
    one, same = (varied(given, torch.Generator().manual_seed(7)) for _ in range(2))
    other = varied(given, torch.Generator().manual_seed(8))
    assert torch.equal(one, same) and not torch.equal(one, other) and one.shape == given.shape
    assert float(one.min()) >= 0 and float(one.max()) <= 1


def test_a_picture_of_one_colour_only_changes_its_brightness():
    given = torch.full((50, 1, 8, 8), 0.5)
    found = varied(given, torch.Generator().manual_seed(3))
    levels = found[:, 0, 0, 0]
    assert torch.allclose(found, levels[:, None, None, None].expand_as(found), atol=1e-6)
    assert float((levels - 0.5).abs().max()) <= LIGHT + 1e-6 and float(levels.std()) > 0.05


def test_half_of_the_pictures_are_mirrored_and_the_part_stays_inside():
    ramp = torch.linspace(0.3, 0.7, 40).expand(200, 1, 40, 40)
    found = varied(ramp, torch.Generator().manual_seed(5))
    rises = found[:, 0, 20, 30] > found[:, 0, 20, 10]
    assert 70 < int(rises.sum()) < 130
    assert bool((varied(ramp, torch.Generator().manual_seed(5), mirror=False)[:, 0, 20, 30] > 0.2).all())


def test_an_overlay_has_the_picture_and_one_more_for_each_word_coloured_where_it_looked():
    picture = np.ones((8, 12, 3), np.float32)
    weights = [[0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0, 0.0, 0.25]]
    figure = overlays(picture, ["a", "$x$"], weights, (2, 3))
    drawn = [frame.images[0].get_array() for frame in figure.axes if frame.images]
    assert len(drawn) == 3 and [frame.get_title() for frame in figure.axes[:3]] == ["", "a", "$x$"]
    colour = np.array([0xF2, 0xB7, 0x01]) / 255
    deepest, half = 0.35 * 0.6 + 0.65 * colour, 0.675 * 0.6 + 0.325 * colour
    assert np.allclose(drawn[0], 1) and np.allclose(drawn[1][:4, 4:8], deepest) and np.allclose(drawn[1][4:], 0.6)
    assert np.allclose(drawn[2][:4, :4], deepest) and np.allclose(drawn[2][4:, 8:], half)
    dark = shaded(np.zeros((8, 12), np.float32), weights[0], (2, 3))
    assert np.allclose(dark[:4, 4:8], 0.65 * colour) and not dark[4:].any()


@pytest.mark.parametrize(
    ("words", "shape", "rows", "across"),
    [(1, (8, 8), 1, 2), (6, (8, 8), 2, 4), (12, (8, 8), 3, 5), (1, (8, 32), 2, 1), (2, (32, 8), 1, 3)],
)
def test_the_rows_of_an_overlay_are_even_and_a_wide_picture_has_a_row_of_its_own(words, shape, rows, across):
    picture = np.zeros(shape, np.float32)
    figure = overlays(picture, ["a"] * words, [[1.0]] * words, (1, 1))
    grid = figure.axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == (rows, across)

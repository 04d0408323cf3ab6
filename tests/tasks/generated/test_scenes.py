import numpy as np
import pytest

import regard
from regard_workbench.tasks.generated.draws import Draws
from regard_workbench.tasks.generated.scenes import compose, resized


def figures(count: int) -> list[np.ndarray]:
    made = np.zeros((count, 7, 5), np.float32)
    for number in range(count):
        made[number, 1:6, 1:4] = 0.5 + number / 100
    return list(made)


def test_boxes_and_masks_lie_around_the_ink() -> None:
    scene = compose(figures(3), [4, 5, 6], 31, 29, Draws("t", 1))
    assert scene.labels == [4, 5, 6]
    for number, (left, top, right, bottom) in enumerate(scene.boxes.astype(int)):
        assert (right - left, bottom - top) == (3, 5)
        inside = scene.picture[0, top:bottom, left:right]
        assert np.allclose(inside, 0.5 + number / 100)
        assert scene.masks[number].sum() == 15 and scene.masks[number][top:bottom, left:right].all()
    assert np.count_nonzero(scene.picture) == 45


def test_the_same_key_gives_the_same_scene_and_another_key_another() -> None:
    one, two, other = (compose(figures(4), [0, 1, 2, 3], 31, 29, Draws("t", key), clutter=5) for key in (1, 1, 2))
    assert np.array_equal(one.picture, two.picture) and not np.array_equal(one.picture, other.picture)


def test_figures_do_not_overlap_unless_allowed_and_those_without_a_place_are_left_out() -> None:
    scene = compose(figures(40), list(range(40)), 17, 13, Draws("t", 3))
    assert 2 <= len(scene.labels) < 40
    assert scene.masks.sum(0).max() == 1
    crowded = compose(figures(40), list(range(40)), 17, 13, Draws("t", 3), overlap=1.0)
    assert len(crowded.labels) == 40
    assert crowded.masks.sum(0).max() == 1  # a hidden pixel belongs to the figure on top


def test_colours_make_three_channels() -> None:
    scene = compose(figures(1), [0], 11, 11, Draws("t", 4), colours=[(1, 0, 0.5)])
    left, top, *_ = scene.boxes[0].astype(int)
    assert np.allclose(scene.picture[:, top, left], (0.5, 0, 0.25))


def test_sizes_are_drawn_between_the_bounds_and_what_cannot_fit_is_refused() -> None:
    assert resized(figures(1)[0], 14).shape == (14, 10)
    heights = {compose(figures(1), [0], 50, 50, Draws("t", key), sizes=(9, 21)).masks.any(2).sum() for key in range(40)}
    assert len(heights) > 5
    with pytest.raises(regard.RegardError, match="sizes: expected figures that fit"):
        compose(figures(1), [0], 11, 11, Draws("t", 5), sizes=(20, 20))

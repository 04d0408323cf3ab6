import pytest
import torch

import regard
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.pictures.patches import cut, fold


def test_patches_are_cut_row_by_row_and_hold_their_pixels() -> None:
    spec = Patches.of(channels=2, height=6, width=15, side=3)
    pictures = torch.arange(7 * 2 * 6 * 15.0).reshape(7, 2, 6, 15)
    rows = cut(pictures, spec)
    assert rows.shape == (7, spec.length, spec.width) == (7, 10, 18)
    for number in range(10):
        top, left = 3 * (number // 5), 3 * (number % 5)
        assert torch.equal(rows[4, number], pictures[4, :, top : top + 3, left : left + 3].reshape(-1))
    assert torch.equal(fold(rows, spec), pictures)


def test_frames_of_a_video_follow_each_other() -> None:
    spec = Patches.of(channels=1, height=4, width=6, side=2, frames=5)
    videos = torch.arange(3 * 5 * 4 * 6.0).reshape(3, 5, 1, 4, 6)
    rows = cut(videos, spec)
    assert rows.shape == (3, 30, 4)
    assert torch.equal(rows[2, 6 * 4 + 5], videos[2, 4, 0, 2:4, 4:6].reshape(-1))
    assert torch.equal(fold(rows, spec), videos)


def test_a_side_that_leaves_a_rest_is_refused() -> None:
    with pytest.raises(regard.RegardError, match="patch: expected a side that divides"):
        Patches.of(channels=1, height=28, width=28, side=5)

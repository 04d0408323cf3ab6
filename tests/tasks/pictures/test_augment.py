"""Random changes of pictures, against loops over pixels."""

import torch

from regard_workbench.tasks.pictures.augment import erased, flipped, shifted


def pictures(count=5, channels=3, height=7, width=11):
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(2)) + 1


def test_a_shift_moves_every_pixel_by_the_same_and_lets_zeros_in():
    before = pictures(23)
    after = shifted(before, 2, torch.Generator().manual_seed(7))
    moves = set()
    for old, new in zip(before, after, strict=True):
        fitting = []
        for down in range(-2, 3):
            for right in range(-2, 3):
                expected = torch.zeros_like(old)
                for row in range(7):
                    for column in range(11):
                        if 0 <= row - down < 7 and 0 <= column - right < 11:
                            expected[:, row, column] = old[:, row - down, column - right]
                if torch.equal(expected, new):
                    fitting.append((down, right))
        assert len(fitting) == 1
        moves.add(fitting[0])
    assert len(moves) > 8


def test_about_half_of_the_pictures_are_mirrored_and_the_others_stay():
    before = pictures(97)
    after = flipped(before, torch.Generator().manual_seed(7))
    mirrored = [torch.equal(new, old.flip(-1)) for old, new in zip(before, after, strict=True)]
    stayed = [torch.equal(new, old) for old, new in zip(before, after, strict=True)]
    assert all(one != other for one, other in zip(mirrored, stayed, strict=True))
    assert 30 < sum(mirrored) < 67


def test_what_is_erased_is_one_rectangle_of_all_channels():
    before = pictures(101, height=17, width=19)
    after = erased(before, 0.5, torch.Generator().manual_seed(7))
    changed = 0
    for old, new in zip(before, after, strict=True):
        hole = (new == 0).all(0)
        assert torch.equal(new[:, ~hole], old[:, ~hole]) and not (new[:, ~hole] == 0).any()
        if hole.any():
            rows, columns = hole.any(1).nonzero().flatten(), hole.any(0).nonzero().flatten()
            assert hole.sum() == len(rows) * len(columns) <= 0.25 * 17 * 19
            assert rows[-1] - rows[0] + 1 == len(rows) and columns[-1] - columns[0] + 1 == len(columns)
            changed += 1
    assert 30 < changed < 71


def test_equal_generators_change_pictures_alike():
    changes = (
        lambda given: shifted(pictures(), 3, given),
        lambda given: flipped(pictures(), given),
        lambda given: erased(pictures(), 0.9, given),
    )
    for change in changes:
        one, two, other = (change(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
        assert torch.equal(one, two) and not torch.equal(one, other)

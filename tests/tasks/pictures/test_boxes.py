import itertools

import numpy as np
import pytest
import torch

from regard_workbench.tasks.answers import Boxes
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.pictures.boxes import area, from_centre, generalized_iou, iou, to_centre


def test_overlaps_worked_by_hand() -> None:
    one = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
    others = torch.tensor([[1.0, 1.0, 3.0, 3.0], [0.0, 0.0, 2.0, 2.0], [4.0, 0.0, 6.0, 2.0], [0.5, 0.5, 1.5, 1.5]])
    # Shared 1, union 7; the same box; nothing shared; a box of area 1 inside one of area 4.
    assert torch.allclose(iou(one, others), torch.tensor([[1 / 7, 1.0, 0.0, 1 / 4]]))
    # The boxes around both have the areas 9, 4, 12 and 4.
    expected = torch.tensor([[1 / 7 - 2 / 9, 1.0, 0 - 4 / 12, 1 / 4]])
    assert torch.allclose(generalized_iou(one, others), expected)


def test_overlaps_equal_the_counts_of_pixels() -> None:
    side, count = 17, 40
    draws = np.random.default_rng(3)
    corners = np.sort(draws.integers(0, side + 1, (count, 2, 2)), 1)
    corners[:, 1] += corners[:, 0] == corners[:, 1]  # every box has an area
    boxes = torch.tensor(corners.reshape(count, 4), dtype=torch.float32)
    filled = np.zeros((count, side + 1, side + 1), bool)
    for number, (left, top, right, bottom) in enumerate(boxes.int().tolist()):
        filled[number, top:bottom, left:right] = True
    found, general = iou(boxes, boxes), generalized_iou(boxes, boxes)
    for one, other in itertools.product(range(count), range(count)):
        both, either = (filled[one] & filled[other]).sum(), (filled[one] | filled[other]).sum()
        rows, columns = np.nonzero(filled[one] | filled[other])
        around = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        assert float(found[one, other]) == pytest.approx(both / either, abs=1e-6)
        assert float(general[one, other]) == pytest.approx(both / either - (around - either) / around, abs=1e-6)


def test_boxes_of_no_area_have_no_overlap_and_finite_gradients() -> None:
    flat = torch.tensor([[0.3, 0.3, 0.3, 0.3], [0.5, 0.2, 0.4, 0.6]], requires_grad=True)
    assert area(flat).tolist() == [0, 0]
    value = generalized_iou(flat, torch.tensor([[0.3, 0.3, 0.3, 0.3], [0.1, 0.1, 0.2, 0.2]]))
    assert torch.isfinite(value).all() and float(iou(flat, flat).detach().max()) == 0
    value.sum().backward()
    assert torch.isfinite(flat.grad).all()


def test_centre_and_corners_are_inverse() -> None:
    boxes = torch.rand(7, 4)
    assert torch.allclose(from_centre(to_centre(boxes)), boxes, atol=1e-6)
    assert from_centre(torch.tensor([3.0, 5.0, 2.0, 4.0])).tolist() == [2, 3, 4, 7]


def target(rows):
    found = torch.tensor(rows, dtype=torch.float32)
    return Batch.of(torch.zeros(1, 1, 1)).answered(found[None], torch.ones(1, len(rows), dtype=torch.bool))


def outputs(scores, boxes):
    """Of one picture and one layer: scores (queries,classes + 1), centre and size (queries,4)."""
    return (torch.cat([torch.tensor(scores), torch.tensor(boxes)], -1)[None],)


def test_the_set_loss_worked_by_hand() -> None:
    head = Boxes(2).head()
    batch = target([[1, 0.2, 0.2, 0.6, 0.6, 0]])
    # Both queries score all three classes alike; the second one's box is nearer: it is matched.
    found = outputs([[0.0, 0.0, 0.0]] * 2, [[0.9, 0.9, 0.1, 0.1], [0.5, 0.4, 0.4, 0.4]])
    total, count = head.loss(found, batch)
    # Centre (0.5, 0.4) for (0.4, 0.4), equal sizes: distance 0.1. Shared 0.3 · 0.4, union 0.2, around 0.5 · 0.4.
    overlap = 0.12 / 0.2
    expected = np.log(3) * (1 + 0.4) + 5 * 0.1 + 2 * (1 - overlap)
    assert float(count) == 1 and float(total) == pytest.approx(expected, rel=1e-5)


def test_crowds_are_not_learned_and_a_picture_may_have_nothing() -> None:
    head = Boxes(2).head()
    found = outputs([[0.0, 0.0, 0.0]] * 2, [[0.9, 0.9, 0.1, 0.1], [0.5, 0.4, 0.4, 0.4]])
    crowd, _ = head.loss(found, target([[1, 0.2, 0.2, 0.6, 0.6, 1]]))
    empty = Batch.of(torch.zeros(1, 1, 1)).answered(torch.zeros(1, 1, 6), torch.zeros(1, 1, dtype=torch.bool))
    nothing, count = head.loss(found, empty)
    assert float(crowd) == float(nothing) == pytest.approx(2 * 0.4 * np.log(3), rel=1e-5) and float(count) == 1


def test_the_loss_of_a_batch_is_the_sum_over_its_pictures_however_they_are_padded() -> None:
    head, generator = Boxes(3).head(), torch.Generator().manual_seed(5)
    layers = [
        torch.cat([torch.randn(3, count, 4, generator=generator), torch.rand(3, count, 4, generator=generator)], -1)
        for count in (11, 7)
    ]
    boxes = torch.rand(3, 5, 6, generator=generator)
    boxes[..., 0] = torch.randint(0, 3, (3, 5), generator=generator).float()
    boxes[..., 3:5] += boxes[..., 1:3]
    boxes[..., 5] = 0
    keep = torch.arange(5) < torch.tensor([[5], [2], [0]])
    whole, count = head.loss(layers, Batch.of(torch.zeros(3, 1, 1)).answered(boxes, keep))
    alone = 0.0
    for row, real in enumerate(keep.sum(1).tolist()):
        single = Batch.of(torch.zeros(1, 1, 1)).answered(boxes[row : row + 1, :real])
        for layer in layers:  # each layer has a matching of its own
            alone += float(head.loss((layer[row : row + 1],), single)[0])
    assert float(count) == 3 and float(whole) == pytest.approx(alone, rel=1e-5)


def test_predictions_are_sorted_by_score_and_come_from_the_last_layer() -> None:
    head = Boxes(2).head()
    first = outputs([[9.0, 0.0, 0.0]] * 2, [[0.1, 0.1, 0.1, 0.1]] * 2)
    last = outputs([[0.0, 1.0, 9.0], [3.0, 0.0, 0.0]], [[0.5, 0.5, 0.2, 0.2], [0.25, 0.5, 0.5, 0.5]])
    (found,) = head.predict((*first, *last), Batch.of(torch.zeros(1, 1, 1)))
    odds = torch.tensor([3.0, 0.0, 0.0]).softmax(0)
    assert [one["label"] for one in found] == [0, 1]
    assert found[0]["score"] == pytest.approx(float(odds[0])) and found[0]["box"] == pytest.approx([0, 0.25, 0.5, 0.75])

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from regard_workbench.tasks.measures.average_precision import IGNORED, MAP, MAP_50, RIGHT, WRONG, judged
from regard_workbench.tasks.measures.mean_iou import MEAN_IOU
from regard_workbench.tasks.measures.metrics import Answered
from regard_workbench.tasks.parts.batch import Batch

BOX = [0.0, 0.0, 0.4, 0.4]
FAR = [0.6, 0.6, 0.9, 0.9]


def found(*rows):
    return [{"label": label, "score": score, "box": box} for label, score, box in rows]


def state(predicted, target):
    """The state of one picture, with boxes as rows of class, corners and crowd."""
    batch = Batch.of(torch.zeros(1, 1, 1)).answered(torch.tensor(target).reshape(1, -1, 6))
    model = SimpleNamespace(predict=lambda outputs, batch: [predicted])
    answered = Answered(model, batch)
    answered.outputs = None
    return json.loads(json.dumps(MAP.of(answered)))


def test_average_precision_worked_by_hand() -> None:
    """Two boxes; the surest prediction is wrong, the second right, the third takes a box that is taken.

    Precision is 0, 1/2, 1/3 at recalls 0, 1/2, 1/2: made non-increasing, 1/2 at the recalls 0 … 0.50, and 0 beyond.
    """
    mine = state(found((0, 0.9, FAR), (0, 0.8, BOX), (0, 0.7, BOX)), [[0, *BOX, 0], [0, 0.4, 0.0, 0.6, 0.2, 0]])
    assert MAP_50.value(mine) == pytest.approx(51 / 101 * 0.5)
    assert MAP.value(mine) == pytest.approx(51 / 101 * 0.5)  # the overlap is 1 at every threshold
    assert MAP.count(mine) == 2


def test_thresholds_count_the_overlap_they_are_reached_by() -> None:
    """Boxes that share 0.75 of their union are right at the thresholds 0.50 … 0.75: six of ten."""
    mine = state(found((0, 0.9, [0.0, 0.0, 0.375, 0.5])), [[0, 0.0, 0.0, 0.5, 0.5, 0]])
    assert MAP_50.value(mine) == pytest.approx(1.0)
    assert MAP.value(mine) == pytest.approx(0.6)


def test_classes_count_alike_and_those_without_a_box_do_not_count() -> None:
    mine = state(found((0, 0.9, BOX), (1, 0.9, FAR), (2, 0.9, FAR)), [[0, *BOX, 0], [0, *BOX, 0], [1, *BOX, 0]])
    # Class 0: one of two boxes, precision 1 up to recall 0.5. Class 1: nothing. Class 2 has no box.
    assert MAP_50.value(mine) == pytest.approx((51 / 101 + 0) / 2)


def test_without_any_box_there_is_no_value() -> None:
    assert np.isnan(MAP_50.value(state(found((0, 0.9, BOX)), [])))


def test_the_surest_prediction_takes_the_box_it_overlaps_most() -> None:
    near = [0.0, 0.0, 0.4, 0.3]  # overlaps BOX by 0.75
    rows = judged(found((0, 0.9, BOX), (0, 0.8, BOX)), torch.tensor([[0, *near, 0], [0, *BOX, 0]]))
    assert [row[2][0] for row in rows] == [RIGHT, RIGHT]  # the second takes the other box
    assert [row[2][6] for row in rows] == [RIGHT, WRONG]  # from 0.80 on it does not overlap it enough


def test_predictions_inside_a_crowd_are_neither_right_nor_wrong() -> None:
    crowd = [0.0, 0.0, 1.0, 1.0]
    rows = judged(found((0, 0.9, FAR), (0, 0.8, BOX), (0, 0.7, FAR)), torch.tensor([[0, *crowd, 1], [0, *BOX, 0]]))
    assert [row[2][0] for row in rows] == [IGNORED, RIGHT, IGNORED]
    assert MAP.value(state(found((0, 0.9, FAR), (0, 0.8, BOX)), [[0, *crowd, 1], [0, *BOX, 0]])) == 1.0


def test_states_merge_and_resamples_are_what_merging_repeated_states_gives() -> None:
    draws = np.random.default_rng(2)
    states = []
    for _ in range(7):
        target = [[int(draws.integers(3)), x, y, x + 0.3, y + 0.3, 0] for x, y in draws.random((4, 2))]
        some = [
            (row[0], float(draws.random()), (np.array(row[1:5]) + draws.normal(0, 0.03, 4)).tolist()) for row in target
        ]
        states.append(state(found(*some, (0, float(draws.random()), BOX)), target))
    drawn = draws.integers(0, 3, (11, 7))
    quick = MAP.resampled(states, drawn)
    for times, value in zip(drawn, quick, strict=True):
        merged = MAP.merge([one for one, count in zip(states, times, strict=True) for _ in range(count)])
        assert MAP.value(merged) == pytest.approx(value, abs=1e-12)


def segmented(predicted, target, keep=None):
    scores = torch.nn.functional.one_hot(torch.tensor(predicted), 3).float()
    batch = Batch.of(torch.zeros(len(scores), 1, 1)).answered(torch.tensor(target), keep)
    answered = Answered(None, batch)
    answered.outputs = scores
    return MEAN_IOU.of(answered)


def test_mean_iou_worked_by_hand() -> None:
    """Class 0: 2 pixels of both, 3 of either; class 1: 1 of 2; class 2 stands nowhere."""
    mine = segmented([[[0, 0], [1, 0]]], [[[0, 0], [1, 1]]])
    assert MEAN_IOU.value(mine) == pytest.approx((2 / 3 + 1 / 2) / 2) and MEAN_IOU.count(mine) == 4


def test_pixels_that_do_not_count_are_left_out_and_batches_add_up() -> None:
    keep = torch.tensor([[[True, True], [True, False]]])
    one = segmented([[[0, 0], [1, 0]]], [[[0, 0], [1, 1]]], keep)
    assert MEAN_IOU.value(one) == 1.0
    other = segmented([[[2, 2], [2, 2]]], [[[0, 0], [0, 2]]])
    # Class 0: 2 of 2 + 3; class 1: 1 of 1; class 2: 1 of 4.
    assert MEAN_IOU.value(MEAN_IOU.merge([one, other])) == pytest.approx((2 / 5 + 1 + 1 / 4) / 3)

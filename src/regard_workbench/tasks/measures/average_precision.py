"""Mean average precision of labelled boxes, as the COCO evaluation defines it.

For each class and each threshold of the overlap (IoU) the predictions of a picture, the surest first, take the box that
they overlap most and that none has taken before. Over all pictures this gives precision against recall; precision is
made non-increasing and read at the recalls 0, 0.01, … 1. A class without a box is left out of the mean.

A crowd is no box that could be missed, and predictions inside it count neither as right nor as wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard_workbench.tasks.answers.boxes import BOX, CROWD, LABEL, FoundBox
from regard_workbench.tasks.measures.metrics import Answered, Metric, Numbers, State
from regard_workbench.tasks.pictures.boxes import area, iou, shared_area

THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
RECALLS = np.linspace(0, 1, 101)
MOST = 100  # predictions of one class that count in one picture
RIGHT, WRONG, IGNORED = 1, 0, -1


def judged(found: Sequence[FoundBox], target: Tensor) -> list[list[Any]]:
    """Each counted prediction of one picture: [class, score, a verdict for each threshold].

    target: (n,6), the boxes that are there.
    """
    rows: list[list[Any]] = []
    for label in sorted({box["label"] for box in found}):
        ours = sorted((box for box in found if box["label"] == label), key=lambda one: -one["score"])[:MOST]
        theirs = target[target[:, LABEL] == label].double()
        theirs = theirs[theirs[:, CROWD].argsort(stable=True)]  # crowds last
        boxes = torch.tensor([box["box"] for box in ours], dtype=torch.float64)
        verdicts = _verdicts(boxes, theirs[:, BOX], (theirs[:, CROWD] > 0).tolist())
        rows += [[label, box["score"], verdict] for box, verdict in zip(ours, verdicts, strict=True)]
    return rows


def _verdicts(found: Tensor, boxes: Tensor, crowd: list[bool]) -> list[list[int]]:
    """RIGHT, WRONG or IGNORED for each prediction (the surest first) at each threshold."""
    overlap = iou(found, boxes)
    inside = shared_area(found, boxes) / area(found).clamp(min=1e-12)[:, None]
    table: list[list[float]] = torch.where(torch.tensor(crowd, dtype=torch.bool), inside, overlap).tolist()
    verdicts = [[WRONG] * len(THRESHOLDS) for _ in table]
    for place, threshold in enumerate(THRESHOLDS):
        matched: set[int] = set()
        for row, overlaps in enumerate(table):
            best, least = -1, threshold
            for number, value in enumerate(overlaps):
                if number in matched:
                    continue
                if best >= 0 and not crowd[best] and crowd[number]:
                    break  # a box of its own comes before any crowd
                if value >= least:
                    best, least = number, value
            if best >= 0:
                verdicts[row][place] = IGNORED if crowd[best] else RIGHT
                if not crowd[best]:
                    matched.add(best)
    return verdicts


def _look(answered: Answered) -> State:
    """The judged predictions of a batch, and the number of boxes of each class."""
    targets, keep = answered.batch.targets, answered.batch.target_keep
    assert targets is not None
    rows: list[list[Any]] = []
    boxes: dict[str, int] = {}
    for number, predicted in enumerate(answered.predicted):
        target = targets[number] if keep is None else targets[number][keep[number]]
        target = target.cpu()
        rows += judged(predicted, target)
        for label in target[target[:, CROWD] == 0][:, LABEL].long().tolist():
            boxes[str(label)] = boxes.get(str(label), 0) + 1
    return {"found": rows, "boxes": boxes}


@dataclass(frozen=True)
class AveragePrecision(Metric):
    """The mean over classes and over some thresholds of the overlap. The state holds judged predictions."""

    thresholds: tuple[float, ...] = THRESHOLDS

    def of(self, answered: Answered) -> State | None:
        return answered.once(_look)

    def merge(self, states: Sequence[State]) -> State:
        boxes: dict[str, int] = {}
        for state in states:
            for label, count in state["boxes"].items():
                boxes[label] = boxes.get(label, 0) + count
        return {"found": [row for state in states for row in state["found"]], "boxes": boxes}

    def value(self, state: State) -> float:
        return float(self.resampled([state], np.ones((1, 1), np.int64))[0])

    def count(self, state: State) -> float:
        return float(sum(state["boxes"].values()))

    def resampled(self, states: Sequence[State], drawn: NDArray[np.int64]) -> Numbers:
        places = [THRESHOLDS.index(threshold) for threshold in self.thresholds]
        rows = [(number, row) for number, state in enumerate(states) for row in state["found"]]
        labels = sorted({label for state in states for label in state["boxes"]}, key=int)
        by_class = []  # of each class: the state of each prediction, its verdicts, the boxes of each state
        for label in labels:
            ours = sorted((pair for pair in rows if pair[1][0] == int(label)), key=lambda one: -one[1][1])
            owner = np.array([number for number, _ in ours], np.int64)
            verdicts = np.array([row[2] for _, row in ours], np.int64).reshape(len(ours), len(THRESHOLDS))
            counts = np.array([state["boxes"].get(label, 0) for state in states], np.int64)
            by_class.append((owner, verdicts[:, places], counts))
        resamples = []
        for times in drawn:
            values = [_precision(verdicts, times[owner], int(times @ counts)) for owner, verdicts, counts in by_class]
            defined = [value for value in values if value is not None]
            resamples.append(float(np.mean(defined)) if defined else float("nan"))
        return np.array(resamples, dtype=np.float64)


def _precision(verdicts: NDArray[np.int64], times: NDArray[np.int64], boxes: int) -> float | None:
    """Average precision, mean over thresholds, of predictions (n,thresholds) that are sorted by their scores.

    times: how often each prediction comes. None where there is no box.
    """
    if not boxes:
        return None
    if not len(verdicts):
        return 0.0
    right = np.cumsum((verdicts == RIGHT) * times[:, None], 0)
    wrong = np.cumsum((verdicts == WRONG) * times[:, None], 0)
    precision = right / np.maximum(right + wrong, 1)
    precision = np.maximum.accumulate(precision[::-1], 0)[::-1]
    total = 0.0
    for place in range(verdicts.shape[1]):
        at = np.searchsorted(right[:, place] / boxes, RECALLS, side="left")
        reached = at < len(precision)
        total += precision[at[reached], place].sum() / len(RECALLS)
    return float(total / verdicts.shape[1])


MAP_50 = AveragePrecision("map_50", unit="share", over="boxes", thresholds=(0.5,))
MAP = AveragePrecision("map", unit="share", over="boxes")

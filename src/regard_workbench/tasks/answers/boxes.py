"""An answer that is a set of labelled boxes. Which prediction is compared with which box, a matching decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.formula.formula import widened
from regard_workbench.tasks.answers.answer import Answer, Head
from regard_workbench.tasks.answers.matching import matched
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.pictures.boxes import from_centre, generalized_iou, to_centre

LABEL, BOX, CROWD = 0, slice(1, 5), 5  # the columns of a target
COLUMNS = 6
OVERLAP, DISTANCE, CLASS = 2.0, 5.0, 1.0  # the weights of Carion et al., in the matching and in the loss
# The weight of a prediction that matches no box: there are many of them. Carion et al. have 0.1 for 100 queries; with
# 16 queries that left 139 second boxes on 446 figures, this leaves 50.
NOTHING = 0.4


@dataclass(frozen=True)
class Boxes(Answer):
    """A set of boxes with a class each.

    The target (b,n,6) has a row for each box: its class; left, top, right, bottom as shares of the picture; 1 for a
    crowd, which is not learned and which an evaluation does not count. Its `keep` (b,n) is False where a picture has
    fewer boxes. Outputs are a tuple of (b,queries,classes + 5), one for each layer of a model: scores of the classes
    and of "no object", then centre and size of a box as shares of the picture. All layers learn; the last one answers.
    """

    classes: int
    needs: ClassVar[str] = "boxes"
    scored: ClassVar[bool] = False
    words: ClassVar[str] = "a set of labelled boxes"
    terms: ClassVar[str] = "pictures"
    units: ClassVar[str] = "pictures"

    @property
    def outputs(self) -> int:
        """The scores of the classes and of "no object", and four numbers of a box."""
        return self.classes + 5

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> BoxesHead:
        """The outputs are the answer: a model makes boxes itself, layer by layer."""
        return BoxesHead(self)


class FoundBox(TypedDict):
    """What one query found."""

    query: int
    label: int
    score: float  # the probability of the class
    box: list[float]  # left, top, right, bottom as shares of the picture


class BoxesHead(Head):
    """The set loss: each box is matched with one query, so that the total cost is least; other queries find nothing.

        cost(query, box) = 5 |centre and size|₁ − 2 · generalised IoU − p(class of the box)
        loss = cross-entropy of all queries + 5 |centre and size|₁ + 2 (1 − generalised IoU) of the matched

    Paper: Carion et al. 2020.
    """

    def __init__(self, answer: Boxes) -> None:
        super().__init__(answer.outputs)
        self.classes = answer.classes

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The set losses of all layers, summed over the pictures, and the number of pictures."""
        assert batch.targets is not None
        layers = [widened(layer) for layer in outputs]
        labels, right = batch.targets[..., LABEL].long(), batch.targets[..., BOX].to(layers[0])
        costs = [_costs(*self._apart(layer), labels, right) for layer in layers]
        queries = matched(costs, self._real(batch))
        losses = [
            self._set_loss(*self._apart(layer), labels, right, query, smoothing)
            for layer, query in zip(layers, queries, strict=True)
        ]
        total = torch.stack(losses).sum()
        return total, total.new_full((), batch.size)

    def _apart(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The scores and the boxes of one layer."""
        return outputs[..., : self.classes + 1], outputs[..., self.classes + 1 :]

    def _set_loss(
        self, scores: Tensor, boxes: Tensor, labels: Tensor, right: Tensor, query: Tensor, smoothing: float
    ) -> Tensor:
        """Of one layer. query (b,n): that of each box, −1 for a box without; shapes do not depend on the matching."""
        has = query >= 0
        count = scores.shape[1]
        # A target of a class for each query: "no object" where nothing is matched. Boxes without a query write into a
        # column that is cut off.
        target = torch.full((len(scores), count + 1), self.classes, device=scores.device)
        target = target.scatter(1, torch.where(has, query, count), labels)[:, :count]
        weights = F.pad(scores.new_ones(self.classes), (0, 1), value=NOTHING)  # no copy from the host
        class_loss = F.cross_entropy(
            scores.flatten(0, 1), target.flatten(), weights, reduction="sum", label_smoothing=smoothing
        )
        matched_boxes = boxes.gather(1, query.clamp(min=0)[..., None].expand(-1, -1, 4))
        distance = (matched_boxes - to_centre(right)).abs().sum(-1)
        overlap = generalized_iou(from_centre(matched_boxes)[..., None, :], right[..., None, :])[..., 0, 0]
        placed = (DISTANCE * distance + OVERLAP * (1 - overlap)).masked_fill(~has, 0).sum()
        return CLASS * class_loss + placed

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """What each query of the last layer found, the surest first: the likeliest class and its box."""
        last = widened(outputs[-1])
        odds = last[..., : self.classes + 1].softmax(-1)[..., :-1]
        scores, labels = odds.max(-1)
        boxes = from_centre(last[..., self.classes + 1 :])
        by_picture = []
        for row in zip(labels.tolist(), scores.tolist(), boxes.tolist(), strict=True):
            predictions = [
                FoundBox(query=query, label=label, score=score, box=box)
                for query, (label, score, box) in enumerate(zip(*row, strict=True))
            ]
            by_picture.append(sorted(predictions, key=lambda one: -one["score"]))
        return by_picture

    @staticmethod
    def _real(batch: Batch) -> Tensor:
        """Which boxes are learned, (b,n): those that are there and no crowd."""
        assert batch.targets is not None
        alone = batch.targets[..., CROWD] == 0
        return alone if batch.target_keep is None else alone & batch.target_keep


@torch.no_grad()
def _costs(scores: Tensor, boxes: Tensor, labels: Tensor, right: Tensor) -> Tensor:
    """What it costs to match each query with each box, (b,queries,n)."""
    likely = scores.softmax(-1).gather(-1, labels[:, None].expand(-1, scores.shape[1], -1))
    distance = torch.cdist(boxes, to_centre(right), p=1)
    overlap = generalized_iou(from_centre(boxes), right)
    return DISTANCE * distance - OVERLAP * overlap - CLASS * likely

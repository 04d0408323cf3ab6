"""Targets that are sets: intervals on a line, matched in the loss; judged by average precision."""

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment

from regard_workbench.tasks import Answer, Batch, Head, Metric, Recipe, Task, Vectors, task
from regard_workbench.tasks.parts.padding import padded

CELLS = 24


@dataclass(frozen=True)
class Boxes(Answer):
    """A set of intervals: each row proposes one, with a score."""

    needs = "rows"
    words = "a set of intervals"
    terms = "proposals"
    outputs = 3  # score, center, size

    def head(self, dim=None, tied=None):
        return BoxesHead(3, dim)


class BoxesHead(Head):
    """Proposals relative to the position of their row; a bipartite matching says which one is asked for which box."""

    def forward(self, rows, batch):
        score, center, size = self.logits(rows).unbind(-1)
        middle = (torch.arange(rows.shape[1], device=rows.device) + 0.5) / CELLS
        return torch.stack([score, middle + 0.2 * center.tanh(), 0.3 * size.sigmoid()], -1)

    def loss(self, outputs, batch, smoothing=0.0):
        outputs, total = outputs.float(), outputs.new_zeros((), dtype=torch.float32)
        for row, boxes, real in zip(outputs, batch.targets, batch.target_keep, strict=True):
            cost = torch.cdist(row[:, 1:], boxes[real], p=1)
            ours, theirs = linear_sum_assignment((5 * cost - row[:, :1].sigmoid()).detach().cpu().numpy())
            asked = torch.zeros(len(row), device=row.device)
            asked[ours] = 1.0
            found = F.binary_cross_entropy_with_logits(row[:, 0], asked, reduction="sum")
            total = total + found + 5 * len(row) * cost[ours, theirs].mean()
        return total, torch.tensor(float(outputs.shape[:2].numel()), device=total.device)

    def predict(self, outputs, batch):
        return [[tuple(box) for box in row.tolist()] for row in outputs.float()]


def overlap(one, other):
    (a, w), (b, v) = one, other
    shared = max(0.0, min(a + w / 2, b + v / 2) - max(a - w / 2, b - v / 2))
    return shared / max(1e-9, w + v - shared)


@dataclass(frozen=True)
class AveragePrecision(Metric):
    """The area under precision and recall over all proposals of the split."""

    def of(self, answered):
        hits, boxes, batch = [], 0, answered.batch
        for proposals, gold, real in zip(answered.predicted, batch.targets, batch.target_keep, strict=True):
            free = gold[real].tolist()
            boxes += len(free)
            for score, *box in sorted(proposals, reverse=True):
                best = max(free, key=lambda one: overlap(one, box), default=None)
                hit = best is not None and overlap(best, box) >= 0.5
                if hit:
                    free.remove(best)
                hits.append([score, int(hit)])
        return {"hits": hits, "boxes": boxes}

    def merge(self, states):
        hits = [hit for state in states for hit in state["hits"]]
        return {"hits": hits, "boxes": sum(state["boxes"] for state in states)}

    def value(self, state):
        right = area = 0
        for rank, (_, hit) in enumerate(sorted(state["hits"], reverse=True), 1):
            right += hit
            area += hit * right / rank
        return area / max(1, state["boxes"])


@task("test-boxes")
class Intervals(Task):
    """Finds the lit intervals of a noisy line."""

    metric = AveragePrecision("map_50", unit="share")
    recipe = Recipe(model="encoder(dim=24, layers=2, dropout=0.0)", steps=200, batch_size=16, lr=4e-3)

    def streams(self):
        return {"inputs": Vectors(1, length=CELLS)}

    def answers(self):
        return [Boxes()]

    def examples(self, split):
        draw, found = random.Random(split), []
        for _ in range(600 if split == "train" else 60):
            lit = [(draw.randrange(0, 9), draw.randrange(2, 6)), (draw.randrange(14, 19), draw.randrange(2, 6))]
            found.append(lit[: draw.randrange(1, 3)])
        return found

    def collate(self, examples, generator):
        line = 0.2 * torch.randn(len(examples), CELLS, 1, generator=generator)
        for row, lit in enumerate(examples):
            for begin, size in lit:
                line[row, begin : begin + size] += 1
        boxes, keep = padded([[begin for begin, _ in lit] for lit in examples], 0)
        sizes, _ = padded([[size for _, size in lit] for lit in examples], 0)
        real = torch.ones_like(boxes, dtype=torch.bool) if keep is None else keep
        return Batch.of(line, None, torch.stack([(boxes + sizes / 2) / CELLS, sizes / CELLS], -1), real)

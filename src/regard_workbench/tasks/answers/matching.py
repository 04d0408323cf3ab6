"""Matching: which prediction of a set is compared with which right answer, so that the total cost is least."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.formula.formula import widened

# Up to so many answers of a picture, all matchings are tried where costs lie on a GPU: n answers have nⁿ candidates.
FEW = 5
NONE = -1  # in place of a query: the box has none
DEAR = 1e9  # the cost of a pair whose cost is not finite


def matched(costs: Sequence[Tensor], real: Tensor) -> list[Tensor]:
    """The query that each box is matched with, (b,n) for each layer; −1 where it has none.

    costs: (b,queries,n) for each layer, which may differ in queries; real: (b,n), which boxes take part. Where there
    are more boxes than queries, the boxes that cost most stay without one.
    """
    # A diverged model's costs are not finite; its loss, which is not finite either, is what is reported.
    finite = [torch.nan_to_num(widened(cost), nan=DEAR, posinf=DEAR, neginf=-DEAR) for cost in costs]
    boxes = real.shape[1]
    if real.is_cuda and boxes <= FEW and all(boxes <= cost.shape[1] for cost in costs):
        return enumerated(finite, real)
    return assigned(finite, real)


def assigned(costs: Sequence[Tensor], real: Tensor) -> list[Tensor]:
    """`matched` on the host, by scipy.

    One copy there and one back serve all layers: each copy waits until a GPU has done what it was given.
    """
    from scipy.optimize import linear_sum_assignment

    counts = [cost.shape[1] for cost in costs]
    marked = torch.cat([*costs, real[:, None].to(costs[0])], 1).cpu().double().numpy()
    assignment = torch.full((len(costs), *real.shape), NONE)
    for picture, table in enumerate(marked):
        columns = table[-1].nonzero()[0]
        begin = 0
        for layer, count in enumerate(counts):
            queries, boxes = linear_sum_assignment(table[begin : begin + count, columns])
            assignment[layer, picture, columns[boxes]] = torch.from_numpy(queries)
            begin += count
    return list(assignment.to(real.device))


def enumerated(costs: Sequence[Tensor], real: Tensor) -> list[Tensor]:
    """`matched` on the device, for few boxes: nothing waits for the host, so a training step can be a CUDA graph.

    Each of n boxes is matched with one of its n cheapest queries, since the others take at most n − 1 of those. So
    there are nⁿ candidates; those that give a query to two boxes are left out.
    """
    boxes = real.shape[1]
    cheapest = [layer_cost.mT.topk(boxes, largest=False) for layer_cost in costs]
    cost, query = (torch.cat([ranked[field] for ranked in cheapest]) for field in (0, 1))  # (layers·b,box,choice)
    counts = real.repeat(len(costs), 1)
    cost = cost.masked_fill(~counts[..., None], 0)
    total = cost.new_zeros(len(cost), *[1] * boxes)  # of a matching, with a dimension for the choice of each box
    for box in range(boxes):
        total = total + _along(cost[:, box], boxes, box)
        for earlier in range(box):
            same = query[:, earlier, :, None] == query[:, box, None, :]
            same &= (counts[:, earlier] & counts[:, box])[:, None, None]
            clash = torch.zeros_like(cost).masked_fill_(same, torch.inf)
            total = total + _along(clash, boxes, earlier, box)
    best = total.flatten(1).argmin(1)[:, None]
    powers = boxes ** torch.arange(boxes - 1, -1, -1, device=best.device)
    choice = best // powers % boxes
    matched_queries = query.gather(2, choice[..., None])[..., 0].masked_fill(~counts, NONE)
    return list(matched_queries.chunk(len(costs)))


def _along(values: Tensor, dimensions: int, *places: int) -> Tensor:
    """Values (b,…) as a tensor of 1 + `dimensions` dimensions, whose other ones lie at `places`, in order."""
    lengths = dict(zip(places, values.shape[1:], strict=True))
    return values.view(len(values), *(lengths.get(place, 1) for place in range(dimensions)))

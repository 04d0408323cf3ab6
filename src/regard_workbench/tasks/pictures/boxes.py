"""Boxes as left, top, right, bottom: their overlap, and the other ways to write them.

>>> import torch
>>> one, other = torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[1.0, 1.0, 3.0, 3.0]])
>>> iou(one, other), generalized_iou(one, other)
(tensor([[0.1429]]), tensor([[-0.0794]]))
"""

from __future__ import annotations

import torch
from torch import Tensor


def area(boxes: Tensor) -> Tensor:
    """The area of each box, (…,4) → (…); 0 where right or bottom comes before left or top."""
    return _between(boxes[..., :2], boxes[..., 2:])


def shared_area(one: Tensor, other: Tensor) -> Tensor:
    """The area that each pair shares, (…,n,4) and (…,m,4) → (…,n,m)."""
    begin = torch.maximum(one[..., :, None, :2], other[..., None, :, :2])
    end = torch.minimum(one[..., :, None, 2:], other[..., None, :, 2:])
    return _between(begin, end)


def iou(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of each pair, (…,n,4) and (…,m,4) → (…,n,m); 0 for two boxes without area."""
    shared = shared_area(one, other)
    union = area(one)[..., :, None] + area(other)[..., None, :] - shared
    return shared / union.clamp(min=torch.finfo(shared.dtype).tiny)


def generalized_iou(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union, less the share of the smallest box around both that neither covers; from −1 to 1.

    Its gradient draws boxes together that do not overlap. Paper: Rezatofighi et al. 2019.
    """
    shared = shared_area(one, other)
    union = area(one)[..., :, None] + area(other)[..., None, :] - shared
    begin = torch.minimum(one[..., :, None, :2], other[..., None, :, :2])
    end = torch.maximum(one[..., :, None, 2:], other[..., None, :, 2:])
    around = _between(begin, end)
    least = torch.finfo(shared.dtype).tiny
    return shared / union.clamp(min=least) - (around - union) / around.clamp(min=least)


def from_centre(boxes: Tensor) -> Tensor:
    """Centre and size (x, y, width, height) → left, top, right, bottom."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


def to_centre(boxes: Tensor) -> Tensor:
    """Left, top, right, bottom → centre and size (x, y, width, height)."""
    begin, end = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(begin + end) / 2, end - begin], -1)


def _between(begin: Tensor, end: Tensor) -> Tensor:
    """The area between two corners (…,2); a product by hand, since the gradient of `prod` waits for a GPU."""
    wide, high = (end - begin).clamp(min=0).unbind(-1)
    return wide * high

"""Which axis of a softmax's output is which: batch, heads, queries, keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.core.grid import Sizes
from regard.observation.capture.written.detection import number_of_heads
from regard.observation.capture.written.tape import Node


@dataclass(frozen=True)
class WeightLayout:
    """How weights of any shape are arranged as (b,h,q,k)."""

    keys: int  # the axis of the keys
    heads: int | None  # the axis of the heads once the keys are last; None: no axis of their own
    split: int  # heads that share the first axis with the batch; 1 where they have an axis of their own

    def apply(self, weights: Tensor) -> Tensor:
        """Weights as (b,h,q,k)."""
        weights = weights.movedim(self.keys, -1)
        if weights.dim() == 1:
            weights = weights[None]
        if self.heads is None:
            weights = weights.reshape(-1, self.split, *weights.shape[-2:])
        else:
            weights = weights.movedim(self.heads, -3).reshape(
                -1, weights.shape[self.heads], *_rest(weights, self.heads)
            )
        return weights

    def sizes(self, shape: torch.Size) -> Sizes:
        """b, h, q, k of weights of a shape."""
        batch, heads, queries, keys = self.apply(torch.empty(shape, device="meta")).shape
        return batch, heads, queries, keys

    @property
    def plain(self) -> bool:
        """Whether the weights are (b,h,q,k) already."""
        return self.keys == -1 and self.heads == 1


def _rest(weights: Tensor, heads: int) -> tuple[int, int]:
    sizes = [size for axis, size in enumerate(weights.shape) if axis != heads]
    return sizes[-2], sizes[-1]


def layout_of(node: Node, softmax: Node, module: nn.Module) -> WeightLayout:
    """The layout of the weights at a node, from its shape and the module's number of heads."""
    dim = softmax.args[1] if len(softmax.args) > 1 else softmax.kwargs.get("dim", -1)
    if not isinstance(dim, int) or node.shape != softmax.shape:
        dim = -1
    axes = len(node.shape)
    keys = -1 if dim % axes == axes - 1 else dim % axes
    shape = [size for axis, size in enumerate(node.shape) if axis != keys % axes]  # without the keys
    count = number_of_heads(module)
    if len(shape) < 2:
        return WeightLayout(keys, None, 1)
    if len(shape) == 2:
        return WeightLayout(keys, None, _heads_in_batch(node, softmax, shape[0], count))
    usual = len(shape) - 2
    if count is not None and shape[usual] != count:
        if len(shape) >= 4 and shape[1] == count:
            return WeightLayout(keys, 1, 1)
        if shape[-1] == count:  # (b,q,h,k)
            return WeightLayout(keys, len(shape) - 1, 1)
    return WeightLayout(keys, usual, 1)


def _heads_in_batch(node: Node, softmax: Node, first: int, count: int | None) -> int:
    """How many heads the first of three axes holds, from another view of the same map, else from the module."""
    for start in (node, softmax):
        for near in _views(start):
            if len(near) == 4 and near[-2:] == node.shape[-2:] and near[0] * near[1] == first:
                return near[1]
    return count if count is not None and first % count == 0 else 1


def _views(node: Node) -> list[torch.Size]:
    """The shapes of the nodes that a map passed through."""
    found = [node.shape]
    for _ in range(8):
        inputs = [part for part in node.inputs() if part.kind]
        if not inputs:
            break
        node = inputs[0]
        found.append(node.shape)
    return found

"""How tensors are arranged as (b,h,q,k): their axes, split into factors, in another order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from regard.observation.capture.written.axes import Axis, Factor
from regard.values.grid import Sizes

Group = tuple[Factor, ...]


def arranged(tensor: Tensor, axes: Sequence[Axis], groups: Sequence[Group]) -> Tensor:
    """A tensor with one axis for each group of factors; repeated along factors that it does not have."""
    flat = [factor for axis in axes for factor in axis]
    wanted = [factor for group in groups for factor in group]
    tensor = tensor.reshape([factor.size for factor in flat])
    tensor = tensor.permute([flat.index(factor) for factor in wanted if factor in flat])
    tensor = tensor.reshape([factor.size if factor in flat else 1 for factor in wanted])
    return tensor.expand([factor.size for factor in wanted]).reshape([_size(group) for group in groups])


def put_back(tensor: Tensor, axes: Sequence[Axis], groups: Sequence[Group]) -> Tensor:
    """The reverse of `arranged`, of a tensor that has all the factors."""
    flat = [factor for axis in axes for factor in axis]
    wanted = [factor for group in groups for factor in group]
    tensor = tensor.reshape([factor.size for factor in wanted])
    return tensor.permute([wanted.index(factor) for factor in flat]).reshape([_size(axis) for axis in axes])


def _size(factors: Iterable[Factor]) -> int:
    return prod(factor.size for factor in factors)


@dataclass(frozen=True)
class WeightLayout:
    """How weights of any shape are arranged as (b,h,q,k)."""

    axes: tuple[Axis, ...]
    groups: tuple[Group, Group, Group, Group]  # batch, heads, queries, keys

    def apply(self, weights: Tensor) -> Tensor:
        """Weights as (b,h,q,k), all of them or, where `by_rows`, some of their rows."""
        axes, groups = self.axes, self.groups
        if self.by_rows and weights.shape[-2] != _size(axes[-2]):
            rows = (Factor(weights.shape[-2]),)
            axes, groups = (*axes[:-2], rows, axes[-1]), (*groups[:2], rows, groups[3])
        return arranged(weights, axes, groups)

    @property
    def sizes(self) -> Sizes:
        """The sizes b, h, q, k."""
        batch, heads, queries, keys = map(_size, self.groups)
        return batch, heads, queries, keys

    @property
    def by_rows(self) -> bool:
        """Whether axis −2 holds the queries, and axis −1 the keys."""
        return len(self.axes) >= 2 and self.axes[-2:] == self.groups[2:] and _size(self.groups[2]) > 1

    @property
    def plain(self) -> bool:
        """Whether the weights are (b,h,q,k) already."""
        return self.axes == self.groups

"""Normalisers: from the scores of a complete row to its weights.

All of them give zero to hidden keys and to rows that see nothing (or only scores of −inf), and NaN to a row with a
visible NaN score.

    >>> import torch
    >>> from regard import normalizers
    >>> normalizers.sparsemax()(torch.tensor([[1.0, 0.8, -2.0]]), torch.tensor([[True, True, True]]))
    tensor([[0.6000, 0.4000, 0.0000]])
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regard.errors import BadType
from regard.registry import Registry, call_meant
from regard.support.arguments import described
from regard.support.differentiate import vjp
from regard.values.value import Value

__all__ = ["Normalizer", "entmax15", "hard", "named", "sigmoid", "softmax", "sparsemax"]


class Normalizer(Value):
    """Turns scores into weights. Subclass it and define `__call__` to add your own.

    `scores` (…, k) are complete rows, −inf where `visible` is False; `visible` broadcasts to them. A subclass holds its
    numbers, strings and tensors in declared fields, or in attributes that its `__init__` sets.
    """

    namespace: ClassVar[str] = "normalizers"
    name: ClassVar[str] = "normalizer"

    def __call__(self, scores: Tensor, visible: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not define __call__(scores, visible)")

    def rows(self, scores: Tensor) -> Tensor:
        """Weights of rows whose hidden scores are −inf."""
        return self(scores, scores != -torch.inf)

    def nonempty_rows(self, scores: Tensor) -> Tensor:
        """The same for rows that are known to contain a score above −inf."""
        return self.rows(scores)

    def backward(self, scores: Tensor, weights: Tensor, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The gradient of `rows(scores)`, which gave `weights`: for the scores and for each tensor of this value."""

        def again(scores: Tensor, *tensors: Tensor) -> Tensor:
            return (self.with_tensors(tensors) if tensors else self).rows(scores)

        gradients = vjp(again, [scores, *self.tensors], grad)
        return gradients[0], gradients[1:]


class _BuiltIn(Normalizer):
    """A normaliser that defines only `nonempty_rows`."""

    name: ClassVar[str] = "built-in"

    def __call__(self, scores: Tensor, visible: Tensor) -> Tensor:
        # The second fill keeps hidden weights zero in a row of NaN.
        return self.rows(scores.masked_fill(~visible, -torch.inf)).masked_fill(~visible, 0)

    def rows(self, scores: Tensor) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        empty = scores.detach().amax(-1, keepdim=True) == -torch.inf
        return self.nonempty_rows(scores.masked_fill(empty, 0)).masked_fill(empty, 0)


class Softmax(_BuiltIn):
    """exp(e) divided by its sum."""

    name: ClassVar[str] = "softmax"

    def nonempty_rows(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, -1)

    def backward(self, scores: Tensor, weights: Tensor, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
        return torch.ops.aten._softmax_backward_data(grad, weights, -1, weights.dtype), []


class Sigmoid(_BuiltIn):
    """1 / (1 + exp(−e)) for each pair on its own; the weights of a row need not sum to one."""

    name: ClassVar[str] = "sigmoid"

    def rows(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores)

    def backward(self, scores: Tensor, weights: Tensor, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
        return grad * weights * (1 - weights), []


class _Threshold(_BuiltIn):
    """Weights (z − τ)₊ᵖ, with the threshold τ that makes a row sum to one.

    τ is found by sorting, without gradient, followed by two Newton steps with gradient. The steps do not change its
    value, but give it exact first and second derivatives.
    """

    name: ClassVar[str] = "threshold"
    power: ClassVar[int]

    def nonempty_rows(self, scores: Tensor) -> Tensor:
        # Scores more than 1 below the largest get no weight, so they can all be raised to −2.
        shifted = (scores - scores.detach().amax(-1, keepdim=True)) / self.power
        shifted = shifted.clamp(min=-2)
        threshold = self.threshold(shifted.detach().sort(-1, descending=True).values)
        for _ in range(2):
            above = (shifted - threshold).clamp(min=0)
            excess = (above**self.power).sum(-1, keepdim=True) - 1
            slope = above.sum(-1, keepdim=True) * 2 if self.power == 2 else (above > 0).sum(-1, keepdim=True)
            threshold = threshold + excess / slope
        weights: Tensor = (shifted - threshold).clamp(min=0) ** self.power
        return weights

    def threshold(self, ordered: Tensor) -> Tensor:
        """τ of each row, from its scores in falling order."""
        raise NotImplementedError


class Sparsemax(_Threshold):
    """The Euclidean projection of the scores onto the simplex: sparse weights. Martins and Astudillo 2016."""

    name: ClassVar[str] = "sparsemax"
    power: ClassVar[int] = 1

    def threshold(self, ordered: Tensor) -> Tensor:
        count = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device, dtype=ordered.dtype)
        candidates = (ordered.cumsum(-1) - 1) / count
        return _at_support(candidates, ordered > candidates)


class Entmax15(_Threshold):
    """Between softmax and sparsemax (α = 1.5). Peters, Niculae and Martins 2019."""

    name: ClassVar[str] = "entmax15"
    power: ClassVar[int] = 2

    def threshold(self, ordered: Tensor) -> Tensor:
        count = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device, dtype=ordered.dtype)
        mean = ordered.cumsum(-1) / count
        spread = (ordered**2).cumsum(-1) - count * mean**2
        candidates = mean - ((1 - spread) / count).clamp(min=0).sqrt()
        return _at_support(candidates, ordered >= candidates)


class Hardmax(_BuiltIn):
    """All weight on the largest score, the lowest index on ties; no gradient reaches the scores."""

    name: ClassVar[str] = "hard"

    def nonempty_rows(self, scores: Tensor) -> Tensor:
        largest, index = scores.detach().amax(-1, keepdim=True), scores.detach().argmax(-1, keepdim=True)
        chosen = torch.zeros_like(scores).scatter_(-1, index, 1.0).masked_fill(largest.isnan(), torch.nan)
        # A gradient of zero, instead of none, lets `backward` work when only the scores require gradient.
        return chosen + scores.masked_fill(torch.ones_like(scores, dtype=torch.bool), 0)

    def backward(self, scores: Tensor, weights: Tensor, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
        return torch.zeros_like(scores), []


def _at_support(candidates: Tensor, inside: Tensor) -> Tensor:
    size = inside.sum(-1, keepdim=True).clamp(min=1)
    return candidates.gather(-1, size - 1)


softmax, sigmoid, sparsemax, entmax15, hard = Softmax, Sigmoid, Sparsemax, Entmax15, Hardmax

_NAMES: Registry[Normalizer] = Registry("normalize")
for _kind in (Softmax, Sigmoid, Sparsemax, Entmax15, Hardmax):
    _NAMES.add(_kind.name, _kind())


def named(given: str | Normalizer) -> Normalizer:
    """The normaliser of that name; a `Normalizer` is returned as it is."""
    if isinstance(given, Normalizer):
        return given
    if isinstance(given, str):
        return _NAMES[given]
    raise BadType(
        f"normalize: expected a name ({', '.join(_NAMES)}) or a Normalizer, got {described(given)}. "
        f"{call_meant(given, __name__)}"
    )

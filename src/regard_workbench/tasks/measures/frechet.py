"""The Fréchet distance between real and made examples: how far apart the normal distributions of their features are.

    d² = |μ₁ − μ₂|² + tr(C₁ + C₂ − 2 (C₁ C₂)^½)

It is 0 for equal means and covariances, so it sees what a judge of single examples cannot: that all made ones look
alike. Its size depends on the features and grows as examples become fewer, so only numbers of one set are comparable.

Paper: Heusel et al. 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard_workbench.tasks.measures.metrics import Answered, Metric, Numbers, State

Array = NDArray[np.float64]


def frechet_distance(mean: Array, covariance: Array, other_mean: Array, other_covariance: Array) -> float:
    """The distance d² of two normal distributions."""
    # tr (C₁ C₂)^½ is the sum of the roots of the eigenvalues of C₁^½ C₂ C₁^½, which is symmetric.
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    roots = np.sqrt(np.linalg.eigvalsh(root @ other_covariance @ root).clip(min=0))
    apart = float(((mean - other_mean) ** 2).sum())
    distance = apart + float(np.trace(covariance) + np.trace(other_covariance)) - 2 * float(roots.sum())
    return max(0.0, distance)


def moments(features: Array) -> list[float]:
    """What mean and covariance of features (n,d) are made of, as numbers that add up: n, Σ f, Σ f fᵀ."""
    upper = np.triu_indices(features.shape[1])
    products = (features.T @ features)[upper]
    return [float(len(features)), *features.sum(0).tolist(), *products.tolist()]


def mean_and_covariance(numbers: Array) -> tuple[Array, Array]:
    """From moments."""
    # 1 + d + d(d + 1)/2 numbers
    width = (math.isqrt(8 * len(numbers) + 1) - 3) // 2
    count, total = numbers[0], numbers[1 : 1 + width]
    products = np.zeros((width, width))
    products[np.triu_indices(width)] = numbers[1 + width :]
    products = products + np.triu(products, 1).T
    mean = total / count
    covariance = (products - count * np.outer(mean, mean)) / (count - 1)
    return mean, covariance


@dataclass(frozen=True)
class Frechet(Metric):
    """The Fréchet distance of the features that `look` gives of a batch: those of made and of real ones, (n,d) each."""

    higher_is_better: bool = False
    look: Callable[[Answered], tuple[Array, Array] | None] = field(default=lambda answered: None, compare=False)

    def of(self, answered: Answered) -> State | None:
        features = self.look(answered)
        return None if features is None else [moments(vectors) for vectors in features]

    def merge(self, states: Sequence[State]) -> State:
        return np.sum(np.array(states, np.float64), 0).tolist()

    def value(self, state: State) -> float:
        generated, real = np.array(state, np.float64)
        if min(generated[0], real[0]) < 2 or not np.isfinite(state).all():
            return math.nan
        return frechet_distance(*mean_and_covariance(generated), *mean_and_covariance(real))

    def count(self, state: State) -> float:
        return float(state[0][0])

    def resampled(self, states: Sequence[State], drawn: NDArray[np.int64]) -> Numbers:
        together: Any = np.tensordot(drawn.astype(np.float64), np.array(states, np.float64), 1)
        return np.array([self.value(state) for state in together], np.float64)

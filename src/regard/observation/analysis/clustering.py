"""Clusters of heads with similar behaviour, across layers and models.

A head is described by features that do not depend on the length of the input: its score for each pattern, its share of
weight by distance and by quarter of the keys, and its entropy relative to the maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from sklearn.metrics import silhouette_score

from regard.observation.analysis.patterns import PATTERNS, HeadFacts
from regard.support.arguments import whole_number

MOST = 12  # clusters, where their number is chosen here
_ALIKE = 1e-6  # features that differ by less are equal


@dataclass(frozen=True)
class Clusters:
    """Cluster labels of heads, and an order that keeps clusters together."""

    labels: list[int]  # of each head, in the order given; clusters are numbered from 0 along `order`
    order: list[int]  # the heads, similar ones adjacent; clusters are contiguous


def cluster(facts: Sequence[HeadFacts], count: int | None = None) -> Clusters:
    """Clusters by Ward's method: `count` of them, or the number with the best silhouette score.

    The result is deterministic. The order is that of the tree's leaves, arranged so that the sum of distances between
    neighbours is minimal for the tree.
    """
    number = None if count is None else whole_number("count", count, least=1)
    if len(facts) < 3:
        labels = list(range(len(facts))) if number is None or number >= len(facts) else [0] * len(facts)
        return Clusters(labels, list(range(len(facts))))
    points = np.stack([description(head) for head in facts])
    if np.ptp(points, 0).max() < _ALIKE:
        return Clusters([0] * len(facts), list(range(len(facts))))
    tree = linkage(points, "ward", optimal_ordering=True)
    raw = _clearest(points, tree) if number is None else fcluster(tree, number, "maxclust")
    order = [int(leaf) for leaf in leaves_list(tree)]
    names: dict[int, int] = {}
    for leaf in order:
        names.setdefault(int(raw[leaf]), len(names))
    return Clusters([names[int(label)] for label in raw], order)


def description(facts: HeadFacts) -> NDArray[np.float64]:
    """The features of one head. Square roots of shares give small shares more weight."""
    scores = [facts.scores.get(kind, 0.0) for kind in PATTERNS]
    shares = np.sqrt(np.clip(facts.profile[:-1], 0, 1))
    return np.array([*scores, *(0.5 * shares), facts.profile[-1]])


def _clearest(points: NDArray[np.float64], tree: NDArray[np.float64]) -> NDArray[np.int32]:
    best, clearest = -np.inf, np.ones(len(points), dtype=np.int32)
    for count in range(2, min(MOST, len(points) - 1) + 1):
        labels = fcluster(tree, count, "maxclust")
        if not 2 <= len(set(labels.tolist())) < len(points):
            continue
        score = float(silhouette_score(points, labels))
        if score > best + 1e-12:  # of equal scores the fewest clusters
            best, clearest = score, labels
    return clearest

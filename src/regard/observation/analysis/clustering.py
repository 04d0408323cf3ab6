"""Heads that do the same, whatever layer or model they are in, found together and set side by side.

A head is described by numbers that do not depend on the length of the input: its scores for each pattern, its shares of
weight by distance and by quarter of the keys, and its entropy as a part of what it could be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from sklearn.metrics import silhouette_score

from regard.core.arguments import whole_number
from regard.observation.analysis.patterns import PATTERNS, HeadFacts

MOST = 12  # clusters, when their number is chosen here
_ALIKE = 1e-6  # heads nearer than this are the same


@dataclass(frozen=True)
class Clusters:
    """Which heads belong together."""

    labels: list[int]  # of each head, in the order given; clusters count from 0 in the order of `order`
    order: list[int]  # the heads, such that neighbours are alike; a cluster stands together


def cluster(facts: Sequence[HeadFacts], count: int | None = None) -> Clusters:
    """Clusters by Ward's method, as many as `count` says or as lie clearest apart (by their silhouette).

    The same heads always give the same clusters. The order is that of the tree's leaves, turned so that the sum of
    distances between neighbours is the least the tree allows.
    """
    number = None if count is None else whole_number("count", count, least=1)
    if len(facts) < 3:
        labels = list(range(len(facts))) if number is None or number >= len(facts) else [0] * len(facts)
        return Clusters(labels, list(range(len(facts))))
    points = np.stack([description(one) for one in facts])
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
    """One head as numbers. Roots of shares: by them, small shares count for what they are."""
    scores = [facts.scores.get(kind, 0.0) for kind in PATTERNS]
    shares = np.sqrt(np.clip(facts.profile[:-1], 0, 1))
    return np.array([*scores, *(0.5 * shares), facts.profile[-1]])


def _clearest(points: NDArray[np.float64], tree: NDArray[np.float64]) -> NDArray[np.int32]:
    best, found = -np.inf, np.ones(len(points), dtype=np.int32)
    for count in range(2, min(MOST, len(points) - 1) + 1):
        labels = fcluster(tree, count, "maxclust")
        if not 2 <= len(set(labels.tolist())) < len(points):
            continue
        score = float(silhouette_score(points, labels))
        if score > best + 1e-12:  # the fewest of equally clear ones
            best, found = score, labels
    return found

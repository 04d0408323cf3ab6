"""Which axis of weights is batch, heads, queries or keys.

Nothing is guessed from sizes. What the query side of the product of queries and keys has alone are queries; what both
sides have is batch, or heads where it was split off from the features. Where no such product is found, the product with
the values tells: it shares batch and heads with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.observation.capture.written.axes import Axis, Factor, axes_of, origins
from regard.observation.capture.written.layout import Group
from regard.observation.capture.written.products import Label, Labels, NoMixing, Product, product_of
from regard.observation.capture.written.tape import SCORES, Node

_REACH = 64  # operations between a softmax and the product of its scores


@dataclass(frozen=True)
class ScoreAxes:
    """The product of queries and keys: the factors that both have, those that one of them has, and the features."""

    shared: set[Factor]
    sides: tuple[set[Factor], set[Factor]]
    features: set[Factor]  # what the axes that it sums over were split off from


def score_axes(softmax: Node) -> ScoreAxes | None:
    """The product that the scores of a softmax come from."""
    waiting, met = [softmax], 0
    while waiting and met < _REACH:
        node, met = waiting.pop(0), met + 1
        product = product_of(node) if node.kind == SCORES else None
        if product is not None and _pairs(node, product):
            (query, of_query), (key, of_key) = product.operands
            left, right = long_axes(query, of_query), long_axes(key, of_key)
            axes = dict(zip(product.labels, axes_of(node), strict=True))

            def factors(labels: set[Label], axes: dict[Label, Axis] = axes) -> set[Factor]:
                return {factor for label in labels & axes.keys() for factor in origins(axes[label])}

            summed = [axis for label, axis in zip(of_query, axes_of(query), strict=True) if label not in product.labels]
            features = {factor.whole for axis in summed for factor in axis}
            return ScoreAxes(factors(left & right), (factors(left - right), factors(right - left)), features)
        waiting += [operand for operand in node.inputs() if operand.kind == SCORES]
    return None


def _pairs(node: Node, product: Product) -> bool:
    """Whether a product is of the features of two activations."""
    operands = product.operands
    if len(operands) != 2 or any(operand.learned for operand, _ in operands):
        return False
    # A sum of products is one of features if it is over the last axis, and of pairs if one of them is repeated.
    (left, labels), (right, _) = operands
    return node.name != "sum" or (labels[-1] not in product.labels and left.shape != right.shape)


def groups_of(
    weights: Node,
    labels: Sequence[Label],
    keys: Sequence[int],
    value_labels: Sequence[Label],
    of_values: set[Label],
    scores: ScoreAxes | None,
) -> tuple[Group, Group, Group, Group]:
    """The factors of weights: batch, heads, queries, keys.

    `value_labels`, `of_values`: the axes of the values, and those that have more than one place.
    """
    axes = axes_of(weights)
    key_factors = origins(factor for at in keys for factor in axes[at])
    sides = () if scores is None else (scores.shared, *scores.sides)
    across = zip(sides[1:], sides[:0:-1], strict=True)
    asks = next((opposite for side, opposite in across if key_factors and key_factors <= side), None)
    shared: list[Factor] = []  # what queries and keys share
    alone: list[Factor] = []  # what queries have alone
    disputed: list[Factor] = []  # the same, though the values have it, too
    lacking = False  # whether the values lack an axis that queries and keys share
    for at, (axis, label) in enumerate(zip(axes, labels, strict=True)):
        for factor in () if at in keys else axis:
            roots = origins([factor])
            if asks is None or not any(roots <= side for side in sides):
                (shared if label in value_labels else alone).append(factor)
            elif roots <= asks:
                (disputed if label in of_values else alone).append(factor)
            else:
                shared.append(factor)
                lacking |= label not in of_values
    if disputed and lacking:
        raise NoMixing("its values are those of relative positions, the same for all examples or heads")
    shared += disputed  # each block of queries has values of its own

    def projected(factor: Factor) -> bool:
        return bool(factor.source) or (scores is not None and factor.whole in scores.features)

    asking = [factor for factor in alone if not projected(factor)]
    short = any(size == 1 and label not in value_labels for label, size in zip(labels, weights.shape, strict=True))
    if not (asking or short):  # channels that attend to channels, or learned queries
        asking = [factor for factor in alone if factor.source == "parameter"] or alone
    heads = {factor for factor in (*shared, *alone) if projected(factor)} - set(asking)
    if not heads:  # batch, then heads, then queries, then keys: as in torch
        common = [at for at, label in enumerate(labels) if at not in keys and label in value_labels]
        heads = set(axes[common[-1]]) & set(shared) if len(common) > 1 else set()
    if len(asking) > 1 and not set(shared) - heads and asking[0] in axes[0]:
        shared, asking = [asking[0], *shared], asking[1:]  # values that all examples share
    order = [factor for at, axis in enumerate(axes) if at not in keys for factor in axis]
    return (
        tuple(factor for factor in order if factor in shared and factor not in heads),
        tuple(factor for factor in order if factor in heads),
        tuple(factor for factor in order if factor in asking),
        tuple(factor for at in keys for factor in axes[at]),
    )


def long_axes(node: Node, labels: Labels) -> set[Label]:
    """The labels of the axes that have more than one place."""
    return {label for label, size in zip(labels, node.shape, strict=True) if size > 1}

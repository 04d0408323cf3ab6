"""Mixings: products of weights with values, found among all products that weights enter."""

from __future__ import annotations

from dataclasses import dataclass

from regard.observation.capture.written.axes import Axis, Factor, axes_of, origins
from regard.observation.capture.written.layout import Group, WeightLayout
from regard.observation.capture.written.products import Label, Labels, NoMixing, product_of
from regard.observation.capture.written.roles import ScoreAxes, groups_of, long_axes, score_axes
from regard.observation.capture.written.tape import DROPOUT, REARRANGING, WEIGHTS, Node


@dataclass(frozen=True)
class Mixing:
    """A product of weights with values."""

    layout: WeightLayout
    axes: tuple[Axis, ...]  # of the weights as they entered the product
    value: Node
    value_axes: tuple[Axis, ...]
    result_axes: tuple[Axis, ...]
    channels: Group
    alone: bool  # whether each position alone makes its weights, as a dynamic convolution does
    complete: bool  # whether the result is the mixed values: nothing but keys was summed over

    @property
    def result_groups(self) -> tuple[Group, ...]:
        """The axes (b,h,q,v) of the mixed values."""
        return (*self.layout.groups[:3], self.channels)


def shown(node: Node) -> Node:
    """The weights before dropout, and before they were rearranged: the same numbers, near the softmax."""
    factors = {factor for axis in axes_of(node) for factor in axis}
    while node.name in REARRANGING or node.name in DROPOUT:
        before = node.inputs()[0]
        if before.kind != WEIGHTS or {factor for axis in axes_of(before) for factor in axis} != factors:
            break
        node = before
    return node


def mixing_of(result: Node, weights: Node, lenient: bool) -> Mixing:
    """The mixing that a product computes; raises `NoMixing` if it is none.

    `lenient`: whether weights may be projected from each position alone.
    """
    product, softmax = product_of(result), weights.softmaxes()[0]
    if product is None:
        raise NoMixing("the product of its softmax with other tensors has a form that cannot be followed")
    factors = [(node, labels) for node, labels in product.operands if node is not weights]
    if len(factors) != 1 or factors[0][0].kind == WEIGHTS:
        raise NoMixing("its softmax is multiplied with several tensors at once, or with weights")
    (value, value_labels), labels, scores = factors[0], product.of(weights), score_axes(softmax)
    axes = axes_of(weights)
    keys = [
        at
        for at, label in enumerate(labels)
        if label in value_labels and label not in product.labels and _may_be_keys(weights, at, softmax, scores)
    ]
    if not keys:
        raise NoMixing("no product sums over the axis of its softmax, or over that of its keys")
    projected = any(factor.source for at in keys for factor in origins(axes[at]))
    if projected and scores is None and not lenient:
        raise NoMixing("its softmax is over features that are projected from each position alone", attends=False)
    long = long_axes(weights, labels)
    channels = {
        label: (Factor(size),)
        for label, size in zip(value_labels, value.shape, strict=True)
        if label in product.labels and label not in long and size > 1
    }
    if result.name == "sum" and not channels:
        raise NoMixing("its softmax is multiplied with one number for each key", attends=False)
    by_label = {label: axis for label, axis in zip(labels, axes, strict=True) if axis} | channels
    return Mixing(
        WeightLayout(
            axes_of(shown(weights)),
            groups_of(weights, labels, keys, value_labels, long_axes(value, value_labels), scores),
        ),
        axes,
        value,
        _axes(value, value_labels, by_label),
        _axes(result, product.labels, by_label),
        tuple(factor for axis in channels.values() for factor in axis),
        projected and scores is None,
        all(at in keys or label in product.labels for at, label in enumerate(labels)),
    )


def still_weights(result: Node, weights: Node) -> bool:
    """Whether a product that mixes no values leaves weights: with their keys, and no axis that they did not have."""
    product, softmax = product_of(result), weights.softmaxes()[0]
    if product is None or softmax.softmax_axis is None or not set(product.labels) <= set(product.of(weights)):
        return False
    kept = {factor for axis in axes_of(result) for factor in origins(axis)}
    return origins(axes_of(softmax)[softmax.softmax_axis]) <= kept


def unmixed(softmax: Node) -> WeightLayout:
    """The layout of weights whose product with values was not found."""
    axes = axes_of(softmax)
    assert softmax.softmax_axis is not None
    keys = softmax.softmax_axis
    batch_axes = [label for label in range(len(axes)) if label != keys]
    batch = batch_axes[:-1]  # as if the values had all axes but that of the queries
    return WeightLayout(axes, groups_of(softmax, range(len(axes)), [keys], (*batch, keys), set(), score_axes(softmax)))


def _axes(node: Node, labels: Labels, by_label: dict[Label, Axis]) -> tuple[Axis, ...]:
    if any(size > 1 and label not in by_label for label, size in zip(labels, node.shape, strict=True)):
        raise NoMixing("its softmax is repeated along an axis of the values")
    return tuple(by_label[label] if size > 1 else () for label, size in zip(labels, node.shape, strict=True))


def _may_be_keys(weights: Node, at: int, softmax: Node, scores: ScoreAxes | None) -> bool:
    """Whether an axis of weights is that of their softmax, or one that queries and keys do not share."""
    assert softmax.softmax_axis is not None
    if weights.shape[at] == 1:
        return softmax.shape[softmax.softmax_axis] == 1
    factors = origins(axes_of(weights)[at])
    sides = () if scores is None else scores.sides
    return any(factors <= side for side in (origins(axes_of(softmax)[softmax.softmax_axis]), *sides))

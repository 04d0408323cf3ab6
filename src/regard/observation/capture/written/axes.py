"""Axes followed through a recorded pass: which axis of a map, of values or of an output is which.

An axis is a sequence of factors, outermost first, whose sizes multiply to its length. Reshaping splits and merges axes,
so it moves factors between them; a factor keeps its identity on its way from an input to the map. Axes of size 1 have
no factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from regard.observation.capture.written.products import Labels, product_of, reduced
from regard.observation.capture.written.tape import Node, operations

# Operations whose result is a view: its strides tell which axis went where.
_RESHAPES = frozenset(("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as"))
VIEWS = _RESHAPES | operations("""
    transpose permute swapaxes swapdims movedim moveaxis t __get__ select narrow expand expand_as broadcast_to chunk
    split tensor_split unbind
""")
_SPLITS = frozenset(("chunk", "split", "tensor_split", "unbind"))
_CONVOLUTIONS = frozenset(("conv1d", "conv2d", "conv3d"))
_DEPTH = 96  # operations that are followed back; what lies further counts as an input


class Factor:
    """A factor of the length of an axis."""

    __slots__ = ("origin", "parts", "size", "source", "whole")

    def __init__(self, size: int, source: str = "", origin: Factor | None = None, whole: Factor | None = None) -> None:
        self.size = size
        self.source = source  # "feature": made by a projection; "parameter": an axis of a parameter
        self.origin = origin  # the factor that these places were chosen from, by a slice or an index
        # The factor that this was split off from.
        self.whole: Factor = whole or (origin.whole if origin else self)
        self.parts: tuple[Factor, Factor] | None = None  # once it was split: outer and inner


Axis = tuple[Factor, ...]
Axes = tuple[Axis, ...]


def leaves(factors: Iterable[Factor]) -> list[Factor]:
    """Factors, each replaced by what it was split into."""
    flat: list[Factor] = []
    for factor in factors:
        flat += [factor] if factor.parts is None else leaves(factor.parts)
    return flat


def origins(factors: Iterable[Factor]) -> set[Factor]:
    """The factors that places were chosen from, else the factors themselves."""
    roots: set[Factor] = set()
    for factor in leaves(factors):
        while factor.origin is not None:
            factor = factor.origin
        roots.update(leaves([factor]))
    return roots


def axes_of(node: Node, depth: int = _DEPTH) -> Axes:
    """The axes of a tensor, in factors."""
    if node.axes is None:
        node.axes = _of_input(node) if node.function is None or not depth else _derived(node, depth - 1)
    if any(factor.parts for axis in node.axes for factor in axis):  # split since
        node.axes = tuple(tuple(leaves(axis)) for axis in node.axes)
    return node.axes


def _of_input(node: Node) -> Axes:
    source = "parameter" if isinstance(node.tensor, nn.Parameter) else ""
    return tuple(_new(size, source) for size in node.shape)


def _new(size: int, source: str = "") -> Axis:
    return (Factor(size, source),) if size != 1 else ()


def _derived(node: Node, depth: int) -> Axes:
    inputs, count = node.inputs(), len(node.shape)
    if not inputs:
        return _of_input(node)
    first = inputs[0]
    if node.name in VIEWS or (node.name == "__getitem__" and len(inputs) == 1):
        return _viewed(node, axes_of(first, depth))
    product = product_of(node)
    if product is not None:
        return _combined(node, product.operands, product.labels, depth)
    if node.name == "linear":
        return (*axes_of(first, depth)[: count - 1], _new(node.shape[-1], "feature"))
    if node.name in _CONVOLUTIONS:
        axes = _in_place(node, axes_of(first, depth))
        channels = count - int(node.name[4]) - 1
        return (*axes[:channels], _new(node.shape[channels], "feature"), *axes[channels + 1 :])
    reduction = reduced(node)
    if reduction is not None and count == len(first.shape) - len(reduction.axes) * (not reduction.keepdim):
        axes = axes_of(first, depth)
        kept = range(len(axes)) if reduction.keepdim else (a for a in range(len(axes)) if a not in reduction.axes)
        return tuple(() if at in reduction.axes else axes[at] for at in kept)
    if node.name in ("cat", "concat", "concatenate"):
        return _joined(node, inputs, depth)
    main = max(inputs, key=lambda part: part.kind)  # a map before a mask or a bias
    if main.shape == node.shape:
        return axes_of(main, depth)
    if all(_broadcasts(operand, node) for operand in inputs):
        labels = tuple(range(count))
        ordered = (main, *(operand for operand in inputs if operand is not main))
        return _combined(node, [(operand, labels[count - len(operand.shape) :]) for operand in ordered], labels, depth)
    return _in_place(node, axes_of(first, depth))


def _broadcasts(part: Node, node: Node) -> bool:
    """Whether an input of an operation on elements has, or lacks, each axis of the result."""
    sizes = zip(reversed(part.shape), reversed(node.shape), strict=False)
    return len(part.shape) <= len(node.shape) and all(size in (1, extent) for size, extent in sizes)


def _combined(node: Node, operands: Iterable[tuple[Node, Labels]], labels: Labels, depth: int) -> Axes:
    """Each axis of the result is that of the first operand that has it.

    Where queries and keys come from the same places, those of the keys become factors of their own.
    """
    by_label: dict[Any, Axis] = {}
    for operand, names in operands:
        for name, axis, size in zip(names, axes_of(operand, depth), operand.shape, strict=True):
            if size != 1:
                by_label.setdefault(name, axis)
    axes: list[Axis] = []
    met: set[Factor] = set()
    for name, size in zip(labels, node.shape, strict=True):
        axis = by_label.get(name) or _new(size) if size != 1 else ()
        roots = origins(axis)
        if not met.isdisjoint(roots):
            axis = tuple(Factor(factor.size, factor.source, whole=factor.whole) for factor in leaves(axis))
        met |= roots
        axes.append(axis)
    return tuple(axes)


def _in_place(node: Node, axes: Axes) -> Axes:
    """Axes that stay where they are; one whose length changes holds places chosen from the old one."""
    if len(axes) != len(node.shape):
        return _of_input(node)
    return tuple(
        axis if size == _length(axis) else _chosen(size, axis) for size, axis in zip(node.shape, axes, strict=True)
    )


def _length(axis: Axis) -> int:
    length = 1
    for factor in axis:
        length *= factor.size
    return length


def _chosen(size: int, axis: Axis) -> Axis:
    if size == 1:
        return ()
    return (Factor(size, axis[0].source, axis[0]),) if axis else _new(size)


def _joined(node: Node, inputs: Sequence[Node], depth: int) -> Axes:
    """Pieces put behind one another. The pieces that one tensor was split into are its axis again, as a factor."""
    axes = list(_in_place(node, axes_of(inputs[0], depth)))
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    split_tensor = inputs[0].inputs()[0] if inputs[0].name in _SPLITS else None
    if split_tensor is not None and all(
        operand.name in _SPLITS and operand.inputs()[0] is split_tensor for operand in inputs
    ):
        pieces = Factor(len(inputs), "feature")
        axes[dim] = (pieces, *axes_of(inputs[0], depth)[dim])
    return tuple(axes)


def _viewed(node: Node, axes: Axes) -> Axes:
    """The axes of a view, from the strides that it has of a tensor without gaps."""
    first = node.inputs()[0]
    steps = None if 0 in first.shape else _strides(node, first)
    if steps is None:
        return _in_place(node, axes)
    factors: list[list[Any]] = []  # of the input, each with its stride
    stride = first.shape.numel()
    for factor in (factor for axis in axes for factor in axis):
        stride //= factor.size
        factors.append([stride, factor])
    return tuple(
        _between(factors, step, size) if size != 1 else () for size, step in zip(node.shape, steps, strict=True)
    )


def _strides(node: Node, first: Node) -> list[int] | None:
    if node.name in _RESHAPES:
        return _without_gaps(node.shape)
    dims = node.args[1:]
    if node.name in ("transpose", "swapaxes", "swapdims") and len(dims) == 2:
        steps = _without_gaps(first.shape)
        steps[dims[0]], steps[dims[1]] = steps[dims[1]], steps[dims[0]]
        return steps

    def without_data(argument: Any) -> Any:
        if isinstance(argument, Node):
            return torch.empty(argument.shape, device="meta")
        return tuple(map(without_data, argument)) if type(argument) is tuple else argument

    assert node.function is not None
    try:
        view = node.function(
            *map(without_data, node.args), **{name: without_data(argument) for name, argument in node.kwargs.items()}
        )
        view = view if node.part is None else view[node.part]
    except (RuntimeError, TypeError, IndexError, NotImplementedError):
        return None
    return list(view.stride()) if view.shape == node.shape else None


def _without_gaps(shape: torch.Size) -> list[int]:
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return steps[::-1]


def _between(factors: list[list[Any]], low: int, size: int) -> Axis:
    """The factors that an axis of stride `low` goes through; splits those it covers in part."""
    if low == 0:  # repeated
        return _new(size)
    axis: list[Factor] = []
    high = low * size
    while low < high:
        at = next(at for at, (stride, factor) in enumerate(factors) if stride <= low < stride * factor.size)
        stride, factor = factors[at]
        if low > stride:  # the part inside is another axis
            if low % stride or factor.size % (low // stride):
                return _chosen(size, (factor,))
            _split(factors, at, low // stride)
            continue
        if high < stride * factor.size:  # the part outside is another axis, or the axis is a slice
            if high % stride or factor.size % (high // stride):
                return _chosen(size, (factor,))
            _split(factors, at, high // stride)
            continue
        axis.append(factor)
        low = stride * factor.size
    return tuple(reversed(axis))


def _split(factors: list[list[Any]], at: int, inner: int) -> None:
    stride, factor = factors[at]
    outer_factor, inner_factor = (
        Factor(size, factor.source, factor.origin, factor.whole) for size in (factor.size // inner, inner)
    )
    factor.parts = (outer_factor, inner_factor)
    factors[at : at + 1] = [[stride * inner, outer_factor], [stride, inner_factor]]

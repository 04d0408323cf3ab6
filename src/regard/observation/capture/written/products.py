"""Products of tensors, each as an einsum: which axes its operands share, which are summed over, which are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.observation.capture.written.tape import Node

MATRIX_PRODUCTS = frozenset(("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "mv"))
ADDED_PRODUCTS = frozenset(("baddbmm", "baddbmm_", "addmm"))
PRODUCTS = MATRIX_PRODUCTS | ADDED_PRODUCTS | {"einsum"}
MULTIPLICATIONS = frozenset(("mul", "__mul__", "__rmul__", "multiply"))
_REDUCTIONS = frozenset(
    ("sum", "mean", "amax", "amin", "max", "min", "logsumexp", "prod", "std", "var", "argmax", "argmin", "any", "all")
)

Label = int | str
Labels = tuple[Label, ...]


class NoMixing(Exception):
    """A product with weights that mixes no values by them; says why."""

    def __init__(self, why: str, attends: bool = True) -> None:
        super().__init__(why)
        self.attends = attends  # whether the weights are over pairs of positions all the same


@dataclass(frozen=True)
class Product:
    """A product of tensors: a label for each axis; an axis whose label the result lacks is summed over."""

    operands: tuple[tuple[Node, Labels], ...]
    labels: Labels  # of the result

    def of(self, node: Node) -> Labels:
        """The labels of an operand."""
        return next(labels for operand, labels in self.operands if operand is node)


@dataclass(frozen=True)
class Reduction:
    """The axes that a sum, a mean or a maximum goes over."""

    axes: tuple[int, ...]
    keepdim: bool


def product_of(node: Node) -> Product | None:
    """The product that an operation computes; None for another operation, and for a product of one tensor."""
    inputs, name = node.inputs(), node.name
    if name == "einsum":
        return _einsum(node, inputs)
    if name == "linear" and len(inputs) == 2 and not inputs[1].learned and inputs[1].function is not None:
        rows, columns = inputs[:2]
        labels = tuple(range(len(rows.shape) - 1))
        return Product(((rows, (*labels, "sum")), (columns, ("column", "sum"))), (*labels, "column"))
    if name in ADDED_PRODUCTS:
        inputs = inputs[-2:]
    if (name in MATRIX_PRODUCTS or name in ADDED_PRODUCTS) and len(inputs) == 2:
        return _matmul(*(reversed(inputs) if name == "__rmatmul__" else inputs))
    if name == "sum" and inputs and inputs[0].name in MULTIPLICATIONS and len(inputs[0].inputs()) == 2:
        return _summed(node, inputs[0])
    return None


def _matmul(left: Node, right: Node) -> Product:
    def labels(node: Node, last: Labels) -> Labels:
        if len(node.shape) == 1:
            return ("sum",)
        return (*range(2 - len(node.shape), 0), *last)  # batch axes count from the right

    rows, columns = labels(left, ("row", "sum")), labels(right, ("sum", "column"))
    batch = max(rows[:-2], columns[:-2], key=len)
    kept = tuple(label for label in (*rows, *columns) if label in ("row", "column"))
    return Product(((left, rows), (right, columns)), (*batch, *kept))


def _summed(node: Node, multiplied: Node) -> Product | None:
    """A product of elements, summed over axes."""
    reduction, count = reduced(node), len(multiplied.shape)
    assert reduction is not None
    operands = tuple((operand, tuple(range(count - len(operand.shape), count))) for operand in multiplied.inputs())
    if not reduction.keepdim:
        return Product(operands, tuple(at for at in range(count) if at not in reduction.axes))
    return Product(operands, tuple(f"one {at}" if at in reduction.axes else at for at in range(count)))


def _einsum(node: Node, inputs: Sequence[Node]) -> Product | None:
    equation, arrow, result = str(node.args[0]).replace(" ", "").partition("->")
    if not arrow:
        letters = equation.replace(",", "").replace(".", "")
        result = "..." * ("." in equation) + "".join(sorted({c for c in letters if letters.count(c) == 1}))
    terms = equation.split(",")
    ellipses = [len(operand.shape) - len(term.replace("...", "")) for operand, term in zip(inputs, terms, strict=True)]
    operands = [_spelled(term, count) for term, count in zip(terms, ellipses, strict=True)]
    if any(len(set(labels)) < len(labels) for labels in operands):
        return None  # the diagonal of an operand
    return Product(tuple(zip(inputs, operands, strict=True)), _spelled(result, max(ellipses)))


def _spelled(term: str, ellipsis: int) -> Labels:
    before, dots, after = term.partition("...")
    return (*before, *(range(-ellipsis, 0) if dots else ()), *after)


def reduced(node: Node) -> Reduction | None:
    """The axes an operation of a pass reduces; None for another operation."""
    inputs = node.inputs()
    return reduction(node.name, node.args, node.kwargs, len(inputs[0].shape)) if len(inputs) == 1 else None


def reduction(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> Reduction | None:
    """The axes, of `count`, that an operation on one tensor reduces; None for another operation."""
    if name not in _REDUCTIONS:
        return None
    positional = args[1:]
    axes = kwargs.get("dim", kwargs.get("axis", positional[0] if positional else None))
    keepdim = bool(kwargs.get("keepdim", positional[1] if len(positional) > 1 else False))
    if axes is None or axes == ():
        return Reduction(tuple(range(count)), keepdim)
    return Reduction(tuple(axis % count for axis in (axes if isinstance(axes, tuple) else (axes,))), keepdim)

"""Softmaxes, as functions and written out as an exponential over its sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from regard.observation.capture.written.products import reduced

if TYPE_CHECKING:
    from regard.observation.capture.written.tape import Node

SOFTMAX = frozenset(("softmax", "special_softmax", "_softmax"))
LOG_SOFTMAX = frozenset(("log_softmax", "special_log_softmax", "_log_softmax"))
EXPONENTIALS = frozenset(("exp", "exp_", "exp2", "exp2_"))
DIVISIONS = frozenset(("div", "div_", "divide", "true_divide", "__truediv__", "__div__", "__itruediv__", "__idiv__"))
SUBTRACTIONS = frozenset(("sub", "sub_", "subtract", "__sub__", "__isub__"))
NORMALIZING = SOFTMAX | EXPONENTIALS | DIVISIONS
_STEPS = 8  # operations between an exponential, its sum and their quotient


def softmax_axis(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Node]) -> int | None:
    """The axis over which the result of an operation is a softmax; None: it is none."""
    if not inputs:
        return None
    if name in SOFTMAX:
        return _dim(args, kwargs, len(inputs[0].shape))
    if name in EXPONENTIALS:
        before = inputs[0]
        return _dim(before.args, before.kwargs, len(before.shape)) if before.name in LOG_SOFTMAX else _less(before)
    return _quotient(*inputs) if len(inputs) == 2 else None


def _dim(args: tuple[Any, ...], kwargs: dict[str, Any], axes: int) -> int:
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if isinstance(dim, int):
        return dim
    return 0 if axes in (0, 1, 3) else 1  # what torch takes where none is given


def _less(scores: Node) -> int | None:
    """The axis of scores less the logarithm of the sum of their exponentials over it."""
    inputs = scores.inputs()
    if scores.name not in SUBTRACTIONS or len(inputs) != 2 or inputs[1].name != "logsumexp":
        return None
    over = reduced(inputs[1])
    alike = over is not None and inputs[1].inputs()[0] is inputs[0] and len(over.axes) == 1
    return over.axes[0] if over is not None and alike else None


def _quotient(exponentials: Node, total: Node) -> int | None:
    """The axis of exponentials that are divided by their sum over it."""
    if not any(node.name in EXPONENTIALS for node in _first_inputs(exponentials)):
        return None
    for node in _first_inputs(total):  # a small number may have been added to the sum
        reduction = reduced(node)
        if reduction is not None:
            alike = node.name == "sum" and node.inputs()[0] is exponentials and len(reduction.axes) == 1
            return reduction.axes[0] if alike else None
    return None


def _first_inputs(node: Node) -> Iterator[Node]:
    """A node, what it was made from, and so on by first inputs."""
    for _ in range(_STEPS):
        yield node
        inputs = node.inputs()
        if not inputs:
            return
        node = inputs[0]

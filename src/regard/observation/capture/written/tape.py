"""The tape: the operations of one forward pass of a module, from which weights are traced back to its inputs.

Each result of an operation is a node of one of three kinds: rows (inputs, projections), scores (pairs of rows), weights
(after the softmax). Nodes reference rows strongly; scores and weights, which are as large as the map, only weakly,
because they can be recomputed from rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.observation.capture.written.normalizing import NORMALIZING, softmax_axis
from regard.observation.capture.written.products import MATRIX_PRODUCTS, MULTIPLICATIONS, PRODUCTS

if TYPE_CHECKING:
    from regard.observation.capture.written.axes import Axes

ROWS, SCORES, WEIGHTS = 0, 1, 2


def operations(text: str) -> frozenset[str]:
    """The operations of torch that a text names."""
    return frozenset(text.split())


DROPOUT = frozenset(("dropout", "dropout_", "dropout1d", "dropout2d", "alpha_dropout", "feature_dropout"))
RANDOM = operations("""
    rand randn randint rand_like randn_like bernoulli bernoulli_ uniform_ normal_ exponential_ multinomial
    gumbel_softmax empty_strided
""")
REARRANGING = operations("""
    view reshape transpose permute contiguous to type type_as float half bfloat16 double flatten unflatten squeeze
    unsqueeze swapaxes swapdims movedim view_as reshape_as clone detach t __get__
""")
# Operations on two tensors that may pair the rows of one with those of the other.
_PAIRING = MULTIPLICATIONS | {"add", "__add__", "__radd__", "sub", "__sub__", "__rsub__"}
_AUGMENTED = frozenset(
    ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__iand__", "__ior__", "__ixor__")
)

_NAMES: dict[Any, str] = {}


class Node:
    """One tensor of a recorded pass: the operation that made it, and the nodes it was made from."""

    # Class defaults, for speed: a node is made for every operation.
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012 (never written to)
    part: int | None = None  # index among several results
    tensor: Tensor | None = None  # for rows
    ref: weakref.ref[Tensor] | None = None  # for scores and weights
    axes: Axes | None = None  # once they were asked for
    softmax_axis: int | None = None  # of a softmax: the axis that it normalises
    learned = False  # whether it is a parameter or computed from parameters alone
    mixed = False  # of weights: whether their product with values was found; of a softmax: that of any such weights

    def __init__(self, tensor: Tensor, kind: int, function: Callable[..., Any] | None, name: str) -> None:
        self.function, self.name, self.kind = function, name, kind
        self.shape, self.dtype = tensor.shape, tensor.dtype
        if kind == ROWS:
            self.tensor = tensor
            self.version = None if tensor.is_inference() else tensor._version
        else:
            self.ref = weakref.ref(tensor)

    def alive(self) -> Tensor | None:
        """Its tensor, if it still exists."""
        return self.tensor if self.ref is None else self.ref()

    def intact(self) -> bool:
        """Whether its tensor still exists and was not written to since."""
        return self.tensor is not None and (self.version is None or self.tensor._version == self.version)

    def turn_into_weights(self) -> None:
        """Count as weights, and hold the tensor weakly."""
        assert self.tensor is not None
        self.kind, self.ref, self.tensor = WEIGHTS, weakref.ref(self.tensor), None

    def softmaxes(self) -> list[Node]:
        """The softmaxes that weights are computed from, the nearest first."""
        met: dict[Node, None] = {self: None}
        waiting = [self]
        while waiting:
            node = waiting.pop(0)
            if node.softmax_axis is None:
                new = [operand for operand in node.inputs() if operand.kind == WEIGHTS and operand not in met]
                met |= dict.fromkeys(new)
                waiting += new
        return [node for node in met if node.softmax_axis is not None]

    def inputs(self) -> list[Node]:
        """The nodes it was made from."""
        nodes: list[Node] = []
        for argument in (*self.args, *self.kwargs.values()):
            if isinstance(argument, Node):
                nodes.append(argument)
            elif isinstance(argument, (tuple, list)):
                nodes += [element for element in argument if isinstance(element, Node)]
        return nodes

    @property
    def in_place(self) -> bool:
        """Whether the operation writes into its first argument."""
        name = self.name
        return name in _AUGMENTED or (name.endswith("_") and not name.endswith("__"))


class OperationTape:
    """The nodes of one forward pass of a module."""

    def __init__(self, module: nn.Module) -> None:
        self.owned = {id(buffer) for buffer in module._buffers.values()}
        self.nodes: dict[int, Node] = {}
        self.softmaxes: list[Node] = []

    def record(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> tuple[Node | None, Node | None]:
        """Record an operation; return the weights that enter it, if it is a product, and the node of its result."""
        name = name_of(function)
        inputs: list[Node] = []
        arguments, kind = self._nested(args, inputs), ROWS
        named = {}
        for key, argument in kwargs.items():
            if isinstance(argument, Tensor):
                argument = self._node(argument)
                inputs.append(argument)
            if key != "out":
                named[key] = argument
        for operand in inputs:
            kind = max(kind, operand.kind)
        weights = node = None
        if name in PRODUCTS or name in ("linear", "sum"):
            kind, weights = self._product(name, inputs, kind)
        axis = softmax_axis(name, arguments, named, inputs) if name in NORMALIZING else None
        if axis is not None and not all(operand.learned for operand in inputs):
            kind = WEIGHTS
        if name in RANDOM or (kind == ROWS and name in DROPOUT):
            function = None  # type: ignore[assignment]  # recomputed, it would draw other numbers
        output = args[0] if result is None else result  # None: an in-place assignment to its first argument
        several = isinstance(output, (tuple, list))
        for at, tensor in enumerate(output if several else (output,)):
            if isinstance(tensor, Tensor):
                node = Node(tensor, self._kind(tensor, kind, name, inputs), function, name)
                node.args = arguments
                node.learned = bool(inputs) and all(operand.learned for operand in inputs)
                if named:
                    node.kwargs = named
                if several:
                    node.part = at
                if axis is not None and node.kind == WEIGHTS:
                    node.softmax_axis = axis % len(node.shape) if node.shape else 0
                    self.softmaxes.append(node)
                self.nodes[id(tensor)] = node
        return weights, node

    @staticmethod
    def _kind(tensor: Tensor, kind: int, name: str, inputs: list[Node]) -> int:
        if kind != ROWS:  # places chosen by their scores are no scores
            return kind if tensor.is_floating_point() or tensor.dtype == torch.bool else ROWS
        # Rows (b,q,1,d) and (b,1,k,d) combined in pairs are more than the map that comes from them.
        pairs = name in _PAIRING and tensor.dim() >= 4 and tensor.is_floating_point()
        return SCORES if pairs and tensor.numel() > sum(operand.shape.numel() for operand in inputs) else ROWS

    @staticmethod
    def _product(name: str, inputs: list[Node], kind: int) -> tuple[int, Node | None]:
        """The kind of a product, and the weights that enter it."""
        if name == "sum":
            if not inputs or inputs[0].name not in MULTIPLICATIONS:
                return kind, None
            inputs = inputs[0].inputs()
        activations = [node for node in inputs if not node.learned]
        weights = [node for node in activations if node.kind == WEIGHTS]
        if weights:
            return (ROWS, weights[0]) if len(activations) >= 2 else (kind, None)
        if kind != ROWS or name == "sum":
            return kind, None
        if name == "linear":
            pairs = len(inputs) == len(activations) == 2 and inputs[1].function is not None
        else:  # a learned query asks all positions
            pairs = len(activations) >= 2 or (name in MATRIX_PRODUCTS and len(inputs) == 2 and inputs[0].learned)
        return SCORES if pairs else ROWS, None

    def _node(self, tensor: Tensor) -> Node:
        node = self.nodes.get(id(tensor))
        if node is None or node.alive() is not tensor:
            node = self.nodes[id(tensor)] = Node(tensor, ROWS, None, "")
            node.learned = isinstance(tensor, nn.Parameter)
        return node

    def _nested(self, given: Sequence[Any], inputs: list[Node]) -> tuple[Any, ...]:
        """Arguments with nodes for their tensors, also in lists of tensors and in indices made of several parts."""
        nested = []
        for argument in given:
            if isinstance(argument, Tensor):
                argument = self._node(argument)
                inputs.append(argument)
            elif type(argument) in (tuple, list):
                argument = self._nested(argument, inputs)
            nested.append(argument)
        return tuple(nested)


def name_of(function: Callable[..., Any]) -> str:
    """The name of an operation; for an overload such as `softmax.int` that of its operator."""
    name = _NAMES.get(function)
    if name is None:
        name = _NAMES[function] = getattr(function, "__name__", "").partition(".")[0]
    return name


def is_tensor(found: Any) -> bool:
    """Whether a result holds tensors."""
    if isinstance(found, (tuple, list)):
        return bool(found) and isinstance(found[0], torch.Tensor)
    return isinstance(found, torch.Tensor)

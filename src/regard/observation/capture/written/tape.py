"""The tape: the operations of one forward pass of a module, from which a softmax is traced back to its inputs.

Each result of an operation is a node of one of three kinds: rows (inputs, projections), scores (after a product of two
tensors), weights (after the softmax). Nodes reference rows strongly; scores and weights, which are as large as the map,
only weakly, because they can be recomputed from rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

ROWS, SCORES, WEIGHTS = 0, 1, 2

PRODUCTS = frozenset(("matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "baddbmm_", "einsum", "mm"))
SOFTMAX = frozenset(("softmax", "special_softmax", "_softmax"))
DROPOUT = frozenset(("dropout", "dropout_", "dropout1d", "dropout2d", "alpha_dropout", "feature_dropout"))
RANDOM = frozenset(
    ("rand", "randn", "randint", "rand_like", "randn_like", "bernoulli", "bernoulli_", "uniform_", "normal_",
     "exponential_", "multinomial", "gumbel_softmax", "empty_strided")
)  # fmt: skip
REARRANGING = frozenset(
    ("view", "reshape", "transpose", "permute", "contiguous", "to", "type", "type_as", "float", "half", "bfloat16",
     "double", "flatten", "unflatten", "squeeze", "unsqueeze", "swapaxes", "swapdims", "movedim", "view_as",
     "reshape_as", "clone", "detach", "t", "__get__")
)  # fmt: skip
_AUGMENTED = frozenset(
    (
        "__setitem__",
        "__iadd__",
        "__isub__",
        "__imul__",
        "__itruediv__",
        "__idiv__",
        "__iand__",
        "__ior__",
        "__ixor__",
    )
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
    _source: Node | None = None
    evidence: Tensor | None = None  # a slice of the weights as the model computed them
    noted = False
    scored = False  # of a softmax: whether its scores come from a product of two tensors

    def __init__(self, tensor: Tensor, kind: int, function: Callable[..., Any] | None, name: str) -> None:
        self.function, self.name, self.kind = function, name, kind
        self.shape, self.dtype = tensor.shape, tensor.dtype
        if kind == ROWS:
            self.tensor = tensor
            self.version = None if tensor.is_inference() else tensor._version
        else:
            self.ref = weakref.ref(tensor)

    def holds(self, tensor: Tensor) -> bool:
        """Whether this node is that of a tensor."""
        return (self.tensor if self.ref is None else self.ref()) is tensor

    def intact(self) -> bool:
        """Whether its tensor still exists and was not written to since."""
        return self.tensor is not None and (self.version is None or self.tensor._version == self.version)

    @property
    def source(self) -> Node | None:
        """The softmax that weights come from."""
        return (
            self if self.name in SOFTMAX else self._source
        )  # not stored on itself, which would be a reference cycle

    def inputs(self) -> list[Node]:
        """The nodes it was made from."""
        found: list[Node] = []
        for argument in (*self.args, *self.kwargs.values()):
            if isinstance(argument, Node):
                found.append(argument)
            elif isinstance(argument, (tuple, list)):
                found += [part for part in argument if isinstance(part, Node)]
        return found

    @property
    def in_place(self) -> bool:
        """Whether the operation writes into its first argument."""
        name = self.name
        return name in _AUGMENTED or (name.endswith("_") and not name.endswith("__"))

    @property
    def rearranges(self) -> bool:
        """Whether the operation only rearranges weights. Dropout counts: weights are those before dropout."""
        return self.name in REARRANGING or self.name in DROPOUT


class OperationTape:
    """The nodes of one forward pass of a module.

    `lenient`: the module's name suggests attention, so a softmax counts whatever its scores come from.
    """

    def __init__(self, module: nn.Module, lenient: bool) -> None:
        self.module, self.lenient = module, lenient
        self.nodes: dict[int, Node] = {}
        self.softmaxes: list[Node] = []

    def record(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> tuple[Node, Node] | None:
        """Record an operation. If it mixed values with weights, return the nodes of the weights and of the result."""
        name = name_of(function)
        inputs: list[Node] = []
        given, kind = self._nested(args, inputs), ROWS
        named = {}
        for key, argument in kwargs.items():
            if isinstance(argument, Tensor):
                argument = self._node(argument)
                inputs.append(argument)
            if key != "out":
                named[key] = argument
        for node in inputs:
            kind = max(kind, node.kind)
        mixing = None
        if name in PRODUCTS:
            kind, mixing = self._product(inputs, kind)
        elif name in SOFTMAX and (kind == SCORES or self.lenient):
            kind = WEIGHTS
        if name in RANDOM or (kind == ROWS and name in DROPOUT):
            function = None  # type: ignore[assignment]  # recomputed, it would draw other numbers
        made = args[0] if result is None else result  # None: an in-place assignment to its first argument
        several = isinstance(made, (tuple, list))
        for at, tensor in enumerate(made if several else (made,)):
            if isinstance(tensor, Tensor):
                node = Node(tensor, kind, function, name)
                node.args = given
                if named:
                    node.kwargs = named
                if several:
                    node.part = at
                if kind == WEIGHTS:
                    self._weights(node, tensor, inputs)
                self.nodes[id(tensor)] = node
        return None if mixing is None else (mixing, node)

    def _product(self, inputs: list[Node], kind: int) -> tuple[int, Node | None]:
        """The kind of a product, and the weights it mixes values with."""
        activations = [node for node in inputs if not isinstance(node.tensor, nn.Parameter)]
        weights = [node for node in activations if node.kind == WEIGHTS]
        if weights and len(activations) >= 2:
            return ROWS, weights[0]
        if kind == ROWS and (len(activations) >= 2 or self.lenient):
            return SCORES, None
        return kind, None

    def _weights(self, node: Node, tensor: Tensor, inputs: list[Node]) -> None:
        if node.name in SOFTMAX:
            node.scored = any(part.kind == SCORES for part in inputs)
            self.softmaxes.append(node)
        else:
            node._source = next((part.source for part in inputs if part.source is not None), None)
        if (
            (not node.rearranges or self._turned_back(node))
            and tensor.dim() >= 2
            and tensor.is_floating_point()
        ):
            # Detached: the slice must not become part of the model's autograd graph.
            node.evidence = tensor.detach().select(-2, -1).clone() if tensor.shape[-2] else None

    def _turned_back(self, node: Node) -> bool:
        """Whether weights rearranged for another operation have the layout of the softmax again."""
        before = node.args[0] if node.args else None
        source = node.source
        return (
            isinstance(before, Node) and source is not None and before.name not in SOFTMAX
            and node.shape == source.shape != before.shape
        )  # fmt: skip

    def _node(self, tensor: Tensor) -> Node:
        node = self.nodes.get(id(tensor))
        if node is None or not node.holds(tensor):
            node = self.nodes[id(tensor)] = Node(tensor, ROWS, None, "")
        return node

    def _nested(self, given: Sequence[Any], inputs: list[Node]) -> tuple[Any, ...]:
        """Arguments with nodes for their tensors, also in lists of tensors and in indices made of several parts."""
        found = []
        for part in given:
            if isinstance(part, Tensor):
                part = self._node(part)
                inputs.append(part)
            elif type(part) in (tuple, list):
                part = self._nested(part, inputs)
            found.append(part)
        return tuple(found)


def shown(node: Node) -> Node:
    """The node that holds the weights: after it there are only rearranging and dropout.

    Of several such nodes, the first with the layout of the softmax, whose axes are known.
    """
    source, found = node.source, node
    while node.rearranges and node.args and isinstance(node.args[0], Node) and node.args[0].kind == WEIGHTS:
        if node.evidence is not None:
            found = node
        node = node.args[0]
    alike = source is not None and found.evidence is not None and node.shape != source.shape
    return found if alike else node


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

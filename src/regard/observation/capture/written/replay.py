"""Recomputing the weights of a recorded pass from the rows they came from.

A graph is cut out of a tape backwards from the weights. Scores and weights are always recomputed. Rows are stored,
except where recomputing them needs less memory (a bias looked up in a table).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from regard.observation.capture.storage import Storage, StoredTensor
from regard.observation.capture.written.normalizing import LOG_SOFTMAX, SOFTMAX
from regard.observation.capture.written.products import reduction
from regard.observation.capture.written.tape import DROPOUT, ROWS, Node, operations

# Operations on pairs in which row i of the result depends on row i of its arguments only.
_BY_PAIR = operations("""
    add __add__ __radd__ add_ __iadd__ sub __sub__ __rsub__ rsub sub_ __isub__ mul __mul__ __rmul__ mul_ __imul__
    multiply div __truediv__ __div__ div_ __itruediv__ true_divide divide masked_fill masked_fill_ where to type
    type_as float half bfloat16 double contiguous clone detach clamp clip clamp_ tanh tanh_ exp neg __neg__ maximum
    max minimum min nan_to_num relu sigmoid log sqrt square pow __pow__ abs
""")
_PRODUCTS = frozenset(("matmul", "__matmul__", "bmm"))


@dataclass(frozen=True)
class ReplayStep:
    """One operation of a graph. Arguments that are results of other steps or stored tensors are `Ref`s."""

    function: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None
    shape: torch.Size
    writes: bool  # whether it writes into its first argument
    pair: bool  # whether the result is scores or weights


@dataclass(frozen=True)
class Ref:
    """The index of a tensor among the leaves and results of a graph."""

    at: int


class NotReplayable(Exception):
    """The graph needs a tensor that no longer exists or was written to during the pass."""


class ReplayGraph:
    """Leaves and operations, in order; the last operation gives the weights."""

    def __init__(self, node: Node, owned: Set[int], keep: Storage) -> None:
        self.leaves: list[StoredTensor] = []
        self.steps: list[ReplayStep | int] = []  # a step, or the index of a leaf
        self._indices: dict[int, int] = {}
        self._costs: dict[int, float] = {}
        self._owned = owned  # ids of the buffers of the module
        self.shape = node.shape
        self._add(node, keep)
        del self._indices, self._costs, self._owned

    def _add(self, node: Node, keep: Storage) -> int:
        if id(node) in self._indices:
            return self._indices[id(node)]
        if self._is_leaf(node):
            tensor = node.tensor
            assert tensor is not None
            owned = isinstance(tensor, nn.Parameter) or id(tensor) in self._owned
            kept = keep.parameter(tensor, "a parameter") if owned else keep.activation(tensor, "a tensor")
            self.leaves.append(kept)
            self.steps.append(len(self.leaves) - 1)
        else:
            args = tuple(self._argument(argument, keep) for argument in node.args)
            kwargs = {name: self._argument(argument, keep) for name, argument in node.kwargs.items()}
            assert node.function is not None
            self.steps.append(
                ReplayStep(
                    node.function, node.name, args, kwargs, node.part, node.shape, node.in_place, node.kind != ROWS
                )
            )
        self._indices[id(node)] = len(self.steps) - 1
        return len(self.steps) - 1

    def _argument(self, given: Any, keep: Storage) -> Any:
        if isinstance(given, Node):
            return Ref(self._add(given, keep))
        if type(given) is tuple:
            return tuple(self._argument(argument, keep) for argument in given)
        return given

    def _is_leaf(self, node: Node) -> bool:
        if node.kind != ROWS:
            if node.function is None:
                raise NotReplayable(f"{node.name} drew random scores")
            return False
        if not node.intact():
            if node.function is None:
                raise NotReplayable("an input was written to in place")
            return False
        if node.function is None or node.shape[-2:] != self.shape[-2:]:
            return True
        if any(operand.kind != ROWS for operand in node.inputs()):
            return True  # places that were chosen by scores or weights
        return self._cost(node) >= node.shape.numel()

    def _cost(self, node: Node) -> float:
        """How many numbers must be stored so that a node can be recomputed."""
        if id(node) not in self._costs:
            owned = isinstance(node.tensor, nn.Parameter) or id(node.tensor) in self._owned
            if node.function is None or node.kind != ROWS:
                self._costs[id(node)] = 0 if owned else node.shape.numel()
            else:
                self._costs[id(node)] = torch.inf  # guards against cycles, which a pass does not have
                self._costs[id(node)] = sum(
                    min(self._cost(operand), operand.shape.numel() if operand.intact() else torch.inf)
                    for operand in node.inputs()
                )
        return self._costs[id(node)]

    @cached_property
    def by_rows(self) -> bool:
        """Whether chosen rows can be computed alone: axis −2 of all scores and weights is the row."""
        queries = self.shape[-2] if len(self.shape) >= 2 else 0
        for step in self.steps:
            if isinstance(step, int) or not step.pair:
                continue
            if len(step.shape) < 2 or step.shape[-2] != queries or queries < 2:
                return False
            pairs = [at for at in _refs(step.args) + _refs(tuple(step.kwargs.values())) if self._pair(at)]
            if step.name in ("view", "reshape"):
                before = self._shape(pairs[0])
                if before[-2:] != step.shape[-2:]:
                    return False
            elif step.name in SOFTMAX or step.name in LOG_SOFTMAX:
                dim = step.args[1] if len(step.args) > 1 else step.kwargs.get("dim")
                if dim not in (-1, len(step.shape) - 1):
                    return False
            elif len(pairs) == 1 and (over := reduction(step.name, step.args, step.kwargs, len(step.shape))):
                if not over.keepdim or over.axes != (len(step.shape) - 1,):
                    return False
            elif step.name in _PRODUCTS:
                if len(step.args) != 2 or not isinstance(step.args[0], Ref) or pairs not in ([], [step.args[0].at]):
                    return False
            elif step.name == "baddbmm":
                if pairs:
                    return False
            elif step.name not in _BY_PAIR and step.name not in DROPOUT:
                return False
        return True

    def _pair(self, at: int) -> bool:
        step = self.steps[at]
        return isinstance(step, ReplayStep) and step.pair

    def _shape(self, at: int) -> torch.Size:
        step = self.steps[at]
        return self.leaves[step].tensor.shape if isinstance(step, int) else step.shape

    @torch.no_grad()
    def run(self, rows: Sequence[int] | Tensor | None = None) -> Tensor:
        """The weights; with `rows`, which needs `by_rows`, only those rows in axis −2."""
        queries = self.shape[-2]
        last = {
            at: number for number, step in enumerate(self.steps) if isinstance(step, ReplayStep) for at in _all(step)
        }
        step_outputs: list[Tensor | None] = []
        for number, step in enumerate(self.steps):
            if isinstance(step, int):
                step_outputs.append(self.leaves[step].get())
                continue
            step_outputs.append(self._step(step, step_outputs, rows, queries))
            for at in _all(step):
                if last[at] == number:  # free what no later step needs
                    step_outputs[at] = None
        result = step_outputs[-1]
        assert result is not None
        return result

    def _step(self, step: ReplayStep, found: list[Tensor | None], rows: Any, queries: int) -> Tensor:
        def fill(given: Any, by_pair: bool) -> Any:
            if isinstance(given, Ref):
                tensor = found[given.at]
                assert tensor is not None
                full_rows = rows is not None and by_pair and not self._pair(given.at)
                if full_rows and tensor.dim() >= 2 and tensor.shape[-2] == queries:
                    tensor = tensor.index_select(-2, torch.as_tensor(rows, device=tensor.device))
                return tensor
            if type(given) is tuple:
                return tuple(fill(element, by_pair) for element in given)
            return given

        if step.name in DROPOUT and step.pair:
            return fill(step.args[0], True)  # type: ignore[no-any-return]
        sliced = rows is not None and step.pair
        args: list[Any]
        if sliced and step.name in _PRODUCTS:
            args = [fill(step.args[0], True), fill(step.args[1], False)]
        elif sliced and step.name in ("view", "reshape"):
            source = fill(step.args[0], False)
            return source.reshape(*step.shape[:-2], -1, step.shape[-1])  # type: ignore[no-any-return]
        else:
            # The second factor y of baddbmm, b + x·y, has keys where the others have rows.
            full_argument = 2 if step.name == "baddbmm" else None
            args = [fill(argument, sliced and at != full_argument) for at, argument in enumerate(step.args)]
        kwargs = {name: fill(argument, sliced and name != "batch2") for name, argument in step.kwargs.items()}
        if step.writes and isinstance(args[0], Tensor):
            args[0] = args[0].clone()
        result = step.function(*args, **kwargs)
        if result is None:  # an in-place assignment to its first argument
            result = args[0]
        return result if step.part is None else result[step.part]  # type: ignore[no-any-return]


def _refs(arguments: tuple[Any, ...]) -> list[int]:
    refs: list[int] = []
    for argument in arguments:
        if isinstance(argument, Ref):
            refs.append(argument.at)
        elif type(argument) is tuple:
            refs += _refs(argument)
    return refs


def _all(step: ReplayStep) -> list[int]:
    return _refs(step.args) + _refs(tuple(step.kwargs.values()))

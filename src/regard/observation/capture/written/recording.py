"""Recording a module's forward pass while it is observed.

A torch function mode sees the operations of a module that may write its attention out. It is active in the module's own
code and in the simple parts it calls (projections, dropout), and suspended in parts that attend themselves and in
functions with an adapter. Modules without written-out attention never run under a mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.observation.capture.interception import Listener, busy, noted
from regard.observation.capture.torch_calls import ScaledDotProduct
from regard.observation.capture.written.active import ACTIVE, Recorder, set_aside
from regard.observation.capture.written.detection import looks_like_attention
from regard.observation.capture.written.mixing import mixing_of, shown, still_weights
from regard.observation.capture.written.products import NoMixing
from regard.observation.capture.written.reading import SoftmaxAdapter
from regard.observation.capture.written.roles import score_axes
from regard.observation.capture.written.tape import Node, OperationTape, is_tensor, name_of


class TapeRecorder(Recorder):
    """The mode that records one forward pass of one module."""

    def __init__(self, module: nn.Module, listeners: list[Listener]) -> None:
        super().__init__()
        self.listeners = listeners
        self.module = module
        self.tape: OperationTape | None = OperationTape(module)
        self.reported = False  # whether a product of weights with values was found
        self.rejected = ""  # why a product with weights was none with values
        self.failed = ""  # why recording ended

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.tape is None or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        name = name_of(func)
        if name == "scaled_dot_product_attention" and not busy():  # reached through a name that was not patched
            concerned = [(listener, self.module) for listener in self.listeners]
            result = noted(ScaledDotProduct(), func, args, kwargs, concerned)
        else:
            result = func(*args, **kwargs)
        if not is_tensor(result) and name != "__setitem__":
            return result
        try:
            mixing = self._mixing(func, args, kwargs, result)
        except Exception as error:  # an error of ours must never reach the model
            self._fail(error)
            return result
        return result if mixing is None else self._report(*mixing, func, args, kwargs, result)

    def _mixing(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> tuple[SoftmaxAdapter, Node] | None:
        """Record an operation; of a product that mixes values by new weights, its adapter and its node."""
        assert self.tape is not None
        weights, node = self.tape.record(function, args, kwargs, result)
        if weights is None or node is None:
            return None
        try:
            mixing = mixing_of(node, weights, looks_like_attention(type(self.module)))
        except NoMixing as why:
            self.rejected = self.rejected or (str(why) if why.attends else "")
            if still_weights(node, weights):
                node.turn_into_weights()
            return None
        start = shown(weights)
        if start.mixed:  # a second product with the same weights
            return None
        for softmax in (start, *start.softmaxes()):
            softmax.mixed = True
        return SoftmaxAdapter(self.tape, weights, mixing), node

    def _report(
        self,
        adapter: SoftmaxAdapter,
        node: Node,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> Any:
        """Let the listeners change a product of weights with values, and notify them."""
        assert self.tape is not None
        self.reported = True
        for listener in self.listeners:
            run = listener.changed(adapter, self.module, lambda *_, **__: result)  # noqa: B023 - called at once
            edited = run(*args, **kwargs)
            if edited is not result:
                result = edited
                node.tensor = result
                self.tape.nodes[id(result)] = node
            listener.note(adapter, function, self.module, args, kwargs, result)
        return result

    def _fail(self, error: Exception) -> None:
        self.tape = None
        self.failed = f"its operations could not be followed ({type(error).__name__}: {error})"

    def finish(self) -> None:
        """Report softmaxes over scores whose product with values was not found, else why nothing was found."""
        softmaxes = [] if self.tape is None else self.tape.softmaxes
        if self.tape is not None and self.known and not softmaxes:  # it attends through a known function alone
            for listener in self.listeners:
                listener.known.add(id(self.module))
        try:
            for softmax in () if self.known else softmaxes:
                if not softmax.mixed and len(softmax.shape) > 1 and score_axes(softmax) is not None:
                    self._report_unmixed(softmax)
        except Exception as error:
            self._fail(error)
        if self.failed or not (self.known or self.reported):
            self._missed(bool(softmaxes))
        self.tape = None

    def _report_unmixed(self, softmax: Node) -> None:
        assert self.tape is not None
        self.reported = True
        adapter = SoftmaxAdapter(self.tape, softmax, None)
        for listener in self.listeners:
            listener.note(adapter, softmax.function or torch.softmax, self.module, (), {}, Tensor())

    def _missed(self, softmaxes: bool) -> None:
        """Tell why nothing was found in a module that attends by what it computes, or by its name."""
        why = self.failed or self.rejected
        if why or looks_like_attention(type(self.module)):
            nothing = (
                "its softmax enters no product with values" if softmaxes else "no softmax is computed in its own code"
            )
            for listener in self.listeners:
                listener.missed[id(self.module)] = why or nothing


@contextlib.contextmanager
def recording(module: nn.Module, listeners: list[Listener]) -> Iterator[None]:
    """Record a forward pass of a module for its listeners."""
    recorder = TapeRecorder(module, listeners)
    with set_aside():
        ACTIVE.recorder = recorder
        try:
            with recorder:
                yield
        finally:
            ACTIVE.recorder = None
        recorder.finish()


def unrecorded(module: nn.Module, listeners: list[Listener]) -> contextlib.AbstractContextManager[None]:
    """Suspend recording for a part that attends itself."""
    return set_aside()

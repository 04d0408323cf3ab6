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
from regard.observation.capture.written.reading import SoftmaxAdapter
from regard.observation.capture.written.tape import OperationTape, is_tensor, name_of


class TapeRecorder(Recorder):
    """The mode that records one forward pass of one module."""

    def __init__(self, module: nn.Module, listeners: list[Listener]) -> None:
        super().__init__()
        self.listeners = listeners
        self.module = module
        self.tape: OperationTape | None = OperationTape(module, looks_like_attention(type(module)))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.tape is None or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        name = name_of(func)
        if (
            name == "scaled_dot_product_attention" and not busy()
        ):  # reached through a name that was not patched
            concerned = [(listener, self.module) for listener in self.listeners]
            result = noted(ScaledDotProduct(), func, args, kwargs, concerned)
        else:
            result = func(*args, **kwargs)
        if not is_tensor(result) and name != "__setitem__":
            return result
        try:
            return self._recorded(func, args, kwargs, result)
        except NotImplementedError:  # heads that cannot be changed: whoever asked for it must know
            raise
        except Exception:  # an error of ours must never reach the model
            self.tape = None
            return result

    def _recorded(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        assert self.tape is not None
        mixing = self.tape.record(function, args, kwargs, result)
        if mixing is None:
            return result
        weights, node = mixing
        if weights.source is None or weights.source.noted:
            return result
        weights.source.noted = True
        adapter, module = SoftmaxAdapter(self.tape, weights, mixed=True), self.tape.module
        for listener in self.listeners:
            run = listener.changed(adapter, module, lambda *_, **__: result)  # noqa: B023 - called at once
            edited = run(*args, **kwargs)
            if edited is not result:
                result = edited
                node.tensor = result
                self.tape.nodes[id(result)] = node
            listener.note(adapter, function, module, args, kwargs, result)
        return result

    def finish(self) -> None:
        """Report softmaxes over scores whose product with values was not found."""
        tape, self.tape = self.tape, None
        softmaxes = [] if tape is None else tape.softmaxes
        if self.known and not softmaxes:  # it attends through a known function and needs no further recording
            for listener in self.listeners:
                listener.known.add(id(self.module))
        for softmax in [] if self.known else softmaxes:
            if softmax.scored and not softmax.noted and softmax.evidence is not None:
                assert tape is not None
                adapter = SoftmaxAdapter(tape, softmax, mixed=False)
                for listener in self.listeners:
                    listener.note(adapter, softmax.function or torch.softmax, tape.module, (), {}, Tensor())


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

"""Intercepting functions, so that the attention calls of a model are captured.

The model is not changed and takes the same path: while an observer is active, some functions of torch and of libraries
built on it are replaced by wrappers that call them and then notify the observer. The caller is found on the stack: the
innermost method of a module that belongs to the observed model.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from regard.observation.capture.edits import Edit, Silence
from regard.observation.capture.identity import (
    Substitute,
    filled_tables,
    forget_tables,
    is_symbolic,
    may_ask,
    untouched,
)
from regard.observation.capture.reading import Reading
from regard.observation.capture.storage import Storage
from regard.observation.capture.written.active import ACTIVE, set_aside

Function = Callable[..., Any]


@dataclass(frozen=True)
class CallEvent:
    """A finished call: its function, caller, arguments and result, and how its tensors are stored."""

    original: Function
    module: nn.Module | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    keep: Storage
    gradients: bool
    before: Any = None  # what `Adapter.before` returned


class Adapter:
    """What to capture of calls of one kind of function, and how to call it with an edit."""

    kind: ClassVar[str]
    within: str = ""  # the submodule that attends, where its parent makes the call

    def wants(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether to capture a call; if not, functions that it calls may be captured."""
        return True

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What must be stored before a call, such as the state of a random number generator."""
        return None

    def reading(self, event: CallEvent) -> Reading:
        """What the weights of a call can be computed from."""
        raise NotImplementedError

    def readings(self, event: CallEvent) -> list[tuple[str, Reading]]:
        """The same for a call that is several sites at once, each with a suffix for its name."""
        return [("", self.reading(event))]

    def edited(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], edit: Edit) -> Any:
        """The result of the call with its rows or its mixed values edited."""
        raise NotImplementedError(f"heads of {self.kind} cannot be changed individually.")

    def silent(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], heads: Sequence[int]) -> Any:
        """The result of the call with some heads set to zero."""
        return self.edited(original, args, kwargs, Silence(heads))


class Listener(Protocol):
    """An observer of a model."""

    model: nn.Module | None
    known: set[int]  # ids of modules that attend through functions with adapters, and so need no recording
    ran: set[int]  # ids of modules that should attend and were called
    missed: dict[int, str]  # by id of a module whose attention was not captured: why

    def holds(self, module: nn.Module) -> bool:
        """Whether a module is the model or a part of it."""

    def changed(self, adapter: Adapter, module: nn.Module | None, function: Function) -> Function:
        """What to call in the place of the function of this module's next call; the function itself: no change."""

    def note(
        self,
        adapter: Adapter,
        original: Function,
        module: nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        before: Any = None,
    ) -> None:
        """Handle a finished call."""

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass of the model begins."""

    def end(self) -> None:
        """A forward pass of the model ends."""


Scope = Callable[[nn.Module, list[Listener]], AbstractContextManager[None]]


@dataclass(frozen=True)
class PatchPoint:
    """A function to replace: an attribute of a module or a class."""

    owner: Any
    name: str
    adapter: Adapter | None = None
    entrance: bool = False  # whether it begins a forward pass of an observed model
    scope: Scope | None = None  # a context manager around the forward pass of a submodule
    counted: bool = False  # whether to record that the module ran


@dataclass
class _Patch:
    owner: Any
    original: Function
    inherited: bool  # a class that inherits the function
    adapter: Adapter | None = None
    entrance: bool = False
    scope: Scope | None = None
    counted: bool = False
    wrapper: Any = None
    users: int = 0

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; one that a module instance holds is not passed that instance again."""
        return self.original(*(args[1:] if isinstance(self.owner, nn.Module) else args), **kwargs)


_NOTHING = contextlib.nullcontext()
_LISTENERS: list[Listener] = []
_PATCHES: dict[tuple[int, str], _Patch] = {}
_TABLES_BEFORE: set[tuple[str, str]] = set()
_AS_BEFORE: dict[int, int] = {}  # by id of a function: how many running calls need its names to hold the original
_LOCK = threading.RLock()


class _ThreadState(threading.local):
    inside = False  # a captured call is running: calls inside it are part of it


_LOCAL = _ThreadState()


class Patching:
    """A context in which patches are installed and a listener is notified; on exit everything is restored."""

    def __init__(self, listener: Listener, patch_points: Sequence[PatchPoint]) -> None:
        self.listener, self.patch_points = listener, patch_points
        self.patch: list[PatchPoint] = []

    def __enter__(self) -> Patching:
        with _LOCK:
            try:
                for point in self.patch_points:
                    _install(point)
                    self.patch.append(point)
            except BaseException:
                self._leave()
                raise
            _LISTENERS.append(self.listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _LOCK:
            _LISTENERS[:] = [listener for listener in _LISTENERS if listener is not self.listener]
            self._leave()

    def _leave(self) -> None:
        while self.patch:
            _uninstall(self.patch.pop())


def _install(point: PatchPoint) -> None:
    if not _PATCHES:
        _TABLES_BEFORE.clear()
        _TABLES_BEFORE.update(filled_tables())
    key = (id(point.owner), point.name)
    if key not in _PATCHES:
        inherited = isinstance(point.owner, type) and point.name not in vars(point.owner)
        # A Python module first imported while an observer was active holds a substitute.
        patch = _Patch(point.owner, untouched(getattr(point.owner, point.name)), inherited)
        patch.wrapper = _method(patch) if _is_method(point) else _substitute(patch)
        _PATCHES[key] = patch
        if id(patch.original) not in _AS_BEFORE:
            setattr(point.owner, point.name, patch.wrapper)
    patch = _PATCHES[key]
    # A class may be an observed model for one observer and a submodule for another.
    patch.adapter, patch.entrance = patch.adapter or point.adapter, patch.entrance or point.entrance
    patch.scope, patch.counted = patch.scope or point.scope, patch.counted or point.counted
    patch.users += 1


def _uninstall(point: PatchPoint) -> None:
    key = (id(point.owner), point.name)
    patch = _PATCHES[key]
    patch.users -= 1
    if patch.users:
        return
    del _PATCHES[key]
    # Other code may have wrapped ours since. Its wrapper stays; ours beneath it has no listener any more.
    if vars(patch.owner).get(point.name) is patch.wrapper:
        if patch.inherited:
            delattr(patch.owner, point.name)
        else:
            setattr(patch.owner, point.name, patch.original)
    if not _PATCHES:
        forget_tables(_TABLES_BEFORE)


def _is_method(point: PatchPoint) -> bool:
    """Whether a function is called with its owner: a method of a class, or a forward that a module instance holds."""
    return isinstance(point.owner, type) or (isinstance(point.owner, nn.Module) and point.name == "forward")


def _method(patch: _Patch) -> Function:
    """The wrapper of a method."""
    original = patch.original
    owner = (patch.owner,) if isinstance(patch.owner, nn.Module) else ()

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not _LISTENERS:
            return original(*args, **kwargs)
        return _run(patch, patch.call, sys._getframe(1), (*owner, *args), kwargs)

    call.__dict__["_regard_original"] = original
    return call


def _substitute(patch: _Patch) -> Substitute:
    """The substitute of a function: one for all of its names."""
    original = patch.original
    for patch_elsewhere in _PATCHES.values():
        if patch_elsewhere.original is original and isinstance(patch_elsewhere.wrapper, Substitute):
            return patch_elsewhere.wrapper

    def run(caller: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _LISTENERS:
            return original(*args, **kwargs)
        if not may_ask(args, kwargs):
            return _run(patch, original, caller, args, kwargs)
        with _as_before(original):
            if is_symbolic(args, kwargs):
                return original(*args, **kwargs)
            return _run(patch, original, caller, args, kwargs)

    return Substitute(original, run)


@contextlib.contextmanager
def _as_before(original: Function) -> Iterator[None]:
    """Let all names of a function hold the original. (Calls in other threads are not captured meanwhile.)"""
    with _LOCK:
        _AS_BEFORE[id(original)] = _AS_BEFORE.get(id(original), 0) + 1
        _rename(original, back=True)
    try:
        yield
    finally:
        with _LOCK:
            _AS_BEFORE[id(original)] -= 1
            if not _AS_BEFORE[id(original)]:
                del _AS_BEFORE[id(original)]
                _rename(original, back=False)


def _rename(original: Function, back: bool) -> None:
    for (_, name), patch in _PATCHES.items():
        if patch.original is original and isinstance(patch.wrapper, Substitute):
            current, then = (patch.wrapper, original) if back else (original, patch.wrapper)
            if vars(patch.owner).get(name) is current:
                setattr(patch.owner, name, then)


def _run(patch: _Patch, original: Function, caller: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function, notify the listeners, return its result."""
    entered = [who for who in _LISTENERS if args and who.model is args[0]] if patch.entrance else []
    for listener in entered:
        listener.begin(args[1:], kwargs)
    try:
        if patch.adapter is None or _LOCAL.inside or _going_back() or not patch.adapter.wants(args, kwargs):
            with _part_of_a_pass(patch, args):
                return original(*args, **kwargs)
        return _noted(patch.adapter, original, args, kwargs, caller)
    finally:
        for listener in entered:
            listener.end()


def _part_of_a_pass(patch: _Patch, args: tuple[Any, ...]) -> AbstractContextManager[None]:
    """The context for the forward pass of a submodule."""
    if not (patch.scope or patch.counted) or _LOCAL.inside or _going_back():
        return _NOTHING
    module = args[0] if args else None
    listeners = [who for who in _LISTENERS if isinstance(module, nn.Module) and who.holds(module)]
    for listener in listeners if patch.counted else ():
        listener.ran.add(id(module))
    listeners = [who for who in listeners if id(module) not in who.known]
    return patch.scope(args[0], listeners) if patch.scope is not None and listeners else _NOTHING


def _noted(
    adapter: Adapter, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType
) -> Any:
    concerned = _concerned(caller, args)
    return noted(adapter, original, args, kwargs, concerned) if concerned else original(*args, **kwargs)


def busy() -> bool:
    """Whether a captured call is running: calls inside it are part of it."""
    return _LOCAL.inside


def noted(
    adapter: Adapter,
    original: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    concerned: Sequence[tuple[Listener, nn.Module | None]],
) -> Any:
    """Call a function, changed where a listener asks for it, and notify the listeners of its caller."""
    if ACTIVE.recorder is not None:
        ACTIVE.recorder.known = True
    _LOCAL.inside = True
    try:
        before = adapter.before(args, kwargs)
        run = original
        for who, module in concerned:
            run = who.changed(adapter, module, run)
        with set_aside():
            result = run(*args, **kwargs)
        for who, module in concerned:
            who.note(adapter, original, module, args, kwargs, result, before)
    finally:
        _LOCAL.inside = False
    return result


def _going_back() -> bool:
    """Whether a backward pass is running: what it recomputes (checkpointing) is not a new call."""
    return torch._C._current_graph_task_id() != -1


def _concerned(frame: FrameType | None, args: tuple[Any, ...]) -> list[tuple[Listener, nn.Module | None]]:
    """The listeners whose model makes the call, each with the innermost of its modules on the stack.

    A module that is no part of the model ends the search, even if a part of the model has called it: it is another
    model (a teacher, an assistant that drafts tokens).
    """
    concerned: list[tuple[Listener, nn.Module | None]] = []
    waiting: list[Listener] = []
    for listener in _LISTENERS:
        if listener.model is None:  # captures everything in the block
            concerned.append((listener, None))
        elif not args or not isinstance(args[0], nn.Module):
            waiting.append(listener)
        elif listener.holds(args[0]):  # a method of a module, or a function whose first argument is its module
            concerned.append((listener, args[0]))
    while frame is not None and waiting:
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, nn.Module):
                concerned += [(who, first) for who in waiting if who.holds(first)]
                return concerned
        frame = frame.f_back
    return concerned

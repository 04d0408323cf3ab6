"""Run a network once and record every operation: what it reads, what it writes, and which module runs it.

What feeds what is followed through the memory of tensors: an operation that reads a storage depends on all operations
that wrote to it. This sees what autograd's graph hides: inputs without gradient, values that were detached, weights
that are used without calling their module. Custom operators, which would hide what happens inside, give way to plain
torch while forward-mode differentiation is on, so it is switched on (no tangent is ever computed).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import regard.dispatch.attention as dispatch
from regard.observation.architecture.labels import words

Storage = int
Place = tuple[tuple[object, int], ...]  # code and instruction of each call, from the operation out to the module


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module."""

    path: str
    number: int  # how many calls of this module came before


@dataclass(frozen=True)
class Attending:
    """A call of `attend` or `weights`: score and normaliser in words, and where it was called."""

    detail: str
    place: Place
    call: int


@dataclass
class Operation:
    """One operation."""

    op: str
    running: tuple[ModuleCall, ...]  # the modules that are running, the network itself left out
    reads: list[Storage]
    writes: list[Storage]
    place: Place
    attending: Attending | None = None


@dataclass
class Recording:
    """What happened in one call of a network."""

    events: list[Operation] = field(default_factory=list)
    parameters: dict[Storage, str] = field(default_factory=dict)
    inputs: dict[Storage, str] = field(default_factory=dict)
    outputs: list[Storage] = field(default_factory=list)
    called: dict[str, int] = field(default_factory=dict)  # how often each module was called
    shapes: dict[Storage, tuple[int, ...]] = field(default_factory=dict)


def record(module: nn.Module, call: Callable[[], Any], given: Mapping[str, Tensor]) -> Recording:
    """The recording of `call()`, which runs `module` in evaluation mode; `given`: the network's inputs by name."""
    recording = Recording()
    for name, parameter in module.named_parameters():
        recording.parameters.setdefault(_storage(parameter), name)
    for name, tensor in given.items():
        if tensor.numel():
            recording.inputs.setdefault(_storage(tensor), name)
    training = {submodule: submodule.training for submodule in module.modules()}
    module.eval()
    mode = _Recorder(recording)
    try:
        with ExitStack() as inside:
            inside.enter_context(_followed(module, mode))
            inside.enter_context(torch.enable_grad())  # torch's layers take fused paths without gradients
            inside.enter_context(forward_ad.dual_level())
            inside.enter_context(mode)
            output = call()
    finally:
        for submodule, before in training.items():
            submodule.training = before
    recording.outputs = [_storage(tensor) for tensor in tensors_of(output) if tensor.numel()]
    return recording


def tensors_of(thing: Any) -> list[Tensor]:
    """All tensors inside tuples, lists, dicts and objects with fields, in order."""
    if isinstance(thing, Tensor):
        return [thing]
    if isinstance(thing, Mapping):
        thing = list(thing.values())
    elif not isinstance(thing, (tuple, list)) and hasattr(thing, "__dataclass_fields__"):
        thing = list(vars(thing).values())
    return [tensor for member in thing for tensor in tensors_of(member)] if isinstance(thing, (tuple, list)) else []


class _Recorder(TorchDispatchMode):
    """Writes down each operation below autograd."""

    def __init__(self, found: Recording) -> None:
        super().__init__()
        self.found = found
        self.running: list[ModuleCall] = []
        self.kept: list[Any] = []  # tensors, so that no memory is used twice; frames, whose identity is used
        self.attends: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        inputs = [leaf for leaf in tree_flatten((args, kwargs or {}))[0] if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, Tensor) and leaf.numel()]
        changes = any(
            argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments
        )
        known_storages = {_storage(leaf) for leaf in inputs}
        writes = [_storage(leaf) for leaf in outputs if changes or _storage(leaf) not in known_storages]
        self.kept += [inputs, outputs]
        if writes:
            for tensor in outputs:
                self.found.shapes.setdefault(_storage(tensor), tuple(tensor.shape))
            op = func.overloadpacket.__name__.strip("_")
            reads = [] if _only_size(op) else _read(inputs)
            self.found.events.append(
                Operation(op, tuple(self.running), reads, list(dict.fromkeys(writes)), *self._place(sys._getframe(1)))
            )
        return output

    def _place(self, frame: FrameType | None) -> tuple[Place, Attending | None]:
        """Where the operation was called, and the call of `attend` that it is part of."""
        steps: list[tuple[object, int]] = []
        attending = None
        while frame is not None and frame.f_code is not _CALL:
            name = frame.f_code.co_filename
            if frame.f_code in _ATTENDING:
                attending = frame
                steps.clear()
            elif not name.startswith("<") and "/torch/" not in name and frame.f_code is not _RECORD:
                steps.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        place = tuple(steps)
        if attending is None:
            return place, None
        if id(attending) not in self.attends:
            self.attends[id(attending)] = len(self.attends)
            self.kept.append(attending)
        return place, Attending(_pieces(attending.f_locals.get("options", {})), place, self.attends[id(attending)])


_CALL = nn.Module._call_impl.__code__
_RECORD = record.__code__
_ATTENDING = {dispatch.attend.__code__, dispatch.weights.__code__}


@contextmanager
def _followed(module: nn.Module, mode: _Recorder) -> Iterator[None]:
    """Inside, the recorder knows which modules are running."""
    hooks: list[Any] = []

    def entering(path: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            number = mode.found.called.get(path, 0)
            mode.found.called[path] = number + 1
            mode.running.append(ModuleCall(path, number))

        return enter

    def leave(*_: Any) -> None:
        mode.running.pop()

    for path, submodule in module.named_modules():
        if path:
            hooks.append(submodule.register_forward_pre_hook(entering(path), prepend=True))
            hooks.append(submodule.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _read(given: list[Tensor]) -> list[Storage]:
    """What an operation reads. Whole numbers beside real ones choose or count, and masks hide: they are not drawn."""
    drawn = [tensor for tensor in given if tensor.numel() and tensor.dtype is not torch.bool]
    real = [tensor for tensor in drawn if tensor.is_floating_point() and not isinstance(tensor, nn.Parameter)]
    return list(dict.fromkeys(_storage(tensor) for tensor in drawn if not real or tensor.is_floating_point()))


def _only_size(op: str) -> bool:
    """Whether an operation reads shapes only."""
    return op.endswith("_like") or op.startswith("new_")


def _storage(tensor: Tensor) -> Storage:
    return int(tensor.untyped_storage()._cdata)


def _pieces(options: Mapping[str, Any]) -> str:
    """Score and normaliser of a call of `attend`, in words."""
    score, normalize = options.get("score") or "scaled-dot", options.get("normalize") or "softmax"
    named = [piece if isinstance(piece, str) else words(type(piece).__name__) for piece in (score, normalize)]
    return ", ".join(named)

"""The observer: for every attention call of a running model it stores what the weights can be computed from."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch._C._functorch import TransformType

from regard.errors import BadValue
from regard.nn.parts.mechanism import Mechanism
from regard.observation.capture.huggingface import Eager
from regard.observation.capture.interception import Adapter, CallEvent, Function, Patching
from regard.observation.capture.mechanisms import sides
from regard.observation.capture.patch_points import patch_points
from regard.observation.capture.reading import Pairs, Reading, Side, Steps, UnreadableCall
from regard.observation.capture.storage import Storage
from regard.observation.coverage import Unseen, unseen_parts, warn_if_partial
from regard.observation.seen import Seen, Site


class Observer:
    """The context manager that `observe` returns; entering it gives the `Seen`."""

    def __init__(
        self, model: nn.Module | None, storage: Storage, calls: int | None, gradients: bool, warns: bool = False
    ) -> None:
        self.model, self.storage, self.most, self.gradients = model, storage, calls, gradients
        self.warns = warns  # on exit, where only a part of the model was seen
        self.seen = Seen(model)
        self.seen.coverage = self._coverage
        self.parts: dict[nn.Module, str] = {}
        self.paths: dict[int, str] = {}  # paths of the model's modules, by id
        self.foreign: dict[int, nn.Module] = {}  # modules on the stack that are no part of the model
        self.sides: dict[int, tuple[Side, Side]] = {}
        self.known: set[int] = set()  # ids of modules that attend through functions with adapters
        self.ran: set[int] = set()  # ids of modules that should attend and were called
        self.missed: dict[int, str] = {}  # why attention was not captured, by id of its module
        self.noted: set[int] = set()  # ids of modules whose attention was captured
        self.silence: Mapping[str, Sequence[int]] = {}  # heads to silence, by site
        self.expected: Collection[str] = ()  # the sites of the run without silenced heads
        self.calls = _ThreadCalls()
        self.lock = threading.Lock()  # several threads may call the model
        self.patching: Patching | None = None

    def __enter__(self) -> Seen:
        if self.patching is not None:
            raise BadValue("observe: this context is already in use. Call regard.observe(model) again.")
        paths_by_module = self.parts = {} if self.model is None else parts_of(self.model)
        self.paths = {id(module): path for module, path in paths_by_module.items()}
        self.sides = sides(paths_by_module)
        self.patching = Patching(self, patch_points(self.model, list(paths_by_module)))
        self.patching.__enter__()
        return self.seen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        patching, self.patching = self.patching, None
        self.calls, self.foreign = _ThreadCalls(), {}
        self.storage.pairwise_cache.clear()
        if patching is not None:
            patching.__exit__(kind, error, trace)
        unseen = self._coverage()
        self.parts, self.seen.coverage = {}, lambda: unseen
        if self.warns and kind is None and self.model is not None:
            warn_if_partial(unseen, len(self.seen), self.seen.inputs is not None)

    def _coverage(self) -> list[Unseen]:
        return unseen_parts(self.parts, self.ran, self.noted, self.missed)

    # The `Listener` of `interception`.

    def holds(self, module: nn.Module) -> bool:
        """Whether a module is the model or a part of it, including parts added since."""
        if id(module) not in self.paths and id(module) not in self.foreign and self.model is not None:
            self.paths |= {id(submodule): path for submodule, path in parts_of(self.model).items()}
            if id(module) not in self.paths:
                self.foreign[id(module)] = module
        return id(module) in self.paths

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass of the model begins."""
        if not self.calls.depth:
            self.calls.met = {}
            self.seen.inputs = (args, kwargs)
        self.calls.depth += 1

    def end(self) -> None:
        """A forward pass of the model ends."""
        self.calls.depth = max(0, self.calls.depth - 1)
        if not self.calls.depth:
            self.calls.met = {}

    def changed(self, adapter: Adapter, module: nn.Module | None, function: Function) -> Function:
        """The function of this module's next call, with heads silenced where that was asked for."""
        heads = self.silence.get(self.next_name(adapter, module)) if self.silence else None
        if not heads:
            return function
        return lambda *args, **kwargs: adapter.silent(function, args, kwargs, heads)

    def next_name(self, adapter: Adapter, module: nn.Module | None) -> str:
        """The site of this module's next call, if the model attends at the expected sites."""
        path = self.path(adapter, module)
        met = self.calls.met.get(path, 0)
        name = numbered(path, met + 1)
        return numbered(path, met) if met and name not in self.expected else name  # one more step of the last site

    def path(self, adapter: Adapter, module: nn.Module | None) -> str:
        """The name of a site: the module's path; for the model itself the name of its class."""
        segments = [] if module is None else [self.paths[id(module)]]
        if adapter.within:
            segments.append(adapter.within)
        return ".".join(filter(None, segments)) or (adapter.kind if module is None else type(module).__name__)

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
        """Store what the weights of a finished call can be computed from."""
        event = CallEvent(original, module, args, kwargs, result, self.storage, self.gradients, before)
        path = self.path(adapter, module)
        self.noted.add(id(module))
        for suffix, reading in self._readings(adapter, event):
            with self.lock:
                self._add(path + suffix, adapter.kind, module, reading)

    @staticmethod
    def _readings(adapter: Adapter, event: CallEvent) -> list[tuple[str, Reading]]:
        if _is_vmapped():
            why = "this call ran under torch.vmap, whose tensors exist only inside it. Call the model on a batch."
        else:
            try:
                return adapter.readings(event)
            except Exception as error:  # an error of ours must never reach the model
                why = f"this call could not be captured ({type(error).__name__}: {error})."
        return [("", UnreadableCall(f"{adapter.kind}: {why}"))]

    def _add(self, path: str, kind: str, module: nn.Module | None, reading: Reading) -> None:
        pairs = reading.pairs if isinstance(reading, Eager) else reading
        if id(module) in self.sides and kind == "attend":
            reading.rows, reading.columns = self.sides[id(module)]
        name, shared = self._site_of(path, reading, pairs)
        site = self.seen.sites.get(name)
        if site is None:
            site = self.seen.sites[name] = Site(name, kind, module)
        last, self.calls.last[name] = self.calls.last.get(name), reading
        if last is not None and not shared:
            _share_keys(last, pairs, self.storage)
        elif last is not None and isinstance(module, Mechanism) and _is_same_source(last, reading):
            self._join(site, last, reading)
            return
        site.readings.append(reading)
        if self.most is not None:
            del site.readings[: -self.most]

    def _join(self, site: Site, last: Reading, reading: Reading) -> None:
        """Add a step of a mechanism to the call that its steps are the rows of."""
        joined = last if isinstance(last, Steps) else Steps(last)
        joined.steps.append(reading)
        self.calls.last[site.name] = joined
        site.readings = [joined if call is last else call for call in site.readings]

    def _site_of(self, path: str, reading: Reading, pairs: Reading) -> tuple[str, bool]:
        """The site of a call, and whether it already shares the keys of the call before.

        Inside one forward pass a module that attends again is another site, unless it decodes step by step: with one
        query, over keys that continue those of the last call. The steps of a mechanism of ours over one source are the
        rows of a single call.
        """
        if not self.calls.depth:
            return path, False
        number = self.calls.met.get(path, 0)
        last = self.calls.last.get(numbered(path, number)) if number else None
        if last is not None and reading.sizes[2] == 1:
            continues = reading.continues and _is_same_source(last, reading)
            if continues or _share_keys(last, pairs, self.storage):
                return numbered(path, number), True
        self.calls.met[path] = number + 1
        return numbered(path, number + 1), False


class _ThreadCalls(threading.local):
    """The calls of one thread: each thread that calls the model makes forward passes of its own."""

    def __init__(self) -> None:
        self.depth = 0  # of nested forward passes of the model
        self.met: dict[str, int] = {}  # how often each path has attended in this forward pass
        self.last: dict[str, Reading] = {}  # the last call of each site


def parts_of(model: nn.Module) -> dict[nn.Module, str]:
    """Every module of a model with its first path, like `named_modules`, but several times as fast."""
    paths: dict[nn.Module, str] = {}

    def walk(module: nn.Module, path: str) -> None:
        if module not in paths:
            paths[module] = path
            for name, child in module._modules.items():
                if child is not None:
                    walk(child, f"{path}.{name}" if path else name)

    walk(model, "")
    return paths


def numbered(path: str, count: int) -> str:
    """The name of the count-th site at a path within one forward pass."""
    return path if count <= 1 else f"{path}#{count}"


def _is_same_source(last: Reading, newer: Reading) -> bool:
    """Whether a step has one query and as many keys as the steps before it."""
    step = last.steps[0] if isinstance(last, Steps) else last
    return step.sizes[2] == 1 and step.sizes == newer.sizes and step.sizes[3] > 0


def _share_keys(last: Reading, newer: Reading, storage: Storage) -> bool:
    """Let a decoding step share the keys of the steps before it, if its keys continue theirs."""
    last = last.steps[-1] if isinstance(last, Steps) else last
    last = last.pairs if isinstance(last, Eager) else last
    if not isinstance(last, Pairs) or not isinstance(newer, Pairs) or newer.sizes[2] >= newer.sizes[3] > 1:
        return False
    if not last.key.goes_on(newer.key.kept.get(sampled=False), newer.key.seen, storage):
        return False
    newer.key = last.key
    if last.proof is not None and newer.proof is not None:
        columns = newer.proof.values
        if last.proof.values.goes_on(columns.kept.tensor, columns.seen, storage):
            newer.proof.values = last.proof.values
    return True


def _is_vmapped() -> bool:
    """Whether torch.vmap runs the current call; its tensors cannot be read outside of it."""
    levels = torch._C._functorch.get_interpreter_stack()
    return levels is not None and any(level.key() == TransformType.Vmap for level in levels)

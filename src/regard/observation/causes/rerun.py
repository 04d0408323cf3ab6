"""Running an observed model again with changes inside: at its sites, and at the layers that hold them.

The interception is that of `observe`, so that every call that can be seen can be changed. While a model runs here,
torch's fast paths are off: they compute attention and projection in one call of C++, with nothing between to change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import BadValue, Unsupported
from regard.observation.capture.edits import Edit
from regard.observation.capture.interception import Adapter, Function
from regard.observation.capture.storage import Storage
from regard.observation.causes.copies import ModelCall, first_tensor, with_first_tensor
from regard.observation.observer import Observer, numbered, parts_of
from regard.observation.seen import Seen

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class SiteEdit:
    """A change at sites. The base class changes nothing."""

    sites: Collection[str] | None = ()  # where; None: everywhere

    def mixed(self, name: str, values: Tensor, start: int) -> Tensor:
        """What takes the place of the mixed values (b,h,q,v) of a site, whose first row is position `start`."""
        return values


class RowsEdit(SiteEdit):
    """A change that also concerns queries, keys and values."""

    def rows(self, name: str, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values to attend with."""
        return query, key, value


LayerEdit = Callable[[str, Tensor], Tensor]  # the name of a layer and its rows → the rows that leave it


@dataclass(frozen=True)
class Layer:
    """A block of a model that holds sites: its rows are those of the residual stream."""

    path: str
    module: nn.Module
    sites: list[str] = field(default_factory=list)


class Rerun:
    """A model to be run again, and where it attends."""

    def __init__(self, seen: Seen) -> None:
        if seen.model is None:
            raise BadValue("model: observe() without a model cannot run it again. Use observe(model).")
        if seen.model.training:
            raise BadValue(
                "model: it is in training mode, where dropout changes every run. Call model.eval() and observe again."
            )
        self.model = seen.model
        self.sites = seen.names()
        self.layers = layers_of(seen)

    def run(
        self,
        call: ModelCall,
        at_sites: SiteEdit | None = None,
        at_layers: LayerEdit | None = None,
        skip: Mapping[nn.Module, Any] | None = None,
        grad: bool = False,
    ) -> Any:
        """The model's output. `skip`: outputs to return in the place of running these layers."""
        listener = _Changing(self.model, self.sites, at_sites or SiteEdit())
        with (
            torch.set_grad_enabled(grad),
            torch.random.fork_rng(),
            _slow_paths(),
            self._hooked(at_layers),
            _skipping(skip or {}),
            listener,
        ):
            return self.model(*call.args, **call.kwargs)

    @contextlib.contextmanager
    def _hooked(self, edit: LayerEdit | None) -> Iterator[None]:
        counts: dict[str, int] = {}
        handles = []

        def hook_of(layer: Layer) -> Callable[..., Any]:
            def hook(module: nn.Module, given: Any, output: Any) -> Any:
                assert edit is not None
                counts[layer.path] = counts.get(layer.path, 0) + 1
                rows = first_tensor(output)
                changed = None if rows is None else edit(numbered(layer.path, counts[layer.path]), rows)
                return None if changed is None or changed is rows else with_first_tensor(output, changed)

            return hook

        for layer in self.layers if edit is not None else ():
            handles.append(layer.module.register_forward_hook(hook_of(layer)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class RunRecording(SiteEdit):
    """Keeps the mixed values of every site, and the outputs of every layer."""

    sites = None

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}  # (b,h,q,v); calls of one site are joined
        self.layers: dict[str, Tensor] = {}

    def mixed(self, name: str, values: Tensor, start: int) -> Tensor:
        kept = values.detach().clone()
        self.values[name] = torch.cat([self.values[name], kept], 2) if start else kept
        return values

    def layer(self, name: str, rows: Tensor) -> Tensor:
        """The `LayerEdit` that keeps what a layer returns."""
        self.layers[name] = rows.detach().clone()  # a later layer may add to them in place
        return rows


class _Changing(Observer):
    """An observer that stores nothing and changes calls."""

    def __init__(self, model: nn.Module, expected: Collection[str], edit: SiteEdit) -> None:
        super().__init__(model, Storage(), 1, False)
        self.expected, self.edit = expected, edit
        self.rows_seen: dict[str, int] = {}

    def changed(self, adapter: Adapter, module: nn.Module | None, function: Function) -> Function:
        name = self.next_name(adapter, module)
        if self.edit.sites is not None and name not in self.edit.sites:
            return function
        bound = _Bound(self.edit, name, self.rows_seen)
        if isinstance(self.edit, RowsEdit):
            bound = _BoundRows(self.edit, name, self.rows_seen)

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return adapter.edited(function, args, kwargs, bound)
            except NotImplementedError as why:
                if isinstance(self.edit, RunRecording):  # what is not recorded is not offered for patching
                    return function(*args, **kwargs)
                raise Unsupported(f"{name}: {why} Choose other sites, or layers.") from why

        return run

    def note(self, adapter: Adapter, original: Function, module: nn.Module | None, *rest: Any) -> None:
        path, name = self.path(adapter, module), self.next_name(adapter, module)
        _, _, number = name.partition("#")
        self.calls.met[path] = int(number or 1)


class _Bound(Edit):
    """The edit of one call: knows its site and how many rows of it came before."""

    def __init__(self, edit: Any, name: str, before: dict[str, int]) -> None:
        self.edit, self.name, self.before = edit, name, before

    def mixed(self, values: Tensor) -> Tensor:
        start = self.before.get(self.name, 0)
        self.before[self.name] = start + values.shape[2]
        mixed: Tensor = self.edit.mixed(self.name, values, start)
        return mixed


class _BoundRows(_Bound):
    """The same for an edit of queries, keys and values."""

    def rows(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        edited_rows: tuple[Tensor, Tensor, Tensor] = self.edit.rows(self.name, query, key, value)
        return edited_rows


def layers_of(seen: Seen) -> list[Layer]:
    """The blocks that hold the sites, in the order of their first call.

    A block is an item of a list of modules of one class; an item of a list of different modules (attention, then
    feed-forward) is only a part of one. A module that attends outside any list is its own layer; the model itself is
    none. Several sites of one module (the heads of a machine that write and that read) are one layer.
    """
    assert seen.model is not None
    names = parts_of(seen.model)
    paths = {path: module for module, path in names.items()}
    layers: dict[nn.Module, Layer] = {}
    for name in seen.names():
        path = _block_path(name.partition("#")[0], paths)
        module = paths.get(path, seen[name].module)
        if module is not None and module is not seen.model:
            layers.setdefault(module, Layer(names.get(module, path), module)).sites.append(name)
    return list(layers.values())


def _block_path(path: str, paths: Mapping[str, nn.Module]) -> str:
    segments = path.split(".")
    items = []
    for end in range(len(segments), 0, -1):
        holder = paths.get(".".join(segments[: end - 1]))
        if isinstance(holder, _LISTS) and ".".join(segments[:end]) in paths:
            items.append(".".join(segments[:end]))
            if len({type(item) for item in holder.children()}) == 1:
                return items[-1]
    return items[0] if items else path


@contextlib.contextmanager
def _slow_paths() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _skipping(outputs: Mapping[nn.Module, Any]) -> contextlib.AbstractContextManager[None]:
    """Let layers return what they would compute, without computing it."""
    return other_forwards({module: lambda *_, output=output, **__: output for module, output in outputs.items()})


@contextlib.contextmanager
def other_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Let modules run other functions than their own `forward`."""
    before = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module, own_forward in before.items():
            if own_forward is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = own_forward

"""How a kernel is launched: the one place that knows.

Triton inspects every argument of every launch, which for our kernels takes longer than many of them run. Here the first
launch of a kernel goes through Triton; later ones call Triton's own C function with the arguments that Triton passed to
it (`raw_launches.py`). Where that is not possible every launch goes through Triton, and `refusal` says why.

- `Launch` repeats one launch whose arguments stay the same, but for some tensors.
- `launch` runs a kernel whose numbers change as well; `launch_again` makes a `Launch` of what it has run.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.errors import Unsupported
from regard.implementations.triton.launch.block_sizes import INTERPRETED, MULTIPROCESSORS, SMALL
from regard.implementations.triton.launch.raw_launches import STREAM, RawLaunch, addresses, refusal, watched, with_base

Grid = tuple[int, int, int]


@lru_cache(maxsize=64)
def processors(device: torch.device) -> int:
    """How many programs the device runs at once; a small number in the interpreter."""
    if device.type == "cuda":
        count: int = torch.cuda.get_device_properties(device).multi_processor_count
        return count
    return 4 if SMALL else MULTIPROCESSORS


_HERE: AbstractContextManager[Any] = nullcontext()
_MOST_MAPS = 512
_KNOWN: dict[Any, RawLaunch] = {}
_MOST_KNOWN = 4096


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which the device of a tensor is the current one, as a launch requires."""
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return _HERE
    return torch.cuda.device(tensor.device)


def prototype(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """One number, spread out to a shape: `torch.empty_like` makes tensors from it faster than others from sizes."""
    return _number(dtype, device).expand(shape)


@lru_cache(maxsize=64)
def _number(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(1, dtype=dtype, device=device)


def aligned_rows(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, int, int] | None:
    """Their addresses; None if one is not aligned, or has no memory of its own, as what torch.func leaves behind."""
    try:
        rows = q, k, v = query.data_ptr(), key.data_ptr(), value.data_ptr()
    except RuntimeError:
        return None
    return rows if q and k and v and not (q | k | v) % 16 else None


def run_fitting(kernel: Any, grid: Grid, given: dict[str, Any]) -> Any:
    """Launch by Triton. On a GPU with little shared memory, with fewer stages: `given` then says how many fit.

    Block sizes are those of an H200, whose programs have 227 KiB of it; gaming cards have 99.
    """
    while True:
        try:
            return kernel[grid](**given)
        except OutOfResources as short:
            if short.name == "shared memory" and given.get("num_stages", 1) > 1:
                given["num_stages"] -= 1
                continue
            raise Unsupported(
                f"impl='triton': the kernel {kernel.__name__} takes {short.required} of {short.name}, this GPU has "
                f"{short.limit}. impl='tiled' computes the same anywhere."
            ) from short


class Launch:
    """A kernel with all its arguments, of which some are tensors that change from call to call.

    Those are not kept. A caller makes one object for each alignment of its tensors, since code is compiled for it.
    """

    def __init__(
        self, kernel: Any, grid: Grid, arguments: dict[str, Any], changing: Sequence[str],
        also: dict[str, str] | None = None, repeats: bool = True,
    ) -> None:
        """`changing` names the tensors to pass in each call, in order; `repeats=False`: Triton makes every launch.

        `also`: further arguments that take the same tensor as one of those.
        """
        self.kernel, self.grid, self.repeats = kernel, grid, repeats and not INTERPRETED
        order = list(changing)
        # Each argument that changes: its name, its tensor's index, and its descriptor, where it is one.
        self.gaps: list[tuple[str, int, TensorDescriptor | None]] = []
        for name, source in {**{name: name for name in order}, **(also or {})}.items():
            argument = arguments[name]
            pattern = with_base(argument, None) if isinstance(argument, TensorDescriptor) else None
            self.gaps.append((name, order.index(source), pattern))
            arguments[name] = None
        self.arguments = arguments
        self.order = {name: place for place, name in enumerate(kernel.arg_names)}
        self.ready = False  # whether `at` can be called; once it can be, it always can
        self.raw: RawLaunch | None = None
        self.complete: list[Any] = []  # what the C function takes, with gaps
        self.plain: list[tuple[int, int]] = []  # an address, and its place there
        self.mapped: list[tuple[int, int, dict[int, Any]]] = []  # the same with tensor maps by address

    def __call__(self, *tensors: Any) -> None:
        """Launch it with these tensors, or tuples of tensors, on the current stream of the current device, theirs."""
        if not self.ready or watched():
            self._launch_by_triton(tensors)
        else:
            self.at(torch._C._cuda_getCurrentRawStream(tensors[0].get_device()), addresses(tensors))

    def at(self, stream: int, given: Sequence[Any]) -> None:
        """Launch it with tensors at these addresses on a stream of the current device; not while `watched`."""
        arguments = self.complete.copy()
        arguments[STREAM] = stream
        for index, place in self.plain:
            arguments[place] = given[index]
        for index, place, maps in self.mapped:
            tensor_map = maps.get(given[index])
            arguments[place] = self._map_of(given[index], place, maps) if tensor_map is None else tensor_map
        raw: RawLaunch = self.raw  # type: ignore[assignment]
        if raw.nested:
            raw.call(arguments)
        else:
            raw.function(*arguments)

    def _launch_by_triton(self, tensors: tuple[Any, ...]) -> None:
        arguments = dict(self.arguments)
        for name, index, pattern in self.gaps:
            arguments[name] = tensors[index] if pattern is None else with_base(pattern, tensors[index])
        compiled = run_fitting(self.kernel, self.grid, arguments)
        if "num_stages" in arguments:
            self.arguments["num_stages"] = arguments["num_stages"]
        if not self.repeats or self.raw is not None or refusal(tensors[0].device) is not None:
            return
        names = self.kernel.arg_names
        raw = RawLaunch.of(compiled, [arguments[name] for name in names], [names.index(gap[0]) for gap in self.gaps])
        if raw is None:
            self.repeats = False
            return
        begin = len(raw.head)
        self.complete = [*self.grid, 0, *raw.head[STREAM + 1 :], *raw.values]
        plain: list[tuple[int, int]] = []
        mapped: list[tuple[int, int, dict[int, Any]]] = []
        for place, (_, index, pattern) in zip(raw.places, self.gaps, strict=True):
            if pattern is None or not raw.has_maps:
                plain.append((index, begin + place))
            else:
                mapped.append((index, begin + place, {}))
        self.plain, self.mapped, self.raw = plain, mapped, raw
        self.ready = True  # last: another thread may be reading

    def adopt(self, raw: RawLaunch, values: Sequence[Any]) -> None:
        """Launch by a C function that is known already, for the same code with other numbers.

        It takes every argument, as those that `launch` keeps do; none of them is a descriptor.
        """
        begin = len(raw.head)
        self.complete = [*self.grid, 0, *raw.head[STREAM + 1 :], *addresses(values)]
        self.plain = [(index, begin + self.order[name]) for name, index, _ in self.gaps]
        self.raw = raw
        self.ready = True

    def with_numbers(self, numbers: dict[str, int]) -> Launch:
        """The same launch with other numbers, for which the code is the same; for kernels without descriptors."""
        changed = copy.copy(self)
        changed.arguments = {**self.arguments, **numbers}
        if self.raw is not None:
            begin, changed.complete = len(self.raw.head), self.complete.copy()
            for name, number in numbers.items():
                changed.complete[begin + self.order[name]] = number
        return changed

    def _map_of(self, address: int, place: int, maps: dict[int, Any]) -> Any:
        """The tensor map of a tensor at an address that is new, or was forgotten."""
        assert self.raw is not None
        tensor_map = self.raw.map_of(place - len(self.raw.head), address)
        if len(maps) >= _MOST_MAPS:
            maps.clear()
        maps[address] = tensor_map
        return tensor_map


def launch(kernel: Any, grid: tuple[int, ...], *values: Any, key: Any = None, **named: Any) -> None:
    """Launch a kernel with arguments in order and by name, and the compiler's options; the first is a tensor.

    `key` contains everything that the compiled code depends on, besides the kernel, the device and the options; without
    one it is found from the arguments.
    """
    if INTERPRETED:
        kernel[grid](*values, **named)
        return
    names = kernel.arg_names
    if len(values) < len(names):
        values = (*values, *[named.pop(name) for name in names[len(values) :]])
    # `Launch` keeps tensor maps, this function does not.
    if any(isinstance(value, TensorDescriptor) for value in values):
        with on_device(values[0]):
            kernel[grid](*values, **named)
        return
    x, y, z = (*grid, 1, 1)[:3]
    device = values[0].get_device()
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, *values, key=key, **named)
        return
    # A kernel's own hash is that of its source.
    key = (id(kernel), device, tuple(named.items()), _kinds(kernel, values) if key is None else key)
    raw = _KNOWN.get(key)
    if raw is not None and not watched():
        raw.launch((x, y, z), torch._C._cuda_getCurrentRawStream(device), addresses(values))
        return
    compiled = kernel[grid](*values, **named)
    if raw is None and refusal(values[0].device) is None:
        repeatable = RawLaunch.of(compiled, list(values), range(len(values)))
        if repeatable is not None and repeatable.places == list(range(len(values))):
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[key] = repeatable


def launch_again(
    kernel: Any, grid: Grid, values: Sequence[Any], changing: Sequence[str], *, key: Any, **named: Any
) -> Launch:
    """A `Launch` of what `launch` runs with these arguments; where it has run such code, without Triton's Python."""
    relaunch = Launch(kernel, grid, {**dict(zip(kernel.arg_names, values, strict=True)), **named}, changing)
    raw = None if INTERPRETED else _KNOWN.get((id(kernel), values[0].get_device(), tuple(named.items()), key))
    if raw is not None:
        relaunch.adopt(raw, values)
    return relaunch


def _kinds(kernel: Any, values: Sequence[Any]) -> tuple[Any, ...]:
    """What Triton compiles a kernel for: dtypes and alignments, small facts about whole numbers, constants."""
    return tuple([
        value if parameter.is_constexpr else _kind(value, parameter.do_not_specialize)
        for parameter, value in zip(kernel.params, values, strict=True)
    ])


def _kind(value: Any, plain: bool) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if type(value) is int:
        wide = not -(2**31) <= value < 2**31
        return wide if plain else (wide, value == 1, value % 16 == 0)
    if type(value) is tuple:
        return tuple([_kind(element, False) for element in value])  # inside of tuples Triton looks at every number
    return type(value)

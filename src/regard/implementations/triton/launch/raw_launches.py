"""Launches by Triton's C function, without Triton's Python code around it.

What the C function takes is recorded from Triton itself: its Python code runs once with a function that notes its
arguments in place of the C function. This depends on names inside Triton (3.6 and later are known), so the first use on
a GPU checks the result of a small kernel; `refusal` tells what did not work.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.implementations.lowering import capturing

STREAM = 3  # what the C function takes: three sizes of the grid, the stream, the kernel and more, then its arguments


class _Gap:
    """Stands for an argument that changes from launch to launch."""

    def __init__(self, address: int = 0) -> None:
        self.address = address

    def data_ptr(self) -> int:
        """The address for which Triton makes a tensor map."""
        return self.address


class RawLaunch:
    """A compiled kernel, Triton's C function for it, and the arguments of that function."""

    def __init__(self, compiled: Any, pattern: list[Any], gaps: list[_Gap]) -> None:
        """`pattern`: the kernel's arguments, with gaps in place of tensors, also in descriptors; the first is one."""
        self.compiled, self.pattern = compiled, pattern
        self.function, noted = _record(compiled, pattern)
        self.nested = isinstance(noted[-1], tuple) and any(part in gaps for part in _flat(noted[-1]))
        found = list(noted[-1] if self.nested else noted)
        maps = [place for place, value in enumerate(found) if type(value).__name__ == "PyCUtensorMap"]
        self.has_maps = bool(maps)
        self.places = []
        for gap in gaps:
            at = next((place for place, value in enumerate(found) if value is gap), None)
            self.places.append(maps.pop(0) if at is None else at)
        first = 0 if self.nested else min(self.places)
        self.head = list(noted[:-1] if self.nested else noted[:first])
        self.values = addresses(found[first:])
        self.places = [place - first for place in self.places]
        self.kept = pattern  # the tensors whose addresses are among the values

    @staticmethod
    def of(compiled: Any, values: list[Any], changing: Sequence[int]) -> RawLaunch | None:
        """The launch of a kernel with these arguments, of which some change; None where Triton adds more to them."""
        metadata = compiled.metadata
        if metadata.global_scratch_size or metadata.profile_scratch_size or 0 not in changing:
            return None
        pattern, gaps = list(values), []
        for index in sorted(changing):
            given = values[index]
            described = isinstance(given, TensorDescriptor)
            gap = _Gap(given.base.data_ptr() if described else 0)
            pattern[index] = with_base(given, gap) if described else gap
            gaps.append(gap)
        found = RawLaunch(compiled, pattern, gaps)
        found.places = [found.places[sorted(changing).index(index)] for index in changing]
        return found

    def launch(self, grid: tuple[int, int, int], stream: int, values: list[Any]) -> None:
        """Launch the kernel on a stream of the current device."""
        self.call([*grid, stream, *self.head[STREAM + 1 :], *values])

    def call(self, arguments: list[Any]) -> None:
        """Launch the kernel with what the C function takes: grid, stream and the rest of the head, then the values."""
        if self.nested:
            split = len(self.head)
            self.function(*arguments[:split], tuple(arguments[split:]))
        else:
            self.function(*arguments)

    def map_of(self, place: int, address: int) -> Any:
        """The tensor map for a tensor at another address, at a place among the values."""
        gap = _Gap(address)
        pattern = [with_base(one, gap) if isinstance(one, TensorDescriptor) else one for one in self.pattern]
        noted = _record(self.compiled, pattern)[1]
        return noted[-1][place] if self.nested else noted[len(self.head) + place]


def _record(compiled: Any, values: list[Any]) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """Triton's C function for a compiled kernel, and what Triton would call it with for these arguments."""
    noted: list[tuple[Any, ...]] = []

    def note(*arguments: Any) -> None:
        noted.append(arguments)

    run = copy.copy(compiled.run)
    function = run.launch
    names = function.__code__.co_freevars if isinstance(function, FunctionType) else ()
    if "launcher" in names:  # it makes tensor maps from descriptors and then calls the C function
        cells = list(function.__closure__)
        at = names.index("launcher")
        run.launch = FunctionType(
            function.__code__, function.__globals__, closure=(*cells[:at], CellType(note), *cells[at + 1 :])
        )
        function = cells[at].cell_contents
    else:
        run.launch = note
    run(1, 1, 1, 0, compiled.function, compiled.packed_metadata, None, None, None, *values)
    return function, noted[0]


def _flat(values: tuple[Any, ...]) -> list[Any]:
    return [one for value in values for one in (_flat(value) if isinstance(value, tuple) else [value])]


def watched() -> bool:
    """Whether a profiler asked Triton to tell it of every launch."""
    runtime = knobs.runtime
    return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls)


def addresses(values: Sequence[Any]) -> list[Any]:
    """The same arguments with the addresses of tensors in their place."""
    return [
        value.data_ptr() if isinstance(value, Tensor) else tuple(addresses(value)) if type(value) is tuple else value
        for value in values
    ]


def with_base(pattern: TensorDescriptor, base: Any) -> TensorDescriptor:
    """The same descriptor of another tensor, without checking it again."""
    found = object.__new__(TensorDescriptor)
    found.__dict__.update(pattern.__dict__, base=base)
    return found


_DIFFERS = f"with Triton {triton.__version__} a launch without its Python code"
_REFUSAL: list[str | None] = []  # the result of the check, once it has run
_CHECKING = threading.Lock()


def refusal(device: torch.device) -> str | None:
    """Why launches on a GPU go through Triton's Python code; None where they need not. Checked at the first use."""
    if not _REFUSAL:
        if capturing():
            return "a CUDA graph is being captured, and launching was not checked before"
        with _CHECKING:
            if not _REFUSAL:
                _REFUSAL.append(_checked(device))
    return _REFUSAL[0]


def known_refusal() -> str | None:
    """What the check found; None before it has run."""
    return _REFUSAL[0] if _REFUSAL else None


def _checked(device: torch.device) -> str | None:
    """Run the check below by Triton and without it."""
    if torch.version.hip is not None:
        return "raw launches are written for NVIDIA's driver"
    try:
        with torch.cuda.device(device):
            return _compare(device)
    except Exception as problem:
        return f"{_DIFFERS} raised {type(problem).__name__}: {problem}"


def _compare(device: torch.device) -> str | None:
    tables = tuple(torch.full((16,), number, device=device) for number in (3.0, 7.0))
    rows = [torch.randint(-50, 50, (2, 5, 16), device=device).float() for _ in range(2)]  # exact in any order
    results = [torch.zeros(5, 16, device=device) for _ in range(2)]
    numbers = [torch.full((16,), 100.0, device=device) for _ in range(2)]
    strides = (16, 1, 5)
    patterns = [TensorDescriptor(one[1], [5, 16], [16, 1], [1, 16]) for one in rows]
    given = [results[0], patterns[0], numbers[0], tables, strides, 2.5, 11, None, 16]
    compiled = _probe[(5, 1, 1)](*given)
    raw = RawLaunch.of(compiled, given, [0, 1, 2])
    if raw is None:
        return "Triton asks for scratch memory"
    values = raw.values.copy()
    for place, value in zip(raw.places, (results[1], patterns[1], numbers[1]), strict=True):
        is_map = isinstance(value, TensorDescriptor) and raw.has_maps
        base = value.base if isinstance(value, TensorDescriptor) else value
        values[place] = raw.map_of(place, base.data_ptr()) if is_map else base.data_ptr()
    raw.launch((5, 1, 1), torch._C._cuda_getCurrentRawStream(results[1].get_device()), values)
    for result, row in zip(results, rows, strict=True):
        if not torch.equal(result, row[1] * 2.5 + (7.0 + 100.0 + 5.0 + 11.0)):
            return f"with Triton {triton.__version__} a launch without its Python code computed something else"
    return None


@triton.jit(do_not_specialize=["STRIDES", "number"])
def _probe(OUT, ROWS, NUMBERS, TABLES, STRIDES, factor, number, NOTHING, WIDTH: tl.constexpr):
    """Use arguments of every kind that our kernels take."""
    across, row = tl.arange(0, WIDTH), tl.program_id(0)
    found = ROWS.load([row, 0]).reshape([WIDTH]) * factor
    found += tl.load(TABLES[1] + across) + tl.load(NUMBERS + across) + STRIDES[2] + number
    tl.store(OUT + row * STRIDES[0] + across, found)

"""Calls on tensors of the CPU that take the way they take on a GPU, where every launch of a kernel does nothing.

What a driver does is replaced: launches, tensor maps, the current stream and device. Everything else is the code that
runs on a GPU. Outputs are memory as it was found.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.dispatch import attention, plan, repeated_calls
from regard.implementations import triton as kernels
from regard.implementations.triton.launch import blocks, launching, raw_launches

# Written in C, and takes any arguments: stands for Triton's C function, without the time that it takes to read them.
_nothing = itertools.chain
_METADATA = SimpleNamespace(global_scratch_size=0, profile_scratch_size=0)


class PyCUtensorMap:
    """Stands for Triton's tensor map, which is known by its name."""

    def __init__(self, address: int) -> None:
        self.address = address


def _expanded(launcher: Any) -> Any:
    """What Triton's Python code does with descriptors before it calls its C function `launcher`."""

    def inner(*arguments: Any) -> None:
        flat: list[Any] = []
        for value in arguments:
            if isinstance(value, TensorDescriptor):
                flat += [PyCUtensorMap(value.base.data_ptr()), *value.shape, *value.strides]
            else:
                flat.append(value)
        launcher(*flat)

    return inner


class _Compiled:
    """Stands for a compiled kernel; its launcher takes what that of Triton 3.6 takes."""

    function, packed_metadata, metadata = 77, (4, 1, 0), _METADATA

    class _Run:
        def __init__(self) -> None:
            self.launch = _expanded(_nothing)

        def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
            self.launch(x, y, z, stream, function, False, False, None, None, *rest)

    def __init__(self) -> None:
        self.run = self._Run()


def _run(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> _Compiled:
    """Stands for the first launch of a kernel, by Triton."""
    return _Compiled()


def _fill(kernel: Any, grid: Any, *values: Any, **named: Any) -> None:
    """Stands for launches that fill tables of a mask, whose numbers become sizes of others: with zeros."""
    for value in values:
        if isinstance(value, Tensor):
            value.zero_()


@contextmanager
def unlaunched() -> Iterator[None]:
    """While this lasts, calls of `attend` on the CPU run as on a GPU and launch nothing."""
    current_device = itertools.repeat(-1).__next__  # what a tensor of the CPU has for an index
    with ExitStack() as stack:

        def replace(owner: Any, name: str, stand_in: Any, create: bool = False) -> None:
            stack.enter_context(mock.patch.object(owner, name, stand_in, create=create))

        replace(JITFunction, "run", _run)
        replace(blocks, "launch", _fill)
        replace(raw_launches, "_REFUSAL", [None])
        replace(kernels, "INTERPRETED", True)  # so that it does not refuse tensors of the CPU
        replace(plan, "_fastest_first", lambda request: ("triton",))
        replace(repeated_calls, "_is_on_gpu", Tensor.is_cpu.__get__)  # type: ignore[attr-defined]
        replace(torch.cuda, "_initialized", True)
        replace(torch._C, "_cuda_getDevice", current_device, create=True)
        replace(torch._C, "_cuda_getCurrentRawStream", abs, create=True)
        replace(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", itertools.repeat(False).__next__)
        _forget()
        try:
            yield
        finally:
            _forget()


def _forget() -> None:
    """Clear what earlier calls have left behind: plans, tables of masks and launches."""
    for table in (attention._PLANS, repeated_calls.KNOWN, blocks._BY_SPEC, blocks._OF_MASKS, launching._KNOWN):
        table.clear()

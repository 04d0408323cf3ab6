"""Triton's interpreter, made to notice every read and write outside of the tensors that a kernel was given.

A GPU answers most of them with whatever lies there, and some with an illegal memory access; the interpreter, too, just
reads. Here each address that is not masked must lie between the first and the last element of an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor
from triton.runtime import interpreter


class Outside(AssertionError):
    """A kernel read or wrote outside of its arguments."""


class Bounds:
    """The stretches of memory that the running kernel may touch."""

    def __init__(self) -> None:
        self.starts = self.ends = np.zeros(0, np.uint64)
        self.checked = 0  # addresses

    def set(self, tensors: list[Tensor]) -> None:
        """Allow these tensors; stretches that touch or overlap become one."""
        merged: list[list[int]] = []
        for start, end in sorted(_stretch(one) for one in tensors if one.numel()):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        self.starts, self.ends = (np.array([one[i] for one in merged], np.uint64) for i in (0, 1))

    def check(self, what: str, pointers: Any, mask: Any) -> None:
        """Raise if an address that the mask lets through is not allowed."""
        used = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        size = np.uint64(pointers.get_element_ty().primitive_bitwidth // 8)
        given = pointers.data.astype(np.uint64)[used]
        self.checked += given.size
        place = np.searchsorted(self.starts, given, side="right") - 1
        wrong = (place < 0) | (given + size > self.ends[place.clip(0)])
        if wrong.any():
            raise Outside(
                f"{what} of {int(wrong.sum())} of {given.size} addresses outside of the kernel's arguments"
            )


def _stretch(tensor: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _tensors(given: Any) -> list[Tensor]:
    if isinstance(given, (list, tuple)):
        return [found for one in given for found in _tensors(one)]
    return [given] if isinstance(given, Tensor) else []


@contextmanager
def checked_addresses() -> Iterator[Bounds]:
    """While this lasts, a kernel that leaves its arguments raises `Outside`."""
    builder, bounds = interpreter.InterpreterBuilder, Bounds()
    read: Callable[..., Any] = builder.create_masked_load
    write: Callable[..., Any] = builder.create_masked_store
    execute: Callable[..., Any] = interpreter.GridExecutor.__call__

    def load(self: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        bounds.check("a read", pointers, mask)
        return read(self, pointers, mask, *rest, **named)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        bounds.check("a write", pointers, mask)
        return write(self, pointers, value, mask, *rest, **named)

    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        bounds.set(_tensors(arguments) + _tensors(list(options.values())))
        return execute(self, *arguments, **options)

    builder.create_masked_load, builder.create_masked_store = load, store
    interpreter.GridExecutor.__call__ = run
    try:
        yield bounds
    finally:
        builder.create_masked_load, builder.create_masked_store = read, write
        interpreter.GridExecutor.__call__ = execute

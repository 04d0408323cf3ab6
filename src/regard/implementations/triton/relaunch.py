"""Launching a kernel again with other tensors, without Triton's check of each of its many arguments.

The first launch yields the compiled kernel. It and the arguments that stay the same from call to call are kept with the
mask (`PreparedMask.launched`); tensors of a request are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.implementations.triton.block_sizes import INTERPRETED

_MOST = 64


class Launched(NamedTuple):
    """A compiled kernel and its arguments, with gaps for the tensors of a request."""

    compiled: Any
    grid: tuple[int, int, int]
    values: list[Any]
    indices: dict[str, int]

    def again(self, tensors: dict[str, Tensor]) -> None:
        """Launch it with these tensors."""
        values = self.values.copy()
        for name, tensor in tensors.items():
            index = self.indices[name]
            if values[index] is None:
                values[index] = tensor
            else:
                values[index] = _described(values[index], tensor)
        self.compiled[self.grid](*values)


def launch(
    kernel: Any, programs: int, memory: dict[Any, Launched], key: Any, tensors: dict[str, Tensor],
    arguments: Callable[[], dict[str, Any]],
) -> None:  # fmt: skip
    """Launch a kernel.

    `key` contains everything that the compiled code and the other arguments depend on; `tensors` are the arguments that
    change from call to call; `arguments` returns all of them, some possibly as descriptors for the copy engine.
    """
    aligned = not any(tensor.data_ptr() % 16 for tensor in tensors.values())
    known = memory.get(key) if aligned else None
    if known is not None:
        known.again(tensors)
        return
    given = arguments()
    compiled = kernel[(programs,)](**given)
    if INTERPRETED or not aligned:
        return
    if len(memory) >= _MOST:
        memory.clear()
    names = list(kernel.arg_names)
    indices = {name: names.index(name) for name in tensors}
    values = [given[name] for name in names]
    for index in indices.values():
        described = isinstance(values[index], TensorDescriptor)
        values[index] = _described(values[index], None) if described else None
    memory[key] = Launched(compiled, (programs, 1, 1), values, indices)


def _described(pattern: TensorDescriptor, tensor: Tensor | None) -> TensorDescriptor:
    """The same descriptor for another tensor, without checking it again."""
    found = object.__new__(TensorDescriptor)
    found.__dict__.update(pattern.__dict__, base=tensor)
    return found

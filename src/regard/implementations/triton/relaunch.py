"""Launching a kernel once more with other tensors, without Triton's look at each of its many arguments.

The first launch tells how Triton has compiled the kernel. All that does not change from call to call is kept beside the
mask it belongs to (`Prepared.launched`), no tensor of a request among it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.implementations.triton.block_sizes import INTERPRETED

_MOST = 64


class Launched(NamedTuple):
    """A compiled kernel and its arguments, with gaps where tensors of a request go."""

    compiled: Any
    grid: tuple[int, int, int]
    values: list[Any]
    places: dict[str, int]

    def again(self, tensors: dict[str, Tensor]) -> None:
        """Launch it with these tensors."""
        values = self.values.copy()
        for name, tensor in tensors.items():
            place = self.places[name]
            if values[place] is None:
                values[place] = tensor
            else:
                values[place] = _described(values[place], tensor)
        self.compiled[self.grid](*values)


def launch(
    kernel: Any, programs: int, memory: dict[Any, Launched], key: Any, tensors: dict[str, Tensor],
    arguments: Callable[[], dict[str, Any]],
) -> None:  # fmt: skip
    """Launch a kernel.

    `key` tells apart whatever the compiled code and the other arguments depend on; `tensors` are those that change from
    call to call, by the names of the arguments; `arguments` gives all, some perhaps described to the copy engine.
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
    places = {name: names.index(name) for name in tensors}
    values = [given[name] for name in names]
    for place in places.values():
        described = isinstance(values[place], TensorDescriptor)
        values[place] = _described(values[place], None) if described else None
    memory[key] = Launched(compiled, (programs, 1, 1), values, places)


def _described(pattern: TensorDescriptor, tensor: Tensor | None) -> TensorDescriptor:
    """The same description of another tensor; what it was checked for has not changed."""
    found = object.__new__(TensorDescriptor)
    found.__dict__.update(pattern.__dict__, base=tensor)
    return found

"""The layer in a graph of `torch.fx`: one node that calls the module, as torch's own layer is.

A tracer calls a module with stand-ins for tensors, which have no number of axes to check. It goes around the modules
whose `__module__` begins with torch.nn, and records a call of them. That name is all it asks for, before any hook runs.
"""

from __future__ import annotations

from torch import nn
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

_TORCHS = nn.MultiheadAttention.__module__


class LeafName(str):
    """The module of a class by name, of whose instances a tracer is told that they are torch's.

    >>> class Layer: pass
    >>> Layer.__module__ = LeafName("mine")
    >>> Layer.__module__, Layer().__module__
    ('mine', 'mine')
    """

    __slots__ = ()

    def __get__(self, instance: object, owner: type | None = None) -> str:
        is_traced = instance is not None and is_fx_symbolic_tracing()
        return _TORCHS if is_traced else str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A pickle of the class holds its module's name, which has to be a string and nothing else."""
        return str, (str(self),)

"""A mask of regard that transformers can carry as if it were the bool tensor (b,1,q,k) it creates elsewhere.

Models pass masks on, slice them, join them with others or write into them. So the mask has to be a tensor. This one
has a shape and a dtype but no storage: the attention function takes its `structure`. The dense tensor is only made when
an operation of torch asks for it, and from then on every operation, also one that writes, works on that tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from regard.masks import Mask


class StructuredMask(Tensor):
    """A bool tensor (b,1,q,k), True = may attend, whose contents are a mask of the algebra."""

    anchor: dict[str, int]  # the offset of queries among keys, as positional masks and biases take it
    _mask: Mask
    _dense: Tensor | None
    _made_at: int  # the version of the dense tensor when it was made

    # Operations reach `__torch_dispatch__`, where what they read and write is known.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls,
        mask: Mask,
        batch: int,
        queries: int,
        keys: int,
        device: torch.device | str,
        anchor: dict[str, int] | None = None,
    ) -> StructuredMask:
        made: StructuredMask = torch.Tensor._make_wrapper_subclass(
            cls, (batch, 1, queries, keys), dtype=torch.bool, device=torch.device(device)
        )
        made._mask, made._dense, made._made_at, made.anchor = mask, None, 0, anchor or {}
        return made

    @property
    def structure(self) -> Mask | None:
        """The mask; None if the dense tensor, or a view of it, was written to."""
        return self._mask if self._dense is None or self._dense._version == self._made_at else None

    def covers(self, queries: int, keys: int) -> bool:
        """Whether it still is a mask of the algebra, for so many queries and keys."""
        return self.structure is not None and (self.shape[2], self.shape[3]) == (queries, keys)

    def written_out(self) -> Tensor:
        """The dense tensor (b,1,q,k), made at the first call."""
        if self._dense is None:
            batch, _, queries, keys = self.shape
            found = self._mask.dense(queries, keys, batch, device=self.device)
            self._dense = found.expand(batch, 1, queries, keys).contiguous()
            self._made_at = self._dense._version
        return self._dense

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:  # checkpointing of activations detaches every argument
            return args[0]
        args, kwargs = tree_map(_written_out, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        mask = self.structure
        return f"StructuredMask({self.written_out() if mask is None else mask!r}, shape={tuple(self.shape)})"


def _written_out(given: Any) -> Any:
    return given.written_out() if isinstance(given, StructuredMask) else given

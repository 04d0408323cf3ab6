"""A mask of regard that transformers carries as the additive tensor (b,1,q,k) that it makes for eager attention.

Models pass masks on, slice them, add to them or write into them. So the mask has to be a tensor, and since every model
works on eager attention, the tensor of eager attention: 0 where a key is visible, the smallest number elsewhere. It has
a shape and a dtype but no storage: the attention function takes its `structure`. The dense tensor is only made when an
operation of torch asks for it. Once it can have been written to, the dense tensor is the mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from regard.masks import Mask

_MOVES = {"device", "dtype", "layout", "non_blocking"}  # arguments of `.to()` that may leave the contents as they are


class StructuredMask(Tensor):
    """A floating-point tensor (b,1,q,k), to be added to scores, whose contents are a mask of the algebra."""

    anchor: dict[str, Any]  # the offset of queries among keys, as positional masks and biases take it
    _mask: Mask
    _dense: Tensor | None
    _shared: bool  # whether the dense tensor may have been written to

    # Operations reach `__torch_dispatch__`, where what they read and write is known.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        mask: Mask,
        batch: int,
        queries: int,
        keys: int,
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
        anchor: dict[str, Any] | None = None,
    ) -> StructuredMask:
        wrapper: StructuredMask = torch.Tensor._make_wrapper_subclass(
            cls, (batch, 1, queries, keys), dtype=dtype, device=torch.device(device)
        )
        wrapper._mask, wrapper._dense, wrapper._shared, wrapper.anchor = mask, None, False, anchor or {}
        return wrapper

    @property
    def structure(self) -> Mask | None:
        """The mask; None if the dense tensor was written to, or a view of it exists, which may be written to."""
        return None if self._shared else self._mask

    def covers(self, queries: int, keys: int) -> bool:
        """Whether the mask is still one of the algebra and has this number of queries and keys."""
        return self.structure is not None and (self.shape[2], self.shape[3]) == (queries, keys)

    def written_out(self) -> Tensor:
        """The dense tensor (b,1,q,k), made at the first call."""
        if self._dense is None:
            batch, _, queries, keys = self.shape
            visible = self._mask.dense(queries, keys, batch, device=self.device)
            self._dense = added(visible.expand(batch, 1, queries, keys), self.dtype)
        return self._dense

    def moved(self, device: torch.device | None) -> StructuredMask | None:
        """The same mask on another device; None where only the dense tensor tells what it is."""
        mask, place = self.structure, self.device if device is None else device
        if mask is None:
            return None
        batch, _, queries, keys = self.shape
        return StructuredMask(mask.to(place), batch, queries, keys, place, self.dtype, self.anchor)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = self.moved(self.device)  # a mask never changes, so that both may share it
        return self.written_out().clone() if copied is None else copied

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func is torch.ops.aten.detach.default:  # checkpointing of activations detaches every argument
            return args[0]
        if func is torch.ops.aten._to_copy.default and not set(options) - _MOVES:
            # accelerate moves masks to the device of a layer
            moved = args[0].moved(options.get("device"))
            if moved is not None and options.get("dtype") in (None, moved.dtype):
                return moved
        if func._schema.is_mutable or any(returned.alias_info is not None for returned in func._schema.returns):
            tree_map_only(StructuredMask, _share, (args, options))
        args, options = tree_map_only(StructuredMask, StructuredMask.written_out, (args, options))
        return func(*args, **options)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        mask = self.structure
        return f"StructuredMask({self.written_out() if mask is None else mask!r}, shape={tuple(self.shape)})"


def added(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """What eager attention adds to scores: 0 where a key is visible, the smallest number of the dtype elsewhere."""
    return torch.where(visible, torch.zeros((), dtype=dtype, device=visible.device), torch.finfo(dtype).min)


def _share(mask: StructuredMask) -> None:
    mask._shared = True

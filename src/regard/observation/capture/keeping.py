"""What is kept of a call: references to tensors that know whether somebody has written into them since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.value import Value

V = TypeVar("V", bound=Value)


class Changed(RegardError, RuntimeError):
    """A tensor that a call was noted with has been written to since, so that its weights cannot be told any more."""


@dataclass(frozen=True)
class Kept:
    """A tensor of a noted call."""

    tensor: Tensor
    version: int | None  # None: a copy of our own, which nobody writes to
    dtype: torch.dtype
    words: str

    def get(self) -> Tensor:
        """The tensor as it was when the call was noted; raises where it is no longer that."""
        if self.version is not None and self.tensor._version != self.version:
            raise _changed(self.words)
        return self.tensor if self.tensor.dtype == self.dtype else self.tensor.to(self.dtype)


@dataclass(frozen=True)
class KeptValue(Generic[V]):
    """A mask, score or bias of a noted call, and the versions of its tensors."""

    value: V
    versions: tuple[int | None, ...]
    words: str

    def get(self) -> V:
        """The value as it was; raises where one of its tensors was written to."""
        check_versions(self.value.tensors, self.versions, self.words)
        return self.value


def versions_of(tensors: Iterable[Tensor]) -> tuple[int | None, ...]:
    """The versions of tensors; those of inference mode have none."""
    return tuple(None if tensor.is_inference() else tensor._version for tensor in tensors)


def check_versions(tensors: Iterable[Tensor], versions: Iterable[int | None], words: str) -> None:
    """Raise if one of the tensors was written to since."""
    for tensor, version in zip(tensors, versions, strict=True):
        if version is not None and tensor._version != version:
            raise _changed(words)


def _changed(words: str) -> Changed:
    return Changed(
        f"{words} of this call was changed in place after the call, so that its weights cannot be computed any more. "
        f"Read them before the change, or keep copies: regard.observe(model, copy=True)."
    )


@dataclass(frozen=True)
class Keeper:
    """How tensors are kept: as references where that is safe, else as copies; elsewhere or narrower if asked."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None
    copy: bool = False

    def activation(self, tensor: Tensor, words: str) -> Kept:
        """Something a model computed: a reference, or a copy where it is known to be written to again and again."""
        tensor = tensor.detach()
        if self.device is not None or self.dtype is not None:
            moved = tensor.to(device=self.device, dtype=self.dtype if tensor.is_floating_point() else None)
            if moved is not tensor:
                return Kept(moved, None, tensor.dtype, words)
        # A version above 0 is the mark of a buffer that is filled in place (a static cache): the next step will write
        # to it. Tensors of inference mode have no version at all, so that nobody could tell.
        if self.copy or tensor.is_inference() or tensor._version > 0:
            return Kept(tensor.clone(), None, tensor.dtype, words)
        return Kept(tensor, tensor._version, tensor.dtype, words)

    def value(self, value: V, words: str) -> KeptValue[V]:
        """A mask, score or bias of ours."""
        if self.copy or self.device is not None:
            copies = [
                tensor.detach().to(self.device if self.device is not None else tensor.device, copy=self.copy)
                for tensor in value.tensors
            ]
            value = value.with_tensors(tuple(copies))
        return KeptValue(value, versions_of(value.tensors), words)

    def argument(self, given: Any) -> Any:
        """Whatever a module was called with: tensors and masks are kept, the rest is itself."""
        if isinstance(given, Tensor):
            return self.activation(given, "an input")
        return self.value(given, "the mask") if isinstance(given, Value) else given

    def parameter(self, tensor: Tensor, words: str) -> Kept:
        """Something a model owns. It stays where it is; an optimiser's step after the call is noticed."""
        tensor = tensor.detach()
        if self.copy:
            return Kept(tensor.clone(), None, tensor.dtype, words)
        return Kept(tensor, None if tensor.is_inference() else tensor._version, tensor.dtype, words)


def given_again(kept: Any) -> Any:
    """What `Keeper.argument` was given."""
    return kept.get() if isinstance(kept, (Kept, KeptValue)) else kept


class Keys:
    """The keys of one call, or of all decoding steps of a site whose keys continue one another.

    A cache hands over all of its keys at every step. Kept one by one they would grow with the square of the length; so
    steps share the newest keys as long as no row that a step has seen is different in them.
    """

    def __init__(self, kept: Kept, seen: Tensor | None) -> None:
        self.kept = kept
        self.seen = seen  # (k,) rows that any of the calls could see; None: all of them

    def first(self, count: int) -> Tensor:
        """The keys of a call that had `count` of them."""
        return self.kept.get()[:, :, :count]

    def goes_on(self, newer: Tensor, seen: Tensor | None, keeper: Keeper) -> bool:
        """Take over the newer keys (b,g,k,d) if every row that was seen is the same in them."""
        try:
            older = self.kept.get()
        except Changed:
            return False
        newer, count = newer.detach(), older.shape[2]
        if (newer.shape[:2], newer.shape[3], newer.dtype) != (older.shape[:2], older.shape[3], older.dtype):
            return False
        if newer.shape[2] < count or newer.device != older.device or not newer.numel():
            return False
        if (
            older.data_ptr() != newer.data_ptr()
        ):  # else they are the same rows, and nobody has written to them
            if self.seen is not None:
                older, prefix = older[:, :, self.seen], newer[:, :, :count][:, :, self.seen]
            else:
                prefix = newer[:, :, :count]
            if not torch.equal(older[:, :, :1], prefix[:, :, :1]) or not torch.equal(older, prefix):
                return False
        self.kept = keeper.activation(newer, self.kept.words)
        self.seen = _joined(self.seen, count, seen, newer.shape[2])
        return True


def _joined(first: Tensor | None, count: int, second: Tensor | None, total: int) -> Tensor | None:
    """Rows that either could see, of `total`; the first knew of `count`."""
    if second is None:
        return None
    either = second.clone()
    either[:count] = True if first is None else either[:count] | first
    return either

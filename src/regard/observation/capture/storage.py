"""What is stored of a call: references to tensors that detect whether they were written to since."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from regard.observation.capture.fingerprints import (
    TensorChanged,
    TensorFingerprint,
    changed_error,
    check_fingerprints,
    fingerprint_of,
    fingerprints_of,
)
from regard.values.value import Value

V = TypeVar("V", bound=Value)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a captured call."""

    tensor: Tensor
    fingerprint: TensorFingerprint | None  # None: our own copy, which nothing writes to
    dtype: torch.dtype
    words: str

    def get(self, sampled: bool = True) -> Tensor:
        """The tensor as it was when the call was captured; raises if it has changed.

        `sampled=False` checks only the version counter, which is enough while the model runs.
        """
        if self.fingerprint is not None and not self.fingerprint.fits(self.tensor, sampled):
            raise changed_error(self.words)
        return self.tensor if self.tensor.dtype == self.dtype else self.tensor.to(self.dtype)

    def sampled(self) -> StoredTensor:
        """The same with a sample of its values, once they are known to be right."""
        if self.fingerprint is None or self.fingerprint.sample is not None:
            return self
        return StoredTensor(self.tensor, fingerprint_of(self.tensor), self.dtype, self.words)


@dataclass(frozen=True)
class StoredValue(Generic[V]):
    """A mask, score or bias of a captured call, and the fingerprints of its tensors."""

    value: V
    fingerprints: tuple[TensorFingerprint, ...]
    words: str

    def get(self) -> V:
        """The value as it was; raises if one of its tensors was written to."""
        check_fingerprints(self.value.tensors, self.fingerprints, self.words)
        return self.value


@dataclass(frozen=True)
class Storage:
    """How tensors are stored: by reference where that is safe, else copied; on another device or narrower if asked."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None
    copy: bool = False
    pairwise_cache: PairwiseCache = field(default_factory=lambda: PairwiseCache())

    def activation(self, tensor: Tensor, words: str, sampled: bool = True) -> StoredTensor:
        """Store something a model computed: a reference, or a copy of a buffer that is written to repeatedly.

        `sampled=False`: the proof of the call will show whether the values are still the same.
        """
        tensor = tensor.detach()
        if self.device is not None or self.dtype is not None:
            moved = tensor.to(device=self.device, dtype=self.dtype if tensor.is_floating_point() else None)
            if moved is not tensor:
                return StoredTensor(moved, None, tensor.dtype, words)
        # A version above 0 means a buffer that is filled in place (a static cache), which the next step will write to.
        # Tensors of inference mode have no version counter, so a later write could not be detected.
        if self.copy or tensor.is_inference() or tensor._version > 0:
            return StoredTensor(tensor.clone(), None, tensor.dtype, words)
        return StoredTensor(tensor, fingerprint_of(tensor, sampled), tensor.dtype, words)

    def pairwise(self, tensor: Tensor, words: str, sampled: bool = True) -> StoredTensor:
        """Store a mask or bias of pairs. Equal ones that several layers make anew are stored once."""
        kept = self.activation(tensor, words, sampled)
        return self.pairwise_cache.shared(kept) if tensor.shape[-2] > 1 else kept

    def value(self, value: V, words: str) -> StoredValue[V]:
        """Store a mask, score or bias of ours."""
        if self.copy or self.device is not None:
            copies = [
                tensor.detach().to(self.device if self.device is not None else tensor.device, copy=self.copy)
                for tensor in value.tensors
            ]
            value = value.with_tensors(tuple(copies))
        return StoredValue(value, fingerprints_of(value.tensors), words)

    def argument(self, given: Any) -> Any:
        """Store an argument of a module: tensors and masks are stored, anything else is returned as it is."""
        if isinstance(given, Tensor):
            return self.activation(given, "an input")
        return self.value(given, "the mask") if isinstance(given, Value) else given

    def parameter(self, tensor: Tensor, words: str) -> StoredTensor:
        """Store a parameter by reference; an optimiser step after the call will be detected."""
        tensor = tensor.detach()
        if self.copy:
            return StoredTensor(tensor.clone(), None, tensor.dtype, words)
        return StoredTensor(tensor, fingerprint_of(tensor), tensor.dtype, words)


def restored(kept: Any) -> Any:
    """The argument that `Storage.argument` stored."""
    return kept.get() if isinstance(kept, (StoredTensor, StoredValue)) else kept


class PairwiseCache:
    """The masks and biases of pairs that were stored last, so that equal ones are stored once.

    T5 adds its mask to the same position bias in each layer: the same n × n numbers in new memory. Comparing them costs
    a fraction of the attention itself. After `TRIES` misses in a row, comparing stops.
    """

    MOST = 4  # kinds at a time: self and cross attention, full and sliding
    TRIES = 8  # in a row without success

    def __init__(self) -> None:
        self.kept: list[StoredTensor] = []
        self.misses = 0

    def shared(self, new: StoredTensor) -> StoredTensor:
        """An equal tensor stored earlier, or the new one."""
        if type(new.tensor) is not Tensor or new.tensor.is_meta:
            return new
        alike = [
            kept
            for kept in self.kept
            if kept.dtype == new.dtype
            and kept.tensor.dtype == new.tensor.dtype
            and kept.tensor.shape == new.tensor.shape
            and kept.tensor.device == new.tensor.device
        ]
        for kept in alike if self.misses < self.TRIES else ():
            if _equal(kept, new.tensor):
                self.misses = 0
                return kept
        self.misses += bool(alike)
        self.kept = [*self.kept[1 - self.MOST :], new]
        return new

    def clear(self) -> None:
        """Release everything."""
        self.kept, self.misses = [], 0


def _equal(kept: StoredTensor, tensor: Tensor) -> bool:
    older = kept.tensor
    if kept.fingerprint is not None:
        if not kept.fingerprint.fits(older, sampled=False):
            return False
        if (older.data_ptr(), older.stride()) == (tensor.data_ptr(), tensor.stride()):
            return True  # the same memory, not written to since
    return torch.equal(older, tensor)


class StoredKeys:
    """The keys of one call, or of all decoding steps of a site whose keys continue one another.

    A cache passes all of its keys at every step. Stored step by step they would take memory quadratic in the length; so
    steps share the newest keys as long as every row that an earlier step saw is unchanged in them.
    """

    def __init__(self, kept: StoredTensor, seen: Tensor | None) -> None:
        self.kept = kept
        self.seen = seen  # (k,) rows that were visible to any of the calls; None: all

    def first(self, count: int) -> Tensor:
        """The keys of a call with `count` keys."""
        return self.kept.get()[:, :, :count]

    def goes_on(self, newer: Tensor, seen: Tensor | None, storage: Storage) -> bool:
        """Take the newer keys (b,g,k,d) if every visible row is the same in them."""
        try:
            older = self.kept.get(sampled=False)
        except TensorChanged:
            return False
        newer, count = newer.detach(), older.shape[2]
        if (newer.shape[:2], newer.shape[3], newer.dtype) != (older.shape[:2], older.shape[3], older.dtype):
            return False
        if newer.shape[2] < count or newer.device != older.device or not newer.numel():
            return False
        if older.data_ptr() != newer.data_ptr():  # else they are the same memory, not written to since
            if self.seen is not None:
                older, prefix = older[:, :, self.seen], newer[:, :, :count][:, :, self.seen]
            else:
                prefix = newer[:, :, :count]
            if not torch.equal(older[:, :, :1], prefix[:, :, :1]) or not torch.equal(older, prefix):
                return False
        self.kept = storage.activation(newer, self.kept.words, sampled=False)
        self.seen = _joined(self.seen, count, seen, newer.shape[2])
        return True


def _joined(first: Tensor | None, count: int, second: Tensor | None, total: int) -> Tensor | None:
    """Rows visible to either call, of `total`; the first call had `count`."""
    if second is None:
        return None
    either = second.clone()
    either[:count] = True if first is None else either[:count] | first
    return either

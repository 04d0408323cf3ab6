"""What is kept of a call: references to tensors that know whether somebody has written into them since."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from regard.core.value import Value
from regard.observation.capture.fingerprints import (
    Fingerprint,
    TensorChanged,
    changed_error,
    check_fingerprints,
    fingerprint_of,
    fingerprints_of,
)

V = TypeVar("V", bound=Value)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a noted call."""

    tensor: Tensor
    fingerprint: Fingerprint | None  # None: a copy of our own, which nobody writes to
    dtype: torch.dtype
    words: str

    def get(self, sampled: bool = True) -> Tensor:
        """The tensor as it was when the call was noted; raises where it is no longer that.

        `sampled=False` asks its version counter alone: for the time in which the model runs.
        """
        if self.fingerprint is not None and not self.fingerprint.fits(self.tensor, sampled):
            raise changed_error(self.words)
        return self.tensor if self.tensor.dtype == self.dtype else self.tensor.to(self.dtype)

    def sampled(self) -> StoredTensor:
        """The same with a sample of its numbers, now that they are known to be right."""
        if self.fingerprint is None or self.fingerprint.sample is not None:
            return self
        return StoredTensor(self.tensor, fingerprint_of(self.tensor), self.dtype, self.words)


@dataclass(frozen=True)
class StoredValue(Generic[V]):
    """A mask, score or bias of a noted call, and the marks of its tensors."""

    value: V
    fingerprints: tuple[Fingerprint, ...]
    words: str

    def get(self) -> V:
        """The value as it was; raises where one of its tensors was written to."""
        check_fingerprints(self.value.tensors, self.fingerprints, self.words)
        return self.value


@dataclass(frozen=True)
class Storage:
    """How tensors are kept: as references where that is safe, else as copies; elsewhere or narrower if asked."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None
    copy: bool = False
    pairwise_cache: PairwiseCache = field(default_factory=lambda: PairwiseCache())

    def activation(self, tensor: Tensor, words: str, sampled: bool = True) -> StoredTensor:
        """Something a model computed: a reference, or a copy where it is known to be written to again and again.

        `sampled=False`: a proof of the call tells later whether the numbers are still the same.
        """
        tensor = tensor.detach()
        if self.device is not None or self.dtype is not None:
            moved = tensor.to(device=self.device, dtype=self.dtype if tensor.is_floating_point() else None)
            if moved is not tensor:
                return StoredTensor(moved, None, tensor.dtype, words)
        # A version above 0 is the mark of a buffer that is filled in place (a static cache): the next step will write
        # to it. Tensors of inference mode have no version at all, so that nobody could tell.
        if self.copy or tensor.is_inference() or tensor._version > 0:
            return StoredTensor(tensor.clone(), None, tensor.dtype, words)
        return StoredTensor(tensor, fingerprint_of(tensor, sampled), tensor.dtype, words)

    def pairwise(self, tensor: Tensor, words: str, sampled: bool = True) -> StoredTensor:
        """A mask or bias of pairs. Layers that make the same one anew, each for itself, share the first one kept."""
        kept = self.activation(tensor, words, sampled)
        return self.pairwise_cache.shared(kept) if tensor.shape[-2] > 1 else kept

    def value(self, value: V, words: str) -> StoredValue[V]:
        """A mask, score or bias of ours."""
        if self.copy or self.device is not None:
            copies = [
                tensor.detach().to(self.device if self.device is not None else tensor.device, copy=self.copy)
                for tensor in value.tensors
            ]
            value = value.with_tensors(tuple(copies))
        return StoredValue(value, fingerprints_of(value.tensors), words)

    def argument(self, given: Any) -> Any:
        """Whatever a module was called with: tensors and masks are kept, the rest is itself."""
        if isinstance(given, Tensor):
            return self.activation(given, "an input")
        return self.value(given, "the mask") if isinstance(given, Value) else given

    def parameter(self, tensor: Tensor, words: str) -> StoredTensor:
        """Something a model owns. It stays where it is; an optimiser's step after the call is noticed."""
        tensor = tensor.detach()
        if self.copy:
            return StoredTensor(tensor.clone(), None, tensor.dtype, words)
        return StoredTensor(tensor, fingerprint_of(tensor), tensor.dtype, words)


def restored(kept: Any) -> Any:
    """What `Keeper.argument` was given."""
    return kept.get() if isinstance(kept, (StoredTensor, StoredValue)) else kept


class PairwiseCache:
    """The masks and biases of pairs that were kept last, so that equal ones are kept once.

    T5 adds its mask to one position bias in each layer: the same n × n numbers, in other memory. To compare them costs
    a fraction of the attention they are for. A model whose layers have different ones is soon compared no more.
    """

    MOST = 4  # kinds at a time: self and cross attention, full and sliding
    TRIES = 8  # in a row without success

    def __init__(self) -> None:
        self.kept: list[StoredTensor] = []
        self.misses = 0

    def shared(self, new: StoredTensor) -> StoredTensor:
        """Something kept earlier that equals it, or itself."""
        if type(new.tensor) is not Tensor or new.tensor.is_meta:
            return new
        alike = [
            kept for kept in self.kept
            if kept.dtype == new.dtype and kept.tensor.dtype == new.tensor.dtype
            and kept.tensor.shape == new.tensor.shape and kept.tensor.device == new.tensor.device
        ]  # fmt: skip
        for kept in alike if self.misses < self.TRIES else ():
            if _equal(kept, new.tensor):
                self.misses = 0
                return kept
        self.misses += bool(alike)
        self.kept = [*self.kept[1 - self.MOST :], new]
        return new

    def clear(self) -> None:
        """Hold on to nothing."""
        self.kept, self.misses = [], 0


def _equal(kept: StoredTensor, tensor: Tensor) -> bool:
    older = kept.tensor
    if kept.fingerprint is not None:
        if not kept.fingerprint.fits(older, sampled=False):
            return False
        if (older.data_ptr(), older.stride()) == (tensor.data_ptr(), tensor.stride()):
            return True  # the same memory, and nobody has written to it
    return torch.equal(older, tensor)


class StoredKeys:
    """The keys of one call, or of all decoding steps of a site whose keys continue one another.

    A cache hands over all of its keys at every step. Kept one by one they would grow with the square of the length; so
    steps share the newest keys as long as no row that a step has seen is different in them.
    """

    def __init__(self, kept: StoredTensor, seen: Tensor | None) -> None:
        self.kept = kept
        self.seen = seen  # (k,) rows that any of the calls could see; None: all of them

    def first(self, count: int) -> Tensor:
        """The keys of a call that had `count` of them."""
        return self.kept.get()[:, :, :count]

    def goes_on(self, newer: Tensor, seen: Tensor | None, storage: Storage) -> bool:
        """Take over the newer keys (b,g,k,d) if every row that was seen is the same in them."""
        try:
            older = self.kept.get(sampled=False)
        except TensorChanged:
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
        self.kept = storage.activation(newer, self.kept.words, sampled=False)
        self.seen = _joined(self.seen, count, seen, newer.shape[2])
        return True


def _joined(first: Tensor | None, count: int, second: Tensor | None, total: int) -> Tensor | None:
    """Rows that either could see, of `total`; the first knew of `count`."""
    if second is None:
        return None
    either = second.clone()
    either[:count] = True if first is None else either[:count] | first
    return either

"""Noticing that a tensor was written to: its version counter, and a few of its numbers.

A write through `.data`, through numpy or by C++ code that shares the memory counts no version. So a sample of the
numbers, spread over the tensor's memory, is kept beside the version and compared when the tensor is read again. What it
misses (a write to few numbers) is left to the proof of a call (`proof`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.errors import RegardError

SAMPLE = 31  # numbers of a tensor


class TensorChanged(RegardError, RuntimeError):
    """A tensor that a call was noted with has been written to since, so that its weights cannot be told any more."""


@dataclass(frozen=True)
class Fingerprint:
    """What a tensor was at some time."""

    version: int | None  # None: it has no counter, as tensors of inference mode
    sample: Tensor | None

    def fits(self, tensor: Tensor, sampled: bool = True) -> bool:
        """Whether a tensor is still that; `sampled=False`: by its version alone."""
        if self.version is not None and tensor._version != self.version:
            return False
        if self.sample is None or not sampled:
            return True
        now = _spread(tensor.detach())
        if now is None or torch.equal(now, self.sample):
            return True
        return bool(
            ((now == self.sample) | ((now != now) & (self.sample != self.sample))).all()
        )  # NaN stays NaN


def fingerprint_of(tensor: Tensor, sampled: bool = True) -> Fingerprint:
    """The mark of a tensor as it is now."""
    sample = _spread(tensor.detach()) if sampled else None
    return Fingerprint(
        None if tensor.is_inference() else tensor._version, None if sample is None else sample.clone()
    )


def fingerprints_of(tensors: Iterable[Tensor]) -> tuple[Fingerprint, ...]:
    """The marks of several tensors."""
    return tuple(fingerprint_of(tensor) for tensor in tensors)


def check_fingerprints(tensors: Iterable[Tensor], fingerprints: Iterable[Fingerprint], words: str) -> None:
    """Raise if one of the tensors was written to since."""
    for tensor, fingerprint in zip(tensors, fingerprints, strict=True):
        if not fingerprint.fits(tensor):
            raise changed_error(words)


def changed_error(words: str) -> TensorChanged:
    """The error that says what has changed."""
    return TensorChanged(
        f"{words} of this call was changed in place after the call, so that its weights cannot be computed any more. "
        f"Read them before the change, or keep copies: regard.observe(model, copy=True)."
    )


def _spread(tensor: Tensor) -> Tensor | None:
    """A view of a few numbers of a tensor's memory; None where it has no plain memory of its own."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta:
        return None
    if not tensor.numel() or tensor.is_nested:
        return None
    extent = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        extent += (size - 1) * stride
    if extent <= SAMPLE:
        return tensor.as_strided((extent,), (1,))
    step = (extent - 1) // (SAMPLE - 1)
    step -= step > 1 and step % 2 == 0  # an even one would meet the same columns again and again
    return tensor.as_strided((SAMPLE,), (step,))

"""Detecting that a tensor was written to, by its version counter and a sample of its values.

A write through `.data`, through numpy or by C++ code that shares the memory does not count a version. So a sample of
values, spread over the tensor's memory, is stored beside the version and compared when the tensor is read again. A
write to a few values may be missed; the proof of a call (`proof`) finds some of those.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.errors import RegardError

SAMPLE = 31  # values of a tensor


class TensorChanged(RegardError, RuntimeError):
    """A tensor of a captured call was written to since, so its weights can no longer be computed."""


@dataclass(frozen=True)
class TensorFingerprint:
    """The version and a sample of a tensor at some time."""

    version: int | None  # None: no version counter (inference mode)
    sample: Tensor | None

    def fits(self, tensor: Tensor, sampled: bool = True) -> bool:
        """Whether a tensor is unchanged; `sampled=False`: by its version alone."""
        if self.version is not None and tensor._version != self.version:
            return False
        if self.sample is None or not sampled:
            return True
        current = _spread(tensor.detach())
        if current is None or torch.equal(current, self.sample):
            return True
        # NaN equals NaN here.
        return bool(((current == self.sample) | ((current != current) & (self.sample != self.sample))).all())


def fingerprint_of(tensor: Tensor, sampled: bool = True) -> TensorFingerprint:
    """The fingerprint of a tensor as it is now."""
    sample = _spread(tensor.detach()) if sampled else None
    return TensorFingerprint(
        None if tensor.is_inference() else tensor._version, None if sample is None else sample.clone()
    )


def fingerprints_of(tensors: Iterable[Tensor]) -> tuple[TensorFingerprint, ...]:
    """The fingerprints of several tensors."""
    return tuple(fingerprint_of(tensor) for tensor in tensors)


def check_fingerprints(tensors: Iterable[Tensor], fingerprints: Iterable[TensorFingerprint], words: str) -> None:
    """Raise if one of the tensors was written to since."""
    for tensor, fingerprint in zip(tensors, fingerprints, strict=True):
        if not fingerprint.fits(tensor):
            raise changed_error(words)


def changed_error(words: str) -> TensorChanged:
    """The error for something that was changed."""
    return TensorChanged(
        f"{words} of this call was changed in place after the call, so its weights can no longer be computed. "
        f"Read them before the change, or store copies: regard.observe(model, copy=True)."
    )


def _spread(tensor: Tensor) -> Tensor | None:
    """A view of a few values of a tensor's memory; None where it has no plain strided memory."""
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
    step -= step > 1 and step % 2 == 0  # an even step would sample the same columns again and again
    return tensor.as_strided((SAMPLE,), (step,))

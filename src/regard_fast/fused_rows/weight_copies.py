"""Copies of weights in bfloat16 that the update writes beside the weights, so that no step has to cast them."""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch
from torch import Tensor


class WeightCopy:
    """A weight and its copy; the copy is valid as long as only its owner changes the weight."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.copy = weight.detach().to(torch.bfloat16)
        self.version = weight._version

    @property
    def valid(self) -> bool:
        """Whether no other code has changed the weight; the kernels of the update do not raise its version."""
        return self.weight._version == self.version

    def refresh(self) -> None:
        """Make the copy anew if it is not valid."""
        if not self.valid:
            self.copy.copy_(self.weight.detach())
            self.version = self.weight._version


_COPIES: WeakValueDictionary[int, WeightCopy] = WeakValueDictionary()  # by the address of the weight


def keep_copy(weight: Tensor) -> WeightCopy:
    """A copy for the caller to hold and to write whenever it writes the weight."""
    weight_copy = WeightCopy(weight)
    _COPIES[weight.data_ptr()] = weight_copy
    return weight_copy


def copies(weight: Tensor) -> Tensor:
    """The copy of a weight if there is a valid one, else the weight itself."""
    weight_copy = _COPIES.get(weight.data_ptr())
    if weight_copy is None or weight_copy.weight.shape != weight.shape or not weight_copy.valid:
        return weight
    if weight_copy.weight.data_ptr() != weight.data_ptr():  # that one has moved, and this one is at its old place
        return weight
    return weight_copy.copy

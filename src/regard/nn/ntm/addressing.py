"""The six functions of a Neural Turing Machine, in plain torch: addressing (four steps), reading and writing.

They define the machine and are twice differentiable. b: batch, n: slots of the memory, m: width of a slot.
Graves, Wayne and Danihelka 2014, "Neural Turing Machines", equations 2 to 9.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

import regard.dispatch.attention as dispatch
from regard import scores
from regard.errors import BadType, BadValue
from regard.formula.formula import accumulation_dtype
from regard.support.arguments import float_tensor
from regard.support.autocast import autocasts


def content_address(memory: Tensor, key: Tensor, strength: Tensor) -> Tensor:
    """Return weights (b,n) over the slots: softmax of strength (b,1) times the cosine of key (b,m) and each slot.

    A slot or key of zero norm has similarity 0 and gradient zero. (Equations 5 and 6.)
    """
    memory, key, strength = _checked(memory=(memory, "b,n,m"), key=(key, "b,m"), strength=(strength, "b,1"))
    score = scores.cosine(strength[:, :, None, None])
    return dispatch.weights(_still_zeros(key)[:, None], _still_zeros(memory), score=score)[:, 0]


def interpolate(weights: Tensor, previous: Tensor, gate: Tensor) -> Tensor:
    """Return gate (b,1) · weights + (1 − gate) · previous: gate 0 keeps the previous weights. (Equation 7.)"""
    weights, previous, gate = _checked(weights=(weights, "b,n"), previous=(previous, "b,n"), gate=(gate, "b,1"))
    return torch.lerp(previous, weights, gate)


def shift(weights: Tensor, kernel: Tensor) -> Tensor:
    """Shift weights (b,n) by a circular convolution; kernel (b,2r+1) holds the share of each offset −r … r.

    Offset +1 moves weight to the next slot, from the last one to the first. A kernel may be wider than the memory:
    offsets that differ by n are equivalent. (Equation 8.)
    """
    weights, kernel = _checked(weights=(weights, "b,n"), kernel=(kernel, "b,2r+1"))
    n, width = weights.shape[1], kernel.shape[1]
    if width % 2 == 0:
        raise BadValue(
            f"kernel: expected an odd number of offsets, −r … r, got shape {tuple(kernel.shape)}. "
            f"Try {width - 1} or {width + 1} columns."
        )
    if n == 0:
        return weights.clone()
    offset = torch.arange(width, device=kernel.device) - width // 2
    slot = torch.arange(n, device=kernel.device)
    origin = (slot[:, None] - offset) % n  # (n,2r+1): the slot that the weight of each slot and offset comes from
    return (weights[:, origin] * kernel[:, None]).sum(-1)


def sharpen(weights: Tensor, gamma: Tensor) -> Tensor:
    """Raise weights (b,n) to the power of gamma (b,1) and divide by their sum; gamma ≥ 1 sharpens. (Equation 9.)

    The power of w/max is computed in the log domain, so that it neither overflows nor underflows completely. Weights of
    zero, or below zero by rounding, become zero; a row of zeros stays zero.
    """
    weights, gamma = _checked(weights=(weights, "b,n"), gamma=(gamma, "b,1"))
    if weights.shape[1] == 0:
        return weights.clone()
    wide, least = weights.to(accumulation_dtype(weights.dtype)), floor(accumulation_dtype(weights.dtype))
    # The result does not depend on the scale, so the scale needs no gradient.
    largest = wide.detach().amax(-1, keepdim=True)
    alone = largest <= 0
    ratio = wide / largest.masked_fill(alone, 1)
    # Replace values below the floor by the floor, but keep their gradients, so that the log is finite.
    safe = torch.where(ratio < least, least + (ratio - ratio.detach()), ratio)
    powered = torch.softmax(safe.log() * gamma.to(wide.dtype), -1)
    powered = powered - powered.detach().masked_fill(wide > 0, 0)
    return powered.masked_fill(alone, 0).to(weights.dtype)


def read(memory: Tensor, weights: Tensor) -> Tensor:
    """Return the sum (b,m) of the slots of memory (b,n,m), each times its weight (b,n). (Equation 2.)"""
    memory, weights = _checked(memory=(memory, "b,n,m"), weights=(weights, "b,n"))
    return torch.matmul(weights[:, None], memory)[:, 0]


def write(memory: Tensor, weights: Tensor, erase: Tensor, add: Tensor) -> Tensor:
    """Return the memory (b,n,m) after a write: erase (b,m), then add (b,m), each times the weight of the slot.

    memory · (1 − weights ⊗ erase) + weights ⊗ add: erase 1 and add 0 clear a slot of weight 1. (Equations 3 and 4.)
    """
    memory, weights, erase, add = _checked(
        memory=(memory, "b,n,m"), weights=(weights, "b,n"), erase=(erase, "b,m"), add=(add, "b,m")
    )
    return erased(memory, weights, erase) + weights[:, :, None] * add[:, None]


def erased(memory: Tensor, weights: Tensor, erase: Tensor) -> Tensor:
    """Return memory · (1 − weights ⊗ erase), the first half of `write`."""
    return memory * (1 - weights[:, :, None] * erase[:, None])


def floor(dtype: torch.dtype) -> float:
    """Return the weight below which weights count as zero. Its inverse times a large gamma is still finite."""
    return float(torch.finfo(dtype).tiny ** 0.75)


def _still_zeros(rows: Tensor) -> Tensor:
    """Return the rows, without gradient for those of all zeros, whose cosine has none."""
    return rows.masked_fill((rows.detach() == 0).all(-1, keepdim=True), 0)


def _checked(**arguments: tuple[object, str]) -> list[Tensor]:
    """Check the shapes of the arguments, where a letter has one size in all of them; return tensors of one dtype."""
    tensors: list[Tensor] = []
    sizes = {"1": 1}
    for argument, (content, letters) in arguments.items():
        tensor, names = float_tensor(argument, content), letters.split(",")
        if tensor.dim() != len(names) or any(sizes.get(x, n) != n for x, n in zip(names, tensor.shape, strict=True)):
            expected = ",".join(str(sizes.get(name, name)) for name in names)
            meaning = "" if expected == letters else f" = ({expected})"
            raise BadValue(f"{argument}: expected shape ({letters}){meaning}, got {tuple(tensor.shape)}.")
        sizes.update(zip(names, tensor.shape, strict=True))
        tensors.append(tensor)
    for argument, tensor in zip(arguments, tensors, strict=True):
        if tensor.dtype != tensors[0].dtype and not autocasts(tensor.device):
            raise BadType(
                f"{argument}: expected {tensors[0].dtype} like the first argument, got {tensor.dtype}. "
                f"Convert it with .to({tensors[0].dtype})."
            )
    widest = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
    return [tensor.to(widest) for tensor in tensors]

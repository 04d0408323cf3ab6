"""The six functions of a Neural Turing Machine, in plain torch: where a head looks, what it reads, what it writes.

They are the definition of the machine and differentiable twice. b batch, n slots of the memory, m their width.
Graves, Wayne and Danihelka 2014, "Neural Turing Machines", equations 2 to 9.
"""

from __future__ import annotations

import torch
from torch import Tensor

import regard.core as core
from regard import scores
from regard.arguments import float_tensor
from regard.errors import BadType, BadValue
from regard.formula import accumulator


def content_address(memory: Tensor, key: Tensor, strength: Tensor) -> Tensor:
    """Weights (b,n) over the slots: softmax of strength (b,1) times the cosine between key (b,m) and each slot.

    A slot or a key of length zero has similarity 0, and receives gradient zero. (Equations 5 and 6.)
    """
    b, _, m = _sizes("memory", memory, "b,n,m", {})
    _sizes("key", key, "b,m", {"b": b, "m": m}, memory)
    _sizes("strength", strength, "b,1", {"b": b}, memory)
    score = scores.cosine(strength[:, :, None, None])
    return core.weights(_still_zeros(key)[:, None], _still_zeros(memory), score=score)[:, 0]


def interpolate(weights: Tensor, previous: Tensor, gate: Tensor) -> Tensor:
    """gate (b,1) · weights + (1 − gate) · previous: 0 stays where the head was, 1 goes by content. (Equation 7.)"""
    b, n = _sizes("weights", weights, "b,n", {})
    _sizes("previous", previous, "b,n", {"b": b, "n": n}, weights)
    _sizes("gate", gate, "b,1", {"b": b}, weights)
    return torch.lerp(previous, weights, gate)


def shift(weights: Tensor, kernel: Tensor) -> Tensor:
    """Weights (b,n) moved around the circle of slots: kernel (b,2r+1) says how much goes how far, from −r to r.

    Offset +1 moves weight to the next slot, from the last one to the first. A kernel may be wider than the memory:
    offsets that differ by n are the same move. (Equation 8.)
    """
    b, n = _sizes("weights", weights, "b,n", {})
    _, width = _sizes("kernel", kernel, "b,2r+1", {"b": b}, weights)
    if width % 2 == 0:
        raise BadValue(
            f"kernel: expected an odd number of offsets, −r … r, got shape {tuple(kernel.shape)}. "
            f"Try {width - 1} or {width + 1} columns."
        )
    if n == 0:
        return weights.clone()
    offset = torch.arange(width, device=kernel.device) - width // 2
    slot = torch.arange(n, device=kernel.device)
    origin = (
        slot[:, None] - offset
    ) % n  # (n,2r+1): where the weight of each slot and each offset comes from
    return (weights[:, origin] * kernel[:, None]).sum(-1)


def sharpen(weights: Tensor, gamma: Tensor) -> Tensor:
    """Weights (b,n) to the power of gamma (b,1), divided by their sum; gamma ≥ 1 concentrates them. (Equation 9.)

    The power is taken of w/max in the log domain, so that no gamma overflows or loses everything. What is zero, or
    below by rounding, stays zero; a row without any weight stays without.
    """
    b, n = _sizes("weights", weights, "b,n", {})
    _sizes("gamma", gamma, "b,1", {"b": b}, weights)
    if n == 0:
        return weights.clone()
    wide, least = weights.to(accumulator(weights.dtype)), floor(accumulator(weights.dtype))
    # The result does not depend on the scale, so that the scale needs no gradient.
    largest = wide.detach().amax(-1, keepdim=True)
    alone = largest <= 0
    ratio = wide / largest.masked_fill(alone, 1)
    # Below the floor the value is the floor's, with gradient as if it had been there: log never meets a zero.
    safe = torch.where(ratio < least, least + (ratio - ratio.detach()), ratio)
    powered = torch.softmax(safe.log() * gamma.to(wide.dtype), -1)
    powered = powered - powered.detach().masked_fill(wide > 0, 0)
    return powered.masked_fill(alone, 0).to(weights.dtype)


def read(memory: Tensor, weights: Tensor) -> Tensor:
    """What a head sees, (b,m): the sum of the slots of memory (b,n,m), each times its weight (b,n). (Equation 2.)"""
    b, n, _ = _sizes("memory", memory, "b,n,m", {})
    _sizes("weights", weights, "b,n", {"b": b, "n": n}, memory)
    return torch.matmul(weights[:, None], memory)[:, 0]


def write(memory: Tensor, weights: Tensor, erase: Tensor, add: Tensor) -> Tensor:
    """The memory (b,n,m) after a head has written: first erase (b,m), then add (b,m), each times the slot's weight.

    memory · (1 − weights ⊗ erase) + weights ⊗ add: erase 1 and add 0 clear a slot of weight 1. (Equations 3 and 4.)
    """
    b, n, m = _sizes("memory", memory, "b,n,m", {})
    _sizes("weights", weights, "b,n", {"b": b, "n": n}, memory)
    _sizes("erase", erase, "b,m", {"b": b, "m": m}, memory)
    _sizes("add", add, "b,m", {"b": b, "m": m}, memory)
    return erased(memory, weights, erase) + weights[:, :, None] * add[:, None]


def erased(memory: Tensor, weights: Tensor, erase: Tensor) -> Tensor:
    """The first half of `write`: memory · (1 − weights ⊗ erase)."""
    return memory * (1 - weights[:, :, None] * erase[:, None])


def floor(dtype: torch.dtype) -> float:
    """A weight so small that it counts as zero. Its inverse, times any sensible gamma, is still a finite number."""
    return float(torch.finfo(dtype).tiny ** 0.75)


def _still_zeros(rows: Tensor) -> Tensor:
    """The same rows; those that are all zero have no direction, and get no gradient that would give them one."""
    return rows.masked_fill((rows.detach() == 0).all(-1, keepdim=True), 0)


def _sizes(
    argument: str, given: object, letters: str, known: dict[str, int], like: Tensor | None = None
) -> list[int]:
    """The sizes of a tensor whose axes are `letters`, after a check against the sizes that are known already."""
    tensor = float_tensor(argument, given)
    names = letters.split(",")
    expected = [known.get(name, 1 if name == "1" else None) for name in names]
    fits = tensor.dim() == len(names) and all(
        want in (None, size) for want, size in zip(expected, tensor.shape, strict=True)
    )
    if not fits:
        sizes = ",".join(
            name if want is None else str(want) for name, want in zip(names, expected, strict=True)
        )
        meaning = "" if sizes == letters else f" = ({sizes})"
        raise BadValue(f"{argument}: expected shape ({letters}){meaning}, got {tuple(tensor.shape)}.")
    if like is not None and tensor.dtype != like.dtype:
        raise BadType(
            f"{argument}: expected {like.dtype} like the first argument, got {tensor.dtype}. "
            f"Convert it with .to({like.dtype})."
        )
    return list(tensor.shape)

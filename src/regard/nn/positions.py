"""Positional encodings that are added to embeddings, and the rotation of queries and keys.

Schemes inside attention (rotary, ALiBi, T5, Shaw, Transformer-XL) are in `regard.nn.parts.multihead_positions`.

    >>> from regard.nn import positions
    >>> positions.half_wave(3, 4).round(decimals=3)
    tensor([[ 0.8660,  0.5000,  0.8660,  0.5000],
            [ 0.8660, -0.5000,  0.8660, -0.5000],
            [ 0.0000, -1.0000,  0.0000, -1.0000]])
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard import registry
from regard.errors import BadType, BadValue
from regard.nn.sharing import positions_from, whole_length
from regard.registry import Registry
from regard.support.arguments import described, finite_number, float_tensor, whole_number
from regard.values.grid import fits

if TYPE_CHECKING:
    from regard.nn.parts.rotary_scaling import RotaryScaling

__all__ = [
    "HalfWave",
    "Learned",
    "NoPositions",
    "Sinusoidal",
    "SplitSinusoidal",
    "build",
    "half_wave",
    "names",
    "rotary",
    "sinusoidal",
]

_BASE = 10000.0  # the longest wave of Vaswani et al. and of Su et al.


def sinusoidal(length: int, dim: int) -> Tensor:
    """Alternating sines and cosines of falling frequency, (length, dim): column 2i is sin(pos / 10000^(2i/dim)).

    Paper: Vaswani et al. 2017, section 3.5.
    """
    length, dim = whole_number("length", length, 0), whole_number("dim", dim, 1)
    return _waves(torch.arange(length), dim).float()


def half_wave(length: int, dim: int) -> Tensor:
    """sin((pos+1)π/T) on even columns and cos((pos+1)π/T) on odd ones, (length, dim), with T = length."""
    length, dim = whole_number("length", length, 0), whole_number("dim", dim, 1)
    return _half_waves(torch.arange(length), dim, length).float()


def rotary(x: Tensor, positions: Tensor, base: float = _BASE, scaling: RotaryScaling | None = None) -> Tensor:
    """Rotate queries or keys (b,h,l,d) by their positions, so that a dot product depends on the distance only.

    Columns i and i + d/2 form a pair that is rotated by position / base^(2i/d), as in Hugging Face's Llama. Angles are
    computed in float64 for every dtype of x, so that large positions stay distinct.

    Args:
        x: (b,h,l,d) with even d.
        positions: (l,), or (b,l) for each batch entry separately.
        base: a larger base rotates the last pairs more slowly.
        scaling: slower frequencies for longer texts; None: those of the base.

    Paper: Su et al. 2021, equation 34.
    """
    float_tensor("x", x)
    if x.dim() != 4:
        raise BadValue(f"x: expected (b,h,l,d), got shape {tuple(x.shape)}.")
    batch, _, length, dim = x.shape
    if dim % 2:
        raise BadValue(f"x: rotary rotates pairs of columns, so d must be even, got shape {tuple(x.shape)}.")
    base = finite_number("base", base, above=0)
    if not isinstance(positions, Tensor) or positions.dtype == torch.bool or positions.is_complex():
        raise BadType(f"positions: expected a tensor of numbers (l,) or (b,l), got {described(positions)}.")
    per_example = positions.dim() == 2
    if positions.dim() not in (1, 2) or positions.shape[-1] != length or (per_example and positions.shape[0] != batch):
        raise BadValue(
            f"positions: expected (l,) = ({length},) or (b,l) = ({batch}, {length}), got shape "
            f"{tuple(positions.shape)}."
        )
    wide = torch.promote_types(x.dtype, torch.float32)
    frequencies = _frequencies(dim, base, x.device)
    if scaling is not None:
        frequencies = scaling.scaled(frequencies, base)
    angles = positions.to(x.device).double()[..., None] * frequencies
    angles = angles[:, None] if per_example else angles  # (b,1,l,d/2) or (l,d/2)
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    if scaling is not None and scaling.growth != 1.0:
        cos, sin = cos * scaling.growth, sin * scaling.growth
    first, second = x.to(wide).chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class PositionalEncoding(nn.Module):
    """Adds a vector for the position to each embedding: `module(x, offset)` is x + table[offset : offset + l].

    `offset` is the position of the first row of x: an int, or a tensor with one entry for all or for each batch entry.
    A tensor (b,l) holds the position of each row.
    A base class; subclasses define `rows`.
    """

    def __init__(self, dim: int, max_length: int | None = None) -> None:
        super().__init__()
        self.dim = whole_number("dim", dim, 1)
        self.max_length = None if max_length is None else whole_number("max_length", max_length, 1)

    def rows(self, indices: Tensor) -> Tensor:
        """Return the rows of the table at these positions, (…, dim)."""
        raise NotImplementedError(f"{type(self).__name__} does not define rows(indices)")

    def forward(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        """Add positions to embeddings (b,l,dim)."""
        float_tensor("x", x)
        if x.dim() != 3 or x.shape[2] != self.dim:
            raise BadValue(f"x: expected (b,l,dim) with dim={self.dim}, got shape {tuple(x.shape)}.")
        return x + self.rows(self._indices(x, offset)).to(x.dtype)

    def _indices(self, x: Tensor, offset: int | Tensor) -> Tensor:
        """Return the position of each row, (l,) or (b,l)."""
        if not isinstance(offset, Tensor):
            first = whole_number("offset", offset, 0)
            self._refuse_beyond(first + whole_length(x.shape[1]))
            return positions_from(first, x.shape[1], x.device)
        if offset.is_floating_point() or offset.dtype == torch.bool or offset.dim() > 2:
            raise BadType(f"offset: expected an int or a tensor of ints, (), (b,) or (b,l), got {described(offset)}.")
        if offset.dim() == 2 and offset.shape != x.shape[:2]:
            raise BadValue(f"offset: expected (b,l) = {tuple(x.shape[:2])}, got {described(offset)}.")
        if offset.dim() == 1 and not fits(offset.shape[0], x.shape[0]):
            raise BadValue(f"offset: expected one entry or {x.shape[0]} (the batch), got {described(offset)}.")
        # Reading a tensor on another device would synchronise with it.
        if offset.device.type == "cpu" and offset.numel() and not torch.compiler.is_compiling():
            whole_number("offset", int(offset.min()), 0)
            self._refuse_beyond(int(offset.max()) + (1 if offset.dim() == 2 else x.shape[1]))
        if offset.dim() == 2:
            return offset.to(x.device)
        offset, steps = offset.to(x.device), torch.arange(x.shape[1], device=x.device)
        return steps + (offset[:, None] if offset.dim() else offset)

    def _refuse_beyond(self, end: int) -> None:
        if self.max_length is not None and end > self.max_length:
            raise BadValue(
                f"x: expected positions up to {self.max_length - 1}, since this table was built with max_length="
                f"{self.max_length}, got positions up to {end - 1}. Build it longer, cut the input, or use "
                f"'sinusoidal', which has no limit."
            )

    def extra_repr(self) -> str:
        return f"dim={self.dim}" + ("" if self.max_length is None else f", max_length={self.max_length}")


class Sinusoidal(PositionalEncoding):
    """Adds sines and cosines of falling frequency; has no parameters and no maximum length.

    column 2i: sin(pos / 10000^(2i/dim))        column 2i + 1: cos(pos / 10000^(2i/dim))
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def rows(self, indices: Tensor) -> Tensor:
        return _waves(indices, self.dim)


class SplitSinusoidal(Sinusoidal):
    """Adds the same waves in another order: all sines, then all cosines, as in Marian."""

    def rows(self, indices: Tensor) -> Tensor:
        waves = _waves(indices, self.dim)
        return torch.cat([waves[..., ::2], waves[..., 1::2]], -1)


class Learned(PositionalEncoding):
    """Adds a learned vector for each of `max_length` positions."""

    max_length: int

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__(dim, max_length)
        self.table = nn.Parameter(torch.randn(self.max_length, self.dim) * 0.02)

    def rows(self, indices: Tensor) -> Tensor:
        return self.table[indices]


class HalfWave(PositionalEncoding):
    """Adds half a period of a sine (even columns) and of a cosine (odd columns), times a trainable gain per column.

    even columns: g_j · sin((pos + 1)·π / T)        odd columns: g_j · cos((pos + 1)·π / T)        T = max_length
    """

    max_length: int

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__(dim, max_length)
        self.gains = nn.Parameter(torch.ones(self.dim))

    def rows(self, indices: Tensor) -> Tensor:
        return self.gains * _half_waves(indices, self.dim, self.max_length).to(self.gains.dtype)


class NoPositions(PositionalEncoding):
    """Returns embeddings unchanged, for models whose attention uses positions itself, or not at all."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def forward(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        return x


ADDITIVE: Registry[type[PositionalEncoding]] = Registry("positions")
ADDITIVE.add("sinusoidal", Sinusoidal)
ADDITIVE.add("sinusoidal-split", SplitSinusoidal)
ADDITIVE.add("learned", Learned)
ADDITIVE.add("half-wave", HalfWave)
ADDITIVE.add("none", NoPositions)


def names() -> list[str]:
    """Return the names that `build` knows."""
    return ADDITIVE.names()


def build(name: str, dim: int, max_length: int | None = None) -> PositionalEncoding:
    """Build the positional encoding of that name; "learned" and "half-wave" need a `max_length`."""
    encoding = ADDITIVE[name]
    if "max_length" not in registry.options_of(encoding, leading=1):
        return encoding(dim)
    return encoding(dim, _needed(name, max_length))


def _needed(name: str, max_length: int | None) -> int:
    if max_length is None:
        raise BadValue(f"max_length: {name!r} positions need one, for instance max_length=512.")
    return max_length


def _frequencies(dim: int, base: float, device: torch.device) -> Tensor:
    """base^(−2i/dim) for each pair of columns, in float64."""
    exponents = torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim
    return torch.exp(exponents * -math.log(base))


def _waves(indices: Tensor, dim: int) -> Tensor:
    angles = indices.double()[..., None] * _frequencies(dim, _BASE, indices.device)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., :dim]  # odd dim: no cosine for the last


def _half_waves(indices: Tensor, dim: int, period: int) -> Tensor:
    angles = (indices.double() + 1) * (math.pi / max(1, period))
    pair = torch.stack([angles.sin(), angles.cos()], -1)  # (…, 2)
    return pair[..., torch.arange(dim, device=indices.device) % 2]

"""Where a position stands: tables that are added to embeddings, and the rotation of queries and keys.

Distances (Shaw, T5, ALiBi, Transformer-XL) are pieces of the score and live in `regard.scores` and `regard.biases`.

    >>> from regard.nn import positions
    >>> positions.half_wave(3, 4).round(decimals=3)
    tensor([[ 0.8660,  0.5000,  0.8660,  0.5000],
            [ 0.8660, -0.5000,  0.8660, -0.5000],
            [ 0.0000, -1.0000,  0.0000, -1.0000]])
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.core.arguments import described, finite_number, float_tensor, whole_number
from regard.core.grid import fits
from regard.errors import BadType, BadValue
from regard.registry import Registry

__all__ = [
    "HalfWave", "Learned", "NoPositions", "Sinusoidal", "build", "half_wave", "names", "rotary", "sinusoidal",
]  # fmt: skip

_BASE = 10000.0  # the longest wave of Vaswani et al. and of Su et al.


def sinusoidal(length: int, dim: int) -> Tensor:
    """Sines and cosines of falling frequency in turn, (length, dim): column 2i is sin(pos / 10000^(2i/dim)).

    Paper: Vaswani et al. 2017, section 3.5.
    """
    length, dim = whole_number("length", length, 0), whole_number("dim", dim, 1)
    return _waves(torch.arange(length), dim).float()


def half_wave(length: int, dim: int) -> Tensor:
    """sin((pos+1)π/T) on even columns and cos((pos+1)π/T) on odd ones, (length, dim), with T = length."""
    length, dim = whole_number("length", length, 0), whole_number("dim", dim, 1)
    return _half_waves(torch.arange(length), dim, length).float()


def rotary(x: Tensor, positions: Tensor, base: float = _BASE) -> Tensor:
    """Queries or keys (b,h,l,d), each turned by its position: the dot product of two depends on their distance only.

    Column i and column i + d/2 form a pair that is turned by position / base^(2i/d), as in Hugging Face's Llama.
    Angles are computed in float64 whatever the dtype of x, so that far positions stay distinct.

    Args:
        x: (b,h,l,d) with even d.
        positions: (l,), or (b,l) where each batch entry has its own.
        base: the larger, the slower the last pairs turn.

    Paper: Su et al. 2021, equation 34.
    """
    float_tensor("x", x)
    if x.dim() != 4:
        raise BadValue(f"x: expected (b,h,l,d), got shape {tuple(x.shape)}.")
    batch, _, length, dim = x.shape
    if dim % 2:
        raise BadValue(f"x: rotary turns pairs of columns, so d must be even, got shape {tuple(x.shape)}.")
    base = finite_number("base", base, above=0)
    if not isinstance(positions, Tensor) or positions.dtype == torch.bool or positions.is_complex():
        raise BadType(f"positions: expected a tensor of numbers (l,) or (b,l), got {described(positions)}.")
    each = positions.dim() == 2
    if (
        positions.dim() not in (1, 2)
        or positions.shape[-1] != length
        or (each and positions.shape[0] != batch)
    ):
        raise BadValue(
            f"positions: expected (l,) = ({length},) or (b,l) = ({batch}, {length}), got shape "
            f"{tuple(positions.shape)}."
        )
    wide = torch.promote_types(x.dtype, torch.float32)
    angles = positions.to(x.device).double()[..., None] * _frequencies(dim, base, x.device)
    angles = angles[:, None] if each else angles  # (b,1,l,d/2) or (l,d/2)
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    first, second = x.to(wide).chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class PositionalEncoding(nn.Module):
    """Adds a row for its position to each embedding: `module(x, offset)` is x + table[offset : offset + l].

    `offset` says where the first row of x stands: an int, or a tensor with one entry for all or for each batch entry.
    """

    def __init__(self, dim: int, max_length: int | None = None) -> None:
        super().__init__()
        self.dim = whole_number("dim", dim, 1)
        self.max_length = None if max_length is None else whole_number("max_length", max_length, 1)

    def rows(self, places: Tensor) -> Tensor:
        """The table's rows at these positions, (…, dim)."""
        raise NotImplementedError(f"{type(self).__name__} does not define rows(places)")

    def forward(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        """Embeddings (b,l,dim) with their positions added."""
        float_tensor("x", x)
        if x.dim() != 3 or x.shape[2] != self.dim:
            raise BadValue(f"x: expected (b,l,dim) with dim={self.dim}, got shape {tuple(x.shape)}.")
        return x + self.rows(self._places(x, offset)).to(x.dtype)

    def _places(self, x: Tensor, offset: int | Tensor) -> Tensor:
        """The position of each row, (l,) or (b,l)."""
        steps = torch.arange(x.shape[1], device=x.device)
        if not isinstance(offset, Tensor):
            first = whole_number("offset", offset, 0)
            self._refuse_beyond(first + x.shape[1])
            return steps + first
        if offset.is_floating_point() or offset.dtype == torch.bool or offset.dim() > 1:
            raise BadType(
                f"offset: expected an int or a tensor of ints, () or (b,), got {described(offset)}."
            )
        if offset.dim() == 1 and not fits(offset.shape[0], x.shape[0]):
            raise BadValue(
                f"offset: expected one entry or {x.shape[0]} (the batch), got {described(offset)}."
            )
        # To look at a tensor elsewhere would mean to wait for the device.
        if offset.device.type == "cpu" and offset.numel() and not torch.compiler.is_compiling():
            whole_number("offset", int(offset.min()), 0)
            self._refuse_beyond(int(offset.max()) + x.shape[1])
        offset = offset.to(x.device)
        return steps + (offset[:, None] if offset.dim() else offset)

    def _refuse_beyond(self, end: int) -> None:
        if self.max_length is not None and end > self.max_length:
            raise BadValue(
                f"x: positions up to {end - 1} were asked for, but this table was built with max_length="
                f"{self.max_length} and ends at {self.max_length - 1}. Build it longer, cut the input, or use "
                f"'sinusoidal', which has no end."
            )

    def extra_repr(self) -> str:
        return f"dim={self.dim}" + ("" if self.max_length is None else f", max_length={self.max_length}")


class Sinusoidal(PositionalEncoding):
    """Adds sines and cosines of falling frequency; has no parameters and no last position."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def rows(self, places: Tensor) -> Tensor:
        return _waves(places, self.dim)


class Learned(PositionalEncoding):
    """Adds a learned row for each of `max_length` positions."""

    max_length: int

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__(dim, max_length)
        self.table = nn.Parameter(torch.randn(self.max_length, self.dim) * 0.02)

    def rows(self, places: Tensor) -> Tensor:
        return self.table[places]


class HalfWave(PositionalEncoding):
    """Adds half a period of a sine (even columns) and a cosine (odd columns), each column with a trainable gain."""

    max_length: int

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__(dim, max_length)
        self.gains = nn.Parameter(torch.ones(self.dim))

    def rows(self, places: Tensor) -> Tensor:
        return self.gains * _half_waves(places, self.dim, self.max_length).to(self.gains.dtype)


class NoPositions(PositionalEncoding):
    """Adds nothing: for models whose attention knows about positions by itself, or needs none."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def forward(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        return x


_ADDITIVE: Registry[Callable[[int, int | None], PositionalEncoding]] = Registry("positions")
_ADDITIVE.add("sinusoidal", lambda dim, _: Sinusoidal(dim))
_ADDITIVE.add("learned", lambda dim, max_length: Learned(dim, _needed("learned", max_length)))
_ADDITIVE.add("half-wave", lambda dim, max_length: HalfWave(dim, _needed("half-wave", max_length)))
_ADDITIVE.add("none", lambda dim, _: NoPositions(dim))


def names() -> list[str]:
    """What `build` knows: the positions that are added to embeddings."""
    return _ADDITIVE.names()


def build(name: str, dim: int, max_length: int | None = None) -> PositionalEncoding:
    """The module called `name`; "learned" and "half-wave" need a `max_length`, the others take any length."""
    return _ADDITIVE[name](dim, max_length)


def _needed(name: str, max_length: int | None) -> int:
    if max_length is None:
        raise BadValue(f"max_length: {name!r} positions need one, for instance max_length=512.")
    return max_length


def _frequencies(dim: int, base: float, device: torch.device) -> Tensor:
    """base^(−2i/dim) for each pair of columns, in float64."""
    exponents = torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim
    return torch.exp(exponents * -math.log(base))


def _waves(places: Tensor, dim: int) -> Tensor:
    angles = places.double()[..., None] * _frequencies(dim, _BASE, places.device)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[
        ..., :dim
    ]  # odd dim: no cosine for the last


def _half_waves(places: Tensor, dim: int, period: int) -> Tensor:
    angles = (places.double() + 1) * (math.pi / max(1, period))
    pair = torch.stack([angles.sin(), angles.cos()], -1)  # (…, 2)
    return pair[..., torch.arange(dim, device=places.device) % 2]

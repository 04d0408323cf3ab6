"""What an attack on a picture may do: the points within a radius of it and between 0 and 1, at the chosen pixels.

The limits hold for the numbers as they are stored, not only up to rounding: |x' − x| ≤ ε for each pixel (linf) or
‖x' − x‖ ≤ ε for the picture (l2), both as exact arithmetic would compute them. A change is rounded towards the picture.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import unknown_name

SLACK = 1e-9  # of an l2 radius, for the rounding of norms in float64; a float32 pixel is rounded by 6e-8


class Ball:
    """The points that an attack may choose. A subclass has a norm; all points of it are projected by `project`."""

    def __init__(self, centre: Tensor, radius: float, pixels: Tensor | None = None) -> None:
        """centre: pictures (b, …) from 0 to 1. pixels: True where they may change, as large; None: everywhere."""
        self.centre, self.radius = centre, radius
        self.pixels = torch.ones_like(centre, dtype=torch.bool) if pixels is None else pixels

    def project(self, points: Tensor) -> Tensor:
        """Points inside, as near as the norm says; pixels that may not change are those of the centre."""
        raise NotImplementedError(f"{type(self).__name__} does not define project")

    def random(self, generator: torch.Generator) -> Tensor:
        """Points drawn at random from the ball, then cut at 0 and 1."""
        raise NotImplementedError(f"{type(self).__name__} does not define random")

    def ascent(self, gradient: Tensor) -> Tensor:
        """The direction of length 1 in which a function with this gradient rises most."""
        raise NotImplementedError(f"{type(self).__name__} does not define ascent")

    def size(self, points: Tensor) -> Tensor:
        """How far points are from the centre, in float64, (b,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define size")

    def _change(self, points: Tensor) -> Tensor:
        """points − centre in float64, 0 where nothing may change."""
        return torch.where(self.pixels, points, self.centre).to(_wide(points)) - self.centre.to(_wide(points))


class LinfBall(Ball):
    """Every pixel may change by the radius."""

    def __init__(self, centre: Tensor, radius: float, pixels: Tensor | None = None) -> None:
        super().__init__(centre, radius, pixels)
        self.low = torch.where(self.pixels, _moved(centre, -radius).clamp(min=0), centre)
        self.high = torch.where(self.pixels, _moved(centre, radius).clamp(max=1), centre)

    def project(self, points: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(points, self.low), self.high)

    def random(self, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(self.centre.shape, generator=generator).to(self.centre)
        return self.project(self.centre + self.radius * (2 * drawn - 1))

    def ascent(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def size(self, points: Tensor) -> Tensor:
        return self._change(points).abs().flatten(1).amax(1).cpu().double()


class L2Ball(Ball):
    """The Euclidean length of the change of a picture is at most the radius."""

    def project(self, points: Tensor) -> Tensor:
        change = self._change(points)
        length = _norms(change)
        change = change * (self.radius * (1 - SLACK) / length).clamp(max=1)
        projected = (self.centre.to(change) + change).to(self.centre)
        outward = (projected.to(change) - self.centre.to(change)).abs() > change.abs()
        projected = torch.where(outward.to(projected.device), torch.nextafter(projected, self.centre), projected)
        return torch.where(self.pixels, projected.clamp(0, 1), self.centre)  # the centre is between 0 and 1

    def random(self, generator: torch.Generator) -> Tensor:
        drawn = torch.randn(self.centre.shape, generator=generator).to(self.centre)
        drawn = torch.where(self.pixels, drawn, 0)
        count = self.pixels.flatten(1).sum(1).clamp(min=1).cpu()
        lengths = self.radius * torch.rand(len(count), generator=generator) ** (1 / count)
        lengths = lengths.to(self.centre).view(-1, *[1] * (drawn.dim() - 1))
        return self.project(self.centre + drawn / _norms(drawn).clamp(min=1e-30) * lengths)

    def ascent(self, gradient: Tensor) -> Tensor:
        free = torch.where(self.pixels, gradient, 0)
        length = _norms(free)
        return free / torch.where(length > 0, length, 1)

    def size(self, points: Tensor) -> Tensor:
        lengths: Tensor = self._change(points).flatten(1).norm(dim=1)
        return lengths.cpu().double()


BALLS: dict[str, type[Ball]] = {"linf": LinfBall, "l2": L2Ball}


def ball(norm: str, centre: Tensor, radius: float, pixels: Tensor | None = None) -> Ball:
    """The ball of a norm, by name."""
    if norm not in BALLS:
        raise unknown_name("norm", norm, BALLS)
    return BALLS[norm](centre, radius, pixels)


def _wide(tensor: Tensor) -> Tensor:
    """An empty float64 tensor that others are converted like; on the CPU for Apple's devices, which lack float64."""
    device = torch.device("cpu") if tensor.device.type == "mps" else tensor.device
    return torch.empty(0, dtype=torch.float64, device=device)


def _norms(change: Tensor) -> Tensor:
    """The Euclidean length of each example, (b, 1, …)."""
    lengths: Tensor = change.flatten(1).norm(dim=1)
    return lengths.view(-1, *[1] * (change.dim() - 1))


def _moved(centre: Tensor, change: float) -> Tensor:
    """centre + change, rounded towards the centre: the result is nowhere further away than `change` says, exactly."""
    wide = centre.to(_wide(centre))
    total = wide + change
    rounded = total.to(centre)
    # What float64 lost in `total` (two-sum of Knuth), so that the comparison is one of the exact numbers.
    added = total - wide
    lost = (wide - (total - added)) + (change - added)
    beyond = rounded.to(wide) - total
    outward = (beyond > 0) | ((beyond == 0) & (lost < 0)) if change > 0 else (beyond < 0) | ((beyond == 0) & (lost > 0))
    return torch.where(outward.to(rounded.device), torch.nextafter(rounded, centre), rounded)

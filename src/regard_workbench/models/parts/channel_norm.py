"""What normalises the channels of a convolution."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from regard.errors import unknown_name

GROUPS = 8  # of channels that are normalised together
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "group": lambda channels: nn.GroupNorm(math.gcd(GROUPS, channels), channels),
    "batch": nn.BatchNorm2d,
}


def channel_norm(norm: str, channels: int) -> nn.Module:
    """The layer by its name: `group` or `batch`.

    `group` normalises a few channels of one picture together, so that an example does not depend on the others of its
    batch (Wu & He 2018). `batch` takes each channel by itself, over all pictures of a training batch (Ioffe & Szegedy
    2015). In scenes that are mostly empty, the mean over all places is then several times as different from picture to
    picture, and attention that begins with that mean learns to tell figures apart in a fraction of the steps.
    """
    if norm not in NORMS:
        raise unknown_name("norm", norm, NORMS)
    return NORMS[norm](channels)

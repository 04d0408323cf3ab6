"""How pictures lie in memory before convolutions."""

from __future__ import annotations

import torch
from torch import Tensor


def for_convolutions(pictures: Tensor) -> Tensor:
    """The same pictures (b,channels,height,width); on a GPU with the channels of a pixel side by side.

    Tensor cores read them so. Of pictures channel by channel, every convolution would make a copy first, and one of
    what it returns; the order of the first picture is kept by all that follows.
    """
    return pictures.contiguous(memory_format=torch.channels_last) if pictures.is_cuda else pictures

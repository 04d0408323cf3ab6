"""Pictures of one size: from Pillow to arrays, and arrays to numbers for a batch.

>>> import numpy as np
>>> numbers([np.full((4, 6, 3), 255, np.uint8)]).shape
torch.Size([1, 3, 4, 6])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import BadValue

Pixels = NDArray[np.uint8]  # (height, width, channels)
GREY, COLOUR = 1, 3  # channels
MOST_HELD = 4 * 2**30  # bytes of all pictures that are read from files


def fitted(image: Any, height: int, width: int) -> NDArray[np.uint8]:
    """Pillow's image as (channels,height,width): enlarged or reduced until it covers that, and cut at both ends."""
    from PIL import Image, ImageOps

    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    numbers = np.asarray(image, np.uint8)
    return numbers[None] if numbers.ndim == 2 else np.ascontiguousarray(numbers.transpose(2, 0, 1))


def square(image: Any, size: int, channels: int = COLOUR) -> Pixels:
    """A Pillow image as size × size pixels: its shorter side brought to `size`, the middle of the longer one."""
    cropped = fitted(image.convert("L" if channels == GREY else "RGB"), size, size)
    return np.ascontiguousarray(cropped.transpose(1, 2, 0))


def packed(picture: NDArray[np.float32]) -> Pixels:
    """A picture (channels,height,width) from 0 to 1 as pixels, which take a quarter of the memory."""
    return np.ascontiguousarray((picture.clip(0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0))


def numbers(pictures: Sequence[Pixels]) -> Tensor:
    """Pictures of one size as numbers from 0 to 1, (b,channels,height,width)."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255


def shown(pixels: Pixels) -> NDArray[np.float32]:
    """A picture as `Shown` takes it: (height,width) for a grey one, (height,width,3) for one in colours."""
    scaled = np.asarray(pixels / 255, np.float32)
    return scaled[..., 0] if pixels.shape[2] == GREY else scaled


def held_bytes(count: int, where: object, size: int) -> int:
    """How many bytes of pictures are held; refused where a machine may not have as many."""
    if count > MOST_HELD:
        raise BadValue(
            f"data: the pictures of {where} take more than {MOST_HELD / 2**30:.0f} GiB at {size} × {size} pixels. "
            "Give a smaller size, or take a part of them."
        )
    return count

"""Pictures as rows of patches, and back.

>>> import torch
>>> from regard.tasks.streams import Patches
>>> spec = Patches.of(channels=3, height=8, width=12, side=4)
>>> rows = cut(torch.rand(2, 3, 8, 12), spec)
>>> rows.shape, fold(rows, spec).shape
(torch.Size([2, 6, 48]), torch.Size([2, 3, 8, 12]))
"""

from __future__ import annotations

from einops import rearrange
from torch import Tensor

from regard.tasks.streams import Patches


def cut(pictures: Tensor, spec: Patches) -> Tensor:
    """Pictures (b,channels,height,width), or videos (b,frames,channels,height,width), as patches (b,n,width)."""
    video = pictures if pictures.dim() == 5 else pictures[:, None]
    return rearrange(
        video,
        "b t c (r y) (k x) -> b (t r k) (c y x)",
        t=spec.frames, r=spec.rows, k=spec.columns, c=spec.channels, y=spec.side, x=spec.side,
    )  # fmt: skip


def fold(rows: Tensor, spec: Patches) -> Tensor:
    """The pictures whose patches these are: (b,n,width) → (b,channels,height,width); with frames before the channels
    for a video."""
    video = rearrange(
        rows,
        "b (t r k) (c y x) -> b t c (r y) (k x)",
        t=spec.frames, r=spec.rows, k=spec.columns, c=spec.channels, y=spec.side, x=spec.side,
    )  # fmt: skip
    return video if spec.frames > 1 else video[:, 0]

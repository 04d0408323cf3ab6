"""Pictures as rows of patches, and back.

>>> import torch
>>> from regard_workbench.tasks.parts.streams import Patches
>>> spec = Patches.of(channels=3, height=8, width=12, side=4)
>>> rows = cut(torch.rand(2, 3, 8, 12), spec)
>>> rows.shape, fold(rows, spec).shape
(torch.Size([2, 6, 48]), torch.Size([2, 3, 8, 12]))
"""

from __future__ import annotations

from torch import Tensor

from regard_workbench.tasks.parts.streams import Patches


def cut(pictures: Tensor, spec: Patches) -> Tensor:
    """Pictures (b,channels,height,width), or videos (b,frames,channels,height,width), as patches (b,n,width)."""
    sizes = (spec.frames, spec.channels, spec.rows, spec.side, spec.columns, spec.side)
    # frame, channel, row, y, column, x → frame, row, column, channel, y, x
    apart = pictures.reshape(len(pictures), *sizes).permute(0, 1, 3, 5, 2, 4, 6)
    return apart.reshape(len(pictures), spec.frames * spec.rows * spec.columns, spec.width)


def fold(rows: Tensor, spec: Patches) -> Tensor:
    """The pictures whose patches these are: (b,n,width) → (b,channels,height,width); with frames before the channels
    for a video."""
    sizes = (spec.frames, spec.rows, spec.columns, spec.channels, spec.side, spec.side)
    batch = rows.shape[0]  # len(rows) would tie an exported graph to this one batch size
    apart = rows.reshape(batch, *sizes).permute(0, 1, 4, 2, 5, 3, 6)
    video = apart.reshape(batch, spec.frames, spec.channels, spec.rows * spec.side, spec.columns * spec.side)
    return video if spec.frames > 1 else video[:, 0]


def names(spec: Patches) -> list[str]:
    """What the patches are called: row and column, from 0; of a video the frame first."""
    frames = [""] if spec.frames == 1 else [f"{frame}: " for frame in range(spec.frames)]
    places = [f"{row},{column}" for row in range(spec.rows) for column in range(spec.columns)]
    return [frame + place for frame in frames for place in places]

"""Frames of sound as rows: a convolutional front end, one row for each position."""

from __future__ import annotations

from torch import Tensor, nn

from regard.errors import BadValue
from regard_workbench.models.parts.embedding import embeds
from regard_workbench.tasks.parts.streams import Frames

CHANNELS = 32
STRIDE = 4  # frames of a position: two convolutions halve the time


class SoundFrontEnd(nn.Module):
    """Two convolutions over time and bands, each halving both, then a linear map: (b, n, 4 · bands) → (b, n, dim).

    The first one sees a frame of the position before; none sees the position behind. So padding behind the end of a
    sound changes nothing, and rows stand one for one beside the positions of the stream.
    """

    def __init__(self, spec: Frames, dim: int) -> None:
        super().__init__()
        if spec.width != STRIDE * spec.bands:
            raise BadValue(
                f"streams: expected {STRIDE} frames of {spec.bands} bands at each position, which are "
                f"{STRIDE * spec.bands} numbers, got {spec.width}."
            )
        self.bands = spec.bands
        self.first = nn.Conv2d(1, CHANNELS, (3, 3), stride=2, padding=(1, 1))
        self.second = nn.Conv2d(CHANNELS, CHANNELS, (2, 3), stride=2, padding=(0, 1))
        halves = -(-spec.bands // 2)
        self.out = nn.Linear(CHANNELS * -(-halves // 2), dim)

    def forward(self, data: Tensor) -> Tensor:
        """(b, n, 4 · bands) → (b, n, dim)."""
        count, positions, _ = data.shape
        if positions == 0 or count == 0:  # convolutions refuse what is empty
            return self.out.weight.new_zeros(count, positions, self.out.out_features)
        image = data.to(self.first.weight.dtype).reshape(count, 1, positions * STRIDE, self.bands)
        maps = nn.functional.gelu(self.second(nn.functional.gelu(self.first(image))))
        rows: Tensor = self.out(maps.transpose(1, 2).flatten(2))
        return rows


@embeds(Frames)
def _frames(spec: Frames, dim: int) -> nn.Module:
    return SoundFrontEnd(spec, dim)

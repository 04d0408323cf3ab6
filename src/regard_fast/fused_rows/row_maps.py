"""How a mechanism is seen by the kernels: linear maps of rows, something between heads, and a map of its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from regard_fast.fused_rows.short_attention import PlainAttention


@dataclass(frozen=True)
class RowMaps:
    """Self-attention without masks, state or source, as `out(mix(maps of the rows))`.

    `mix` takes the results of the maps as heads (b,h,n,·) and returns mixed heads of the same shape.
    """

    maps: tuple[nn.Linear, ...]
    mix: Callable[[list[Tensor]], Tensor]
    out: nn.Linear
    heads: int
    # What `mix` is, where it is attention of the first map to the other two.
    plain: PlainAttention | None = None
    shortest: int = 1  # rows of a sequence; with fewer, some maps would not be used

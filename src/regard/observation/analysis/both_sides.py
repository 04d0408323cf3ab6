"""An encoder and a decoder as one stack, and rollout through both.

A decoder layer mixes rows of its own side (self-attention) with rows that the encoder returned (cross-attention):

    x ← r·x + (1 − r)·C·e          e: the encoder's last rows, C: the map of the cross-attention

so what is in a decoder's position is a share of each position that the decoder read and of each that the encoder read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.observation.analysis.layers import pass_down, put_together
from regard.observation.analysis.sites import CROSSING, SeenLike, SiteLike, at, blocks
from regard.observation.coverage import refuse_nothing, refuse_partial


@dataclass(frozen=True)
class BothSides:
    """The sites of an encoder and of a decoder, each from its input to its output."""

    encoder: tuple[SiteLike, ...]
    decoder: tuple[SiteLike, ...]  # self-attention and cross-attention in their order
    targets: int
    sources: int
    call: int

    def crosses(self, site: SiteLike) -> bool:
        """Whether a site of the decoder attends to the encoder's rows."""
        return CROSSING.search(site.name) is not None


def both_sides(seen: SeenLike, call: int | None = -1) -> BothSides | None:
    """Encoder and decoder of a model whose module paths say which is which; None for any other model."""
    refuse_nothing(seen, "layers")
    names = seen.names()
    crossing = [name for name in names if CROSSING.search(name)]
    self_attention = [name for name in names if name not in crossing]
    decoder = [name for name in self_attention if _part(name, "decoder")]
    encoder = [name for name in self_attention if name not in decoder]
    sides = {getattr(seen[name], side, "") for name in names for side in ("rows", "columns")}
    if not crossing or {"slot", "memory"} & sides or not all(_part(name, "encoder") for name in encoder):
        return None
    refuse_partial(list(getattr(seen, "unseen", ())), "layers", "Name the layers to go through: layers=[…].")
    which = -1 if call is None else call
    below = tuple(at(seen[name], None if call is None else -1)[0] for name in encoder)  # runs once, before any step
    above = tuple(at(seen[name], call)[0] for name in names if name in crossing or name in decoder)
    targets, sources = next(site.shape(which)[2:] for site in above if CROSSING.search(site.name))
    fits = [site.shape(which)[2:] == (targets, sources if CROSSING.search(site.name) else targets) for site in above]
    fits += [site.shape(-1)[2:] == (sources, sources) for site in below]
    if not all(fits):
        raise BadValue(
            "layers: the maps of the decoder and of the encoder do not fit together. For the steps of a generation, "
            "call=None joins them; else name the layers of one stack: layers='encoder'."
        )
    return BothSides(below, above, int(targets), int(sources), which)


def _part(name: str, word: str) -> bool:
    return any(segment.startswith(word) for segment in name.casefold().split("."))


def roll_down(sides: BothSides, wanted: Tensor, heads: str, residual: float, batch: int) -> Tensor:
    """Shares of what decoder and encoder read in chosen positions of the decoder, (rows, targets + sources)."""
    arriving = torch.zeros(len(wanted), sides.targets, dtype=torch.float64)
    arriving[torch.arange(len(wanted)), wanted] = 1.0
    source = torch.zeros(len(wanted), sides.sources, dtype=torch.float64)
    for site in reversed(sides.decoder):
        if sides.crosses(site):
            over, kept = _cross(arriving, site, heads, residual, sides, batch)
            source, arriving = source + over, arriving * kept
        else:
            arriving = pass_down(arriving, site, heads, residual, sides.call, batch)
    for site in reversed(sides.encoder):
        source = pass_down(source, site, heads, residual, -1, batch)
    return torch.cat([arriving, source], 1)


def _cross(
    arriving: Tensor, site: SiteLike, heads: str, residual: float, sides: BothSides, batch: int
) -> tuple[Tensor, Tensor]:
    """What goes over to the encoder's rows, and the share that each row keeps."""
    leaving = torch.zeros(len(arriving), sides.sources, dtype=torch.float64)
    kept = torch.ones(sides.targets, dtype=torch.float64)
    needed = (arriving != 0).any(0).nonzero().flatten()
    for rows, weights in blocks(site, needed, sides.call, batch):
        over = passed_over(weights, heads, residual)
        leaving += arriving[:, rows] @ over
        kept[rows] = 1 - over.sum(1)
    return leaving, kept


def passed_over(weights: Tensor, heads: str, residual: float) -> Tensor:
    """(1 − r)·C of a block of rows: the residual connection stays on the decoder's side."""
    mixed = put_together(weights, heads, 0.0, torch.zeros(weights.shape[1], dtype=torch.int64))
    empty = weights.sum((0, 2)) == 0  # a row that attends to nothing passes nothing over
    return torch.where(empty[:, None], 0.0, (1 - residual) * mixed)

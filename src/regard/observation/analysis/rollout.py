"""Attention rollout: how much of each input position is in each position after all layers.

Abnar and Zuidema, 2020, "Quantifying attention flow in transformers", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.observation.analysis.both_sides import both_sides, roll_down
from regard.observation.analysis.layers import Heads, pass_down, share_of_residual, stack
from regard.observation.analysis.sites import Rows, SeenLike, chosen

MOST = 1 << 24  # entries of a result for all rows


def rollout(
    seen: SeenLike,
    rows: Rows = None,
    *,
    layers: str | Sequence[str] | None = None,
    heads: Heads = "mean",
    residual: float = 0.5,
    call: int | None = -1,
    batch: int = 0,
) -> Tensor:
    """How much of each input position is in chosen positions of the last layer, (rows, positions).

        R_L = Â_L · … · Â_1,     Â_l = r·1 + (1 − r)·A_l

    A_l is the layer's map, its heads combined (`mean`, `max`, `min`) and its rows divided by their sums; r is the share
    of the residual connection. Each row sums to 1. Only the chosen rows are multiplied, from the last layer down, so
    one position takes memory linear in the length.

    Of an encoder-decoder without `layers` the rows are positions of the decoder, and the columns what the decoder read,
    then what the encoder read (`both_sides`); they, too, sum to 1.

    Args:
        seen: what was observed.
        rows: positions of the last layer; all of them if there are not too many.
        layers: names of the sites from the first to the last, or a part of their paths; else all self-attentions.
        heads: how the heads of a layer are combined.
        residual: r.
        call: which call of the sites; None joins a prompt and its decoding steps to one map.
        batch: which example.
    """
    residual = share_of_residual(residual)
    sides = both_sides(seen, call) if layers is None else None
    if sides is not None:
        return roll_down(sides, chosen(rows, sides.targets), heads, residual, batch)
    sites, which = stack(seen, layers, call)
    length = sites[0].shape(which)[3]
    wanted = chosen(rows, length)
    if rows is None and length * length > MOST:
        raise BadValue(f"rows: expected some of {length} positions, got None: all rows would take {length}² numbers.")
    arriving = torch.zeros(len(wanted), length, dtype=torch.float64)
    arriving[torch.arange(len(wanted)), wanted] = 1.0
    for site in reversed(sites):
        arriving = pass_down(arriving, site, heads, residual, which, batch)
    return arriving

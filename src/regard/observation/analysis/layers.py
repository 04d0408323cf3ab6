"""A stack of layers, each as one matrix over positions: heads combined, the residual connection added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from regard.errors import BadValue, unknown_name
from regard.observation.analysis.sites import SeenLike, SiteLike, at, blocks, crosses
from regard.observation.coverage import Unseen, refuse_nothing, refuse_partial
from regard.support.arguments import finite_number

Heads = Literal["mean", "max", "min"]
HEADS = ("mean", "max", "min")


def stack(
    seen: SeenLike, layers: str | Sequence[str] | None = None, call: int | None = -1
) -> tuple[list[SiteLike], int]:
    """Self-attention layers over the same positions, from the input to the output, and which call of them.

    `layers` lists the sites in that order, or is a part of their paths (`"encoder"`). Without it all sites are taken,
    if the model has only self-attention.
    """
    refuse_nothing(seen, "layers")
    refuse_partial(_unseen(seen, layers), "layers", "Name the layers to go through: layers=[…].")
    sites = [at(seen[name], call)[0] for name in _names(seen, layers)]
    which = -1 if call is None else call
    if not sites:
        raise BadValue(
            f"layers: expected self-attention layers, but {layers or 'this model'!s} has none. "
            f"Seen: {', '.join(seen.names()) or 'nothing'}."
        )
    shapes = {site.name: site.shape(which)[2:] for site in sites}
    if len(set(shapes.values())) > 1 or any(queries != keys for queries, keys in shapes.values()):
        sizes = ", ".join(f"{name} {queries}×{keys}" for name, (queries, keys) in shapes.items())
        raise BadValue(
            f"layers: expected layers over the same positions, as many queries as keys, got {sizes}. "
            "Name the layers of one stack, or give a part of their paths such as 'encoder'; for the steps of a "
            "generation, call=None joins them."
        )
    return sites, which


def _unseen(seen: SeenLike, layers: str | Sequence[str] | None) -> list[Unseen]:
    """Modules among the chosen layers that were not seen; a list of layers is taken as it is."""
    unseen: Sequence[Unseen] = getattr(seen, "unseen", ())
    if layers is not None and not isinstance(layers, str):
        return []
    return [module for module in unseen if layers is None or _belongs(module.path, layers)]


def _belongs(name: str, part: str) -> bool:
    return part in name.split(".") or name.startswith(part)


def _names(seen: SeenLike, layers: str | Sequence[str] | None) -> list[str]:
    names = seen.names()
    if layers is not None and not isinstance(layers, str):
        for name in layers:
            if name not in names:
                raise unknown_name("layers", name, names)
        return list(layers)
    self_attention = [name for name in names if not crosses(seen[name])]
    if layers is not None:
        return [name for name in self_attention if _belongs(name, layers)]
    if self_attention and len(self_attention) < len(names):
        raise BadValue(
            "layers: this model attends from one sequence to another, so its layers need not be one stack. "
            f"Give a part of the paths of those that are, such as 'encoder'. Seen: {', '.join(names)}."
        )
    return self_attention


def put_together(weights: Tensor, heads: str, residual: float, rows: Tensor) -> Tensor:
    """(heads, rows, k) → (rows, k): r·1 + (1 − r)·A, where A is the mean, maximum or minimum over heads.

    Each row of A is divided by its sum. A row without weight becomes the identity.
    """
    if heads not in HEADS:
        raise unknown_name("heads", heads, HEADS)
    if heads == "mean":
        mixed = weights.mean(0, dtype=torch.float64)
    else:
        mixed = (weights.amax(0) if heads == "max" else weights.amin(0)).double()
    total = mixed.sum(-1, keepdim=True)
    empty = total == 0
    mixed = (1 - residual) * mixed / torch.where(empty, 1, total)
    mixed[torch.arange(len(rows)), rows] += torch.where(empty[:, 0], 1.0, residual)
    return mixed


def pass_down(arriving: Tensor, site: SiteLike, heads: str, residual: float, call: int, batch: int) -> Tensor:
    """(n, positions) × the layer's matrix, in blocks of its rows; rows multiplied only by 0 are not computed."""
    leaving = torch.zeros_like(arriving)
    needed = (arriving != 0).any(0).nonzero().flatten()
    for rows, weights in blocks(site, needed, call, batch):
        leaving += arriving[:, rows] @ put_together(weights, heads, residual, rows)
    return leaving


def share_of_residual(residual: float) -> float:
    """Check that the share of the residual is from 0 to 1."""
    share = finite_number("residual", residual)
    if not 0 <= share <= 1:
        raise BadValue(f"residual: expected a share from 0 to 1, got {residual!r}.")
    return share

"""How far an attack moved the attention: the Jensen–Shannon divergence of each layer's weights, before and after."""

from __future__ import annotations

from torch import Tensor

from regard.errors import BadValue
from regard.observation.analysis.difference import compare
from regard.observation.seen import Seen
from regard_workbench.attacks.places import real_rows
from regard_workbench.tasks.parts.batch import Batch


def movement(before: Seen, after: Seen, batch: Batch) -> dict[str, Tensor]:
    """For each layer that was seen twice, the divergence in bits of each example, (b,) in float64.

    0: the same weights; 1: weights on other positions altogether. The mean over heads and over the queries that are no
    padding.
    """
    divergences = {}
    for name, site in before.sites.items():
        if name not in after:
            continue
        try:
            divergence = compare(site, after[name]).divergence  # (b,h,q)
        except BadValue:  # the attack changed how many keys there are, so rows do not correspond
            continue
        real = real_rows(batch, divergence.shape[2])[:, None]
        defined = (~divergence.isnan()).double() * real
        divergences[name] = (divergence.nan_to_num() * defined).sum((1, 2)) / defined.sum((1, 2)).clamp(min=1)
    return divergences

"""How much the attention of two models, checkpoints or inputs differs, per site, head and row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.observation.analysis.sites import SeenLike, SiteLike, at, blocks


@dataclass(frozen=True)
class SiteDifference:
    """Two matched sites, and how much their rows differ."""

    name: str
    other: str  # the name of the second
    divergence: Tensor  # (b,h,q): Jensen–Shannon divergence in bits: 0 for equal weights, 1 for disjoint ones

    @property
    def heads(self) -> Tensor:
        """The mean of each head over examples and rows, without NaN, (h,)."""
        return self.divergence.nanmean((0, 2))

    @property
    def mean(self) -> float:
        """The mean over examples, heads and rows, without NaN."""
        return float(self.divergence.nanmean())

    def largest(self, count: int = 10) -> list[tuple[int, int, int, float]]:
        """(example, head, row, divergence) of the rows that differ most."""
        flat = self.divergence.nan_to_num(nan=-1.0).flatten()
        order = flat.sort(descending=True, stable=True)
        largest_rows = []
        for index, value in zip(order.indices[:count].tolist(), order.values[:count].tolist(), strict=True):
            if value >= 0:  # NaN is last, as −1
                queries = self.divergence.shape[2]
                example, head = divmod(index // queries, self.divergence.shape[1])
                largest_rows.append((example, head, index % queries, value))
        return largest_rows


@dataclass(frozen=True)
class AttentionDifference:
    """The differences of all sites that two observations have in common."""

    sites: list[SiteDifference]
    only_first: list[str]
    only_second: list[str]

    def ranked(self) -> list[tuple[str, int, float]]:
        """(site, head, mean divergence), largest first."""
        heads = [(site.name, head, value) for site in self.sites for head, value in enumerate(site.heads.tolist())]
        return sorted(heads, key=lambda one: -one[2] if one[2] == one[2] else 1.0)


def difference(first: SeenLike, second: SeenLike, *, call: int | None = -1) -> AttentionDifference:
    """The divergence of every row of every head that two observations have in common.

    Sites are matched by name, the remaining ones in the order of their calls. Weights are computed in blocks of rows;
    `call=None` joins the steps of a generation to one map.

        JS(p, q) = ½ Σ p log₂(2p/(p+q)) + ½ Σ q log₂(2q/(p+q)),     p, q: rows of weights divided by their sums

    Two rows without weight do not differ; a row without weight differs from any other by 1. Non-finite rows give NaN,
    which the means leave out.
    """
    pairs, only_first, only_second = matched(first.names(), second.names())
    sites = [compare(first[name], second[partner], call=call) for name, partner in pairs]
    return AttentionDifference(sites, only_first, only_second)


def matched(first: list[str], second: list[str]) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Pairs of names in the order of the first list, and the unmatched names of each."""
    unmatched = [name for name in second if name not in set(first)]
    partner = {name: name for name in set(first) & set(second)}
    partner.update(zip([name for name in first if name not in partner], unmatched, strict=False))
    matched_names = set(partner.values())
    return (
        [(name, partner[name]) for name in first if name in partner],
        [name for name in first if name not in partner],
        [name for name in second if name not in matched_names],
    )


def compare(first: SiteLike, second: SiteLike, *, call: int | None = -1) -> SiteDifference:
    """Two sites of the same shape."""
    (first, which), (second, _) = at(first, call), at(second, call)
    shapes = first.shape(which), second.shape(which)
    if shapes[0] != shapes[1]:
        kinds = ("examples", "heads", "queries", "keys")
        unlike = ", ".join(f"{a} and {b} {kind}" for a, b, kind in zip(*shapes, kinds, strict=True) if a != b)
        advice = (
            "Their heads do not correspond."
            if shapes[0][1] != shapes[1][1]
            else "Rows are compared one by one: give both the same number of tokens."
        )
        raise BadValue(f"second: expected the shape of {first.name}, but {second.name} differs: {unlike}. {advice}")
    batch, heads, queries, _ = shapes[0]
    divergences = torch.zeros(batch, heads, queries, dtype=torch.float64)
    every = torch.arange(queries)
    both = zip(blocks(first, every, which, None), blocks(second, every, which, None), strict=True)
    for (rows, ours), (_, theirs) in both:
        divergences[:, :, rows] = divergence(ours, theirs)
    return SiteDifference(first.name, second.name, divergences)


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """Jensen–Shannon divergence in bits between rows of weights, (…, k) → (…)."""
    shares = []
    for weights in (first.double(), second.double()):
        total = weights.sum(-1, keepdim=True)
        shares.append(weights / torch.where(total == 0, 1, total))
    p, q = shares
    middle = (p + q) / 2
    bits = (torch.special.entr(middle) - (torch.special.entr(p) + torch.special.entr(q)) / 2).sum(-1)
    bits = (bits / torch.log(torch.tensor(2.0, dtype=bits.dtype))).clamp(0, 1)
    bits = torch.where((p.sum(-1) == 0) != (q.sum(-1) == 0), 1.0, bits)
    return torch.where(
        ((p < 0) | (q < 0)).any(-1), torch.nan, bits
    )  # effective weights may be negative, so they are no distribution

"""`local-p`: alignment inside a window whose centre each query predicts."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from regard import biases, masks
from regard.arguments import whole_number
from regard.errors import BadValue
from regard.grid import Grid, Sizes, broadcasts, whole
from regard.masks import Mask
from regard.masks.algebra import And, Blocks, grade
from regard.masks.positional import Causal
from regard.nn.alignment import head_weights
from regard.nn.attention import View
from regard.nn.local_m import Focused
from regard.nn.masking import joined
from regard.nn.mechanism import mechanism

_CELLS = 1 << 22  # pairs looked at together when keys have to be counted


class Around(Mask):
    """A query sees the keys at most `reach` away from its centre, a tensor (b|1,h|1,q).

    A centre that is NaN hides nothing, so that what is wrong with the query shows in its row.
    """

    center: Tensor
    reach: int

    def visible(self, grid: Grid) -> Tensor:
        return ~((grid.column - grid.pick(self.center[..., None])).abs() > self.reach)

    def grades(self, blocks: Blocks) -> Tensor:
        if not blocks.read_tensors:
            return super().grades(blocks)
        inside = torch.arange(blocks.block_q, device=blocks.device)
        rows = (blocks.first_row + inside).clamp(max=blocks.sizes[2] - 1)  # (nq, block_q)
        low, high = (end[..., None] for end in torch.aminmax(self.center[..., rows], dim=-1))
        apart = (blocks.first_column > high + self.reach) | (blocks.last_column < low - self.reach)
        every = (blocks.first_column >= high - self.reach) & (blocks.last_column <= low + self.reach)
        return grade(~apart, every)

    def check(self, sizes: Sizes) -> None:
        shape = tuple(self.center.shape)
        if len(shape) != 3 or not broadcasts(shape, sizes[:3]):
            raise BadValue(f"mask: the center has shape {shape}, expected (b,h,q) = {tuple(sizes[:3])}.")


def visible_counts(mask: Mask | None, sizes: Sizes, device: torch.device) -> Tensor:
    """How many keys each query sees, (b|1,h|1,q|1). Padding and causal masks are counted without a q×k array."""
    every = torch.ones(1, sizes[3], dtype=torch.bool, device=device)
    parts = _parts(mask) if sizes[3] else []
    ends, others = [part for part in parts if isinstance(part, Causal)], []
    for part in parts:
        if part.by_key:
            every = every & part.real_keys(sizes[3], sizes[0], device)
        elif not isinstance(part, Causal):
            others.append(part)
    if others:
        return _counted(joined(*parts), sizes, device)
    if not ends:
        return every.sum(-1)[:, None, None]
    rows = torch.arange(sizes[2], device=device)[None]
    end = rows.new_full((1, 1), sizes[3])
    for part in ends:
        end = torch.minimum(end, rows + _shift(part, sizes) + 1)  # (b|1,q)
    before = torch.nn.functional.pad(every.cumsum(-1), (1, 0))  # how many of the first n keys are real
    batch = max(len(before), len(end))
    found = before.expand(batch, -1).gather(1, end.clamp(0, sizes[3]).expand(batch, -1))
    return found[:, None]


def _parts(mask: Mask | None) -> list[Mask]:
    """The masks that were joined by &."""
    if isinstance(mask, And) and not mask.by_key:
        return [*_parts(mask.left), *_parts(mask.right)]
    return [] if mask is None else [mask]


def _shift(mask: Causal, sizes: Sizes) -> int | Tensor:
    """What lifts a query's index to its position, as the mask sees it."""
    if isinstance(mask.offset, Tensor):
        return mask.offset[:, None]
    if mask.offset is not None:
        return mask.offset
    return sizes[3] - sizes[2] if mask.align == "bottom-right" else 0


def _counted(mask: Mask | None, sizes: Sizes, device: torch.device) -> Tensor:
    """Counts by looking at every pair, some rows at a time."""
    assert mask is not None
    complete = whole(sizes, device)
    height = max(1, _CELLS // max(1, sizes[0] * sizes[1] * sizes[3]))
    found = [
        mask.tile(complete.part(rows=slice(top, min(sizes[2], top + height)))).sum(-1)
        for top in range(0, max(1, sizes[2]), height)
    ]
    return torch.cat(found, -1)


@mechanism("local-p", causal="option", time="n·w·d", memory="n·d", window=5)
class LocalP(Focused):
    """Each query predicts where in the source to look, and weighs the rows around there, nearer ones more.

        p_t = S · sigmoid(v_p·tanh(W_p q_t))
        a_tj = softmax over |j − p_t| ≤ D of score(q_t, h_j)  ·  exp(−(j − p_t)² / 2σ²),   σ = D/2,   D = window // 2
        o_t = Σ_j a_tj h_j

    S is the number of keys that the query may see (t + 1 in causal self-attention), and key j stands at position j of
    the source. The weights are not renormalised: they sum to less than one. The centre learns through the Gaussian.
    With window=1 there is none (σ = 0): a query sees the key exactly at p_t, with weight 1, or nothing.

    Paper: Luong et al. 2015, section 3.2, equations 9 and 10 (predictive alignment); scores of equation 8.
    Empty row: zeros; so also where the mask hides every key of the window.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width, each with weights and a centre of its own; 1 is the paper.
        dropout: share of attention weights dropped in training.
        source_dim: width of the source, where it differs from dim.
        window: how many keys lie in the window, odd: 2D + 1. The paper's D = 10 is 21.
        score: dot, general or concat, with the parameters of the mechanism of that name.
        renormalize: divide the weights by their sum.
        causal: a position sees itself and what came before.
        align: where the first query stands in a source of another length, when causal (bottom-right or top-left).

    >>> import torch, regard
    >>> layer = regard.nn.build("local-p", dim=16, window=5)
    >>> layer(torch.randn(2, 3, 16), torch.randn(2, 11, 16)).shape
    torch.Size([2, 3, 16])
    """

    fixed_options: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, dim: int, *, window: int = 21, renormalize: bool = False, causal: bool = False, **options: Any
    ) -> None:
        # The window lies around the centre and not around the query. So nothing that was seen may be forgotten, and
        # the layer has no window of the usual kind.
        super().__init__(dim, causal=causal, **options)
        window = whole_number("window", window, 1)
        if window % 2 == 0:
            raise BadValue(
                f"window: {window} keys cannot lie evenly around a centre; expected an odd number, for instance "
                f"{window - 1} or {window + 1}."
            )
        self.reach = window // 2
        self.renormalize = renormalize
        self.center_weight = head_weights(self.num_heads, self.head_dim, self.head_dim)
        self.center_vector = head_weights(self.num_heads, self.head_dim)

    def own_mask(self, **anchor: Any) -> Mask | None:
        # Even a mask that shows everything tells the skeleton that rows may turn out to be hidden: here by distance.
        return super().own_mask(**anchor) or masks.full()

    def centers(self, view: View) -> Tensor:
        """p_t of each head and query, (b,h,q), in float32 at least: a position is no number to round."""
        wide = torch.promote_types(view.rows.dtype, torch.float32)
        sizes = (*view.query.shape[:3], view.key.shape[2])
        # A query that is not finite shows as NaN in its scores. Here it would only spoil the gradient of the weights.
        spoilt = ~view.rows.detach().isfinite().all(-1, keepdim=True)
        with torch.autocast(view.rows.device.type, enabled=False):
            heads = self.split(view.rows.masked_fill(spoilt, 0).to(wide))
            hidden = torch.tanh(heads @ self.center_weight.to(wide).mT)
            share = torch.sigmoid((hidden * self.center_vector.to(wide)[:, None]).sum(-1))
            return visible_counts(view.mask, sizes, view.rows.device) * share

    def pieces(self, view: View) -> dict[str, Any]:
        center = self.centers(view)
        found = super().pieces(view)
        found["mask"] = joined(view.mask, Around(center.detach(), self.reach))
        found["bias"] = None if self.reach == 0 else biases.gaussian(center, self.reach / 2)
        return found

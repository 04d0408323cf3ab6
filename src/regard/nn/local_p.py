"""`local-p`: alignment inside a window whose centre each query predicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import biases, masks
from regard.core.arguments import whole_number
from regard.core.autocast import without_autocast
from regard.core.grid import Grid, Sizes, broadcasts, lift, whole
from regard.errors import BadValue
from regard.masks import Mask
from regard.masks.algebra import And, Blocks, grade
from regard.masks.positional import CausalMask, FullMask
from regard.nn.alignment import head_weights
from regard.nn.attention import View
from regard.nn.local_m import Focused
from regard.nn.masking import joined
from regard.nn.mechanism import mechanism

_CELLS = 1 << 22  # pairs looked at together when keys have to be counted
_FEW = 64  # so many queries are looked at together anyway


class Around(Mask):
    """A query sees the keys at most `reach` away from its centre and, where `end` is given, before that.

    Both are tensors (b|1,h|1,q). A centre that is NaN hides nothing, so that what is wrong with the query shows.
    """

    center: Tensor
    reach: int
    end: Tensor | None = None

    def visible(self, grid: Grid) -> Tensor:
        near = ~((grid.column - grid.pick(self.center[..., None])).abs() > self.reach)
        return near if self.end is None else near & (grid.column < grid.pick(self.end[..., None]))

    def grades(self, blocks: Blocks) -> Tensor:
        if not blocks.read_tensors:
            return super().grades(blocks)
        low, high = _extremes(self.center, blocks)
        some = ~((blocks.first_column > high + self.reach) | (blocks.last_column < low - self.reach))
        every = (blocks.first_column >= high - self.reach) & (blocks.last_column <= low + self.reach)
        if self.end is not None:
            low, high = _extremes(self.end, blocks)
            some, every = some & (blocks.first_column < high), every & (blocks.last_column < low)
        return grade(some, every)

    def ends(self, sizes: Sizes, device: torch.device) -> tuple[Tensor, Tensor]:
        lost = self.center.isnan()
        first = torch.ceil(self.center.masked_fill(lost, 0) - self.reach).long().masked_fill(lost, 0)
        last = torch.floor(self.center.masked_fill(lost, 0) + self.reach).long().masked_fill(lost, sizes[3])
        return first, last + 1 if self.end is None else torch.minimum(last + 1, self.end.long())

    def check(self, sizes: Sizes) -> None:
        shape = tuple(self.center.shape)
        if len(shape) != 3 or not broadcasts(shape, sizes[:3]):
            raise BadValue(f"mask: the center has shape {shape}, expected (b,h,q) = {tuple(sizes[:3])}.")


def _extremes(numbers: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """The smallest and largest of (b,h,q) in each block of queries, (b,h,nq,1)."""
    rows = blocks.first_row + torch.arange(blocks.block_q, device=blocks.device)  # (nq, block_q)
    low, high = torch.aminmax(numbers[..., rows.clamp(max=blocks.sizes[2] - 1)], dim=-1)
    return low[..., None], high[..., None]


def visible_counts(mask: Mask | None, sizes: Sizes, device: torch.device) -> Tensor:
    """How many keys each query sees, (b|1,h|1,q|1). Padding and causal masks are counted without a q×k array."""
    if sizes[3] == 0:
        return torch.zeros(1, 1, 1, dtype=torch.int64, device=device)
    parts = _parts(mask)
    if any(not part.by_key and not isinstance(part, CausalMask) for part in parts):
        return _counted(mask, sizes, device)
    real = torch.ones(1, sizes[3], dtype=torch.bool, device=device)
    for part in parts:
        if part.by_key:
            real = real & part.real_keys(sizes[3], sizes[0], device)
    end = _ends(parts, sizes, device)
    if end is None:
        return real.sum(-1)[:, None, None]
    before = pad(real.cumsum(-1), (1, 0))  # how many of the first n keys are real
    batch = max(len(before), len(end))
    return before.expand(batch, -1).gather(1, end.expand(batch, -1))[:, None]


def _parts(mask: Mask | None) -> list[Mask]:
    """The masks that were joined by &, without those that show everything."""
    if isinstance(mask, And):
        return [*_parts(mask.left), *_parts(mask.right)]
    return [] if mask is None or isinstance(mask, FullMask) else [mask]


def _ends(parts: list[Mask], sizes: Sizes, device: torch.device) -> Tensor | None:
    """The first key that the causal ones of these masks hide from each query, (b|1,q)."""
    end = None
    for part in parts:
        if isinstance(part, CausalMask):
            shift = lift(part.align, part.offset, sizes[2], sizes[3])
            shift = shift[:, None] if isinstance(shift, Tensor) else shift
            own = (torch.arange(sizes[2], device=device)[None] + shift + 1).clamp(0, sizes[3])
            end = own if end is None else torch.minimum(end, own)
    return end


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

    Paper: Luong et al. 2015, section 3.2, equations 9 and 10 (predictive alignment); scores of section 3.1.
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
        with without_autocast(view.rows.device):
            heads = self.split(view.rows.masked_fill(spoilt, 0).to(wide))
            hidden = torch.tanh(heads @ self.center_weight.to(wide).mT)
            share = torch.sigmoid((hidden * self.center_vector.to(wide)[:, None]).sum(-1))
            return visible_counts(view.mask, sizes, view.rows.device) * share

    def pieces(self, view: View) -> dict[str, Any]:
        return self._around(view, self.centers(view))

    def _around(self, view: View, center: Tensor, end: Tensor | None = None) -> dict[str, Any]:
        near = Around(center.detach(), self.reach, end)
        fading = None if self.reach == 0 else biases.gaussian(center, self.reach / 2)
        return super().pieces(view) | {"mask": joined(view.mask, near), "bias": fading}

    def mix(self, view: View) -> Tensor:
        """The attended values, (b,h,q,v).

        On a CPU the queries are brought in the order of their centres, so that neighbours look at the same keys and
        the blocks that nobody looks at are many: the work is then n·w instead of n².
        """
        parts, (batch, heads, queries, _) = _parts(view.mask), view.query.shape
        pairwise = any(not part.by_key and not isinstance(part, CausalMask) for part in parts)
        if pairwise or queries <= _FEW or view.rows.device.type != "cpu":
            return super().mix(view)
        center = self.centers(view)
        order = center.detach().argsort(-1)
        end = _ends(parts, (batch, heads, queries, view.key.shape[2]), order.device)
        if end is not None:
            end = end[:, None].expand_as(order).gather(-1, order)
        sorted_view = replace(
            view, query=_taken(view.query, order), mask=joined(*[part for part in parts if part.by_key])
        )
        mixed = self.faded(sorted_view, self._around(sorted_view, center.gather(-1, order), end))
        return _taken(mixed, order.argsort(-1))


def _taken(rows: Tensor, order: Tensor) -> Tensor:
    """Rows (b,h,q,d) in the order (b,h,q)."""
    return rows.gather(2, order[..., None].expand(-1, -1, -1, rows.shape[3]))

"""`local-p`: alignment inside a window whose centre each query predicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import biases, masks
from regard.errors import BadValue
from regard.masks import Mask
from regard.masks.algebra import And, Blocks, grade
from regard.masks.positional import CausalMask, FullMask
from regard.nn.local_m import LocalAlignment
from regard.nn.parts.alignment import head_weights, map_heads
from regard.nn.parts.attention import AttentionInputs
from regard.nn.parts.masking import joined
from regard.nn.parts.mechanism import mechanism
from regard.support.arguments import whole_number
from regard.support.autocast import without_autocast
from regard.values.grid import Grid, Sizes, broadcasts, full_grid, position_shift

_CELLS = 1 << 22  # pairs in memory at once while visible keys are counted
_FEW = 64  # sorting does not pay for fewer queries: they fit into one strip


class CenteredWindowMask(Mask):
    """A query sees the keys at a distance of at most `reach` from its centre and, where `end` is given, before `end`.

    Both are tensors (b|1,h|1,q). A centre of NaN hides nothing, so that the NaN shows in the output.
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
    """Return the smallest and largest number of (b,h,q) in each block of queries, (b,h,nq,1)."""
    rows = blocks.first_row + torch.arange(blocks.block_q, device=blocks.device)  # (nq, block_q)
    low, high = torch.aminmax(numbers[..., rows.clamp(max=blocks.sizes[2] - 1)], dim=-1)
    return low[..., None], high[..., None]


def visible_counts(mask: Mask | None, sizes: Sizes, device: torch.device) -> Tensor:
    """Count the keys each query sees, (b|1,h|1,q|1). Padding and causal masks need no q×k array."""
    if sizes[3] == 0:
        return torch.zeros(1, 1, 1, dtype=torch.int64, device=device)
    components = _parts(mask)
    if any(not component.by_key and not isinstance(component, CausalMask) for component in components):
        return _counted(mask, sizes, device)
    real = torch.ones(1, sizes[3], dtype=torch.bool, device=device)
    for component in components:
        if component.by_key:
            real = real & component.real_keys(sizes[3], sizes[0], device)
    end = _ends(components, sizes, device)
    if end is None:
        return real.sum(-1)[:, None, None]
    before = pad(real.cumsum(-1), (1, 0))  # number of visible keys among the first n
    batch = max(len(before), len(end))
    return before.expand(batch, -1).gather(1, end.expand(batch, -1))[:, None]


def _parts(mask: Mask | None) -> list[Mask]:
    """Return the masks joined by &, without those that show everything."""
    if isinstance(mask, And):
        return [*_parts(mask.left), *_parts(mask.right)]
    return [] if mask is None or isinstance(mask, FullMask) else [mask]


def _ends(parts: list[Mask], sizes: Sizes, device: torch.device) -> Tensor | None:
    """Return the first key that the causal masks among these hide from each query, (b|1,q)."""
    end = None
    for component in parts:
        if isinstance(component, CausalMask):
            shift = position_shift(component.align, component.offset, sizes[2], sizes[3])
            shift = shift[:, None] if isinstance(shift, Tensor) else shift
            own_end = (torch.arange(sizes[2], device=device)[None] + shift + 1).clamp(0, sizes[3])
            end = own_end if end is None else torch.minimum(end, own_end)
    return end


def _counted(mask: Mask | None, sizes: Sizes, device: torch.device) -> Tensor:
    """Count the visible keys pair by pair, some rows at a time."""
    assert mask is not None
    complete = full_grid(sizes, device)
    height = max(1, _CELLS // max(1, sizes[0] * sizes[1] * sizes[3]))
    counts = [
        mask.tile(complete.part(rows=slice(top, min(sizes[2], top + height)))).sum(-1)
        for top in range(0, max(1, sizes[2]), height)
    ]
    return torch.cat(counts, -1)


@mechanism("local-p", causal="option", time="n·w·d", memory="n·d", window=5)
class LocalP(LocalAlignment):
    """Each query predicts a position in the source and attends to the rows around it, with a Gaussian factor.

        p_t = S · sigmoid(v_p·tanh(W_p q_t))
        a_tj = softmax over |j − p_t| ≤ D of score(q_t, h_j)  ·  exp(−(j − p_t)² / 2σ²),   σ = D/2,   D = window // 2
        o_t = Σ_j a_tj h_j

    S is the number of keys that the query may see (t + 1 in causal self-attention), and key j is at position j of the
    source. The weights are not renormalised: they sum to less than one. The centre learns through the Gaussian. With
    window=1 there is no Gaussian (σ = 0): a query sees the key exactly at p_t, with weight 1, or nothing.

    Paper: Luong et al. 2015, section 3.2, equations 9 and 10 (predictive alignment); scores of section 3.1.
    Empty row: zeros, also where the mask hides every key of the window.
    When to use: if the place to read moves through a long source at no fixed pace, as in translation and speech.
    The predicted centre shows where.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width, each with its own weights and centre; the paper has 1.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.
        window: number of keys in the window, 2D + 1, odd. The paper's D = 10 is window=21.
        score: dot, general or concat, with the parameters of the mechanism of that name.
        renormalize: whether to divide the weights by their sum.
        causal: whether a position sees only itself and earlier positions.
        align: alignment with a source of another length when causal: bottom-right or top-left.

    >>> import torch, regard
    >>> layer = regard.nn.build("local-p", dim=16, window=5)
    >>> layer(torch.randn(2, 3, 16), torch.randn(2, 11, 16)).shape
    torch.Size([2, 3, 16])
    """

    fixed_options: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        window: int = 21,
        renormalize: bool = False,
        causal: bool = False,
        **options: Any,
    ) -> None:
        # The window is around the predicted centre, not around the query. So the cache must keep every key, and the
        # base class gets no window.
        super().__init__(dim, num_heads, dropout, source_dim, causal=causal, **options)
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
        # A mask that shows everything tells the base class that rows may be hidden: here, by their distance.
        return super().own_mask(**anchor) or masks.full()

    def centers(self, inputs: AttentionInputs) -> Tensor:
        """Return p_t of each head and query, (b,h,q), in float32 at least, so that positions stay exact."""
        wide = torch.promote_types(inputs.rows.dtype, torch.float32)
        sizes = (*inputs.query.shape[:3], inputs.key.shape[2])
        # Scores of a non-finite query are NaN anyway. Here its NaN would only reach the gradients of the weights.
        nonfinite = ~inputs.rows.detach().isfinite().all(-1, keepdim=True)
        with without_autocast(inputs.rows.device):
            heads = self.split(inputs.rows.masked_fill(nonfinite, 0).to(wide))
            hidden = torch.tanh(map_heads(heads, self.center_weight.to(wide)))
            share = torch.sigmoid((hidden * self.center_vector.to(wide)[:, None]).sum(-1))
            return visible_counts(inputs.mask, sizes, inputs.rows.device) * share

    def pieces(self, inputs: AttentionInputs) -> dict[str, Any]:
        return self._around(inputs, self.centers(inputs))

    def _around(self, inputs: AttentionInputs, center: Tensor, end: Tensor | None = None) -> dict[str, Any]:
        near = CenteredWindowMask(center.detach(), self.reach, end)
        log_gaussian = None if self.reach == 0 else biases.gaussian(center, self.reach / 2)
        return super().pieces(inputs) | {"mask": joined(inputs.mask, near), "bias": log_gaussian}

    def mix(self, inputs: AttentionInputs) -> Tensor:
        """Return the attended values, (b,h,q,v).

        On a CPU the queries are sorted by their centres, so that neighbouring queries see the same keys and most blocks
        are empty: the work is then n·w instead of n².
        """
        components, (batch, heads, queries, _) = _parts(inputs.mask), inputs.query.shape
        pairwise = any(not component.by_key and not isinstance(component, CausalMask) for component in components)
        if pairwise or inputs.rows.device.type != "cpu":
            return super().mix(inputs)
        if not torch.compiler.is_compiling() and queries <= _FEW:  # a graph serves every length
            return super().mix(inputs)
        center = self.centers(inputs)
        order = center.detach().argsort(-1)
        end = _ends(components, (batch, heads, queries, inputs.key.shape[2]), order.device)
        if end is not None:
            end = end[:, None].expand_as(order).gather(-1, order)
        sorted_inputs = replace(
            inputs,
            query=_taken(inputs.query, order),
            mask=joined(*[component for component in components if component.by_key]),
        )
        mixed = self.scaled_mix(sorted_inputs, self._around(sorted_inputs, center.gather(-1, order), end))
        return _taken(mixed, order.argsort(-1))


def _taken(rows: Tensor, order: Tensor) -> Tensor:
    """Return rows (b,h,q,d) in the order (b,h,q)."""
    return rows.gather(2, order[..., None].expand(-1, -1, -1, rows.shape[3]))

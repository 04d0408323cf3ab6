"""`local-m`: alignment inside a window that moves on by one source position with each query.

Also the base of both local attentions of Luong et al.: weights that a Gaussian fades out without renormalising them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

import regard.core.attention as core
from regard import biases
from regard.biases import Bias
from regard.core.grid import full_grid
from regard.errors import unknown_name
from regard.masks import Mask
from regard.nn.alignment import Alignment, Comparison
from regard.nn.attention import View
from regard.nn.concat import SideBySide
from regard.nn.general import Bilinear
from regard.nn.mechanism import mechanism
from regard.nn.state import State

SCORES: dict[str, type[Comparison]] = {"dot": Comparison, "general": Bilinear, "concat": SideBySide}


class Focused(Alignment):
    """Alignment whose weights are multiplied by exp(fading) after the softmax. The base of local-m and local-p.

    The product is computed through `attend`, in linear memory, as softmax(e + fading) · exp(lse(e + fading) − lse(e)),
    where lse is the log-sum-exp of a row.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ()
    renormalize = False

    def __init__(self, dim: int, *, score: str = "general", **options: Any) -> None:
        super().__init__(dim, **options)
        if score not in SCORES:
            raise unknown_name("score", score, SCORES)
        self.compare = SCORES[score](self.num_heads, self.head_dim)

    def fading(self, view: View) -> Bias | None:
        """The logarithm of what the weights are multiplied by."""
        return None

    def pieces(self, view: View) -> dict[str, Any]:
        return super().pieces(view) | {"bias": self.fading(view)}

    def mix(self, view: View) -> Tensor:
        return self.faded(view, self.pieces(view))

    def faded(self, view: View, pieces: dict[str, Any]) -> Tensor:
        """What `mix` gives for these pieces."""
        if pieces["bias"] is None or self.renormalize:
            found: Tensor = core.attend(
                view.query, view.key, view.value, dropout=self.weights_dropout, **pieces
            )
            return found
        mixed, faded = core.attend(
            view.query, view.key, view.value, dropout=self.weights_dropout, return_logsumexp=True, **pieces
        )
        # The values play no part in a log-sum-exp, so this pass mixes none of their columns.
        pieces = pieces | {"bias": None}
        _, plain = core.attend(
            view.query, view.key, view.value.detach()[..., :0], return_logsumexp=True, **pieces
        )
        empty = plain == -torch.inf  # −inf − −inf would be NaN
        share = torch.exp(faded.masked_fill(empty, 0) - plain.masked_fill(empty, 0))
        return (mixed * share[..., None]).to(mixed.dtype)

    def weights(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
        rows: Any = None,
        heads: Any = None,
    ) -> Tensor:
        view = self.view(query, source, mask, state)
        pieces = self.pieces(view)
        fading = None if self.renormalize else pieces["bias"]
        if fading is not None:
            pieces["bias"] = None
        found: Tensor = core.weights(view.query, view.key, **pieces, rows=rows, heads=heads)
        if fading is None:
            return found
        sizes, device = (*view.query.shape[:3], view.key.shape[2]), found.device
        grid = full_grid(sizes, device).part(
            heads=core.selection("heads", heads, sizes[1], device),
            rows=core.selection("rows", rows, sizes[2], device),
        )
        wide = torch.promote_types(found.dtype, torch.float32)
        factor: Tensor = fading.values(grid, wide).exp()
        return (found * factor).to(found.dtype)


@mechanism("local-m", causal="option", time="n·w·d", memory="n·d", window=5)
class LocalM(Focused):
    """Query t weighs the rows of the source around position t: both move on together.

        a_tj = softmax over |j − t| ≤ D of score(q_t, h_j),   o_t = Σ_j a_tj h_j,   D = window // 2

    t counts from the beginning of the source (top left) and, with a state, goes on where the last call ended. When
    causal, the window lies behind: 0 ≤ t − j ≤ D with D = window − 1. With gaussian=True the weights are multiplied by
    exp(−(j − t)² / 2σ²), σ = D/2, and not renormalised, as in local-p.

    Paper: Luong et al. 2015, section 3.2 (monotonic alignment); scores of section 3.1.
    Empty row: zeros; so also for a query that stands more than D beyond the end of the source.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width, each with weights of its own; 1 is the paper.
        dropout: share of attention weights dropped in training.
        source_dim: width of the source, where it differs from dim.
        window: how many keys a query sees; odd unless causal. The paper's D = 10 is 21.
        score: dot, general or concat, with the parameters of the mechanism of that name.
        gaussian: multiply the weights by a Gaussian around t.
        causal: a position sees itself and what came before.

    >>> import torch, regard
    >>> layer = regard.nn.build("local-m", dim=16, window=3)
    >>> (layer.weights(torch.randn(1, 3, 16), torch.randn(1, 5, 16))[0, 0] > 0).int()
    tensor([[1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0],
            [0, 1, 1, 1, 0]], dtype=torch.int32)
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("align",)

    def __init__(self, dim: int, *, window: int = 21, gaussian: bool = False, **options: Any) -> None:
        super().__init__(dim, window=window, align="top-left", **options)
        self.gaussian = gaussian

    def fading(self, view: View) -> Bias | None:
        assert self.window is not None
        reach = self.window - 1 if self.causal else self.window // 2
        if not self.gaussian or reach == 0:  # of a single key nothing fades
            return None
        queries, keys = view.query.shape[2], view.key.shape[2]
        # A cache that grows may have dropped what no window reaches; in it the last query stands at the last key.
        grows = view.cache is not None and not view.cache.fixed
        first = keys - queries if grows else view.step
        wide = torch.promote_types(view.query.dtype, torch.float32)
        center = torch.arange(first, first + queries, device=view.query.device, dtype=wide)
        return biases.gaussian(center[None, None], reach / 2)

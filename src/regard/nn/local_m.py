"""`local-m`: alignment inside a window that advances by one source position with each query.

Also the base class of both local attentions of Luong et al., whose weights are multiplied by a Gaussian and not
renormalised.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

import regard.dispatch.attention as dispatch
from regard import biases
from regard.biases import Bias
from regard.errors import unknown_name
from regard.masks import Mask
from regard.nn.concat import ConcatAlignmentModel
from regard.nn.general import BilinearAlignmentModel
from regard.nn.parts.alignment import Alignment, AlignmentModel
from regard.nn.parts.attention import AttentionInputs
from regard.nn.parts.mechanism import mechanism
from regard.nn.parts.state import State
from regard.values.grid import full_grid

SCORES: dict[str, type[AlignmentModel]] = {
    "dot": AlignmentModel,
    "general": BilinearAlignmentModel,
    "concat": ConcatAlignmentModel,
}


class LocalAlignment(Alignment):
    """Alignment whose weights are multiplied by exp(g) after the softmax. The base class of local-m and local-p.

    The product is computed by `attend`, in linear memory, as softmax(e + g) · exp(lse(e + g) − lse(e)), where lse is
    the log-sum-exp of a row.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ()
    renormalize = False

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        score: str = "general",
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, **options)
        if score not in SCORES:
            raise unknown_name("score", score, SCORES)
        self.compare = SCORES[score](self.num_heads, self.head_dim)

    def log_gaussian(self, inputs: AttentionInputs) -> Bias | None:
        """Return g, the logarithm of the factor of the weights; None: the factor is 1."""
        return None

    def pieces(self, inputs: AttentionInputs) -> dict[str, Any]:
        return super().pieces(inputs) | {"bias": self.log_gaussian(inputs)}

    def mix(self, inputs: AttentionInputs) -> Tensor:
        return self.scaled_mix(inputs, self.pieces(inputs))

    def scaled_mix(self, inputs: AttentionInputs, pieces: dict[str, Any]) -> Tensor:
        """Return the attended values for these arguments of `attend`."""
        if pieces["bias"] is None or self.renormalize:
            attended: Tensor = dispatch.attend(
                inputs.query, inputs.key, inputs.value, dropout=self.weights_dropout, **pieces
            )
            return attended
        if inputs.query.shape[2] == 1 and inputs.value.dtype in (torch.float32, torch.float64):
            return self._step_mix(inputs, pieces)
        mixed, scaled = dispatch.attend(
            inputs.query, inputs.key, inputs.value, dropout=self.weights_dropout, return_logsumexp=True, **pieces
        )
        # A log-sum-exp does not depend on the values, so this pass gets values without columns.
        pieces = pieces | {"bias": None}
        _, plain = dispatch.attend(
            inputs.query, inputs.key, inputs.value.detach()[..., :0], return_logsumexp=True, **pieces
        )
        empty = plain == -torch.inf  # −inf − −inf would be NaN
        share = torch.exp(scaled.masked_fill(empty, 0) - plain.masked_fill(empty, 0))
        return (mixed * share[..., None]).to(mixed.dtype)

    def _step_mix(self, inputs: AttentionInputs, pieces: dict[str, Any]) -> Tensor:
        """The same for a single query, whose factors can multiply the values: one pass instead of two."""
        grid = full_grid((*inputs.query.shape[:3], inputs.key.shape[2]), inputs.query.device)
        factor = pieces["bias"].values(grid, inputs.value.dtype).exp()  # (b|1,h|1,1,k)
        mixed: Tensor = dispatch.attend(
            inputs.query, inputs.key, inputs.value * factor.mT, dropout=self.weights_dropout, **pieces | {"bias": None}
        )
        return mixed

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
        inputs = self.prepare(query, source, mask, state)
        pieces = self.pieces(inputs)
        log_gaussian = None if self.renormalize else pieces["bias"]
        if log_gaussian is not None:
            pieces["bias"] = None
        weights: Tensor = dispatch.weights(inputs.query, inputs.key, **pieces, rows=rows, heads=heads)
        if log_gaussian is None:
            return weights
        sizes, device = (*inputs.query.shape[:3], inputs.key.shape[2]), weights.device
        grid = full_grid(sizes, device).part(
            heads=dispatch.selection("heads", heads, sizes[1], device),
            rows=dispatch.selection("rows", rows, sizes[2], device),
        )
        wide = torch.promote_types(weights.dtype, torch.float32)
        factor: Tensor = log_gaussian.values(grid, wide).exp()
        return (weights * factor).to(weights.dtype)


@mechanism("local-m", causal="option", time="n·w·d", memory="n·d", window=5)
class LocalM(LocalAlignment):
    """Query t attends to the rows of the source around position t.

        a_tj = softmax over |j − t| ≤ D of score(q_t, h_j),   o_t = Σ_j a_tj h_j,   D = window // 2

    t counts from the beginning of the source (top left) and, with a state, continues from the last call. When causal,
    the window precedes the query: 0 ≤ t − j ≤ D with D = window − 1. With gaussian=True the weights are multiplied by
    exp(−(j − t)² / 2σ²), σ = D/2, and not renormalised, as in local-p.

    Paper: Luong et al. 2015, section 3.2 (monotonic alignment); scores of section 3.1.
    Empty row: zeros, also for a query more than D beyond the end of the source.
    When to use: if source and target run in step (a tagger's words, frames of speech), so that what query t needs
    is near position t of the source.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width, each with its own weights; the paper has 1.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.
        window: number of keys a query sees; odd unless causal. The paper's D = 10 is window=21.
        score: dot, general or concat, with the parameters of the mechanism of that name.
        gaussian: whether to multiply the weights by a Gaussian around t.
        causal: whether a position sees only itself and earlier positions.

    >>> import torch, regard
    >>> layer = regard.nn.build("local-m", dim=16, window=3)
    >>> (layer.weights(torch.randn(1, 3, 16), torch.randn(1, 5, 16))[0, 0] > 0).int()
    tensor([[1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0],
            [0, 1, 1, 1, 0]], dtype=torch.int32)
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("align",)

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        window: int = 21,
        gaussian: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, window=window, align="top-left", **options)
        self.gaussian = gaussian

    def log_gaussian(self, inputs: AttentionInputs) -> Bias | None:
        assert self.window is not None
        reach = self.window - 1 if self.causal else self.window // 2
        if not self.gaussian or reach == 0:  # with a single key the factor is 1
            return None
        queries, keys = inputs.query.shape[2], inputs.key.shape[2]
        # A growing cache drops keys outside every window; in it the last query is aligned with the last key.
        grows = inputs.cache is not None and not inputs.cache.fixed
        first = keys - queries if grows else inputs.step
        wide = torch.promote_types(inputs.query.dtype, torch.float32)
        center = torch.arange(first, first + queries, device=inputs.query.device, dtype=wide)
        return biases.gaussian(center[None, None], reach / 2)

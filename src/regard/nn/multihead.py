"""Multi-head attention, the class behind `multihead`, `global`, `local`, `causal`, `relative` and `hard`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.nn.parts.attention import Attention, AttentionInputs
from regard.nn.parts.heads import HeadProjections
from regard.nn.parts.mechanism import mechanism
from regard.nn.parts.multihead_positions import FARTHEST, MultiheadPositions, positions_of
from regard.normalizers import named as named_normalizer
from regard.support.arguments import finite_number


@mechanism("multihead", causal="option", time="n²·d", memory="n·d", num_heads=2)
class Multihead(HeadProjections, Attention):
    """Several heads attend in parallel, each with its own projections; their results are joined and projected.

        head_i = softmax(Q_i K_iᵀ / √d) V_i,   out = W_o [head_1; …; head_h]

    Paper: Vaswani et al. 2017, equation 1 and section 3.2.2; grouped heads: Ainslie et al. 2023, multi-query:
    Shazeer 2019; normalised queries and keys: Henry et al. 2020.
    Empty row: the heads return zeros, so the row is the bias of the output projection.
    When to use: wherever nothing else is asked for: it has grouped heads, every kind of positions, sinks, masks and
    caches. `causal`, `global`, `local` and `relative` are presets of it.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.
        kv_heads: number of key and value heads; fewer than num_heads: grouped-query, 1: multi-query attention.
        key_dim: width of the queries and keys of one head; None: dim / num_heads.
        value_dim: width of the values of one head; None: that of its keys.
        positions: rotary, alibi, t5, shaw, transformer-xl or relative, with options as in "rotary(base=500000)", or a
            MultiheadPositions; None: no positions.
        max_distance: larger distances count as this one (t5, shaw, relative).
        qk_norm: whether to normalise queries and keys to unit mean square, with a learned gain.
        norm_eps: what qk_norm adds to the mean square; None: the smallest number that rounding notices.
        scale: factor of the scores; None: 1 / √key_dim.
        normalize: softmax, sigmoid, sparsemax, entmax15 or hard.
        bias: whether the projections add a learned vector.
        output_bias: whether the output projection does; None: like the others.
        sink: whether each head may attend to nothing: one more learned score, which takes weight but has no value.
        causal: whether a position sees only itself and earlier positions.
        window: number of keys a query sees, including its own position; None: all.
        align: alignment with a source of another length: bottom-right or top-left.

    >>> import torch, regard
    >>> layer = regard.nn.build("multihead", dim=32, num_heads=4, kv_heads=2, positions="rotary")
    >>> layer(torch.randn(2, 7, 32)).shape
    torch.Size([2, 7, 32])
    """

    bias_table: nn.Parameter
    key_table: nn.Parameter
    distance_map: nn.Linear
    content_bias: nn.Parameter
    position_bias: nn.Parameter

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        kv_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        positions: str | MultiheadPositions | None = None,
        max_distance: int = FARTHEST,
        qk_norm: bool = False,
        norm_eps: float | None = None,
        scale: float | None = None,
        normalize: str = "softmax",
        bias: bool = True,
        output_bias: bool | None = None,
        sink: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, **options)
        named_normalizer(normalize)  # raises for an unknown name
        self.normalize = normalize
        self.scale = None if scale is None else finite_number("scale", scale)
        self.positions = positions_of(positions, max_distance)
        widths = (self.dim, self.source_dim, self.source_dim)
        self.add_projections(
            widths,
            self.num_heads,
            kv_heads,
            bias=bias,
            qk_norm=qk_norm,
            value_dim=value_dim,
            key_dim=key_dim,
            output_bias=output_bias,
            norm_eps=norm_eps,
        )
        self.positions.attach(self)
        self.sink = nn.Parameter(torch.zeros(self.num_heads)) if sink else None

    def project_query(self, query: Tensor, position: int) -> Tensor:
        return self.positions.rotate(self.query_heads(query), position)

    def project_source(self, source: Tensor, position: int) -> tuple[Tensor, Tensor]:
        return self.positions.rotate(self.key_heads(source), position), self.value_heads(source)

    def pieces(self, inputs: AttentionInputs) -> dict[str, Any]:
        pieces = {"mask": inputs.mask, **self.positions.pieces(self, inputs)}
        if self.scale is not None:
            pieces["scale"] = self.scale
        if self.normalize != "softmax":
            pieces["normalize"] = self.normalize
        if self.sink is not None:
            pieces["sink"] = self.sink
        return pieces

    @property
    def head_dim(self) -> int:
        """The width of the queries and keys of one head."""
        return self._width

    @property
    def places_queries(self) -> bool:
        return super().places_queries or self.positions.positional

    @property
    def shares_sequences(self) -> bool:
        """Presets only: a mechanism that overrides a step may look at other rows there."""
        steps = ("forward", "prepare", "project_query", "project_source", "pieces", "mix", "output")
        return all(getattr(type(self), step) is getattr(Multihead, step) for step in steps)

    def output(self, mixed: Tensor) -> Tensor:
        return self.output_rows(mixed)

    def cache_shape(self) -> tuple[int, int, int]:
        return self.kv_heads, self.head_dim, self.value_dim

"""Multi-head attention, the class behind `multihead`, `global`, `local`, `causal`, `relative` and `hard`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard import biases, scores
from regard.core.arguments import whole_number
from regard.core.grid import position_shift
from regard.errors import BadValue, unknown_name
from regard.nn import positions as places
from regard.nn.attention import Attention, View
from regard.nn.mechanism import mechanism
from regard.normalizers import named as named_normalizer

POSITIONS = ("rotary", "alibi", "t5", "shaw", "transformer-xl", "relative")
T5_BUCKETS = 32


@mechanism("multihead", causal="option", time="n²·d", memory="n·d", num_heads=2)
class Multihead(Attention):
    """Several heads attend in parallel, each with its own projections; their results are joined and projected.

        head_i = softmax(Q_i K_iᵀ / √d) V_i,   out = W_o [head_1; …; head_h]

    Paper: Vaswani et al. 2017, equation 1 and section 3.2.2; grouped heads: Ainslie et al. 2023, multi-query:
    Shazeer 2019; normalised queries and keys: Henry et al. 2020.
    Empty row: the heads give zeros, so the row is the bias of the last projection.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width.
        dropout: share of attention weights dropped in training.
        source_dim: width of the source, where it differs from dim.
        kv_heads: heads of keys and values; fewer than num_heads is grouped-query, 1 is multi-query attention.
        positions: rotary, alibi, t5, shaw, transformer-xl or relative; None: order plays no part.
        max_distance: distances beyond this count as this one (t5, shaw, relative).
        qk_norm: normalise each query and key to unit mean square, with a learned gain.
        normalize: softmax, sigmoid, sparsemax, entmax15 or hard.
        bias: whether the projections add a learned vector.
        causal: a position sees itself and what came before.
        window: how many keys a query sees, itself included; None: all.
        align: where the first query stands in a source of another length (bottom-right or top-left).

    >>> import torch, regard
    >>> layer = regard.nn.build("multihead", dim=32, num_heads=4, kv_heads=2, positions="rotary")
    >>> layer(torch.randn(2, 7, 32)).shape
    torch.Size([2, 7, 32])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        kv_heads: int | None = None,
        positions: str | None = None,
        max_distance: int = 128,
        qk_norm: bool = False,
        normalize: str = "softmax",
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, **options)
        self.kv_heads = num_heads if kv_heads is None else whole_number("kv_heads", kv_heads, 1)
        if self.num_heads % self.kv_heads:
            raise BadValue(
                f"kv_heads: expected a divisor of num_heads={num_heads}, so that each key head serves equally many "
                f"query heads, got {kv_heads}."
            )
        named_normalizer(normalize)  # refuses what is none
        self.normalize = normalize
        if positions is not None and positions not in POSITIONS:
            raise unknown_name("positions", positions, POSITIONS)
        self.positions = positions
        self.max_distance = whole_number("max_distance", max_distance, 1)
        width = self.head_dim
        self.query_map = glorot_linear(self.dim, self.num_heads * width, bias)
        self.key_map = glorot_linear(self.source_dim, self.kv_heads * width, bias)
        self.value_map = glorot_linear(self.source_dim, self.kv_heads * width, bias)
        self.output_map = glorot_linear(self.num_heads * width, self.dim, bias)
        self.query_norm = HeadNorm(width) if qk_norm else None
        self.key_norm = HeadNorm(width) if qk_norm else None
        self._add_position_parameters()

    def _add_position_parameters(self) -> None:
        width, heads, reach = self.head_dim, self.num_heads, 2 * self.max_distance + 1
        if self.positions == "rotary" and width % 2:
            raise BadValue(
                f"positions: rotary turns pairs of columns, so the width of a head must be even, got {width} "
                f"(dim={self.dim}, num_heads={heads})."
            )
        if self.positions == "t5":
            self.bias_table = nn.Parameter(torch.randn(T5_BUCKETS, heads) * 0.02)
        elif self.positions == "relative":
            self.bias_table = nn.Parameter(torch.randn(heads, reach) * 0.02)
        elif self.positions == "shaw":
            self.key_table = nn.Parameter(torch.randn(reach, width) * width**-0.5)
        elif self.positions == "transformer-xl":
            self.distance_map = glorot_linear(self.dim, heads * width, bias=False)
            self.content_bias = nn.Parameter(torch.zeros(heads, width))
            self.position_bias = nn.Parameter(torch.zeros(heads, width))

    def project_query(self, query: Tensor, position: int) -> Tensor:
        heads: Tensor = self.split(self.query_map(query))
        if self.query_norm is not None:
            heads = self.query_norm(heads)
        return self._turned(heads, position)

    def project_source(self, source: Tensor, position: int) -> tuple[Tensor, Tensor]:
        keys, values = self.split(self.key_map(source)), self.split(self.value_map(source))
        if self.key_norm is not None:
            keys = self.key_norm(keys)
        return self._turned(keys, position), values

    def _turned(self, heads: Tensor, position: int) -> Tensor:
        if self.positions != "rotary":
            return heads
        return places.rotary(heads, torch.arange(position, position + heads.shape[2], device=heads.device))

    def pieces(self, view: View) -> dict[str, Any]:
        found: dict[str, Any] = {"mask": view.mask}
        if self.normalize != "softmax":
            found["normalize"] = self.normalize
        if self.positions == "alibi":
            found["bias"] = biases.alibi(self.num_heads, **view.anchor)
        elif self.positions == "relative":
            found["bias"] = biases.relative(self.bias_table, **view.anchor)
        elif self.positions == "t5":
            found["bias"] = biases.t5(
                self.bias_table, bidirectional=not self.causal, max_distance=self.max_distance, **view.anchor
            )
        elif self.positions == "shaw":
            found |= {"score": scores.shaw(self.key_table, **view.anchor), "scale": self.head_dim**-0.5}
        elif self.positions == "transformer-xl":
            table = self._distance_table(view)
            found["score"] = scores.transformer_xl(
                self.content_bias, self.position_bias, table, **view.anchor
            )
            found["scale"] = self.head_dim**-0.5
        return found

    @property
    def places_queries(self) -> bool:
        return super().places_queries or self.positions is not None

    def _distance_table(self, view: View) -> Tensor:
        """A projected sinusoid for every distance key − query that can occur, (h, 2r+1, d) for −r … r."""
        like, queries, keys = view.query, view.query.shape[2], view.key.shape[2]
        first = position_shift(
            view.anchor.get("align", "bottom-right"), view.anchor.get("offset"), queries, keys
        )
        farthest = max(first + queries, keys - first, keys)
        ahead = places.sinusoidal(farthest + 1, self.dim).to(like.device, self.distance_map.weight.dtype)
        mirrored = torch.ones_like(ahead[0])
        mirrored[::2] = -1  # sin(−x) = −sin(x), and the even columns are the sines
        table: Tensor = self.distance_map(torch.cat([ahead[1:].flip(0) * mirrored, ahead]))
        by_head: Tensor = table.unflatten(1, (self.num_heads, -1)).transpose(0, 1).to(like.dtype)
        return by_head

    def output(self, mixed: Tensor) -> Tensor:
        rows: Tensor = self.output_map(super().output(mixed))
        return rows

    def cache_shape(self) -> tuple[int, int, int]:
        return self.kv_heads, self.head_dim, self.head_dim


class HeadNorm(nn.RMSNorm):
    """Rows of unit mean square, times a learned gain, in the dtype that comes: autocast leaves the gain wider."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return nn.functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def glorot_linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """A projection with the initial weights of Glorot and Bengio, as Transformers are used to."""
    made = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(made.weight)
    if bias:
        nn.init.zeros_(made.bias)
    return made

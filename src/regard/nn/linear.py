"""`linear`: attention through running sums of keys and values, in time linear in length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import BadValue
from regard.formula.formula import accumulation_dtype
from regard.masks import Mask
from regard.nn.parts import masking
from regard.nn.parts.heads import glorot_linear
from regard.nn.parts.linear_pieces import FEATURE_MAPS
from regard.nn.parts.mechanism import Mechanism, check_inputs, mechanism
from regard.nn.parts.scan import Kept, Tensors, packed, scan, unpacked
from regard.nn.parts.state import State, check_batch, of_kind
from regard.support.arguments import alignment


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    feature_map: str = "elu",
    align: str = "bottom-right",
) -> Tensor:
    """φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j), (b,h,q,v), in time and memory linear in q + k.

    Shapes: query (b,h,q,d), key (b,h,k,d), value (b,h,k,v). A query without visible keys gets zeros.

    Args:
        keep: (b,k), False = padding, which is never read.
        causal: whether query i sees only keys up to i + (k − q).
        feature_map: elu (elu(x) + 1), relu or exp (in float64; entries of a key above 600 count as 600).
        align: with top-left, a causal query i sees keys up to i.
    """
    rows = [tensor.transpose(1, 2) for tensor in (query, key, value)]  # the scan has the length as its second axis
    nothing = empty_sums(key.shape[0], key.shape[1], key.shape[3], value.shape[3], key.device)
    if causal and align == "top-left":
        output, _ = followed(rows[0], rows[1], rows[2], keep, feature_map, nothing)
    else:
        output, _ = attended(rows[0], rows[1], rows[2], keep, causal, feature_map, nothing)
    return output.transpose(1, 2)


def attended(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, causal: bool, feature_map: str, sums: Tensors
) -> tuple[Tensor, Tensors]:
    """Continue from `sums` with inputs (b,length,h,·); return the outputs (b,q,h,v) and the next sums."""
    FEATURE_MAPS[feature_map]  # raises for an unknown name
    if not causal:
        sums = absorbed(key, value, keep, feature_map, sums)
        return read(query, feature_map, sums), sums
    before = key.shape[1] - query.shape[1]  # number of keys that every query sees; if negative, of queries without keys
    if before > 0:
        real, keep = (None, None) if keep is None else (keep[:, :before], keep[:, before:])
        sums = absorbed(key[:, :before], value[:, :before], real, feature_map, sums)
        key, value = key[:, before:], value[:, before:]
    empty = max(0, -before)
    (output,), sums = scan(f"linear-causal-{feature_map}", [query[:, empty:], key, value], keep, sums)
    return (F.pad(output, (0, 0, 0, 0, empty, 0)) if empty else output), sums


def followed(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, feature_map: str, sums: Tensors
) -> tuple[Tensor, Tensors]:
    """Continue from `sums` with top-left alignment, where query i adds key i; return the outputs and the next sums.

    Queries after the last key see all keys; keys after the last query are left for later queries.
    """
    pairs = min(query.shape[1], key.shape[1])
    real = None if keep is None else keep[:, :pairs]
    output, sums = attended(query[:, :pairs], key[:, :pairs], value[:, :pairs], real, True, feature_map, sums)
    if pairs == query.shape[1]:
        return output, sums
    return torch.cat([output, read(query[:, pairs:], feature_map, sums)], 1), sums


def absorbed(key: Tensor, value: Tensor, keep: Kept, feature_map: str, sums: Tensors) -> Tensors:
    """Add keys and values to the sums."""
    return scan(f"linear-sums-{feature_map}", [key, value], keep, sums)[1]


def read(query: Tensor, feature_map: str, sums: Tensors) -> Tensor:
    """Return the outputs (b,q,h,v) of queries (b,q,h,d) that see everything in the sums."""
    return scan(f"linear-read-{feature_map}", [query], None, sums)[0][0]


def empty_sums(batch: int, heads: int, dim: int, value_dim: int, device: torch.device | str | None) -> Tensors:
    """Return Σ φ(k) vᵀ (b,h,d,v) and Σ φ(k) (b,h,d) before the first key, in float64 for very long sequences."""
    sizes = ((batch, heads, dim, value_dim), (batch, heads, dim))
    return [torch.zeros(size, dtype=torch.float64, device=device) for size in sizes]


@dataclass(frozen=True)
class LinearState(State):
    """The state of `linear`: sums over all keys so far without padding, packed (rounded, remainder)."""

    sums: Tensor  # Σ φ(k) vᵀ, (b,h,d,v,2)
    norms: Tensor  # Σ φ(k), (b,h,d,2)
    seen: int = 0  # number of positions so far, including padding
    fixed: bool = False  # whether the sums hold a complete source (cross-attention)
    pending: tuple[Tensor, ...] = ()  # keys and values (b,n,h,d) of a source after the last query
    keep: Tensor | None = None  # False for padding among those, (b,n); None: no padding

    @classmethod
    def of(cls, sums: Tensors, dtype: torch.dtype, seen: int = 0, fixed: bool = False, **pending: Any) -> LinearState:
        """Create the state that holds these float64 sums."""
        return cls(packed(sums[0], dtype), packed(sums[1], dtype), seen, fixed, **pending)

    def exact(self) -> Tensors:
        """Return the sums in float64."""
        return [unpacked(self.sums), unpacked(self.norms)]


@mechanism("linear", causal="option", time="n·d²", memory="n·d")
class Linear(Mechanism):
    """Attention with dot products of positive features as scores, so that running sums replace the keys.

        o_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j),   φ(x) = elu(x) + 1

    Paper: Katharopoulos et al. 2020, equations 5 and 7; causal: equations 8 and 9.
    Empty row: the heads return zeros, so the row is the bias of the output projection.
    When to use: for sequences too long for pairs, and for decoding with a state of fixed size. Its weights are
    blunt: looking up a single position is its weakness.

    It accepts masks that ignore the query (lengths, padding, …), and causal(), alone or joined with those by &. With a
    state, a source is summed by the first call, whose mask also applies to later calls.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width.
        dropout: probability of dropping an entry of a head's output in training; there are no weights to drop.
        source_dim: width of the source; None: dim.
        causal: whether query i sees only keys up to i + (k − q).
        feature_map: elu (elu(x) + 1), relu or exp.
        align: with top-left, a causal query i sees keys up to i of a source, which decoding in steps needs.

    >>> import torch, regard
    >>> layer, x = regard.nn.build("linear", dim=16, num_heads=2, causal=True), torch.randn(1, 3, 16)
    >>> step, state = layer(x[:, :1], state=layer.initial_state(batch=1))
    >>> torch.allclose(step, layer(x)[:, :1], atol=1e-6)
    True
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        causal: bool = False,
        feature_map: str = "elu",
        align: str = "bottom-right",
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim)
        FEATURE_MAPS[feature_map]  # raises for an unknown name
        self.causal, self.feature_map, self.align = causal, feature_map, alignment(align)
        width = self.num_heads * self.head_dim
        self.query_map = glorot_linear(self.dim, width, bias=True)
        self.key_map = glorot_linear(self.source_dim, width, bias=True)
        self.value_map = glorot_linear(self.source_dim, width, bias=True)
        self.output_map = glorot_linear(width, self.dim, bias=True)

    def forward(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        past = self._checked(query, source, state)
        remembered = past is not None and past.fixed
        within, (batch, queries, _) = source is None and not remembered, query.shape
        masked_causal, padding = masking.split_causal(mask) if isinstance(mask, Mask) else (False, mask)
        causal = self.causal or masked_causal
        follows = self.causal and self.align == "top-left" and not within
        if past is not None and within != causal and (masked_causal or not follows):
            raise BadValue(
                "state: with a source, a causal layer aligns queries with the source's end, but a step does not know "
                "how many queries will follow: build it with align='top-left', and leave masks.causal() out. Without a "
                "source, steps must be causal, because outputs for earlier positions would change: build the layer "
                "with causal=True, or pass mask=masks.causal()."
            )
        if past is not None and remembered:
            # Padding was left out when the source was summed; this only raises for masks that the layer cannot use.
            masking.kept(padding, batch, queries, past.seen, 0, query.device)
            asking = self._heads(self.query_map(query))
            if follows:
                mixed, past = self._followed(asking, past.pending, past.keep, past)
                return self._output(mixed), past
            return self._output(read(asking, self.feature_map, past.exact())), past
        rows, past_length = query if source is None else source, 0 if past is None else past.seen
        keep = masking.kept(padding, batch, queries, rows.shape[1], past_length, query.device)
        rows = masking.without_padding(rows, keep)
        asking = self._heads(self.query_map(rows if within else query))
        offered = self._heads(self.key_map(rows)), self._heads(self.value_map(rows))
        # With both alignments the stricter one decides: bottom-right if the source is shorter than the queries.
        if follows and not (masked_causal and queries > rows.shape[1]):
            before = self.initial_state(batch, query.device, query.dtype) if past is None else past
            mixed, after = self._followed(asking, offered, keep, before)
            after = replace(after, seen=rows.shape[1], fixed=True)
            return self._output(mixed) if past is None else (self._output(mixed), after)
        sums = self._nothing(batch, query.device) if past is None else past.exact()
        mixed, sums = attended(asking, *offered, keep, causal, self.feature_map, sums)
        output = self._output(mixed)
        if past is None:
            return output
        return output, LinearState.of(
            sums, torch.promote_types(past.sums.dtype, query.dtype), past_length + rows.shape[1], fixed=not within
        )

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> LinearState:
        """Return empty sums, in float32 at least."""
        device, dtype = self.placement(device, dtype)
        return LinearState.of(self._nothing(batch, device), accumulation_dtype(dtype))

    def _followed(
        self, query: Tensor, pending: tuple[Tensor, ...], keep: Tensor | None, past: LinearState
    ) -> tuple[Tensor, LinearState]:
        """Continue causal queries through the pending keys and values; return the outputs and the next state."""
        key, value = pending
        mixed, sums = followed(query, key, value, keep, self.feature_map, past.exact())
        remaining = slice(min(query.shape[1], key.shape[1]), None)
        return mixed, LinearState.of(
            sums,
            torch.promote_types(past.sums.dtype, query.dtype),
            past.seen,
            past.fixed,
            pending=(key[:, remaining], value[:, remaining]),
            keep=None if keep is None else keep[:, remaining],
        )

    def _nothing(self, batch: int, device: torch.device | str | None) -> Tensors:
        return empty_sums(batch, self.num_heads, self.head_dim, self.head_dim, device)

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], self.num_heads, self.head_dim)  # (b,length,h,d)

    def _output(self, mixed: Tensor) -> Tensor:
        rows: Tensor = self.output_map(F.dropout(mixed, self.weights_dropout, self.training).flatten(2))
        return rows

    def _checked(self, query: Tensor, source: Tensor | None, state: State | None) -> LinearState | None:
        """Check the inputs and return the state."""
        past = of_kind(LinearState, state)
        check_inputs(self, query, source, past is not None and past.fixed)
        if past is None:
            return None
        check_batch(past.sums, query)
        if source is not None and past.seen and not (past.fixed and source.shape[1] == past.seen):
            raise BadValue(
                f"source: the state already holds {past.seen} positions, got a source of length {source.shape[1]}. A "
                f"new source needs a new initial_state()."
            )
        return past

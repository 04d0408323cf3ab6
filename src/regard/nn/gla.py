"""`global-query` (GLA): each position is mixed with the mean of all positions, in linear time, without parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.formula.formula import accumulation_dtype
from regard.masks import Mask
from regard.nn.parts import masking
from regard.nn.parts.attention import Attention, AttentionInputs
from regard.nn.parts.cache import Cache
from regard.nn.parts.global_query import Activation, activation_of, mixed_rows, nothing_seen
from regard.nn.parts.heads import glorot_linear
from regard.nn.parts.mechanism import check_inputs, mechanism
from regard.nn.parts.scan import Tensors, packed, unpacked
from regard.nn.parts.state import State, check_batch, of_kind


@dataclass(frozen=True)
class GlobalQueryState(State):
    """The state of `global-query`: a summary of its own positions, or the projected rows of a source."""

    log_sum: Tensor  # log Σ exp of the scores so far, packed (rounded, remainder), (b,h,2)
    count: Tensor  # positions so far without padding, (b,)
    total: Tensor  # Σ h over them, packed, (b,h,d,2)
    source: Cache
    seen: int = 0  # number of positions so far, including padding

    @classmethod
    def of(cls, carry: Tensors, dtype: torch.dtype, source: Cache, seen: int = 0) -> GlobalQueryState:
        """Create the state from the carry of the causal form."""
        return cls(packed(carry[0], dtype), carry[1], packed(carry[2], dtype), source, seen)

    def carry(self) -> Tensors:
        """Return the carry of the causal form."""
        return [unpacked(self.log_sum), self.count, unpacked(self.total)]


@mechanism("global-query", causal="option", time="n·d", memory="n·d", aliases=("gla",))
class GlobalQuery(Attention):
    """Each position is mixed with the mean of all positions; no pairs of positions are compared.

        s_i = q_i·k_i,   α = softmax over i of s,   y_i = α_i h_i + (1 − α_i)·mean(h)

    Without projections q_i = k_i = h_i = x_i. Then s_i is the squared length of x_i, and after a normalisation all
    lengths are nearly equal, so that α_i ≈ 1/n; models therefore project queries and keys (project="query-key").

    The documents behind this project give two formulas for the score, q_iᵀk_i and q_i q_iᵀK_i, which contradict each
    other: the second is the first times q_i, a vector (with all keys as K even a matrix). The softmax over positions
    needs one number for each position, and linear time, which the documents claim, rules out a product with all keys.
    Only the first formula fits both, so it is the one computed here.

    With a source it is the encoder-decoder form, in which queries attend to the rows z_s of the source:

        y_t = Σ_s α_t(s) z_s,   α_t = softmax over s of x_t·z_s

    Paper: none; the definition is in the project's specification (global-query attention).
    Empty row: zeros, as for every masked position.
    When to use: for very long sequences in which a position only needs a summary of all others. It cannot look up
    one position from another.

    It has no parameters unless `project` asks for them, except a bias-free map of the source if source_dim differs from
    dim. It accepts masks that ignore the query (lengths, padding, …); without a source also causal(), alone or joined
    with those by &.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width; each has its own scores.
        dropout: probability of dropping a weight α in training.
        source_dim: width of the source; None: dim.
        causal: whether softmax and mean are over the positions up to i only.
        project: query-key to learn bias-free maps of queries and keys, s_i = (W_q x_i)·(W_k x_i); True for maps of the
            hidden rows and the output, too; False for none.
        activation: a non-linearity of the score s_i (a name or a function); not used with a source.
        align: alignment with a source of another length when causal: bottom-right or top-left.

    >>> import torch, regard
    >>> layer = regard.nn.build("global-query", dim=2)
    >>> layer(torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]))
    tensor([[[0.2500, 0.7500],
             [0.7500, 0.2500]]])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        causal: bool = False,
        project: bool | str = False,
        activation: str | Activation | None = None,
        align: str = "bottom-right",
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, causal=causal, align=align)
        self.activation = activation
        activation_of(activation)  # raises for an unknown name
        width = self.num_heads * self.head_dim
        if not isinstance(project, bool) and project != "query-key":
            raise BadValue(f"project: expected 'query-key', True or False, got {project!r}.")
        self.projects = project
        if project:
            self.query_map = glorot_linear(self.dim, width, bias=False)
            self.key_map = glorot_linear(self.source_dim, width, bias=False)
        if project is True:
            self.hidden_map = glorot_linear(self.source_dim, width, bias=False)
            self.output_map = glorot_linear(width, self.dim, bias=False)
        elif self.source_dim != self.dim:
            self.source_map = glorot_linear(self.source_dim, width, bias=False)

    def forward(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """Return the mixed positions, (b,q,dim); with a state, also the next state."""
        past = self._past(state, query)
        if source is not None or (past is not None and past.source.fixed):
            self._refuse_pairwise(query, source, mask, past)
            attended = super().forward(query, source, mask=mask, state=None if past is None else past.source)
            if past is None:
                return attended
            output, cache = attended
            assert isinstance(cache, Cache)
            return output, replace(past, source=cache)
        masked_causal, heads, keep = self._within_inputs(query, mask, past)
        if past is not None and not (self.causal or masked_causal):
            raise BadValue(
                "state: a mean over all positions cannot continue from a state, because outputs for earlier positions "
                "would change. Build the layer with causal=True, or pass mask=masks.causal()."
            )
        carry = None if past is None else past.carry()
        activation, dropout = activation_of(self.activation), self.weights_dropout
        mixed, after = mixed_rows(heads, keep, self.causal or masked_causal, activation, dropout, carry)
        rows = self.output(mixed.transpose(1, 2))
        if past is None:
            return rows
        dtype = torch.promote_types(past.total.dtype, query.dtype)
        return rows, GlobalQueryState.of(after, dtype, past.source, past.seen + query.shape[1])

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
        """Return the exact weights (b, heads, rows, k) of a call: without a source (1−α_i)/n, plus α_i on i itself."""
        past = self._past(state, query)
        if source is not None or (past is not None and past.source.fixed):
            cache = None if past is None else past.source
            return super().weights(query, source, mask=mask, state=cache, rows=rows, heads=heads)
        if past is not None and past.seen:
            raise BadValue(
                "state: it holds only a summary of earlier positions, so there are no weights. Call without a state."
            )
        masked_causal, (queries, keys, hidden), keep = self._within_inputs(query, mask, None)
        # The output is linear in the hidden rows; with unit vectors in their place it equals the weights.
        units = torch.eye(query.shape[1], dtype=hidden.dtype, device=hidden.device)[None, :, None]
        units = units.expand(query.shape[0], -1, self.num_heads, -1)
        mixed, _ = mixed_rows(
            [queries, keys, units], keep, self.causal or masked_causal, activation_of(self.activation)
        )
        chosen = mixed.transpose(1, 2) if heads is None else mixed.transpose(1, 2)[:, heads]
        return chosen if rows is None else chosen[:, :, rows]

    def initial_state(  # type: ignore[override]
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> GlobalQueryState:
        """Return the state before the first position or source. Sums are in float32 at least."""
        cache = super().initial_state(batch, device, dtype)
        nothing = nothing_seen(batch, self.num_heads, self.head_dim, cache.keys.device)
        return GlobalQueryState.of(nothing, accumulation_dtype(cache.keys.dtype), cache)

    def project_query(self, query: Tensor, position: int) -> Tensor:
        return self.split(self.query_map(query) if self.projects else query)

    def project_source(self, source: Tensor, position: int) -> tuple[Tensor, Tensor]:
        if self.projects is True:
            return self.split(self.key_map(source)), self.split(self.hidden_map(source))
        mapped = self.split(source if self.source_dim == self.dim else self.source_map(source))
        return self.split(self.key_map(source)) if self.projects else mapped, mapped

    def pieces(self, inputs: AttentionInputs) -> dict[str, Any]:
        return {"mask": inputs.mask, "score": "dot"}

    def output(self, mixed: Tensor) -> Tensor:
        rows: Tensor = super().output(mixed)
        if self.projects is True:
            rows = self.output_map(rows)
        return rows

    def _within_inputs(
        self, rows: Tensor, mask: Mask | Tensor | None, past: GlobalQueryState | None
    ) -> tuple[bool, list[Tensor], Tensor | None]:
        """Return whether the mask contains causal(); query, key and hidden (b,l,h,d); False for padding (b,l)."""
        check_inputs(self, rows, None)
        (batch, length, _), past_length = rows.shape, 0 if past is None else past.seen
        masked_causal, padding = masking.split_causal(mask) if isinstance(mask, Mask) else (False, mask)
        keep = masking.kept(padding, batch, length, length, past_length, rows.device)
        if self.projects:  # keep padding out of the gradients of the maps
            rows = masking.without_padding(rows, keep)
        heads = (self.project_query(rows, past_length), *self.project_source(rows, past_length))
        return masked_causal, [tensor.transpose(1, 2) for tensor in heads], keep

    def _refuse_pairwise(
        self, query: Tensor, source: Tensor | None, mask: Mask | Tensor | None, past: GlobalQueryState | None
    ) -> None:
        check_inputs(self, query, source, past is not None and past.source.fixed)
        if source is not None and past is not None and past.seen:
            raise BadValue(
                "source: this state holds positions of self-attention. A source needs another initial_state()."
            )
        rows = source if past is None or source is not None else past.source.keys[:, 0]
        length = 0 if rows is None else rows.shape[1]
        call_mask = masking.as_mask(mask, (query.shape[0], self.num_heads, query.shape[1], length))
        if call_mask is not None and not call_mask.by_key:
            call_mask.keep(length, query.shape[0])  # raises and explains

    def _past(self, state: State | None, query: Tensor) -> GlobalQueryState | None:
        past = of_kind(GlobalQueryState, state)
        if past is not None:
            check_batch(past.count, query)
        return past

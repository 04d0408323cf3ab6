"""`global-query` (GLA): each position is mixed with the mean of all positions, in linear time, without parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.core.arguments import described, float_tensor
from regard.core.autocast import autocasts
from regard.core.formula import accumulation_dtype
from regard.errors import BadType, BadValue
from regard.masks import Mask
from regard.nn import masking
from regard.nn.attention import Attention, AttentionInputs
from regard.nn.cache import Cache
from regard.nn.heads import glorot_linear
from regard.nn.mechanism import check_inputs, mechanism
from regard.nn.scan import PIECES, Kept, Result, Tensors, packed, prefix_log_sums, prefix_sums, scan, unpacked
from regard.nn.state import State, check_batch, of_kind
from regard.normalizers import softmax
from regard.registry import Registry

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: Registry[Activation] = Registry("activation")
for _activation in (torch.tanh, torch.relu, torch.sigmoid, F.gelu, F.silu, F.softplus, F.elu):
    ACTIVATIONS.add(_activation.__name__, _activation)

# The score of hidden positions, and the log-sum-exp of no scores. Finite, so that differences are finite.
_NEVER = -1e30


def global_query(
    query: Tensor,
    key: Tensor,
    hidden: Tensor,
    mask: Mask | Tensor | None = None,
    causal: bool = False,
    *,
    activation: str | Activation | None = None,
) -> Tensor:
    """y_i = α_i h_i + (1 − α_i)·mean(h), where α is the softmax over positions of s_i = q_i·k_i; (b,l,d).

    Softmax and mean are over the kept positions, with `causal` over those up to i. Other positions get zeros and are
    never read. The backward pass stores no tensor of the size of the inputs.

        >>> import torch, regard
        >>> h = torch.tensor([[[1.0], [3.0]]])
        >>> regard.nn.global_query(torch.zeros_like(h), h, h)[0, :, 0]  # α = ½, the mean is 2
        tensor([1.5000, 2.5000])

    Args:
        query: (b,l,d).
        key: (b,l,d).
        hidden: (b,l,d); the rows that are mixed.
        mask: a Mask that has a `keep`, or a bool tensor (b,l), False = padding.
        causal: whether position i depends only on itself and on earlier positions.
        activation: a non-linearity of the score s_i: a function or a name (tanh, relu, sigmoid, …).
    """
    for name, tensor in (("query", query), ("key", key), ("hidden", hidden)):
        float_tensor(name, tensor)
        if tensor.dim() != 3 or tensor.shape != query.shape:
            raise BadValue(
                f"{name}: expected (b,l,d), the same for query, key and hidden, got query {tuple(query.shape)} and "
                f"{name} {tuple(tensor.shape)}."
            )
    # Under autocast the result of a projection is narrower than other inputs.
    if autocasts(query.device):
        widest = torch.promote_types(torch.promote_types(query.dtype, key.dtype), hidden.dtype)
        query, key, hidden = query.to(widest), key.to(widest), hidden.to(widest)
    if not query.dtype == key.dtype == hidden.dtype:
        raise BadType(
            f"hidden: query, key and hidden must have one dtype, got {query.dtype}, {key.dtype} and {hidden.dtype}."
        )
    asked, keep = _kept(mask, query)
    one_head = [tensor[:, :, None] for tensor in (query, key, hidden)]
    found, _ = _mixed(one_head, keep, causal or asked, _named(activation))
    return found[:, :, 0]


def _kept(mask: Mask | Tensor | None, rows: Tensor) -> tuple[bool, Tensor | None]:
    """Return whether a mask contains causal(), and which positions of (b,l,d) are not padding, (b|1,l)."""
    batch, length, _ = rows.shape
    if isinstance(mask, Mask):
        asked, rest = masking.split_causal(mask)
        return asked, None if rest is None else rest.keep(length, batch).to(rows.device)
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool):
        raise BadType(
            f"mask: expected a Mask or a bool tensor (b,l), True = real, got {described(mask)}. A 0/1 mask becomes "
            f"bool with mask.bool()."
        )
    if mask is not None and tuple(mask.shape) != (batch, length):
        raise BadValue(
            f"mask: expected (b,l) = {(batch, length)}, one entry for each position, got shape {tuple(mask.shape)}."
        )
    return False, mask


def _named(activation: str | Activation | None) -> Activation | None:
    if isinstance(activation, str):
        return ACTIVATIONS[activation]
    if activation is not None and not callable(activation):
        raise BadType(f"activation: expected a name, a function or None, got {described(activation)}.")
    return activation


def _mixed(
    inputs: Tensors, keep: Kept, causal: bool, activation: Activation | None = None, dropout: float = 0.0,
    past: Tensors | None = None,
) -> tuple[Tensor, Tensors]:  # fmt: skip
    """Return the output (b,l,h,d) for query, key and hidden (b,l,h,d), and the carry for a later call."""
    query, key, hidden = inputs
    batch, length, heads, dim = hidden.shape
    keep = None if keep is None else keep.expand(batch, length)
    # Scores (b,l,h) are small compared with the rows, so plain torch may store them.
    (scores,), _ = scan("gla-scores", [query, key], keep, [])
    if activation is not None:
        scores = activation(scores)
    if causal:
        dropped = [F.dropout(torch.ones_like(scores), dropout)] if dropout else []
        carry = nothing_seen(batch, heads, dim, hidden.device) if past is None else past
        (found,), after = scan("gla-prefix", [scores, hidden, *dropped], keep, carry)
        return found, after
    total = torch.zeros(batch, heads, dim, dtype=torch.float64, device=hidden.device)
    _, (total,) = scan("gla-total", [hidden], keep, [total])
    mean = total / (max(1, length) if keep is None else keep.sum(1).clamp(min=1)[:, None, None])
    shares = scores.double().mT  # (b,h,l)
    shares = shares.softmax(-1) if keep is None else softmax()(shares, keep[:, None])
    if dropout:
        shares = F.dropout(shares, dropout)
    (found,), _ = scan("gla-blend", [shares.mT.to(scores.dtype), hidden], keep, [mean])
    return found, []


def nothing_seen(batch: int, heads: int, dim: int, device: torch.device | str | None) -> Tensors:
    """Return the initial carry of the causal form: log-sum-exp of scores (b,h), their number (b,), Σ h (b,h,d)."""
    return [
        torch.full((batch, heads), _NEVER, dtype=torch.float64, device=device),
        torch.zeros(batch, dtype=torch.int64, device=device),
        torch.zeros(batch, heads, dim, dtype=torch.float64, device=device),
    ]


# The pieces of the scans. Sums over positions are in float64, because there may be millions of positions.


def _rows(rows: Tensor, keep: Kept) -> Tensor:
    """Return rows (b,l,…) in the dtype of the computation, zero where they are padding."""
    rows = rows.to(accumulation_dtype(rows.dtype))
    return rows if keep is None else rows.masked_fill(~keep[(..., *[None] * (rows.dim() - 2))], 0)


def _blended(shares: Tensor, rows: Tensor, mean: Tensor, keep: Kept, dtype: torch.dtype) -> Tensor:
    shares = shares.to(rows.dtype)[..., None]
    return _rows(shares * rows + (1 - shares) * mean.to(rows.dtype), keep).to(dtype)


def _scores_piece(inputs: Tensors, keep: Kept, carry: Tensors, recorded: bool) -> Result:
    query, key = inputs
    return [(_rows(query, keep) * _rows(key, keep)).sum(-1)], carry


def _total_piece(inputs: Tensors, keep: Kept, carry: Tensors, recorded: bool) -> Result:
    return [], [carry[0] + _rows(inputs[0], keep).sum(1)]


def _blend_piece(inputs: Tensors, keep: Kept, carry: Tensors, recorded: bool) -> Result:
    shares, hidden = inputs
    return [_blended(shares, _rows(hidden, keep), carry[0][:, None], keep, hidden.dtype)], carry


def _prefix_piece(inputs: Tensors, keep: Kept, carry: Tensors, recorded: bool) -> Result:
    scores, hidden, *dropped = inputs
    log_sum, count, total = carry
    scores = scores.double()
    if keep is not None:
        scores = scores.masked_fill(~keep[..., None], _NEVER)
    # The first entry of the chain stands for all positions before this chunk.
    chain = torch.cat([log_sum[:, None], scores], 1)
    log_sums = prefix_log_sums(chain, recorded)
    shares = _rows((scores - log_sums[:, 1:]).exp(), keep)
    for factor in dropped:
        shares = shares * factor
    real = torch.ones_like(scores[..., 0], dtype=torch.bool) if keep is None else keep
    counts = count[:, None] + real.cumsum(1)
    rows = _rows(hidden, keep)
    totals, last = prefix_sums(rows, total)
    mean = totals / counts.clamp(min=1)[..., None, None].to(totals.dtype)
    return [_blended(shares, rows, mean, keep, hidden.dtype)], [log_sums[:, -1], counts[:, -1], last]


PIECES.add("gla-scores", _scores_piece)
PIECES.add("gla-total", _total_piece)
PIECES.add("gla-blend", _blend_piece)
PIECES.add("gla-prefix", _prefix_piece)


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
        self, dim: int, num_heads: int = 1, dropout: float = 0.0, source_dim: int | None = None, *,
        causal: bool = False, project: bool | str = False, activation: str | Activation | None = None,
        align: str = "bottom-right",
    ) -> None:  # fmt: skip
        super().__init__(dim, num_heads, dropout, source_dim, causal=causal, align=align)
        self.activation = activation
        _named(activation)  # raises for an unknown name
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
            found = super().forward(query, source, mask=mask, state=None if past is None else past.source)
            if past is None:
                return found
            output, cache = found
            assert isinstance(cache, Cache)
            return output, replace(past, source=cache)
        asked, heads, keep = self._within_inputs(query, mask, past)
        if past is not None and not (self.causal or asked):
            raise BadValue(
                "state: a mean over all positions cannot continue from a state, because outputs for earlier positions "
                "would change. Build the layer with causal=True, or pass mask=masks.causal()."
            )
        carry = None if past is None else past.carry()
        activation, dropout = _named(self.activation), self.weights_dropout
        mixed, after = _mixed(heads, keep, self.causal or asked, activation, dropout, carry)
        rows = self.output(mixed.transpose(1, 2))
        if past is None:
            return rows
        dtype = torch.promote_types(past.total.dtype, query.dtype)
        return rows, GlobalQueryState.of(after, dtype, past.source, past.seen + query.shape[1])

    def weights(
        self, query: Tensor, source: Tensor | None = None, *, mask: Mask | Tensor | None = None,
        state: State | None = None, rows: Any = None, heads: Any = None,
    ) -> Tensor:  # fmt: skip
        """Return the exact weights (b, heads, rows, k) of a call: without a source (1−α_i)/n, plus α_i on i itself."""
        past = self._past(state, query)
        if source is not None or (past is not None and past.source.fixed):
            cache = None if past is None else past.source
            return super().weights(query, source, mask=mask, state=cache, rows=rows, heads=heads)
        if past is not None and past.seen:
            raise BadValue(
                "state: it holds only a summary of earlier positions, so there are no weights. Call without a state."
            )
        asked, (queries, keys, hidden), keep = self._within_inputs(query, mask, None)
        # The output is linear in the hidden rows; with unit vectors in their place it equals the weights.
        units = torch.eye(query.shape[1], dtype=hidden.dtype, device=hidden.device)[None, :, None]
        units = units.expand(query.shape[0], -1, self.num_heads, -1)
        found, _ = _mixed([queries, keys, units], keep, self.causal or asked, _named(self.activation))
        chosen = found.transpose(1, 2) if heads is None else found.transpose(1, 2)[:, heads]
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
        (batch, length, _), seen = rows.shape, 0 if past is None else past.seen
        asked, rest = masking.split_causal(mask) if isinstance(mask, Mask) else (False, mask)
        keep = masking.kept(rest, batch, length, length, seen, rows.device)
        if self.projects:  # keep padding out of the gradients of the maps
            rows = masking.without_padding(rows, keep)
        heads = (self.project_query(rows, seen), *self.project_source(rows, seen))
        return asked, [tensor.transpose(1, 2) for tensor in heads], keep

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
        given = masking.as_mask(mask, (query.shape[0], self.num_heads, query.shape[1], length))
        if given is not None and not given.by_key:
            given.keep(length, query.shape[0])  # raises and explains

    def _past(self, state: State | None, query: Tensor) -> GlobalQueryState | None:
        past = of_kind(GlobalQueryState, state)
        if past is not None:
            check_batch(past.count, query)
        return past

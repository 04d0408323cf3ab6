"""The function of `global-query` and its scans: every position is mixed with the mean of all, or of those before it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import BadType, BadValue
from regard.formula.formula import accumulation_dtype
from regard.masks import Mask
from regard.nn.parts import masking
from regard.nn.parts.scan import PIECES, Kept, Result, Tensors, prefix_log_sums, prefix_sums, scan
from regard.normalizers import softmax
from regard.registry import Registry
from regard.support.arguments import described, float_tensor
from regard.support.autocast import autocasts

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
    masked_causal, keep = _kept(mask, query)
    one_head = [tensor[:, :, None] for tensor in (query, key, hidden)]
    mixed, _ = mixed_rows(one_head, keep, causal or masked_causal, activation_of(activation))
    return mixed[:, :, 0]


def _kept(mask: Mask | Tensor | None, rows: Tensor) -> tuple[bool, Tensor | None]:
    """Return whether a mask contains causal(), and which positions of (b,l,d) are not padding, (b|1,l)."""
    batch, length, _ = rows.shape
    if isinstance(mask, Mask):
        masked_causal, padding = masking.split_causal(mask)
        return masked_causal, None if padding is None else padding.keep(length, batch).to(rows.device)
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


def activation_of(activation: str | Activation | None) -> Activation | None:
    """The non-linearity that a name or a function stands for."""
    if isinstance(activation, str):
        return ACTIVATIONS[activation]
    if activation is not None and not callable(activation):
        raise BadType(f"activation: expected a name, a function or None, got {described(activation)}.")
    return activation


def mixed_rows(
    inputs: Tensors,
    keep: Kept,
    causal: bool,
    activation: Activation | None = None,
    dropout: float = 0.0,
    past: Tensors | None = None,
) -> tuple[Tensor, Tensors]:
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
        (output,), after = scan("gla-prefix", [scores, hidden, *dropped], keep, carry)
        return output, after
    total = torch.zeros(batch, heads, dim, dtype=torch.float64, device=hidden.device)
    _, (total,) = scan("gla-total", [hidden], keep, [total])
    mean = total / (max(1, length) if keep is None else keep.sum(1).clamp(min=1)[:, None, None])
    shares = scores.double().mT  # (b,h,l)
    shares = shares.softmax(-1) if keep is None else softmax()(shares, keep[:, None])
    if dropout:
        shares = F.dropout(shares, dropout)
    (output,), _ = scan("gla-blend", [shares.mT.to(scores.dtype), hidden], keep, [mean])
    return output, []


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

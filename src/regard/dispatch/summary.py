"""`Summary`: statistics of all weights of a request, computed strip by strip in linear memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.errors import BadValue, Unsupported
from regard.formula.request import Request
from regard.implementations import HAS_TRITON
from regard.implementations.tiled.scored_strip import ScoredStrip, TiledAttention
from regard.support.arguments import in_digits, is_fake_or_meta, whole_number
from regard.support.autocast import without_autocast

_CHUNK = 64
_SMALL_SCORES = 32.0
_MOST_NUMBERS = 1 << 59  # of which torch can count the bytes


@dataclass(frozen=True)
class Summary:
    """Statistics of attention weights; no gradient. For inputs of three axes the head axis is missing."""

    entropy: Tensor  # (b,h,q) in nats, of a row's weights divided by their sum; 0 for an empty row
    received: Tensor  # (b,h,k): the weight a key gets, averaged over the queries that see anything
    top_weights: Tensor  # (b,h,q,top), falling
    top_keys: Tensor  # (b,h,q,top), the lowest index first on ties; −1 where there is no key
    logsumexp: Tensor  # (b,h,q) of the visible biased scores; −inf for an empty row

    def without_heads(self) -> Summary:
        """The same for inputs without a head axis."""
        return Summary(*[getattr(self, field.name).squeeze(1) for field in fields(self)])


@torch.no_grad()
def summarize_request(request: Request, top: int) -> Summary:
    """The statistics of a request: by Triton kernels where they can run it, else strip by strip."""
    top = whole_number("top", top, least=0)
    if prod(request.sizes[:3]) * top > _MOST_NUMBERS:
        raise BadValue(f"top: expected about as many as there are keys, {request.sizes[3]}, got {in_digits(top)}.")
    if is_fake_or_meta(request.query):
        raise Unsupported(
            "query: fake and meta tensors have no contents to summarise. Call summarize outside of FakeTensorMode."
        )
    with without_autocast(request.query.device):
        request = request.widened().reduced()
    if request.query.device.type == "cuda" and HAS_TRITON:
        from regard.implementations.triton.summary import op as kernels

        if kernels.runs(request, top):
            return Summary(*kernels.run(request, top))
    return summarize_strips(request, top)


def summarize_strips(request: Request, top: int) -> Summary:
    """The statistics of a request whose score is one of pairs, strip by strip."""
    attention = TiledAttention(request)
    (batch, heads, queries, keys), new = request.sizes, request.query.new_zeros
    entropy = new(batch, heads, queries, dtype=attention.dtype)
    received = new(batch, heads, keys, dtype=attention.dtype)
    logsumexp = torch.full_like(entropy, -torch.inf)
    top_weights = new(batch, heads, queries, top, dtype=attention.dtype)
    top_keys = torch.full_like(top_weights, -1, dtype=torch.int64)
    for strip in attention.scored_strips(None):
        weights = strip.weights()[..., : strip.scores.shape[-1]]
        rows = strip.index
        hidden = None if strip.sees_all else strip.scores == -torch.inf
        largest, columns = strongest(weights, hidden, min(top, weights.shape[-1]))
        top_weights[(*rows, slice(0, largest.shape[-1]))] = largest
        keys_found = strip.grid.column[columns.clamp(min=0)]
        top_keys[(*rows, slice(0, largest.shape[-1]))] = torch.where(columns < 0, -1, keys_found)
        logsumexp[rows] = strip.log_sum_exp(largest[..., 0] if top else weights.amax(-1))
        entropy[rows] = _entropy(strip, weights, logsumexp[rows])
        _add_columns(received, strip.grid.parts, weights.sum(2))  # type: ignore[arg-type]
    nonempty = (logsumexp != -torch.inf).sum(2, keepdim=True).clamp(min=1)
    return Summary(entropy, received / nonempty, top_weights, top_keys, logsumexp)


def _entropy(strip: ScoredStrip, weights: Tensor, logsumexp: Tensor) -> Tensor:
    """−Σ p log p with p = w / Σw; 0 for a row of zeros."""
    if strip.is_softmax and strip.sees_all and float(logsumexp.abs().amax()) < _SMALL_SCORES:
        # Then log w = score − logsumexp, and no logarithm is needed. (Large scores would cancel.) The scores are not
        # needed any more and serve as scratch memory.
        return (logsumexp - strip.scores.mul_(weights).sum(-1)).clamp(min=0)
    total = weights.sum(-1)
    safe = torch.where(total == 0, 1, total)
    logs = weights.clamp(min=torch.finfo(weights.dtype).tiny).log_()  # several times as fast as xlogy
    entropy = torch.log(safe) - logs.mul_(weights).sum(-1) / safe
    return torch.where(total == 0, 0, entropy).clamp(min=0)


def _add_columns(received: Tensor, parts: tuple[slice, slice, slice, slice | Tensor], weights: Tensor) -> None:
    target = received[parts[0], parts[1]]
    if isinstance(parts[3], slice):
        target[..., parts[3]] += weights
    else:
        target.index_add_(2, parts[3], weights)


def strongest(weights: Tensor, hidden: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest weights of each row and their columns, ties to the lowest column.

    A row of n weights is cut into chunks of 64. The `count` largest lie in the `count` chunks with the largest
    maxima (ties again to the first), so only those are ordered: far fewer than n. Hidden columns give −1.
    """
    length = weights.shape[-1]
    if count == 0:
        return weights[..., :0], torch.zeros_like(weights[..., :0], dtype=torch.int64)
    # A hidden key ranks below a visible one of weight 0.
    order = weights if hidden is None else weights.masked_fill(hidden, -1)
    if length <= 4 * _CHUNK or count * _CHUNK >= length:
        columns = _largest(order, count)
        largest = order.gather(-1, columns)
    else:
        chunks = pad(order, (0, -length % _CHUNK), value=-1) if length % _CHUNK else order
        chunks = chunks.unflatten(-1, (-1, _CHUNK))
        best = _largest(chunks.amax(-1), count).sort(-1).values
        inside = chunks.gather(-2, best[..., None].expand(*best.shape, _CHUNK)).flatten(-2)
        columns = (best[..., None] * _CHUNK + torch.arange(_CHUNK, device=weights.device)).flatten(-2)
        index = _largest(inside, count)
        largest, columns = inside.gather(-1, index), columns.gather(-1, index)
    return largest.clamp(min=0), torch.where(largest < 0, -1, columns)


def _largest(numbers: Tensor, count: int) -> Tensor:
    """The indices of the `count` largest numbers of each row, in falling order, the lowest index first on ties."""
    if numbers.dtype != torch.float32:
        return numbers.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    # `topk` is several times as fast as a stable sort but breaks ties in any order. The bits of positive floats sort
    # like the floats; with the index appended below them no two numbers are equal.
    low = (1 << 32) - 1
    index = torch.arange(low, low - numbers.shape[-1], -1, device=numbers.device)
    ranks = (numbers.contiguous().view(torch.int32).long() << 32) + index
    return low - (ranks.topk(count, -1).values & low)

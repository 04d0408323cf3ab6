"""A reading: one captured call, which computes its weights for the rows and heads that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

import regard.dispatch.attention as dispatch
from regard import masks
from regard.biases import Bias
from regard.dispatch.attention import Rows
from regard.dispatch.summary import Summary, strongest
from regard.errors import RegardError
from regard.formula import formula, request
from regard.formula.call import Call
from regard.masks import Mask
from regard.normalizers import Normalizer
from regard.observation.capture.fingerprints import changed_error
from regard.observation.capture.proof import Proof
from regard.observation.capture.storage import StoredKeys, StoredTensor, StoredValue
from regard.scores import Score
from regard.scores.base import spread_heads
from regard.values.grid import Sizes, full_grid

# exact: the weights the layer mixes its values with. effective: the layer never makes them, but its output is the mean
# of its values by these weights. gradient × input: how much each input moves the answer; not a weight of any layer.
# unverified: computed from what is known of the layer, but not confirmed by its output.
How = Literal["exact", "effective", "gradient × input", "unverified"]
# What rows or columns are. position: the queries' sequence; source: the sequence attended to; slot: slots of a memory;
# memory: the slots, then the positions; channel: the channels of feature maps.
Side = Literal["position", "source", "slot", "memory", "channel"]
IN_FLIGHT = 2**22  # weights in memory at once: 16 MiB
MODEST = 128.0  # beyond it a float32 log-sum-exp is rounded by more than 1e-5, too coarse to subtract from scores


class Unreadable(RegardError, RuntimeError):
    """The weights of a captured call cannot be computed; the text says why."""


class Reading:
    """One call of a site. Subclasses compute the weights of chosen rows and heads."""

    sizes: Sizes  # b, h, q, k
    nature: How = "exact"  # how exact its weights are, if confirmed
    rows: Side = "position"
    columns: Side = "source"
    continues: bool = False  # whether the layer was called with a state: a step of a longer call

    @property
    def how(self) -> How:
        """How exact its weights are; "unverified" where they are not confirmed."""
        try:
            return "unverified" if self.is_doubtful() else self.nature
        except Exception:  # weights that cannot be computed cannot be checked
            return "unverified"

    check: Callable[[Reading], bool] | None = None  # whether its weights are those the model mixed with

    def is_doubtful(self) -> bool:
        """Whether its weights are not confirmed by the output of the call."""
        return self.check is not None and not self.check(self)

    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        """The weights (b, heads, rows, k)."""
        raise NotImplementedError

    def columns_of(self, keys: Rows, heads: Rows = None) -> Tensor:
        """The weights of all queries for chosen keys, (b, heads, q, keys), by blocks of rows."""
        chosen = dispatch.selection("keys", keys, self.sizes[3], self.device)
        columns = [weights if chosen is None else weights[..., chosen] for _, weights in self.strips(heads)]
        return torch.cat(columns, 2) if columns else self.weights(heads=heads)

    def summary(self, top: int) -> Summary:
        """The statistics of all weights, in memory linear in the length."""
        return summary_of(self, top)

    def logsumexp(self, rows: Rows) -> Tensor:
        """The log-sum-exp of the scores of some rows, (b,h,rows); NaN where there are no scores."""
        count = len(range(*rows.indices(self.sizes[2]))) if isinstance(rows, slice) else self.sizes[2]
        return torch.full((*self.sizes[:2], count), torch.nan, device=self.device)

    def strips(self, heads: Rows = None) -> Iterator[tuple[slice, Tensor]]:
        """All weights in blocks of rows: the rows, and their weights (b, heads, rows, k)."""
        batch, count, queries, keys = self.sizes
        few = max(1, IN_FLIGHT // max(1, batch * count * keys))
        for start in range(0, queries, few):
            rows = slice(start, min(start + few, queries))
            yield rows, self.weights(rows, heads)

    @property
    def device(self) -> torch.device:
        """Where the weights are computed."""
        return torch.device("cpu")


@dataclass
class Pairs(Reading):
    """A call whose weights `regard.weights` computes, from queries, keys, mask, bias and score."""

    query: StoredTensor  # (b,h,q,d)
    key: StoredKeys  # (b,g,k,d)
    sizes: Sizes
    mask: StoredTensor | StoredValue[Mask] | Mask | None = None  # a tensor: True = may attend, 4 axes
    bias: StoredTensor | StoredValue[Bias] | None = None  # a tensor: 4 axes, added to the scores
    score: StoredValue[Score] | str = "scaled-dot"
    normalize: Normalizer | str = "softmax"
    scale: float | None = None
    sink: StoredTensor | None = None
    rows: Side = "position"
    columns: Side = "source"
    graph: GradientInputs | None = None
    proof: Proof | None = None
    is_known: bool = True  # False where a tensor subclass may replace the function
    _logsumexp: Tensor | None = field(default=None, repr=False)
    _proven: bool | None = field(default=None, repr=False)

    @property
    def device(self) -> torch.device:
        return self.query.tensor.device

    def _asked(self) -> tuple[Tensor, Tensor, dict[str, Any]]:
        device = self.device
        query, key = self.query.get(), self.key.first(self.sizes[3]).to(device)
        mask = self.mask if isinstance(self.mask, Mask | None) else self.mask.get().to(device)
        bias = None if self.bias is None else self.bias.get().to(device)
        options = {
            "mask": mask,
            "bias": bias.to(query.dtype) if isinstance(bias, Tensor) else bias,
            "score": self.score if isinstance(self.score, str) else self.score.get().to(device),
            "normalize": self.normalize,
            "scale": self.scale,
            "sink": None if self.sink is None else self.sink.get().to(query),
        }
        return query, key.to(query.dtype), options

    @torch.no_grad()
    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        self._prove()
        query, key, options = self._asked()
        return dispatch.weights(query, key, **options, rows=rows, heads=heads)

    def last_row(self) -> Tensor:
        """The weights of the last row, (b,h,k), not checked against the proof."""
        query, key, options = self._asked()
        return dispatch.weights(query, key, **options, rows=[-1])[:, :, 0]

    @torch.no_grad()
    def _prove(self) -> None:
        """Check the weights against the proof, once: later writes are detected by fingerprints."""
        if self._proven is None:
            self._proven = self.proof is None or self.proof.holds(self.last_row()[0])
            if self.proof is not None and self._proven:
                self.query, self.key.kept = self.query.sampled(), self.key.kept.sampled()
                self.mask = self.mask.sampled() if isinstance(self.mask, StoredTensor) else self.mask
                self.bias = self.bias.sampled() if isinstance(self.bias, StoredTensor) else self.bias
        if self.is_known and not self._proven:
            raise changed_error("the query, the key or the mask")

    def is_doubtful(self) -> bool:
        if self.proof is None:
            return not self.is_known
        self._prove()
        return not self._proven

    def summary(self, top: int) -> Summary:
        self._prove()
        query, key, options = self._asked()
        return dispatch.summarize(query, key, **options, top=top)

    @torch.no_grad()
    def columns_of(self, keys: Rows, heads: Rows = None) -> Tensor:
        """exp(score − log-sum-exp): with a stored log-sum-exp, only the chosen keys are computed."""
        if self.normalize != "softmax" or self.sink is not None:
            return super().columns_of(keys, heads)
        self._prove()
        with torch.autocast(self.device.type, enabled=False):
            return self._columns(keys, heads)

    def _columns(self, keys: Rows, heads: Rows) -> Tensor:
        query, key, options = self._asked()
        if self._logsumexp is None:
            self._logsumexp = dispatch.summarize(query, key, **options, top=0).logsumexp
        call_request = request.build(Call(query, key, key, **options))
        columns = dispatch.selection("keys", keys, self.sizes[3], query.device)
        chosen = dispatch.selection("heads", heads, self.sizes[1], query.device)
        wide = formula.accumulation_dtype(query.dtype)
        score, query, key = call_request.score.reduce(
            call_request.query.to(wide), call_request.key.to(wide), guarded=call_request.mask is not None
        )
        grid = full_grid(self.sizes, query.device).part(heads=chosen, columns=columns)
        logsumexp = self._logsumexp
        key = spread_heads(key, self.sizes[1])
        if chosen is not None:
            query, key, logsumexp = query[:, chosen], key[:, chosen], logsumexp[:, chosen]
        if columns is not None:
            key = key[:, :, columns]
        scores, visible = formula.masked_scores(
            score, query, key, call_request.mask, call_request.bias, grid, call_request.scale
        )
        weights = torch.exp(scores - logsumexp[..., None])
        # A log-sum-exp of −inf is a row of zeros, as in `weights`.
        weights = weights.masked_fill((logsumexp == -torch.inf)[..., None], 0)
        if visible is not None:
            weights = weights.masked_fill(~visible, 0)
        return self._with_coarse_rows(weights.to(call_request.query.dtype), logsumexp, keys, heads)

    def _with_coarse_rows(self, weights: Tensor, logsumexp: Tensor, keys: Rows, heads: Rows) -> Tensor:
        """Recompute rows whose scores are huge (hidden by a large negative number) or non-finite."""
        coarse = ~(logsumexp.abs() <= MODEST) & (logsumexp != -torch.inf)  # (b,h,q)
        rows = coarse.any(1).any(0).nonzero()[:, 0]
        columns = dispatch.selection("keys", keys, self.sizes[3], weights.device)
        few = max(1, IN_FLIGHT // max(1, coarse.shape[0] * coarse.shape[1] * self.sizes[3]))
        for block in rows.split(few):
            exact = self.weights(block, heads)
            exact = exact if columns is None else exact[..., columns]
            weights[:, :, block] = torch.where(coarse[:, :, block, None], exact, weights[:, :, block])
        return weights


@dataclass
class GradientInputs:
    """What gradient × attention needs beside the weights: the values, and the output in the autograd graph."""

    value: Tensor  # (b,g,k,v), detached
    output: Tensor  # as the function returned it
    heads_at: int = 1  # the axis of the heads in the output
    slope: Tensor | None = None  # (b,h,q,v): gradient of what was asked about, with respect to the output


@dataclass
class DeferredPairs(Reading):
    """A call whose queries and keys are computed from the module's inputs when weights are asked for."""

    make: Callable[[], Pairs]
    sizes: Sizes
    rows: Side = "position"
    columns: Side = "source"
    check: Callable[[Reading], bool] | None = None

    @torch.no_grad()
    def pairs(self) -> Pairs:
        """The queries and keys."""
        # Computed anew each time: stored, they would double the memory and hide a change of the parameters.
        return replace(self.make(), rows=self.rows, columns=self.columns)

    @property
    def device(self) -> torch.device:
        return self.pairs().device

    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        return self.pairs().weights(rows, heads)

    def columns_of(self, keys: Rows, heads: Rows = None) -> Tensor:
        return self.pairs().columns_of(keys, heads)

    def summary(self, top: int) -> Summary:
        return self.pairs().summary(top)


@dataclass
class WholeMap(Reading):
    """A call whose weights can only be computed all at once, anew each time."""

    make: Callable[[], Tensor]
    sizes: Sizes
    nature: How = "exact"
    rows: Side = "position"
    columns: Side = "source"
    check: Callable[[Reading], bool] | None = None

    @torch.no_grad()
    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        return chosen(self.make(), rows, heads)

    @torch.no_grad()
    def strips(self, heads: Rows = None) -> Iterator[tuple[slice, Tensor]]:
        yield slice(0, self.sizes[2]), self.weights(heads=heads)


@dataclass
class UnreadableCall(Reading):
    """A call whose weights cannot be computed, and why."""

    why: str
    sizes: Sizes = (0, 0, 0, 0)
    nature: How = "unverified"

    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        raise Unreadable(self.why)

    def columns_of(self, keys: Rows, heads: Rows = None) -> Tensor:
        raise Unreadable(self.why)

    def summary(self, top: int) -> Summary:
        raise Unreadable(self.why)


class Steps(Reading):
    """Steps of one forward pass over the same source, as of a recurrent decoder: row t is the query of step t."""

    def __init__(self, first: Reading) -> None:
        self.steps = [first]
        self.nature, self.rows, self.columns = first.nature, first.rows, first.columns

    @property
    def sizes(self) -> Sizes:  # type: ignore[override]
        """Batch, heads, steps and keys."""
        batch, heads, _, keys = self.steps[0].sizes
        return batch, heads, len(self.steps), keys

    @property
    def device(self) -> torch.device:
        return self.steps[0].device

    def is_doubtful(self) -> bool:
        return any(step.how == "unverified" for step in self.steps)

    def chosen(self, rows: Rows) -> list[Reading]:
        """The steps of these rows."""
        selected = dispatch.selection("rows", rows, len(self.steps), torch.device("cpu"))
        numbers = torch.arange(len(self.steps))[slice(None) if selected is None else selected]
        return [self.steps[number] for number in numbers.tolist()]

    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        weights = [step.weights(None, heads) for step in self.chosen(rows)]
        return torch.cat(weights, 2) if weights else self.steps[0].weights([], heads)

    def logsumexp(self, rows: Rows) -> Tensor:
        return torch.cat([step.summary(0).logsumexp for step in self.chosen(rows)], 2)


def chosen(weights: Tensor, rows: Rows, heads: Rows) -> Tensor:
    """Some rows and heads of complete weights (b,h,q,k)."""
    for axis, name, selection in ((1, "heads", heads), (2, "rows", rows)):
        indices = dispatch.selection(name, selection, weights.shape[axis], weights.device)
        if isinstance(indices, slice):
            weights = weights.narrow(axis, indices.start, indices.stop - indices.start)
        elif indices is not None:
            weights = weights.index_select(axis, indices)
    return weights


@torch.no_grad()
def summary_of(reading: Reading, top: int) -> Summary:
    """A summary computed from weights, where there are no queries and keys for `summarize`."""
    batch, heads, _, keys = reading.sizes
    received: Tensor | float = 0.0
    entropies, tops, indices, seeing, sums = [], [], [], [], []
    for rows, weights in reading.strips():
        weights = weights.float()
        sums.append(reading.logsumexp(rows))
        total = weights.sum(-1, keepdim=True)
        share = weights / total.masked_fill(total == 0, 1)
        entropies.append(-torch.xlogy(share, share).sum(-1))
        largest, index = strongest(weights, weights == 0, min(top, keys))
        tops.append(torch.nn.functional.pad(largest, (0, top - largest.shape[-1])))
        indices.append(torch.nn.functional.pad(index, (0, top - index.shape[-1]), value=-1))
        received = received + weights.sum(2)
        seeing.append((total != 0).sum((2, 3)))
    if not entropies:
        empty = torch.zeros(batch, heads, 0)
        return Summary(
            empty,
            torch.zeros(batch, heads, keys),
            torch.zeros(batch, heads, 0, top),
            torch.full((batch, heads, 0, top), -1),
            empty,
        )
    counted = torch.stack(seeing).sum(0).clamp(min=1)[..., None]
    return Summary(
        torch.cat(entropies, 2), received / counted, torch.cat(tops, 2), torch.cat(indices, 2), torch.cat(sums, 2)
    )


def top_left() -> Mask:
    """The causal mask of torch's functions: query i sees keys 0 … i, however many keys there are."""
    return masks.causal(align="top-left")

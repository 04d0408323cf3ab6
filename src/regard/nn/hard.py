"""`hard`: each query chooses one position, by sampling in training and by argmax in evaluation.

A choice has no derivative. A plain call estimates one by going straight through a softmax; `choose` hands back what the
score-function estimator (REINFORCE) needs, and `surrogate` turns that and a reward into a term of a loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import regard.core.attention as core
from regard import normalizers, scores
from regard.biases import Bias
from regard.core.arguments import described, finite_number, float_tensor
from regard.core.autocast import without_autocast
from regard.core.dropout import bits, draw_seed
from regard.core.grid import Grid
from regard.errors import BadType, BadValue
from regard.masks import Mask
from regard.nn.attention import View
from regard.nn.local_p import Around
from regard.nn.masking import joined
from regard.nn.mechanism import mechanism
from regard.nn.multihead import Multihead
from regard.normalizers import Normalizer

_EXACT = 1 << 24  # whole numbers below it are exact in float32


class GumbelNoise(Bias):
    """Noise that turns an argmax into a sample of the softmax: a hash of (seed, batch, head, query, key).

    Nothing of it is stored; every strip, forwards and backwards, computes the same numbers again.
    """

    seed: Tensor

    def values(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        # Small numbers decide, as they make the large noise, and near 0 floats are exact. 1 itself must not occur.
        uniform = ((bits(grid, self.seed).to(dtype) + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
        return -torch.log(-torch.log1p(-uniform))

    def accumulate(self, grid: Grid, grad: Tensor, into: list[Tensor]) -> None:
        """A seed has no gradient."""


class StraightThrough(normalizers.Hardmax):
    """All weight on the largest score; the gradient is that of softmax(scores / temperature)."""

    temperature: float

    def live_rows(self, scores: Tensor) -> Tensor:
        chosen = super().live_rows(scores)
        if not scores.requires_grad:
            return chosen
        soft = torch.softmax(scores / self.temperature, -1)
        return chosen + (soft - soft.detach())

    def backward(self, scores: Tensor, weights: Tensor, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
        soft = normalizers.softmax()
        scaled = scores / self.temperature
        found, _ = soft.backward(scaled, soft.rows(scaled), grad)
        return found / self.temperature, []


class Surprise(Normalizer):
    """−p log p of each key, where p is the softmax of the scores. Over a row they add up to its entropy."""

    def __call__(self, scores: Tensor, visible: Tensor) -> Tensor:
        logs = self._logs(scores, visible)
        return (-logs.exp() * logs).masked_fill(~visible, 0)

    def backward(self, scores: Tensor, weights: Tensor, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
        visible = scores != -torch.inf
        logs = self._logs(scores, visible)
        share = logs.exp().masked_fill(~visible, 0)
        slope = logs.add_(1).mul_(share).mul_(grad)
        return torch.addcmul(-slope, share, slope.sum(-1, keepdim=True)), []

    @staticmethod
    def _logs(scores: Tensor, visible: Tensor) -> Tensor:
        """log p, and 0 where nothing is visible."""
        dead = ~visible.any(-1, keepdim=True)
        return torch.log_softmax(scores.masked_fill(dead, 0), -1).masked_fill(~visible, 0)


@dataclass(frozen=True)
class Choice:
    """Which key each query of each head chose, (b,h,q), and how likely that was. Gradient flows to the scores."""

    index: Tensor  # −1 for a query that sees nothing
    log_prob: Tensor  # of the chosen key under the softmax of the scores; 0 for a query that sees nothing
    entropy: Tensor  # of that softmax, in nats; 0 for a query that sees nothing


@mechanism("hard", causal="option", time="n²·d", memory="n·d", num_heads=2)
class Hard(Multihead):
    """Each query chooses one key, and what it gets is the value there: sampled in training, the best in evaluation.

        c_i ~ softmax_j(q_i·k_j / √d)   (evaluation: c_i = argmax_j, the lowest index on ties),   o_i = v_{c_i}

    A plain call samples by Gumbel noise, c_i = argmax_j(e_ij + g_ij), and sends the gradient straight through, as if
    the weights had been softmax((e + g) / temperature); in evaluation no gradient reaches the scores. `choose` gives
    the choices with their log-probabilities and entropies, to train with `surrogate` (score function) instead.

    Paper: Xu et al. 2015, section 4.1 (stochastic hard attention, its baseline and entropy term); Williams 1992 (score
    function); Jang et al. 2017 and Maddison et al. 2017 (Gumbel noise, straight through).
    Empty row: the heads give zeros, so the row is the bias of the last projection.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width, each with a choice of its own.
        dropout: share of the choices dropped in training.
        source_dim: width of the source, where it differs from dim.
        temperature: of the softmax that a plain call's gradient goes through; the sampling does not depend on it.

    >>> import torch, regard
    >>> layer = regard.nn.build("hard", dim=16, num_heads=2).eval()
    >>> layer.weights(torch.randn(2, 5, 16)).sum(-1).unique()
    tensor([1.], grad_fn=<Unique2Backward0>)
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("normalize",)

    def __init__(self, dim: int, *, temperature: float = 1.0, **options: Any) -> None:
        super().__init__(dim, normalize="hard", **options)
        self.temperature = finite_number("temperature", temperature, above=0.0)

    def pieces(self, view: View) -> dict[str, Any]:
        found = super().pieces(view)
        if not self.training:
            return found
        return self._noisy(found, view) | {"normalize": StraightThrough(self.temperature)}

    def _noisy(self, pieces: dict[str, Any], view: View) -> dict[str, Any]:
        noise, bias = GumbelNoise(draw_seed(view.query.device)), pieces.get("bias")
        return pieces | {"bias": noise if bias is None else bias + noise}

    def choose(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        index: Tensor | None = None,
    ) -> tuple[Tensor, Choice]:
        """The output (b,q,dim) of one choice for each head and query, and that choice.

        Values learn from the output, scores through `surrogate`. `index` (b,h,q) repeats choices that were made before.
        """
        view = self.view(query, source, mask, None)
        dtype, device = view.query.dtype, view.query.device
        wide = torch.promote_types(dtype, torch.float32)  # a log-probability is no number to round
        view = replace(view, query=view.query.to(wide), key=view.key.to(wide), value=view.value.to(wide))
        with without_autocast(device):
            pieces = super().pieces(view)
            if index is not None:
                picking = pieces | {"mask": joined(view.mask, Around(self._checked_index(index, view), 0))}
            else:
                picking = self._noisy(pieces, view) if self.training else pieces
            # Where the chosen key stands travels with its value.
            mixed = core.attend(
                view.query, view.key, torch.cat([view.value, _places(view.value)], -1), **picking
            )
            mixed, place = mixed[..., :-3], mixed[..., -3:].detach()
            kept = nn.functional.dropout(torch.ones_like(place[..., :1]), self.dropout, self.training)
            choice = self._judged(view, pieces, place)
        return self.output((mixed * kept).to(dtype)), choice

    def _judged(self, view: View, pieces: dict[str, Any], place: Tensor) -> Choice:
        """The choice that `place` (b,h,q,3) says, and how likely it was."""
        chose, spoilt = place[..., 0] > 0, place[..., 0].isnan()
        high, low = place[..., 1:].masked_fill(spoilt[..., None], 0).long().unbind(-1)
        index = torch.where(chose, high * _EXACT + low, -1)
        ones = torch.ones_like(view.value[..., :1])
        entropy, total = core.attend(
            view.query, view.key, ones, return_logsumexp=True, **pieces | {"normalize": Surprise()}
        )
        score = _scores_at(view, pieces, index)
        log_prob = score.masked_fill(~chose, 0) - total.masked_fill(~(chose | spoilt), 0)
        return Choice(index, log_prob, entropy[..., 0])

    def _checked_index(self, index: Tensor, view: View) -> Tensor:
        if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.shape != view.query.shape[:3]:
            raise BadValue(
                f"index: expected whole numbers (b,h,q) = {tuple(view.query.shape[:3])} of torch.int64, such as "
                f"choice.index, got {described(index)}."
            )
        return index


def _places(value: Tensor) -> Tensor:
    """A one and the position of each key, in two halves: (b,g,k,3) as the values (b,g,k,v)."""
    position = torch.arange(value.shape[2], device=value.device)
    columns = torch.stack([torch.ones_like(position), position // _EXACT, position % _EXACT], -1)
    return columns.to(value.dtype).expand(*value.shape[:2], -1, -1)


def _scores_at(view: View, pieces: dict[str, Any], index: Tensor) -> Tensor:
    """The score of each query with the key at `index`, both (b,h,q); anything where that is −1.

    Scores and biases are functions of a grid. Here each query is a batch entry of its own, with one key.
    """
    (batch, heads, queries, dim), (groups, keys) = view.query.shape, view.key.shape[1:3]
    if 0 in (batch, queries, keys):
        return view.query.new_zeros(index.shape)
    kind = scores.named(pieces.get("score", "scaled-dot"))
    score, query, key = kind.reduce(view.query, view.key, guarded=True)
    # Heads that share a key head stand next to each other.
    place = index.clamp(min=0).reshape(batch, groups, -1, 1)
    key = key.gather(2, place.expand(-1, -1, -1, key.shape[3])).view(*index.shape, -1)
    nothing = index[..., None] < 0  # a key at hand that was not chosen may be hidden, and hold NaN
    query, key = (
        rows.masked_fill(nothing, 0).transpose(1, 2).reshape(batch * queries, heads, 1, -1)
        for rows in (query, key)
    )
    device, entries = index.device, batch * queries
    grid = Grid(
        (batch, heads, queries, keys),
        batch=torch.arange(batch, device=device).repeat_interleave(queries).view(-1, 1, 1, 1),
        head=torch.arange(heads, device=device).view(-1, 1, 1),
        row=torch.arange(queries, device=device).repeat(batch).view(-1, 1, 1, 1),
        column=index.transpose(1, 2).reshape(entries, heads, 1, 1),
        parts=(slice(0, entries), slice(0, heads), slice(0, 1), slice(0, 1)),
    )
    found = score.pairs(query, key, grid, kind.factor(pieces.get("scale"), dim))
    if pieces.get("bias") is not None:
        found = found + pieces["bias"].values(grid, found.dtype)
    return found.view(batch, queries, heads).transpose(1, 2)


class Baseline(nn.Module):
    """A moving average of rewards, the usual reward to compare with. It learns in training mode only.

    Calling it with rewards (b,) gives the average before them, so that the estimate of the gradient stays unbiased.

    >>> import torch
    >>> baseline = Baseline(decay=0.9)
    >>> baseline(torch.tensor([1.0, 3.0])), baseline(torch.tensor([0.0]))
    (tensor(0.), tensor(0.2000))
    """

    average: Tensor

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = finite_number("decay", decay)
        if not 0 <= self.decay < 1:
            raise BadValue(f"decay: expected a number from 0 to below 1, got {decay}.")
        self.register_buffer("average", torch.zeros(()))

    @torch.no_grad()
    def forward(self, reward: Tensor) -> Tensor:
        """The average before these rewards, which then take part in it."""
        before = self.average.clone()
        if self.training and reward.numel():
            moved = before.lerp(reward.mean().to(before), 1 - self.decay)
            self.average.copy_(
                torch.where(moved.isfinite(), moved, before)
            )  # one bad reward would stay for ever
        return before

    def extra_repr(self) -> str:
        return f"decay={self.decay}"


def surrogate(
    choice: Choice, reward: Tensor, baseline: float | Tensor | Baseline = 0.0, entropy_weight: float = 0.0
) -> Tensor:
    """A term to add to a loss: its gradient is the score-function estimate of that of −E[reward].

        −mean over b of (reward − baseline) · Σ log_prob  −  entropy_weight · mean entropy

    The entropy's mean is over the queries that chose. `baseline` is a number, a tensor that broadcasts to (b,), or a
    `Baseline`, which is updated here when it is in training mode.
    """
    batch = choice.log_prob.shape[0]
    if float_tensor("reward", reward).shape != (batch,):
        raise BadValue(
            f"reward: expected one number for each batch entry, ({batch},), got {tuple(reward.shape)}."
        )
    if not isinstance(baseline, (int, float, Tensor, Baseline)) or isinstance(baseline, bool):
        raise BadType(f"baseline: expected a number, a tensor or a Baseline, got {described(baseline)}.")
    usual = baseline(reward.detach()) if isinstance(baseline, Baseline) else baseline
    advantage = (reward - usual).detach().to(choice.log_prob.dtype)
    if advantage.shape != (batch,):
        raise BadValue(f"baseline: expected what broadcasts to ({batch},), got {described(usual)}.")
    gain = (advantage * choice.log_prob.sum((1, 2))).sum() / max(1, batch)
    entropy = choice.entropy.sum() / (choice.index >= 0).sum().clamp(min=1)
    return -gain - finite_number("entropy_weight", entropy_weight) * entropy

"""`hard`: each query chooses one key, by sampling in training and by argmax in evaluation.

A choice has no derivative. A plain call uses the straight-through estimator with a softmax. `choose` returns what the
score-function estimator (REINFORCE) needs, and `surrogate` turns that and a reward into a term of a loss. With
`estimator="reinforce"` a plain call offers that term to the training step, which knows the loss of each example.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import regard.dispatch.attention as dispatch
from regard import normalizers, scores
from regard.biases import Bias
from regard.errors import BadValue, unknown_name
from regard.formula.dropout import bits, draw_seed
from regard.masks import Mask
from regard.nn.local_p import CenteredWindowMask
from regard.nn.multihead import Multihead
from regard.nn.parts.attention import AttentionInputs
from regard.nn.parts.masking import joined
from regard.nn.parts.mechanism import mechanism
from regard.nn.parts.score_function import Baseline, Choice, Drawn, ScoreFunction, surrogate
from regard.normalizers import Normalizer
from regard.support.arguments import described, finite_number
from regard.support.autocast import without_autocast
from regard.values.grid import Grid

__all__ = ["Baseline", "Choice", "Hard", "surrogate"]

ESTIMATORS = ("straight-through", "reinforce")
SHORT_ROW, FEW_SCORES = (256, 1 << 22)  # up to so many keys of a query, and scores in all, scores are written out
_EXACT = 1 << 24  # smaller integers are exact in float32


class GumbelNoise(Bias):
    """Gumbel noise, which turns an argmax into a sample of the softmax: a hash of (seed, batch, head, query, key).

    It is not stored: every strip recomputes the same numbers, in the forward and the backward pass.
    """

    seed: Tensor

    def values(self, grid: Grid, dtype: torch.dtype) -> Tensor:
        # Large noise comes from uniform numbers near 0, where floats are exact. The number 1 must not occur.
        uniform = ((bits(grid, self.seed).to(dtype) + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
        return -torch.log(-torch.log1p(-uniform))

    def accumulate(self, grid: Grid, grad: Tensor, into: list[Tensor]) -> None:
        """Do nothing: a seed has no gradient."""


class StraightThrough(normalizers.Hardmax):
    """Weight 1 on the largest score, with the gradient of softmax(scores / temperature)."""

    temperature: float

    def nonempty_rows(self, scores: Tensor) -> Tensor:
        chosen = super().nonempty_rows(scores)
        if not scores.requires_grad:
            return chosen
        soft = torch.softmax(scores / self.temperature, -1)
        return chosen + (soft - soft.detach())

    def backward(self, scores: Tensor, weights: Tensor, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
        soft = normalizers.softmax()
        scaled = scores / self.temperature
        gradient, _ = soft.backward(scaled, soft.rows(scaled), grad)
        return gradient / self.temperature, []


class EntropyTerms(Normalizer):
    """−p log p of each key, where p is the softmax of the scores; the sum over a row is its entropy."""

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
        """Return log p, and 0 for hidden keys."""
        dead = ~visible.any(-1, keepdim=True)
        return torch.log_softmax(scores.masked_fill(dead, 0), -1).masked_fill(~visible, 0)


@mechanism("hard", causal="option", time="n²·d", memory="n·d", num_heads=2)
class Hard(Multihead):
    """Each query chooses one key and receives its value: a sampled key in training, the best one in evaluation.

        c_i ~ softmax_j(q_i·k_j / √d)   (evaluation: c_i = argmax_j, the lowest index on ties),   o_i = v_{c_i}

    A plain call samples with Gumbel noise, c_i = argmax_j(e_ij + g_ij), and uses the straight-through gradient of
    softmax((e + g) / temperature); in evaluation no gradient reaches the scores. With estimator="reinforce", scores
    learn inside `regard train` by the score function instead: the loss of an example is the negative reward of its
    choices, its moving average the baseline. In a loop of your own, `choose` returns the choices with their
    log-probabilities and entropies, and `surrogate` makes the loss term.

    Paper: Xu et al. 2015, section 4.1 (stochastic hard attention, its baseline and entropy term); Williams 1992 (score
    function); Jang et al. 2017 and Maddison et al. 2017 (Gumbel noise, straight-through estimator).
    Empty row: the heads return zeros, so the row is the bias of the output projection.
    When to use: if the choice itself matters: one place to read, one key as the reason for an output, a discrete
    action. Training is noisier than with soft weights.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width, each with its own choice.
        dropout: probability of dropping a choice in training.
        source_dim: width of the source; None: dim.
        temperature: of the softmax whose gradient straight-through uses; sampling does not depend on it.
        estimator: straight-through or reinforce (score function): how scores learn in training.
        entropy_weight: weight of the mean entropy of the choices, which reinforce adds to the reward.
        baseline_decay: of the moving average of losses that reinforce subtracts.
        soft_share: share of the queries that in training, with reinforce, receive the softmax mean in place of a choice
            (0.5 in Xu et al.): their scores learn by the ordinary gradient, which has no variance.

    >>> import torch, regard
    >>> layer = regard.nn.build("hard", dim=16, num_heads=2).eval()
    >>> layer.weights(torch.randn(2, 5, 16)).sum(-1).unique()
    tensor([1.], grad_fn=<Unique2Backward0>)
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("normalize",)

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        temperature: float = 1.0,
        estimator: str = "straight-through",
        entropy_weight: float = 0.01,
        baseline_decay: float = 0.9,
        soft_share: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, normalize="hard", **options)
        self.temperature = finite_number("temperature", temperature, above=0.0)
        if estimator not in ESTIMATORS:
            raise unknown_name("estimator", estimator, ESTIMATORS)
        self.reinforce = ScoreFunction(entropy_weight, baseline_decay) if estimator == "reinforce" else None
        self.soft_share = finite_number("soft_share", soft_share)
        if not 0 <= self.soft_share < 1 or (self.soft_share and self.reinforce is None):
            raise BadValue(
                f"soft_share: expected a number from 0 to below 1, and 0 without estimator='reinforce', got "
                f"{soft_share}."
            )

    def pieces(self, inputs: AttentionInputs) -> dict[str, Any]:
        pieces = super().pieces(inputs)
        if not self.training:
            return pieces
        return self._noisy(pieces, inputs) | {"normalize": StraightThrough(self.temperature)}

    def mix(self, inputs: AttentionInputs) -> Tensor:
        if self.reinforce is None or not self.training:
            return super().mix(inputs)
        mixed, choice = self._chosen(inputs)
        if self.soft_share:
            mixed, choice = self._partly_soft(inputs, mixed, choice)
        self.reinforce.offer(choice)
        return mixed

    def _partly_soft(
        self, inputs: AttentionInputs, mixed: Tensor, made: Choice | Drawn
    ) -> tuple[Tensor, Choice | Drawn]:
        """Replace some choices, drawn at random, by the softmax mean of the values; the others stay as they are."""
        soft = torch.rand((*mixed.shape[:3], 1), device=mixed.device) < self.soft_share
        if isinstance(made, Drawn):
            weights = nn.functional.dropout(made.logs.exp(), self.dropout, self.training)
            mean, made = weights.to(mixed.dtype) @ inputs.value, replace(made, soft=soft)
        else:
            options = super().pieces(inputs) | {"normalize": "softmax", "dropout": self.weights_dropout}
            mean = dispatch.attend(inputs.query, inputs.key, inputs.value, **options)
            made = made.without(soft[..., 0])
        return torch.where(soft, mean.to(mixed.dtype), mixed), made

    def _noisy(self, pieces: dict[str, Any], inputs: AttentionInputs) -> dict[str, Any]:
        noise, bias = GumbelNoise(draw_seed(inputs.query.device)), pieces.get("bias")
        return pieces | {"bias": noise if bias is None else bias + noise}

    def choose(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        index: Tensor | None = None,
    ) -> tuple[Tensor, Choice]:
        """Return the output (b,q,dim) for one choice per head and query, and the choice.

        Values learn from the output, scores through `surrogate`. `index` (b,h,q) repeats given choices.
        """
        mixed, choice = self._chosen(self.prepare(query, source, mask, None), index)
        return self.output(mixed), choice if isinstance(choice, Choice) else choice.choice()

    def _chosen(self, inputs: AttentionInputs, index: Tensor | None = None) -> tuple[Tensor, Choice | Drawn]:
        """Return the chosen values (b,h,q,v), and the choice."""
        if self.training and index is None and _are_few_plain_scores(inputs, super().pieces(inputs)):
            return self._drawn(inputs)
        dtype, device = inputs.query.dtype, inputs.query.device
        wide = torch.promote_types(dtype, torch.float32)  # log-probabilities in float32 at least
        inputs = replace(inputs, query=inputs.query.to(wide), key=inputs.key.to(wide), value=inputs.value.to(wide))
        with without_autocast(device):
            pieces = super().pieces(inputs)
            if index is not None:
                picking = pieces | {
                    "mask": joined(inputs.mask, CenteredWindowMask(self._checked_index(index, inputs), 0))
                }
            else:
                picking = self._noisy(pieces, inputs) if self.training else pieces
            # The positions of the keys are appended to the values, so that the output contains the chosen position.
            mixed = dispatch.attend(
                inputs.query, inputs.key, torch.cat([inputs.value, _encoded_positions(inputs.value)], -1), **picking
            )
            mixed, position = mixed[..., :-3], mixed[..., -3:].detach()
            kept = nn.functional.dropout(torch.ones_like(position[..., :1]), self.dropout, self.training)
            choice = self._choice_at(inputs, pieces, position)
        return (mixed * kept).to(dtype), choice

    def _drawn(self, inputs: AttentionInputs) -> tuple[Tensor, Drawn]:
        """The chosen values (b,h,q,v) and the choice in training, from scores that are written out.

        For few keys this is a fraction of the kernels of the strips, and none of them waits for the device.
        """
        products = inputs.query @ inputs.key.mT
        wide = torch.promote_types(products.dtype, torch.float32)  # log-probabilities in float32 at least
        factor = inputs.query.shape[-1] ** -0.5 if self.scale is None else self.scale
        with without_autocast(products.device):
            logs = (products.to(wide) * factor).log_softmax(-1)
            negative_noise = torch.empty_like(logs).exponential_().log()  # of Gumbel's distribution
            index = (logs.detach() - negative_noise).argmax(-1, keepdim=True)
            # 1 for the chosen key; NaN where a query is not finite, so that it shows.
            ones = nn.functional.dropout(1 + 0 * logs.detach()[..., :1], self.dropout, self.training)
            weights = torch.zeros_like(logs).scatter(-1, index, ones)
        return weights.to(inputs.value.dtype) @ inputs.value, Drawn(logs, index)

    def _choice_at(self, inputs: AttentionInputs, pieces: dict[str, Any], position: Tensor) -> Choice:
        """Return the choice that `position` (b,h,q,3) encodes, with log-probability and entropy."""
        chose, nonfinite = position[..., 0] > 0, position[..., 0].isnan()
        high, low = position[..., 1:].masked_fill(nonfinite[..., None], 0).long().unbind(-1)
        index = torch.where(chose, high * _EXACT + low, -1)
        ones = torch.ones_like(inputs.value[..., :1])
        entropy, total = dispatch.attend(
            inputs.query, inputs.key, ones, return_logsumexp=True, **pieces | {"normalize": EntropyTerms()}
        )
        score = _scores_at(inputs, pieces, index)
        log_prob = score.masked_fill(~chose, 0) - total.masked_fill(~(chose | nonfinite), 0)
        return Choice(index, log_prob, entropy[..., 0])

    def _checked_index(self, index: Tensor, inputs: AttentionInputs) -> Tensor:
        if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.shape != inputs.query.shape[:3]:
            raise BadValue(
                f"index: expected integers (b,h,q) = {tuple(inputs.query.shape[:3])} of torch.int64, such as "
                f"choice.index, got {described(index)}."
            )
        return index


def _are_few_plain_scores(inputs: AttentionInputs, pieces: dict[str, Any]) -> bool:
    """Whether scores are scaled products alone, without a mask, and few enough to be written out."""
    (batch, heads, queries, _), (groups, keys) = inputs.query.shape, inputs.key.shape[1:3]
    plain = pieces.keys() <= {"mask", "scale", "normalize"} and pieces.get("mask") is None and heads == groups
    return plain and 0 < keys <= SHORT_ROW and batch * heads * queries * keys <= FEW_SCORES


def _encoded_positions(value: Tensor) -> Tensor:
    """Return columns (b,g,k,3) to append to the values: 1, and the position of the key in base 2²⁴ (two digits)."""
    position = torch.arange(value.shape[2], device=value.device)
    columns = torch.stack([torch.ones_like(position), position // _EXACT, position % _EXACT], -1)
    return columns.to(value.dtype).expand(*value.shape[:2], -1, -1)


def _scores_at(inputs: AttentionInputs, pieces: dict[str, Any], index: Tensor) -> Tensor:
    """Return the score of each query with the key at `index`, both (b,h,q); undefined where the index is −1.

    Scores and biases are evaluated on a grid. This grid has one batch entry for each query, with one key.
    """
    (batch, heads, queries, dim), (groups, keys) = inputs.query.shape, inputs.key.shape[1:3]
    if 0 in (batch, queries, keys):
        return inputs.query.new_zeros(index.shape)
    kind = scores.named(pieces.get("score", "scaled-dot"))
    score, query, key = kind.reduce(inputs.query, inputs.key, guarded=True)
    # Query heads that share a key head are adjacent.
    position = index.clamp(min=0).reshape(batch, groups, -1, 1)
    key = key.gather(2, position.expand(-1, -1, -1, key.shape[3])).view(*index.shape, -1)
    nothing = index[..., None] < 0  # key 0 stands in for it, which may be hidden and contain NaN
    query, key = (
        rows.masked_fill(nothing, 0).transpose(1, 2).reshape(batch * queries, heads, 1, -1) for rows in (query, key)
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
    pair_scores = score.pairs(query, key, grid, kind.factor(pieces.get("scale"), dim))
    if pieces.get("bias") is not None:
        pair_scores = pair_scores + pieces["bias"].values(grid, pair_scores.dtype)
    return pair_scores.view(batch, queries, heads).transpose(1, 2)

"""`captioner`: a recurrent decoder that glances at a picture once for each word of its description."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard.formula.formula import widened
from regard.masks import Mask
from regard.nn.hard import Hard
from regard.nn.parts import loss_terms
from regard.nn.parts.score_function import ChoiceTerm
from regard.nn.parts.state import State
from regard.support.arguments import finite_number
from regard_workbench.models.parts.glance_reward import GlanceReward
from regard_workbench.models.parts.model import model
from regard_workbench.models.parts.picture_features import PictureFeatures
from regard_workbench.models.seq2seq import Seq2seq
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Patches

# The two forms of Xu et al. 2015; every other name is that of a mechanism.
FORMS = {"soft": "additive", "hard": "hard(estimator=reinforce, soft_share=0.5)"}


class Coverage(nn.Module):
    """The loss term weight · Σ_i (1 − Σ_t α_ti)² of each example: over a text, each place gets looked at about once.

    Paper: Xu et al. 2015, section 4.2.1, doubly stochastic attention.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def penalty(self, weights: Tensor, keep: Tensor | None) -> Tensor:
        """Of weights (b,t,n), of whose rows `keep` (b,t) are real: (b,)."""
        real = weights if keep is None else weights.masked_fill(~keep[..., None], 0)
        return self.weight * (1 - real.sum(1)).square().sum(-1)

    def offer(self, weights: Tensor, keep: Tensor | None) -> None:
        """Offer the term to the training step that is running."""
        total = self.penalty(widened(weights), keep).sum()
        loss_terms.offer(lambda losses, counts: total)

    def observe_loss(self, mean: Tensor) -> None:
        """Do nothing: the term needs no baseline. Modules that have this method are those that may offer terms."""


@model("captioner", gives=("decoder",), reads=(Patches,))
class Captioner(Seq2seq):
    """A residual convolutional network reads the picture; a recurrent decoder attends to its places before each word.

        z_t = β_t · attend(s_{t−1}, a),   β_t = σ(w·s_{t−1})
        s_t = f(s_{t−1}, [y_{t−1}; z_t]),   h̃_t = tanh(W [z_t; s_t])

    with a_i the features of place i, y the last word and h̃_t projected to the words. `attention=soft` mixes the places
    by additive attention. `attention=hard` looks at a single place, drawn at random in training (half of the time at
    the mean of all places), and its scores learn by the score function (REINFORCE): see `GlanceReward`.

    Paper: Xu et al. 2015 (soft, hard, the gate β, doubly stochastic attention); He et al. 2016 (the residual network).

    Args:
        attention: soft, hard, or a mechanism by name
        width: channels of the first convolution; each stage has twice as many
        blocks: residual blocks of each stage, which halves the picture
        coverage: weight of the term that asks each place to be looked at about once (1 in the paper); 0: without it
        reward: weight of the term that hard glances learn from; at 1 its noise was most of a gradient, and the words
            learned more slowly
        norm: what normalises the channels of a convolution: group (of one picture), or batch (over the pictures of a
            training batch), with which figures in scenes that are mostly empty are found several times as fast
        layers: recurrent layers
        feeding: as in seq2seq
    """

    takes_attention: ClassVar[str] = "the attention of the decoder to the picture (soft, hard or a mechanism)"
    attention_default: ClassVar[str] = "soft"
    shows: ClassVar[dict[str, str]] = {"attentions.-1": "where each word looked"}

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        layers: int = 1,
        cell: str = "lstm",
        attention: str | None = None,
        width: int = 32,
        blocks: int = 1,
        norm: str = "group",
        coverage: float = 0.0,
        reward: float = 0.1,
        feeding: str | None = None,
        num_heads: int = 1,
        dropout: float = 0.1,
        tied: bool = True,
    ) -> None:
        self.width, self.blocks, self.norm = width, blocks, norm  # read by `build_reader`
        chosen = attention or self.attention_default
        super().__init__(
            problem,
            dim=dim,
            layers=layers,
            cell=cell,
            attention=FORMS.get(chosen, chosen),
            feeding=feeding,
            num_heads=num_heads,
            dropout=dropout,
            tied=tied,
        )
        self.gate = nn.Linear(dim, 1)
        weight = finite_number("coverage", coverage)
        if weight < 0 or (weight and isinstance(self.attentions[-1], Hard)):
            raise BadValue(
                f"coverage: expected a weight of at least 0, and 0 for hard attention, got {coverage}. "
                "Choices have no derivative that would spread them."
            )
        self.coverage = Coverage(weight) if weight else None
        chooses = isinstance(self.attentions[-1], Hard) and self.attentions[-1].reinforce is not None
        if finite_number("reward", reward) < 0:
            raise BadValue(f"reward: expected a weight of at least 0, got {reward}.")
        self.reward = GlanceReward(dim, reward) if chooses else None

    @classmethod
    def refuses(cls, problem: Problem) -> str:
        """Frames of a video."""
        assert isinstance(problem.inputs, Patches)
        return PictureFeatures.refusal(problem.inputs)

    def build_reader(self, dim: int, layers: int, cell: str, dropout: float) -> None:
        """The residual network."""
        assert isinstance(self.problem.inputs, Patches)
        self.features = PictureFeatures(
            self.problem.inputs, dim, width=self.width, blocks=self.blocks, dropout=dropout, norm=self.norm
        )

    def encoded(self, batch: Batch) -> Tensor:
        """The features of each place, (b,n,dim)."""
        rows: Tensor = self.features(batch.inputs)[0]
        return rows

    def forward(self, batch: Batch) -> Any:
        if self.reward is not None and self.training and batch.targets is not None:
            return self._judged(batch, self.reward)
        rows, queries, source = self._rows_and_queries(batch)
        if self.coverage is not None and self.training:
            last: Any = self.attentions[-1]
            self.coverage.offer(last.weights(queries, source).mean(1), batch.target_keep)
        return self.head(rows, batch)

    def _judged(self, batch: Batch, reward: GlanceReward) -> Any:
        """The outputs; the choices made on the way are judged word by word, not by the loss of all words."""
        assert batch.targets is not None
        with loss_terms.collecting() as glances:
            rows, queries, _ = self._rows_and_queries(batch)
        outputs = self.head(rows, batch)
        with torch.no_grad():
            losses, words = self.head.each_loss(outputs, batch), self.target_embedding(batch.targets)
        terms = [term for term in glances if isinstance(term, ChoiceTerm)]
        reward.offer(terms, queries, words, losses, batch.target_keep)
        return outputs

    def _attended(
        self, rows: Tensor, source: Tensor, mask: Mask | None, states: tuple[State, ...] | None
    ) -> tuple[Tensor, Tensor, tuple[State, ...]]:
        """The gated context, its queries, and the new states."""
        context, queries, after = super()._attended(rows, source, mask, states)
        return torch.sigmoid(self.gate(queries)) * context, queries, after

"""What the glances of a description learn from, where each is a choice of one place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.formula.formula import widened
from regard.nn.parts import loss_terms
from regard.nn.parts.score_function import ChoiceTerm, joined


class GlanceReward(nn.Module):
    """The score-function term of all glances of a description: each is judged by the word that follows it.

        weight · Σ_t ((L_t − b_t) · log p(c_t)  −  entropy_weight · H_t),        b_t = w · [s_{t−1}; y_t]

    with L_t = −log p(y_t) the loss of word t. b_t is what a linear map of the state before the glance and of the word
    expects of that loss. It knows nothing of the choice, so it leaves the mean of the estimate as it is; and it takes
    away much of the variance, which is that some words are harder than others. Later words, which a glance reaches
    through the state only, are left out of its reward. The weight is λ_r of the paper: the estimate reaches
    features and states too, where its noise would hide what the words teach.

    Paper: Xu et al. 2015, section 4.1 (reward, entropy); Mnih et al. 2014 (a baseline that depends on the state).
    """

    def __init__(self, dim: int, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight
        self.expects = nn.Linear(2 * dim, 1)

    def offer(
        self, glances: Sequence[ChoiceTerm], states: Tensor, words: Tensor, losses: Tensor, keep: Tensor | None
    ) -> None:
        """Offer the term of the glances, one for each word.

        states (b,t,dim): before each glance; words (b,t,dim): embeddings of the words to write; losses (b,t).
        """
        choice = joined([glance.made for glance in glances])
        log_prob, entropy = choice.log_prob.mean(1), choice.entropy.mean(1)  # (b,t); heads share a reward
        expected = widened(self.expects(torch.cat([states, words], -1).detach()).squeeze(-1))
        losses = losses.detach()
        terms = (losses - expected.detach()) * log_prob - glances[0].entropy_weight * entropy
        terms = terms + F.smooth_l1_loss(expected, losses, reduction="none")  # which the baseline learns from
        total = self.weight * (terms if keep is None else terms.masked_fill(~keep, 0)).sum()
        loss_terms.offer(lambda _, counts: total)

    def observe_loss(self, mean: Tensor) -> None:
        """Do nothing: the baseline learns by its own gradient. Modules with this method are those that offer terms."""

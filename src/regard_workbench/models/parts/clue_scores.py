"""Scores straight from clues: the linear part of a model that is wide and deep."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.formula.formula import widened
from regard.nn.parts import loss_terms
from regard_workbench.models.parts.word_vectors import KnownVectors
from regard_workbench.tasks.parts.streams import TokenRows

SCALE = 2.5  # of known vectors, which have length 1, beside some forty clues of 1


class ClueScores(nn.Module):
    """score = Σ_c w_c over the clues of a position, plus a linear map of the vectors of the word and its neighbours.

    Each clue is left out of training in a share `dropout` of the cases, so that no score rests on one clue alone, and
    the loss term ½ decay Σ w² for each sentence keeps the weights of rare clues small. (AdamW's weight decay does not:
    it pulls at all weights alike, however rarely the data pull at them.)

    Paper: Cheng et al. 2016 (wide and deep learning).
    """

    def __init__(self, spec: TokenRows, outputs: int, known: KnownVectors | None, dropout: float, decay: float) -> None:
        super().__init__()
        self.padding, self.dropout, self.decay = spec.padding, dropout, decay
        self.table = nn.Embedding(spec.count, outputs, padding_idx=spec.padding)
        nn.init.zeros_(self.table.weight)
        self.around = None if known is None else nn.Linear(3 * known.table.shape[1], outputs, bias=False)
        if self.around is not None:
            nn.init.zeros_(self.around.weight)

    def penalty(self) -> Tensor:
        """The loss term for one sentence."""
        total = widened(self.table.weight).square().sum()
        if self.around is not None:
            total = total + widened(self.around.weight).square().sum()
        return 0.5 * self.decay * total

    def observe_loss(self, mean: Tensor) -> None:
        """Do nothing: the term needs no baseline. Modules that have this method are those that may offer terms."""

    def forward(self, clues: Tensor, vectors: Tensor | None) -> Tensor:
        """Ids (b,n,clues) and vectors (b,n,width) → (b,n,outputs)."""
        if self.training and self.decay:
            size = len(clues)
            loss_terms.offer(lambda losses, counts: size * self.penalty())
        if self.training and self.dropout:
            out = torch.rand(clues.shape, device=clues.device) < self.dropout
            clues = clues.masked_fill(out, self.padding)
        scores: Tensor = self.table(clues).sum(-2)
        if self.training and self.dropout:
            scores = scores / (1 - self.dropout)
        if self.around is not None and vectors is not None:
            beside = torch.cat([vectors.roll(1, 1), vectors, vectors.roll(-1, 1)], -1).unflatten(-1, (3, -1))
            edges = beside.new_ones(vectors.shape[1], 3)
            edges[:1, 0] = 0
            edges[-1:, 2] = 0
            beside = (beside * edges[..., None]).flatten(-2)
            scores = scores + self.around(nn.functional.dropout(SCALE * beside, self.dropout, self.training))
        return scores

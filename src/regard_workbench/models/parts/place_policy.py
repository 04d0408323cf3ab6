"""The location policy of `glimpse`: hard attention over a few places that all examples share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.formula.formula import widened
from regard.nn.hard import Choice, Hard


class PlacePolicy(Hard):
    """Hard attention whose source is the same for all examples and short.

    `Hard.choose` never holds a row of scores, which is made for long sources. Here all scores are a small matrix, and
    writing them out takes a fifth of the time.
    """

    def choose_place(self, query: Tensor, places: Tensor, index: Tensor | None = None) -> Choice:
        """Rows (b,dim) that each choose one of the places (n,dim): the choices (b,1,1).

        A sample in training, the likeliest place in evaluation; `index` (b,) repeats given choices.
        """
        keys = self.key_map(places)
        scores = widened(self.query_map(query)) @ widened(keys).mT / math.sqrt(keys.shape[1])
        logs = scores.log_softmax(-1)
        if index is None:
            noise = -torch.empty_like(logs).exponential_().log() if self.training else 0.0  # Gumbel
            index = (logs.detach() + noise).argmax(-1)
        log_prob = logs.gather(1, index[:, None])
        entropy = -(logs.exp() * logs).sum(-1, keepdim=True)
        return Choice(index[:, None, None], log_prob[..., None], entropy[..., None])

    def chosen_rows(self, places: Tensor, choice: Choice) -> Tensor:
        """The rows (b,dim) that hard attention gives for these choices of places (n,dim)."""
        return self.output(self.value_map(places)[choice.index[:, 0, 0]][None, None])[0]

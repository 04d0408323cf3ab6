"""The location policy of `glimpse`: hard attention over a few places that all examples share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.nn.hard import Choice, Hard


class PlacePolicy(Hard):
    """Hard attention whose source is the same for all examples and short.

    `Hard.choose` never holds a row of scores, which is made for long sources. Here all scores are a small matrix, and
    writing them out takes a fifth of the time.
    """

    def choose_place(
        self, query: Tensor, places: Tensor, index: Tensor | None = None
    ) -> tuple[Tensor, Choice]:
        """Rows (b,dim) that each choose one of the places (n,dim): the chosen rows (b,dim), and the choices (b,1,1).

        A sample in training, the likeliest place in evaluation; `index` (b,) repeats given choices.
        """
        inputs = self.prepare(query[None], places[None], None, None)
        keys, values = inputs.key[0, 0], inputs.value[0, 0]
        scores = inputs.query[0, 0].float() @ keys.float().mT / math.sqrt(keys.shape[1])
        logs = scores.log_softmax(-1)
        if index is None:
            noise = -torch.empty_like(logs).exponential_().log() if self.training else 0.0  # Gumbel
            index = (logs.detach() + noise).argmax(-1)
        log_prob = logs.gather(1, index[:, None])
        entropy = -(logs.exp() * logs).sum(-1, keepdim=True)
        rows = self.output(values[index][None, None])[0]
        return rows, Choice(index[:, None, None], log_prob[..., None], entropy[..., None])

"""A mechanism of your own, in a file that `regard --use` loads. docs/adding.md explains it step by step.

    regard --use examples/own.py show cosine
    regard --use examples/own.py compare digits --models encoder --attention "global,cosine"

Nothing else has to be changed: what a decorator registers here is a name like any other.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from regard import scores
from regard.nn import mechanism
from regard.nn.attention import View
from regard.nn.multihead import Multihead


@mechanism("cosine", causal="option", time="n²·d", memory="n·d", num_heads=2)
class Cosine(Multihead):
    """Multi-head attention that compares directions only; each head learns how sharply it decides.

        a_ij = softmax_j(s · cos(q_i, k_j)),   o_i = Σ_j a_ij v_j,   s = exp(log_strength), one for each head

    Paper: Liu et al. 2022, section 3.3 (scaled cosine attention).
    Empty row: the heads give zeros, so the row is the bias of the last projection.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width.
        dropout: share of attention weights dropped in training.
        source_dim: width of the source, where it differs from dim.
    """

    def __init__(self, dim: int, *arguments: Any, **options: Any) -> None:
        super().__init__(dim, *arguments, **options)
        self.log_strength = nn.Parameter(torch.full((self.num_heads,), math.log(10.0)))

    def pieces(self, view: View) -> dict[str, Any]:
        """Score, mask, bias and normaliser of a call, as `regard.attend` takes them."""
        return {**super().pieces(view), "score": scores.cosine(self.log_strength.exp())}

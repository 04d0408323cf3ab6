"""`local`: attention inside a sliding window, at a cost of window × length."""

from __future__ import annotations

from typing import Any

from regard.nn.multihead import Multihead
from regard.nn.parts.mechanism import mechanism


@mechanism("local", causal="option", time="n·w·d", memory="n·d", window=5)
class Local(Multihead):
    """A query attends to the keys in a window around it, or before it when causal.

        a_ij = softmax over |j − i| ≤ w//2 of q_i·k_j / √d   (causal: over 0 ≤ i − j < w),   o_i = Σ_j a_ij v_j

    Paper: Luong et al. 2015, section 3.2 (the idea); Beltagy et al. 2020, section 3.1 (the sliding window).
    Empty row: a query without a visible key in its window gets zeros from the heads, so the row is the bias of the
    output projection.
    When to use: if neighbours matter most and the sequence is long. Further positions are reached by several
    layers, or by a mask with global tokens.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.
        window: number of keys a query sees, including its own position; odd unless causal.

    >>> import torch, regard
    >>> layer = regard.nn.build("local", dim=16, window=3)
    >>> (layer.weights(torch.randn(1, 4, 16))[0, 0] > 0).int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0],
            [0, 1, 1, 1],
            [0, 0, 1, 1]], dtype=torch.int32)
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        window: int = 65,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, window=window, **options)

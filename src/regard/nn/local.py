"""`local`: attention inside a sliding window, at a cost that grows with window × length."""

from __future__ import annotations

from typing import Any

from regard.nn.mechanism import mechanism
from regard.nn.multihead import Multihead


@mechanism("local", causal="option", time="n·w·d", memory="n·d", window=5)
class Local(Multihead):
    """A query weighs the keys inside a window around it (or, when causal, behind it).

        a_ij = softmax over |j − i| ≤ w//2 of q_i·k_j / √d   (causal: over 0 ≤ i − j < w),   o_i = Σ_j a_ij v_j

    Paper: Luong et al. 2015, section 3.2 (the idea); Beltagy et al. 2020, section 3.1 (the sliding window).
    Empty row: a query whose window holds no visible key gets zeros from the heads, so the row is the bias of the last
    projection.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width.
        dropout: share of attention weights dropped in training.
        source_dim: width of the source, where it differs from dim.
        window: how many keys a query sees, itself included; odd unless causal.

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

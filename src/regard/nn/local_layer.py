"""`local-layer`: an attention layer with sliding windows, at a cost of window × length."""

from __future__ import annotations

from typing import Any

from regard.nn.parts.attention_layer import AttentionLayer
from regard.nn.parts.mechanism import mechanism


@mechanism("local-layer", causal="yes", time="n·w·d", memory="(n + m)·d", window=5)
class LocalLayer(AttentionLayer):
    """Key-value memory, then query-key memory, each inside a sliding window, with residual and normalisation.

        pre:   h = x + KV_w(norm(x)),   y = h + QK_w(norm(h), source)
        post:  h = norm(x + KV_w(x)),   y = norm(h + QK_w(h, source))

    KV_w sees the last w positions, QK_w those of the source at a distance of at most w//2. Without a source the history
    is the sequence itself, and QK_w sees the last w positions too. `mask` applies to the source, or to the sequence
    where no source is given. The argument `query_mask` of a call always applies to the sequence.

    Paper: Vaswani et al. 2017, section 3.1 (the layer); Beltagy et al. 2020, section 3.1 (the window).
    Empty row: a part that sees nothing adds the bias of its output projection, so the row is its input plus that bias.
    When to use: as `global-layer`, if sequence and source are long and run in step: the cost grows with the window
    instead of the length.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width, in each part.
        dropout: probability of dropping an attention weight, or an entry of what a part adds, in training.
        source_dim: width of the source; None: dim.
        window: number of keys a query sees, including its own position; an odd number.
        norm: pre (before each part), post (after each residual) or none.
        residual: whether each part's input is added to its result.
        align: alignment with a source: bottom-right (the last query with the last key) or top-left, which decoding in
            steps needs.

    >>> import torch, regard
    >>> layer = regard.nn.build("local-layer", dim=16, num_heads=2, window=3)
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
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

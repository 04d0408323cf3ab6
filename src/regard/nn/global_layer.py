"""`global-layer`: an attention layer that remembers its own sequence and looks all through a history."""

from __future__ import annotations

from typing import ClassVar

from regard.nn.attention_layer import AttentionLayer
from regard.nn.mechanism import mechanism


@mechanism("global-layer", causal="yes", time="(n² + n·m)·d", memory="(n + m)·d")
class GlobalLayer(AttentionLayer):
    """Key-value memory of the own sequence, then query-key memory of a history, each with residual and normalisation.

        pre:   h = x + KV(norm(x)),   y = h + QK(norm(h), source)
        post:  h = norm(x + KV(x)),   y = norm(h + QK(h, source))

    KV is causal. The history is the source, all of which is seen; without one it is the sequence itself, and then QK is
    causal too. `mask` speaks of the source, or without one of the sequence; the argument `query_mask` of a call speaks
    of the sequence always, and hides padding of the queries where a source is given.

    Paper: Vaswani et al. 2017, section 3.1 (the decoder layer without its feed-forward part); norm before: Xiong et al.
    2020, section 3.
    Empty row: a part that sees nothing adds the bias of its last projection, so the row is what went in plus that.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width, in each part.
        dropout: share of attention weights, and of what each part adds, dropped in training.
        source_dim: width of the source, where it differs from dim.
        norm: pre (before each part) or post (after each residual).

    >>> import torch, regard
    >>> layer = regard.nn.build("global-layer", dim=16, num_heads=2, source_dim=24)
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 24)).shape
    torch.Size([2, 5, 16])
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("window", "align")

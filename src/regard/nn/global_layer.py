"""`global-layer`: an attention layer over its own sequence and all of a history."""

from __future__ import annotations

from typing import ClassVar

from regard.nn.parts.attention_layer import AttentionLayer
from regard.nn.parts.mechanism import mechanism


@mechanism("global-layer", causal="yes", time="(n² + n·m)·d", memory="(n + m)·d")
class GlobalLayer(AttentionLayer):
    """Key-value memory of the own sequence, then query-key memory of a history, each with residual and normalisation.

        pre:   h = x + KV(norm(x)),   y = h + QK(norm(h), source)
        post:  h = norm(x + KV(x)),   y = norm(h + QK(h, source))

    KV is causal. The history is the source, which is seen completely; without a source it is the sequence itself, and
    QK is causal too. `mask` applies to the source, or to the sequence where no source is given. The argument
    `query_mask` of a call always applies to the sequence; with a source, it hides padding of the queries.

    Paper: Vaswani et al. 2017, section 3.1 (the decoder layer without its feed-forward part); pre: Xiong et al.
    2020, section 3.
    Empty row: a part that sees nothing adds the bias of its output projection, so the row is its input plus that bias.
    When to use: in a decoder that reads its own past and then a whole source or history, as one layer with
    residuals; it has no feed-forward part.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width, in each part.
        dropout: probability of dropping an attention weight, or an entry of what a part adds, in training.
        source_dim: width of the source; None: dim.
        norm: pre (before each part), post (after each residual) or none.
        residual: whether each part's input is added to its result.

    >>> import torch, regard
    >>> layer = regard.nn.build("global-layer", dim=16, num_heads=2, source_dim=24)
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 24)).shape
    torch.Size([2, 5, 16])
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("window", "align")

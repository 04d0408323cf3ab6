"""`query-key-memory`: queries look up a history, such as the outputs of an encoder."""

from __future__ import annotations

from regard.nn.multihead import Multihead
from regard.nn.parts.mechanism import mechanism


@mechanism("query-key-memory", causal="option", time="n·m·d", memory="(n + m)·d")
class QueryKeyMemory(Multihead):
    """A query is compared with the keys of a history and reads the values of those that match.

        o_i = Σ_j softmax_j(q_i·k_j / √d) v_j,   k_j = W_k m_j,  v_j = W_v m_j,  m the source (else the sequence)

    Paper: Vaswani et al. 2017, section 3.2.3 (encoder-decoder attention); Bahdanau et al. 2014, equation 5.
    Empty row: the heads return zeros, so the row is the bias of the output projection.
    When to use: to read from a history or an external memory: each query looks up the rows that match it and writes
    nothing.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the history; None: dim.
        causal: whether a query sees the history only up to its own position.
        window: number of positions of the history that a query sees around its own; odd unless causal; None: all.
        align: alignment with a history of another length: bottom-right or top-left.

    >>> import torch, regard
    >>> layer = regard.nn.build("query-key-memory", dim=16, num_heads=2, source_dim=24)
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 24)).shape
    torch.Size([2, 5, 16])
    """

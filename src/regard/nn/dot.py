"""`dot`: the plain dot product as score, without a single parameter."""

from __future__ import annotations

from regard.nn.alignment import Alignment
from regard.nn.mechanism import mechanism


@mechanism("dot", causal="option", time="n²·d", memory="n·d")
class Dot(Alignment):
    """A query weighs the rows of a source by its dot product with them, and gets their weighted mean.

        a_ij = softmax_j(q_i·h_j),   o_i = Σ_j a_ij h_j

    It has no parameters (but one map of the source to dim, where source_dim differs).

    Paper: Luong et al. 2015, section 3.1 (dot).
    Empty row: zeros.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width; 1 is the paper.
        dropout: share of attention weights dropped in training.
        source_dim: width of the source, where it differs from dim.
        causal: a position sees itself and what came before.
        align: where the first query stands in a source of another length, when causal (bottom-right or top-left).

    >>> import torch, regard
    >>> layer, source = regard.nn.build("dot", dim=2), torch.tensor([[[9.0, 0.0], [0.0, 9.0]]])
    >>> layer(source, source).round()
    tensor([[[9., 0.],
             [0., 9.]]])
    """

"""`dot`: dot products as scores, without parameters."""

from __future__ import annotations

from regard.nn.parts.alignment import Alignment
from regard.nn.parts.mechanism import mechanism


@mechanism("dot", causal="option", time="n²·d", memory="n·d")
class Dot(Alignment):
    """A query weighs the rows of a source by their dot products with it; the output is the weighted mean of the rows.

        a_ij = softmax_j(q_i·h_j),   o_i = Σ_j a_ij h_j

    It has no parameters (except a linear map of the source to dim, if source_dim differs).

    Paper: Luong et al. 2015, section 3.1 (dot).
    Empty row: zeros.
    When to use: if queries and source rows are in one space already, as the states of two networks of the same
    width. It adds no parameters; unscaled products make sharp weights at large widths.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width; the paper has 1.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.
        causal: whether a position sees only itself and earlier positions.
        align: alignment with a source of another length when causal: bottom-right or top-left.

    >>> import torch, regard
    >>> layer, source = regard.nn.build("dot", dim=2), torch.tensor([[[9.0, 0.0], [0.0, 9.0]]])
    >>> layer(source, source).round()
    tensor([[[9., 0.],
             [0., 9.]]])
    """

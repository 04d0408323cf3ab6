"""`additive`: scores from a network with one hidden layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard import scores
from regard.nn.parts.alignment import Alignment, AlignmentModel, head_weights, map_heads
from regard.nn.parts.mechanism import mechanism
from regard.scores import Score
from regard.support.arguments import whole_number


class AdditiveAlignmentModel(AlignmentModel):
    """v·tanh(W_q q + W_k k), where W_q q and W_k k are computed once for each row."""

    def __init__(self, num_heads: int, head_dim: int, attention_dim: int | None = None) -> None:
        super().__init__(num_heads, head_dim)
        if attention_dim is not None:
            self.key_dim = whole_number("attention_dim", attention_dim, 1)
        self.query_weight = head_weights(num_heads, self.key_dim, head_dim)
        self.key_weight = head_weights(num_heads, self.key_dim, head_dim)
        self.vector = head_weights(num_heads, self.key_dim)

    def queries(self, heads: Tensor) -> Tensor:
        return map_heads(heads, self.query_weight)

    def keys(self, heads: Tensor) -> Tensor:
        return heads @ self.key_weight.mT

    def score(self) -> Score:
        return scores.additive(self.vector)


@mechanism("additive", causal="option", time="n²·d", memory="n·d")
class Additive(Alignment):
    """A network with one hidden layer scores each query against each source row; the output is the mean of the rows.

        e_ij = v·tanh(W_q q_i + W_k h_j),   a_ij = softmax_j(e_ij),   o_i = Σ_j a_ij h_j

    The parameters are W_q, W_k and v (and a linear map of the source to dim, if source_dim differs).

    Paper: Bahdanau et al. 2014, section 3.1 and appendix A.1.2.
    Empty row: zeros.
    When to use: for a recurrent decoder and its source, whose rows come from different networks. Each pair takes d
    evaluations of tanh, so for long self-attention prefer a dot product.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width, each with its own weights; the paper has 1.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.
        attention_dim: width of the hidden layer of each head; None: the width of the head.
        causal: whether a position sees only itself and earlier positions.
        align: alignment with a source of another length when causal: bottom-right or top-left.

    >>> import torch, regard
    >>> layer = regard.nn.build("additive", dim=16, attention_dim=8)
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
        attention_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, **options)
        self.compare = AdditiveAlignmentModel(self.num_heads, self.head_dim, attention_dim)

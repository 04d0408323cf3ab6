"""`additive`: a network with one hidden layer as score."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard import scores
from regard.core.arguments import whole_number
from regard.nn.alignment import Alignment, AlignmentModel, head_weights
from regard.nn.mechanism import mechanism
from regard.scores import Score


class AdditiveAlignmentModel(AlignmentModel):
    """v·tanh(W_q q + W_k k), with W_q q and W_k k found once for each row."""

    def __init__(self, num_heads: int, head_dim: int, attention_dim: int | None = None) -> None:
        super().__init__(num_heads, head_dim)
        if attention_dim is not None:
            self.key_dim = whole_number("attention_dim", attention_dim, 1)
        self.query_weight = head_weights(num_heads, self.key_dim, head_dim)
        self.key_weight = head_weights(num_heads, self.key_dim, head_dim)
        self.vector = head_weights(num_heads, self.key_dim)

    def queries(self, heads: Tensor) -> Tensor:
        return heads @ self.query_weight.mT

    def keys(self, heads: Tensor) -> Tensor:
        return heads @ self.key_weight.mT

    def score(self) -> Score:
        return scores.additive(self.vector)


@mechanism("additive", causal="option", time="n²·d", memory="n·d")
class Additive(Alignment):
    """A small network scores each pair of query and source row; a query gets the weighted mean of the rows.

        e_ij = v·tanh(W_q q_i + W_k h_j),   a_ij = softmax_j(e_ij),   o_i = Σ_j a_ij h_j

    W_q, W_k and v are all it learns (and one map of the source to dim, where source_dim differs).

    Paper: Bahdanau et al. 2014, section 3.1 and appendix A.1.2.
    Empty row: zeros.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width, each with weights of its own; 1 is the paper.
        dropout: share of attention weights dropped in training.
        source_dim: width of the source, where it differs from dim.
        attention_dim: width of the hidden layer of each head; None: that of the head.
        causal: a position sees itself and what came before.
        align: where the first query stands in a source of another length, when causal (bottom-right or top-left).

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

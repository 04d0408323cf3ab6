"""`concat`: a network with one hidden layer that reads query and source row side by side."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard import scores
from regard.core.arguments import whole_number
from regard.nn.alignment import Alignment, AlignmentModel, head_weights
from regard.nn.mechanism import mechanism
from regard.scores import Score


class ConcatAlignmentModel(AlignmentModel):
    """v·tanh(W [q; k]). The two halves of W are applied apart, so that W_k k is found once for each key."""

    def __init__(self, num_heads: int, head_dim: int, attention_dim: int | None = None) -> None:
        super().__init__(num_heads, head_dim)
        if attention_dim is not None:
            self.key_dim = whole_number("attention_dim", attention_dim, 1)
        self.weight = head_weights(num_heads, self.key_dim, 2 * head_dim)
        self.vector = head_weights(num_heads, self.key_dim)

    def queries(self, heads: Tensor) -> Tensor:
        return heads @ self.weight.chunk(2, -1)[0].mT

    def keys(self, heads: Tensor) -> Tensor:
        return heads @ self.weight.chunk(2, -1)[1].mT

    def score(self) -> Score:
        return scores.additive(self.vector)


@mechanism("concat", causal="option", time="n²·d", memory="n·d")
class Concat(Alignment):
    """A small network reads query and source row side by side and scores them; the query gets the rows' weighted mean.

        e_ij = v·tanh(W [q_i; h_j]),   a_ij = softmax_j(e_ij),   o_i = Σ_j a_ij h_j

    W and v are all it learns (and one map of the source to dim, where source_dim differs).

    Paper: Luong et al. 2015, section 3.1 (concat).
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
    >>> layer = regard.nn.build("concat", dim=16, num_heads=2)
    >>> layer.weights(torch.randn(1, 3, 16), torch.randn(1, 7, 16)).shape
    torch.Size([1, 2, 3, 7])
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
        self.compare = ConcatAlignmentModel(self.num_heads, self.head_dim, attention_dim)

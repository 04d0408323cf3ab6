"""`concat`: scores from a network whose input is the concatenation of query and source row."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard import scores
from regard.nn.parts.alignment import Alignment, AlignmentModel, head_weights, map_heads
from regard.nn.parts.mechanism import mechanism
from regard.scores import Score
from regard.support.arguments import whole_number


class ConcatAlignmentModel(AlignmentModel):
    """v·tanh(W [q; k]). The two halves of W are applied separately, so that W_k k is computed once for each key."""

    def __init__(self, num_heads: int, head_dim: int, attention_dim: int | None = None) -> None:
        super().__init__(num_heads, head_dim)
        if attention_dim is not None:
            self.key_dim = whole_number("attention_dim", attention_dim, 1)
        self.weight = head_weights(num_heads, self.key_dim, 2 * head_dim)
        self.vector = head_weights(num_heads, self.key_dim)

    def queries(self, heads: Tensor) -> Tensor:
        return map_heads(heads, self.weight.chunk(2, -1)[0])

    def keys(self, heads: Tensor) -> Tensor:
        return heads @ self.weight.chunk(2, -1)[1].mT

    def score(self) -> Score:
        return scores.additive(self.vector)


@mechanism("concat", causal="option", time="n²·d", memory="n·d")
class Concat(Alignment):
    """A network scores the concatenation of query and source row; the output is the weighted mean of the rows.

        e_ij = v·tanh(W [q_i; h_j]),   a_ij = softmax_j(e_ij),   o_i = Σ_j a_ij h_j

    The parameters are W and v (and a linear map of the source to dim, if source_dim differs).

    Paper: Luong et al. 2015, section 3.1 (concat).
    Empty row: zeros.
    When to use: to reproduce Luong's models. It computes what `additive` computes, with both projections in one
    matrix.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width, each with its own weights; the paper has 1.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.
        attention_dim: width of the hidden layer of each head; None: the width of the head.
        causal: whether a position sees only itself and earlier positions.
        align: alignment with a source of another length when causal: bottom-right or top-left.

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

"""`general`: scores from a learned bilinear form."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.nn.parts.alignment import Alignment, AlignmentModel, head_weights
from regard.nn.parts.mechanism import mechanism


class BilinearAlignmentModel(AlignmentModel):
    """q·W k, where W k is computed once for each key."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__(num_heads, head_dim)
        self.weight = head_weights(num_heads, head_dim, head_dim)

    def keys(self, heads: Tensor) -> Tensor:
        return heads @ self.weight.mT


@mechanism("general", causal="option", time="n²·d", memory="n·d")
class General(Alignment):
    """A query weighs the rows of a source by a learned bilinear form; the output is the weighted mean of the rows.

        a_ij = softmax_j(q_iᵀ W h_j),   o_i = Σ_j a_ij h_j

    The parameter is W (and a linear map of the source to dim, if source_dim differs).

    Paper: Luong et al. 2015, section 3.1 (general).
    Empty row: zeros.
    When to use: if queries and source rows have one width but not one meaning: a matrix of d × d numbers learns to
    compare them.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width, each with its own W; the paper has 1.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.
        causal: whether a position sees only itself and earlier positions.
        align: alignment with a source of another length when causal: bottom-right or top-left.

    >>> import torch, regard
    >>> layer = regard.nn.build("general", dim=16)
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self, dim: int, num_heads: int = 1, dropout: float = 0.0, source_dim: int | None = None, **options: Any
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, **options)
        self.compare = BilinearAlignmentModel(self.num_heads, self.head_dim)

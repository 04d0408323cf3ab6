"""`global`: every query weighs every key. The default, and the yardstick of every comparison."""

from __future__ import annotations

from typing import ClassVar

from regard.nn.mechanism import mechanism
from regard.nn.multihead import Multihead


@mechanism("global", causal="option", time="n²·d", memory="n·d", aliases=("soft",))
class Global(Multihead):
    """Every query weighs every key, and what it gets is the weighted mean of their values.

        a_ij = softmax_j(q_i·k_j / √d),   o_i = Σ_j a_ij v_j

    Paper: the name after Luong et al. 2015, section 3.1, and Xu et al. 2015 (soft attention); the score after
    Vaswani et al. 2017, equation 1.
    Empty row: the heads give zeros, so the row is the bias of the last projection.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width.
        dropout: share of attention weights dropped in training.
        source_dim: width of the source, where it differs from dim.

    >>> import torch, regard
    >>> layer = regard.nn.build("global", dim=16, num_heads=2)
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("window",)

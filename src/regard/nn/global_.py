"""`global`: every query attends to every key. The default, and the baseline of comparisons."""

from __future__ import annotations

from typing import ClassVar

from regard.nn.multihead import Multihead
from regard.nn.parts.mechanism import mechanism


@mechanism("global", causal="option", time="n²·d", memory="n·d", aliases=("soft",))
class Global(Multihead):
    """Every query attends to every key; the output is the weighted mean of the values.

        a_ij = softmax_j(q_i·k_j / √d),   o_i = Σ_j a_ij v_j

    Paper: the name after Luong et al. 2015, section 3.1, and Xu et al. 2015 (soft attention); the score after
    Vaswani et al. 2017, equation 1.
    Empty row: the heads return zeros, so the row is the bias of the output projection.
    When to use: for sequences of up to some thousand positions, and as the baseline that every other mechanism is
    compared with.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.

    >>> import torch, regard
    >>> layer = regard.nn.build("global", dim=16, num_heads=2)
    >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("window",)

"""`relative`: scores that depend on the distance between query and key."""

from __future__ import annotations

from typing import Any

from regard.errors import BadValue
from regard.nn.multihead import Multihead
from regard.nn.parts.mechanism import mechanism
from regard.nn.parts.multihead_positions import SCHEMES, MultiheadPositions


@mechanism("relative", causal="option", time="n²·d", memory="n·d")
class Relative(Multihead):
    """Multi-head attention whose scores also depend on the distance between query and key.

        shaw             e_ij = q_i·(k_j + r_{j−i}) / √d
        transformer-xl   e_ij = ((q_i + u)·k_j + (q_i + v)·W_r s_{j−i}) / √d,   s a sinusoid
        t5, relative     e_ij = q_i·k_j / √d + b_{bucket(j−i)},   b learned for each head
        alibi            e_ij = q_i·k_j / √d − slope·|j − i|
        rotary           e_ij = (R_i q_i)·(R_j k_j) / √d,   R_p rotates pairs of columns by angles ∝ p

    Paper: Shaw et al. 2018, equation 5; Dai et al. 2019, section 3.3; Raffel et al. 2020, section 2.1; Press et al.
    2022; Su et al. 2021.
    Empty row: the heads return zeros, so the row is the bias of the output projection.
    When to use: if order and distance matter. `alibi` is made for sequences longer than those of training; `rotary`
    is what most language models use.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.
        positions: shaw, transformer-xl, t5, relative, alibi or rotary, or a MultiheadPositions.
        max_distance: larger distances count as this one (t5, shaw, relative).

    >>> import torch, regard
    >>> layer = regard.nn.build("relative", dim=16, num_heads=2, positions="alibi")
    >>> layer(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        positions: str | MultiheadPositions = "shaw",
        max_distance: int = 16,
        **options: Any,
    ) -> None:
        if positions is None:
            raise BadValue(f"positions: relative attention needs a scheme; expected one of {', '.join(SCHEMES)}.")
        super().__init__(dim, num_heads, dropout, source_dim, positions=positions, max_distance=max_distance, **options)

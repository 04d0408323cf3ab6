"""`causal`: a position sees itself and what came before. What language models generate with."""

from __future__ import annotations

from typing import Any, ClassVar

from regard.nn.mechanism import mechanism
from regard.nn.multihead import Multihead


@mechanism("causal", causal="yes", time="n²·d / 2", memory="n·d")
class Causal(Multihead):
    """A position weighs itself and what came before it, never what comes after.

        a_ij = softmax over j ≤ i of q_i·k_j / √d,   o_i = Σ_j a_ij v_j

    Paper: Vaswani et al. 2017, section 3.2.3 (masked self-attention of the decoder).
    Empty row: the first position sees itself, so none is empty; with a mask that hides all, the row is the bias of the
    last projection.

    Args:
        dim: width of queries and outputs.
        num_heads: how many heads share that width.
        dropout: share of attention weights dropped in training.
        source_dim: width of the source, where it differs from dim.
        window: how many keys a query sees, itself included; None: all that came before.

    >>> import torch, regard
    >>> layer, x = regard.nn.build("causal", dim=16), torch.randn(1, 3, 16)
    >>> step, state = layer(x[:, :1], state=layer.initial_state(batch=1))
    >>> torch.allclose(step, layer(x)[:, :1], atol=1e-6)
    True
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("causal",)

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, causal=True, **options)

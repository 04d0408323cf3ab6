"""`causal`: a position attends to itself and to earlier positions, as in language models."""

from __future__ import annotations

from typing import Any, ClassVar

from regard.nn.multihead import Multihead
from regard.nn.parts.mechanism import mechanism


@mechanism("causal", causal="yes", time="n²·d / 2", memory="n·d")
class Causal(Multihead):
    """A position attends to itself and to earlier positions, never to later ones.

        a_ij = softmax over j ≤ i of q_i·k_j / √d,   o_i = Σ_j a_ij v_j

    Paper: Vaswani et al. 2017, section 3.2.3 (masked self-attention of the decoder).
    Empty row: none, because a position sees itself; with a mask that hides every key, the row is the bias of the output
    projection.
    When to use: in language models and in every decoder that writes one element after the other. With a state, each
    step computes one row.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that share that width.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the source; None: dim.
        window: number of keys a query sees, including its own position; None: all earlier ones.

    >>> import torch, regard
    >>> layer, x = regard.nn.build("causal", dim=16), torch.randn(1, 3, 16)
    >>> step, state = layer(x[:, :1], state=layer.initial_state(batch=1))
    >>> torch.allclose(step, layer(x)[:, :1], atol=1e-6)
    True
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("causal",)

    def __init__(
        self, dim: int, num_heads: int = 1, dropout: float = 0.0, source_dim: int | None = None, **options: Any
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim, causal=True, **options)

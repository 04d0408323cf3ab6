"""`interactive`: two streams of different kinds (text, image, sound) attend to each other."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import BadType, BadValue
from regard.masks import Mask
from regard.masks.from_tensors import PaddingMask
from regard.nn.multihead import Multihead
from regard.nn.parts import masking
from regard.nn.parts.cache import Cache
from regard.nn.parts.mechanism import Mechanism, check_inputs, mechanism
from regard.nn.parts.state import State
from regard.support.arguments import described


@mechanism("interactive", causal="no", time="n·m·d", memory="(n + m)·d")
class Interactive(Mechanism):
    """Each of two streams attends to the other: words to regions of an image, and regions to words.

        a' = multihead(a, b),   b' = multihead(b, a)

    A call returns a' (query a, source b); `both` returns a' and b'. Each direction has its own weights; those of b' are
    used by `both` only. Without a source the stream attends to itself.

    Paper: Lu et al. 2016, section 3.3 (parallel co-attention); Lu et al. 2019, section 2.2 (with multi-head attention).
    Empty row: if the other stream is all padding the heads return zeros, so the row is the bias of the output
    projection.
    When to use: for two streams that explain each other, such as words and regions of an image, if both need rows
    that know of the other.

    Args:
        dim: width of the first stream (the queries) and of its output.
        num_heads: number of heads that share each width; a divisor of dim and of source_dim.
        dropout: probability of dropping an attention weight in training.
        source_dim: width of the second stream (the source); None: dim.

    >>> import torch, regard
    >>> layer = regard.nn.build("interactive", dim=16, num_heads=2, source_dim=24)
    >>> [x.shape for x in layer.both(torch.randn(2, 5, 16), torch.randn(2, 7, 24))]
    [torch.Size([2, 5, 16]), torch.Size([2, 7, 24])]
    """

    def __init__(self, dim: int, num_heads: int = 1, dropout: float = 0.0, source_dim: int | None = None) -> None:
        super().__init__(dim, num_heads, dropout, source_dim)
        if self.dim % self.num_heads or self.source_dim % self.num_heads:
            shared = [n for n in range(1, self.dim + 1) if self.dim % n == 0 and self.source_dim % n == 0]
            raise BadValue(
                f"num_heads: both dim={self.dim} and source_dim={self.source_dim} must be shared equally by the heads, "
                f"got {self.num_heads}. Try one of {shared[:8]}."
            )
        self.to_source = Multihead(self.dim, num_heads, dropout, self.source_dim)
        self.to_query = Multihead(self.source_dim, num_heads, dropout, self.dim)

    def forward(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """Return the query stream after attending to the source, (b,q,dim); with a state, also the next state."""
        attended: Tensor | tuple[Tensor, State] = self.to_source(query, source, mask=mask, state=state)
        return attended

    def both(
        self, a: Tensor, b: Tensor, a_mask: Mask | Tensor | None = None, b_mask: Mask | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return both streams after each attended to the other: a (b,la,dim) and b (b,lb,source_dim).

        Each mask says which positions of its own stream are not padding: a mask that ignores the query, such as
        `masks.padding(keep)` or `masks.lengths(…)`, or a bool tensor (b,length).
        """
        check_inputs(self, a, b)
        a_keep, b_keep = _real("a_mask", a_mask, a), _real("b_mask", b_mask, b)
        # Padding is among the queries too, and its output has to be finite.
        a, b = _finite_padding(a, a_keep), _finite_padding(b, b_keep)
        a_seen = None if a_keep is None else PaddingMask(a_keep)
        b_seen = None if b_keep is None else PaddingMask(b_keep)
        return self.to_source(a, b, mask=b_seen), self.to_query(b, a, mask=a_seen)

    def weights(self, query: Tensor, source: Tensor | None = None, *, mask: Mask | Tensor | None = None) -> Tensor:
        """Return the exact attention weights (b,h,q,k) of a call."""
        return self.to_source.weights(query, source, mask=mask)

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Cache:
        """Return an empty cache, in which the first call stores the projected source."""
        return self.to_source.initial_state(batch, device, dtype)


def _real(argument: str, mask: Mask | Tensor | None, stream: Tensor) -> Tensor | None:
    """Return which positions of a stream are not padding, (b,length); None: all."""
    batch, length, _ = stream.shape
    if mask is None:
        return None
    if isinstance(mask, Mask):
        return mask.keep(length, batch).to(stream.device).expand(batch, length)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise BadType(f"{argument}: expected a Mask or a bool tensor (b,length), True = real, got {described(mask)}.")
    if mask.shape != (batch, length):
        raise BadValue(
            f"{argument}: expected (b,length) = {(batch, length)}, True where the stream is real, got shape "
            f"{tuple(mask.shape)}."
        )
    return mask.to(stream.device)


def _finite_padding(stream: Tensor, keep: Tensor | None) -> Tensor:
    """Set non-finite padding of a stream to zero."""
    if keep is None:
        return stream
    return masking.without_padding(stream, keep | stream.detach().isfinite().all(-1))

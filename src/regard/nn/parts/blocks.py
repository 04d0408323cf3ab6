"""Blocks around a mechanism: residual connection with normalisation, feed-forward, encoder and decoder layer.

>>> import torch
>>> from regard.nn.parts.blocks import EncoderLayer
>>> EncoderLayer(16, "local(window=3, num_heads=2)")(torch.randn(2, 5, 16)).shape
torch.Size([2, 5, 16])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import BadType, BadValue
from regard.masks import Mask
from regard.nn.parts.building import build_across, build_bidirectional, build_causal
from regard.nn.parts.mechanism import Mechanism
from regard.nn.parts.state import State
from regard.registry import Registry, parse
from regard.support.arguments import described, finite_number, whole_number

ACTIVATIONS: Registry[Callable[[Tensor], Tensor]] = Registry("activation")
for _name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
    ACTIVATIONS.add(_name, getattr(F, _name))
ACTIVATIONS.add("gelu-tanh", partial(F.gelu, approximate="tanh"))

NORMS: Registry[Callable[..., nn.Module]] = Registry("norm_type")
NORMS.add("layer", nn.LayerNorm)
NORMS.add("rms", nn.RMSNorm)


def make_norm(norm_type: str, dim: int, eps: float | None = None) -> nn.Module:
    """A normalisation of rows by name; `eps` is added to the variance, None: torch's default."""
    make = NORMS[norm_type]  # raises for an unknown name
    return make(dim) if eps is None else make(dim, eps=finite_number("norm_eps", eps, above=0))


class Residual(nn.Module):
    """A residual connection around a part of a network, with normalisation before or after it.

        pre:   x + dropout(part(norm(x)))
        post:  norm(x + dropout(part(x)))
        none:  x + dropout(part(x))

    With residual=False, "x +" is left out. That and "none" are for comparisons that show what these two do.

    Paper: He et al. 2016; post: Vaswani et al. 2017, section 3.1; pre: Xiong et al. 2020.
    `residual(x, part)` calls the part. For parts that return more than a tensor, call `enter` before and `leave` after.
    """

    def __init__(
        self,
        dim: int,
        norm: str = "pre",
        dropout: float = 0.0,
        norm_type: str = "layer",
        residual: bool = True,
        norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post", "none"):
            raise BadValue(f"norm: expected 'pre', 'post' or 'none', got {norm!r}.")
        normalization = make_norm(norm_type, dim, norm_eps)
        self.before = norm == "pre"
        self.norm = nn.Identity() if norm == "none" else normalization
        self.residual = residual
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        return self.leave(x, part(self.enter(x)))

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of the part."""
        entered: Tensor = self.norm(x) if self.before else x
        return entered

    def leave(self, x: Tensor, result: Tensor) -> Tensor:
        """Return the output of the block, from its input x and the result of the part."""
        written: Tensor = self.dropout(result) if self.training else result  # saves a module call in a step
        written = x + written if self.residual else written
        return written if self.before else self.norm(written)


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between them, applied to each position independently.

        plain: W₂ f(W₁ x)        gated: W₂ (f(W₁ x) ⊙ W₃ x)

    Paper: Vaswani et al. 2017, equation 2; gated: Shazeer 2020. `hidden` defaults to 4·dim, and to two thirds of
    that when gated, so that the number of parameters is the same.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        gated: bool = False,
        activation: str = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        dim = whole_number("dim", dim, 1)
        hidden = (8 * dim // 3 if gated else 4 * dim) if hidden is None else whole_number("hidden", hidden, 1)
        ACTIVATIONS[activation]  # raises for an unknown name
        self.activation = activation
        self.rise = nn.Linear(dim, hidden, bias=bias)
        self.gate = nn.Linear(dim, hidden, bias=bias) if gated else None
        self.fall = nn.Linear(hidden, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        risen = ACTIVATIONS[self.activation](self.rise(x))
        if self.gate is not None:
            risen = risen * self.gate(x)
        mapped: Tensor = self.fall(self.dropout(risen) if self.training else risen)
        return mapped


class EncoderLayer(nn.Module):
    """Attention among the positions of one sequence, then a feed-forward block, each with residual and normalisation.

    `attention` is a mechanism or its name, which may contain options: `"local(window=65)"`. With `causal=True` a name
    is built as a causal mechanism, which makes this the layer of a decoder-only model; otherwise as one that reads in
    both directions if it can. `hidden_dropout` acts inside the feed-forward block; None: like `dropout`.
    `feed_forward_bias`: whether its linear maps add a learned vector. `norm_eps`: see `make_norm`.
    """

    def __init__(
        self,
        dim: int,
        attention: str | Mechanism = "multihead",
        *,
        causal: bool = False,
        norm: str = "pre",
        norm_type: str = "layer",
        residual: bool = True,
        dropout: float = 0.0,
        hidden_dropout: float | None = None,
        hidden: int | None = None,
        gated: bool = False,
        activation: str = "gelu",
        num_heads: int = 1,
        attention_dropout: float = 0.0,
        norm_eps: float | None = None,
        feed_forward_bias: bool = True,
    ) -> None:
        super().__init__()
        common = {"num_heads": num_heads, "dropout": attention_dropout}
        make = build_causal if causal else build_bidirectional
        self.attention = mechanism_of("attention", attention, dim, make, common)
        inside = dropout if hidden_dropout is None else hidden_dropout
        self.feed_forward = FeedForward(
            dim, hidden, gated=gated, activation=activation, dropout=inside, bias=feed_forward_bias
        )
        self.around_attention = Residual(dim, norm, dropout, norm_type, residual, norm_eps)
        self.around_feed_forward = Residual(dim, norm, dropout, norm_type, residual, norm_eps)

    def forward(
        self, x: Tensor, *, mask: Mask | Tensor | None = None, state: State | None = None
    ) -> Tensor | tuple[Tensor, State]:
        """Map (b,q,dim) to (b,q,dim); with a state of the mechanism, also return the next state."""
        mixed, state = called(self.attention, self.around_attention.enter(x), None, mask, state)
        x = self.around_attention.leave(x, mixed)
        x = self.around_feed_forward(x, self.feed_forward)
        return x if state is None else (x, state)

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """Return the state before the first call."""
        return self.attention.initial_state(batch, device, dtype)


@dataclass(frozen=True)
class DecoderState(State):
    """The state of a decoder layer: that of its own positions, and that of its source."""

    own: State
    source: State


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to a source, then a feed-forward block.

    `attention` must be able to be causal; `cross` may be any mechanism. A `cross` that is built from a name is aligned
    with the beginning of the source (align="top-left"), so that decoding in steps equals one call. Each part has its
    own residual connection and normalisation. `hidden_dropout` acts inside the feed-forward block; None: like
    `dropout`. `feed_forward_bias` and `norm_eps` are as in `EncoderLayer`. With `cross_causal=True`, position t sees
    the first t + 1 rows of the source only.
    """

    def __init__(
        self,
        dim: int,
        attention: str | Mechanism = "causal",
        cross: str | Mechanism = "multihead",
        *,
        source_dim: int | None = None,
        cross_causal: bool = False,
        norm: str = "pre",
        norm_type: str = "layer",
        residual: bool = True,
        dropout: float = 0.0,
        hidden_dropout: float | None = None,
        hidden: int | None = None,
        gated: bool = False,
        activation: str = "gelu",
        num_heads: int = 1,
        attention_dropout: float = 0.0,
        norm_eps: float | None = None,
        feed_forward_bias: bool = True,
    ) -> None:
        super().__init__()
        common = {"num_heads": num_heads, "dropout": attention_dropout}
        self.attention = mechanism_of("attention", attention, dim, build_causal, common)
        across = {**common, "source_dim": source_dim, **({"causal": True} if cross_causal else {})}
        self.cross = mechanism_of("cross", cross, dim, build_across, across)
        inside = dropout if hidden_dropout is None else hidden_dropout
        self.feed_forward = FeedForward(
            dim, hidden, gated=gated, activation=activation, dropout=inside, bias=feed_forward_bias
        )
        self.around_attention = Residual(dim, norm, dropout, norm_type, residual, norm_eps)
        self.around_cross = Residual(dim, norm, dropout, norm_type, residual, norm_eps)
        self.around_feed_forward = Residual(dim, norm, dropout, norm_type, residual, norm_eps)

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        source_mask: Mask | Tensor | None = None,
        state: DecoderState | None = None,
    ) -> Tensor | tuple[Tensor, DecoderState]:
        """Map (b,q,dim) to (b,q,dim). `mask` applies to positions of x, `source_mask` to those of the source."""
        own_state, read = (None, None) if state is None else (state.own, state.source)
        mixed, own_state = called(self.attention, self.around_attention.enter(x), None, mask, own_state)
        x = self.around_attention.leave(x, mixed)
        mixed, read = called(self.cross, self.around_cross.enter(x), source, source_mask, read)
        x = self.around_cross.leave(x, mixed)
        x = self.around_feed_forward(x, self.feed_forward)
        if state is None:
            return x
        assert own_state is not None and read is not None
        return x, replace(state, own=own_state, source=read)

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> DecoderState:
        """Return the state before the first call."""
        return DecoderState(
            self.attention.initial_state(batch, device, dtype), self.cross.initial_state(batch, device, dtype)
        )


def mechanism_of(
    argument: str, given: str | Mechanism, dim: int, make: Callable[..., Mechanism], common: dict[str, Any]
) -> Mechanism:
    """Return the given mechanism, or build it from its name; options in the name override those in `common`."""
    if isinstance(given, str):
        name, options = parse(given)
        return make(name, dim, **{**common, **options})
    if not isinstance(given, nn.Module):
        raise BadType(f"{argument}: expected a mechanism or the name of one, got {described(given)}.")
    return given


def called(
    layer: Mechanism, x: Tensor, source: Tensor | None, mask: Mask | Tensor | None, state: State | None
) -> tuple[Tensor, State | None]:
    """Call a mechanism; return its output and the next state, or None where no state was passed."""
    if state is None:
        return layer(x, source, mask=mask), None
    output_and_state: tuple[Tensor, State] = layer(x, source, mask=mask, state=state)
    return output_and_state

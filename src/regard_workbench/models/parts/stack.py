"""A stack of layers with one decoding state for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.decoding import Hypothesis, beam_search, sample
from regard.errors import BadValue
from regard.formula.formula import widened
from regard.masks import Mask
from regard.nn import fast_path
from regard.nn.parts.blocks import DecoderLayer, EncoderLayer, make_norm
from regard.nn.parts.state import State
from regard.registry import split
from regard.support.arguments import whole_number


@dataclass(frozen=True)
class StackState(State):
    """The state of each layer, and how many positions have passed."""

    layers: tuple[State, ...]
    passed: int = 0


class Stack(nn.Module):
    """`layers` encoder layers, or decoder layers with attention to a source, and a last normalisation when norm="pre".

    `causal`: no layer may look ahead; a mechanism that cannot help it is refused. Further options are those of the
    layers: residual, activation, dropout, hidden_dropout, attention_dropout, hidden, gated, feed_forward_bias.

    `attention` may name one mechanism for each layer, separated by commas. `shared_positions`: all layers add the same
    table of distances to their scores (positions t5 and relative), as in T5.
    """

    def __init__(
        self,
        dim: int,
        layers: int,
        attention: str,
        *,
        cross: str | None = None,
        causal: bool = False,
        num_heads: int = 1,
        norm: str = "pre",
        norm_type: str = "layer",
        norm_eps: float | None = None,
        shared_positions: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        shared: dict[str, Any] = {"num_heads": num_heads, "norm": norm, "norm_type": norm_type, **options}
        shared["norm_eps"] = norm_eps
        modules: list[nn.Module] = []
        for name in _each_attention(attention, whole_number("layers", layers, 1)):
            if cross is not None:
                modules.append(DecoderLayer(dim, name, cross, **shared))
            else:
                modules.append(EncoderLayer(dim, name, causal=causal, **shared))
        self.layers = nn.ModuleList(modules)
        self.norm = make_norm(norm_type, dim, norm_eps) if norm == "pre" else nn.Identity()
        if shared_positions:
            self._share_positions()

    def _share_positions(self) -> None:
        tables = [getattr(layer.attention, "bias_table", None) for layer in self.layers]
        if tables[0] is None or any(table is None or table.shape != tables[0].shape for table in tables):
            raise BadValue(
                "shared_positions: every layer must add one table of distances to its scores, for instance "
                "attention='multihead(positions=t5)'."
            )
        for layer in self.layers:
            layer.attention.bias_table = tables[0]  # type: ignore[union-attr]

    def forward(self, rows: Tensor, *, mask: Mask | None = None, **source: Any) -> Tensor:
        """(b,n,dim) → (b,n,dim). Layers that attend to a source get `source` and `source_mask`."""
        fast: Tensor | None = fast_path.run(self, rows, mask=mask, **source)
        if fast is not None:
            return fast
        for layer in self.layers:
            rows = layer(rows, mask=mask, **source)
        normalised: Tensor = self.norm(rows)
        return normalised

    def step(self, rows: Tensor, state: StackState, **source: Any) -> tuple[Tensor, StackState]:
        """The same for the next positions, and the new state."""
        states = []
        for layer, before in zip(self.layers, state.layers, strict=True):
            rows, after = layer(rows, state=before, **source)
            states.append(after)
        return self.norm(rows), StackState(tuple(states), state.passed + rows.shape[1])

    def initial_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> StackState:
        """The initial state."""
        return StackState(tuple(layer.initial_state(batch, device, dtype) for layer in self.layers))  # type: ignore[operator]


def _each_attention(attention: str, layers: int) -> list[str]:
    """The name of each layer's mechanism."""
    names = [name.strip() for name in split(attention)] or [attention]
    if len(names) not in (1, layers):
        raise BadValue(f"attention: expected one mechanism, or one for each of {layers} layers, got {len(names)}.")
    return names * layers if len(names) == 1 else names


class CachedStep:
    """A decoding step with a cache: each token is fed once."""

    def __init__(self, advance: Callable[[Tensor, Any], tuple[Tensor, Any]], state: State) -> None:
        self.advance, self.state, self.seen = advance, state, 0

    def __call__(self, prefixes: Tensor) -> Tensor:
        logits, self.state = self.advance(prefixes[:, self.seen :], self.state)
        self.seen = prefixes.shape[1]
        return widened(logits[:, -1]).log_softmax(-1)

    def reorder(self, index: Tensor) -> None:
        """Row i continues from the state of row index[i]."""
        self.state = self.state.reorder(index)


def write(
    step: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    end: int,
    method: str = "greedy",
    beam: int = 5,
    max_length: int = 100,
    length_penalty: float = 1.0,
    n_best: int = 1,
    **sampling: Any,
) -> list[list[Hypothesis]]:
    """Sequences by `method`: greedy, beam or sample (with temperature, top_k, top_p, generator)."""
    if method == "sample":
        return [[hypothesis] for hypothesis in sample(step, start, end=end, max_length=max_length, **sampling)]
    if method not in ("greedy", "beam"):
        raise BadValue(f"method: expected greedy, beam or sample, got {method!r}.")
    if sampling:
        raise BadValue(f"{next(iter(sampling))}: only method='sample' draws at random, got method={method!r}.")
    width = beam if method == "beam" else 1
    return beam_search(
        step,
        start,
        end=end,
        beam=width,
        max_length=max_length,
        length_penalty=length_penalty,
        n_best=min(n_best, width),
    )

"""All layers of an LSTM as one custom operator, a single node for autograd and `torch.compile`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.implementations.triton.launch import block_sizes
from regard.support.batched_gradients import take_one_by_one
from regard.support.differentiate import fresh_views, gradients
from regard_fast.fused_rows import lstm_plain
from regard_fast.fused_rows.op import _threshold, _wide
from regard_fast.fused_rows.short_attention import triton_dtype
from regard_fast.fused_rows.weight_copies import copies

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_GIVEN = "Tensor rows, Tensor? keep, Tensor? seed, Tensor[] weights, int sides, float rate, ScalarType dtype"
_LIBRARY.define(f"fused_lstm({_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor[])")
_LIBRARY.define(
    "fused_lstm_backward(Tensor? grad, Tensor? grad_hidden, Tensor? grad_cell, Tensor final, Tensor[] kept, "
    f"{_GIVEN}) -> Tensor[]"
)
ENTRIES = 16  # batch entries of a program: what a matrix unit takes at least
_ROWS, _TILE, _BLOCK = 32, 64, 64  # of products over all steps


def run(
    rows: Tensor,
    keep: Tensor | None,
    seed: Tensor | None,
    weights: list[Tensor],
    sides: int,
    rate: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden rows (b,n,sides·width) in `dtype`, and the last hidden rows and cells, (layers·sides,b,width).

    `weights` are those of torch's LSTM, in its order. `rate` is the dropout between layers, decided by a hash of the
    seed; without a seed there is none.
    """
    states = torch.ops.regard.fused_lstm.default(rows, keep, seed, weights, sides, rate, dtype)
    return states[0], states[1], states[2]


@dataclass
class LSTMLayer:
    """One layer: its number, its inputs (b,n,·), its weights, and what the kernels take of all that."""

    number: int
    rows: Tensor
    keep: Tensor | None
    seed: Tensor | None
    weights: Sequence[Tensor]
    rate: float
    dtype: torch.dtype

    def __post_init__(self) -> None:
        self.rows = self.rows.contiguous()
        self.batch, self.length, self.inputs = self.rows.shape
        self.count, self.sides = self.batch * self.length, len(self.weights) // 4
        self.width = self.weights[1].shape[1]
        if self.number == 0:
            self.seed = None  # dropout is between layers
        self.entries = -(-self.batch // ENTRIES)
        self.shared = {
            "H": self.width, "PADDED": self.keep is not None, "DT": triton_dtype(self.dtype),
            "WIDE": triton_dtype(_wide(self.dtype)),
        }
        threshold = _threshold(self.rate, self.seed)
        self.dropping = {"DROP": threshold["drop"], "KEPT": threshold["keep"]}
        # A warp for each 16 columns of a gate: together they hold the recurrent weight.
        fast = self.dtype == torch.bfloat16 and not block_sizes.SMALL
        self.walking = {"R": ENTRIES, "FAST": fast, **_warps(min(8, max(1, self.width // 16)))}

    @property
    def flags(self) -> Tensor:
        """What is real, as bytes; without padding, something in its place."""
        return self.rows if self.keep is None else self.keep.contiguous().view(torch.int8)

    @property
    def hash(self) -> Tensor:
        """The seed, or something in its place."""
        return self.rows if self.seed is None else self.seed

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """The two addresses of each kind of weight; those of one direction stand for both."""
        narrow = [copies(weight) for weight in self.weights]
        if len({weight.dtype for weight in narrow if weight.dim() == 2}) > 1:
            narrow = list(self.weights)  # kernels choose between addresses of one dtype
        return _by_direction(narrow)

    def forward(self, hidden: Tensor, gates: Tensor, cells: Tensor, last: Tensor, cell: Tensor) -> None:
        """Write hidden rows, gates and cells of all steps, and the last hidden rows and cells."""
        from regard_fast.fused_rows.lstm_kernels import lstm_forward, lstm_inputs

        w_x, w_h, b_x, b_h = self.pairs()
        partial_gates = cells.new_empty(gates.shape)
        lstm_inputs[(-(-self.count // _ROWS), 4 * self.width // _TILE, self.sides)](
            self.rows, self.flags, self.hash, w_x, b_x, b_h, partial_gates, self.number, self.count, INPUTS=self.inputs,
            R=_ROWS, TILE=_TILE, BLOCK=_BLOCK, **self.dropping, **self.shared, **_warps(4),
        )
        lstm_forward[(self.entries, self.sides)](
            partial_gates, self.flags, w_h, hidden, gates, cells, last, cell, self.batch, self.length, SIDES=self.sides,
            **self.shared, **self.walking,
        )

    def backward(self, pulls: Sequence[Tensor | None], hidden: Tensor, gates: Tensor, cells: Tensor) -> list[Tensor]:
        """The gradients of rows and weights, from those of hidden rows and of the last hidden rows and cells."""
        from regard_fast.fused_rows.lstm_kernels import lstm_backward, lstm_gradients

        w_x, w_h, _, _ = self.pairs()
        grad, *ends = (None if pull is None else pull.contiguous() for pull in pulls)
        of_gates = torch.empty_like(gates)
        lstm_backward[(self.entries, self.sides)](
            *[self.rows if pull is None else pull for pull in (grad, *ends)], self.flags, w_h, gates, cells, of_gates,
            self.batch, self.length, SIDES=self.sides, HAS_Y=grad is not None, HAS_H=ends[0] is not None,
            HAS_C=ends[1] is not None, **self.shared, **self.walking,
        )
        grads = _gradient_shapes([self.rows, *self.weights])
        across = min(_TILE, self.width)
        lines = self.sides * (4 * self.width // _TILE)
        of_inputs, of_hidden = lines * -(-self.inputs // across), lines * (self.width // across)
        programs = of_inputs + of_hidden + -(-self.count // _ROWS) * -(-self.inputs // across)
        lstm_gradients[(programs,)](
            of_gates, self.rows, hidden, self.flags, self.hash, w_x, *_by_direction(grads[1:]), grads[0],
            self.number, self.count, self.length, of_inputs, of_hidden, INPUTS=self.inputs, SIDES=self.sides, R=_ROWS,
            TALL=_TILE, WIDTH=across, BLOCK=_BLOCK, **self.dropping, **self.shared, **_warps(4),
        )
        return grads


def _by_direction(weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Both tensors of each kind: weights of inputs, recurrent weights, and their biases; or one tensor twice."""
    return [(weights[kind], weights[kind + len(weights) - 4]) for kind in range(4)]


def _gradient_shapes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Room for the gradients of tensors."""
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]


def _warps(warps: int) -> dict[str, int]:
    return {} if block_sizes.INTERPRETED else {"num_warps": warps}


def _forward(
    rows: Tensor, keep: Tensor | None, seed: Tensor | None, weights: list[Tensor], sides: int, rate: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    final, last, cell, kept = _forward_shapes(rows, keep, seed, weights, sides, rate, dtype)
    hidden, gates, cells = _by_layer(final, kept)
    for number, layer_weights in enumerate(_of_layers(weights, sides)):
        layer = LSTMLayer(number, rows, keep, seed, layer_weights, rate, dtype)
        slots = slice(number * sides, (number + 1) * sides)
        layer.forward(hidden[number], gates[number], cells[number], last[slots], cell[slots])
        rows = hidden[number]
    return final, last, cell, kept


def _of_layers(weights: list[Tensor], sides: int) -> list[list[Tensor]]:
    return [weights[start : start + 4 * sides] for start in range(0, len(weights), 4 * sides)]


def _by_layer(final: Tensor, kept: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Hidden rows, gates and cells of all steps, each layer by layer; an operator may return a tensor only once."""
    layers = (len(kept) + 1) // 3
    return [*kept[: layers - 1], final], kept[layers - 1 : 2 * layers - 1], kept[2 * layers - 1 :]


def _forward_shapes(
    rows: Tensor, keep: Tensor | None, seed: Tensor | None, weights: list[Tensor], sides: int, rate: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    (batch, length, _), width, layers = rows.shape, weights[1].shape[1], len(weights) // (4 * sides)

    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return rows.new_empty(shape, dtype=kind)

    final, *hidden = (empty(batch, length, sides * width) for _ in range(layers))
    gates = [empty(sides, batch * length, 4 * width) for _ in range(layers)]
    cells = [empty(sides, batch * length, width, kind=_wide(dtype)) for _ in range(layers)]
    last, cell = (empty(layers * sides, batch, width) for _ in range(2))
    return final, last, cell, [*hidden, *gates, *cells]


def _backward(
    grad: Tensor | None, grad_hidden: Tensor | None, grad_cell: Tensor | None, final: Tensor, kept: list[Tensor],
    rows: Tensor, keep: Tensor | None, seed: Tensor | None, weights: list[Tensor], sides: int, rate: float,
    dtype: torch.dtype,
) -> list[Tensor]:
    hidden, gates, cells = _by_layer(final, kept)
    listed = _of_layers(weights, sides)
    grads: list[Tensor] = []
    for number in reversed(range(len(listed))):
        below = hidden[number - 1] if number else rows
        layer = LSTMLayer(number, below, keep, seed, listed[number], rate, dtype)
        slots = slice(number * sides, (number + 1) * sides)
        ends = [None if pull is None else pull[slots] for pull in (grad_hidden, grad_cell)]
        grad, *weight_gradients = layer.backward([grad, *ends], hidden[number], gates[number], cells[number])
        grads = [*weight_gradients, *grads]
    assert grad is not None
    return [grad, *grads]


def _backward_shapes(
    grad: Tensor | None, grad_hidden: Tensor | None, grad_cell: Tensor | None, final: Tensor, kept: list[Tensor],
    rows: Tensor, keep: Tensor | None, seed: Tensor | None, weights: list[Tensor], *given: Any,
) -> list[Tensor]:
    return _gradient_shapes([rows, *weights])


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    rows, keep, seed, weights, *ctx.given = inputs
    ctx.kept = len(output[3])
    ctx.save_for_backward(rows, keep, seed, output[0], *output[3], *weights)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, grad: Tensor | None, grad_hidden: Tensor | None, grad_cell: Tensor | None, unused: Any
) -> tuple[Any, ...]:
    rows, keep, seed, final, *tensors = ctx.saved_tensors
    kept, weights = tensors[: ctx.kept], tensors[ctx.kept :]
    pulls = (grad, grad_hidden, grad_cell)
    if all(pull is None for pull in pulls):
        return None, None, None, [None] * len(weights), None, None, None
    if torch.is_grad_enabled():
        views: Any = fresh_views([rows, *weights])
        states = lstm_plain.layers(views[0], keep, seed, views[1:], *ctx.given[:2])
        pairs = [(state, pull.to(state.dtype)) for state, pull in zip(states, pulls, strict=True) if pull is not None]
        grads: Any = gradients(pairs, views, again=True)
    else:
        grads = torch.ops.regard.fused_lstm_backward.default(*pulls, final, kept, rows, keep, seed, weights, *ctx.given)
    return grads[0], None, None, list(grads[1:]), None, None, None


_LIBRARY.impl("fused_lstm", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_lstm_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_lstm", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_lstm_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::fused_lstm", _differentiate, setup_context=_remember, lib=_LIBRARY)
take_one_by_one("fused_lstm_backward", _LIBRARY)

"""A layer of an LSTM as one custom operator, a single node for autograd and `torch.compile`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.core.differentiate import fresh_views, gradients
from regard.implementations.triton import block_sizes
from regard.nn.fused_rows import lstm_plain
from regard.nn.fused_rows.op import _threshold, _wide
from regard.nn.fused_rows.short_attention import triton_dtype
from regard.nn.fused_rows.weight_copies import copies

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_GIVEN = "Tensor rows, Tensor? keep, Tensor? seed, Tensor[] weights, float rate, int salt, ScalarType dtype"
_LIBRARY.define(f"fused_lstm({_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
_LIBRARY.define(
    "fused_lstm_backward(Tensor? grad, Tensor? grad_hidden, Tensor? grad_cell, Tensor hidden, Tensor gates, "
    f"Tensor cells, {_GIVEN}) -> Tensor[]"
)
ENTRIES = 16  # batch entries of a program: what a matrix unit takes at least
_ROWS, _TILE, _BLOCK = 32, 64, 64  # of products over all steps


def run(
    rows: Tensor,
    keep: Tensor | None,
    seed: Tensor | None,
    weights: list[Tensor],
    rate: float,
    salt: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden rows (b,n,sides·width) in `dtype`, and the last hidden rows and cells of each direction, (sides,b,width).

    `weights` are those of torch's LSTM, direction by direction. `rate` is the dropout of the inputs, decided by a hash
    of the seed and `salt`, which tells the layers apart that share a seed.
    """
    found = torch.ops.regard.fused_lstm.default(rows, keep, seed, weights, rate, salt, dtype)
    return found[0], found[1], found[2]


def _by_direction(weights: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The two addresses of each kind of weight; those of one direction stand for both."""
    narrow = [copies(one) for one in weights]
    if any(one.dtype != narrow[0].dtype for one in narrow if one.dim() == 2):
        narrow = weights  # kernels choose between addresses of one dtype
    return [(narrow[kind], narrow[kind + len(weights) - 4]) for kind in range(4)]


def _shared(keep: Tensor | None, weights: list[Tensor], dtype: torch.dtype) -> dict[str, Any]:
    """The constants that the kernels which walk over steps take."""
    width = weights[1].shape[1]
    found: dict[str, Any] = {
        "H": width, "PADDED": keep is not None, "DT": triton_dtype(dtype), "WIDE": triton_dtype(_wide(dtype))
    }  # fmt: skip
    return found


def _warps(warps: int) -> dict[str, int]:
    return {} if block_sizes.INTERPRETED else {"num_warps": warps}


def _walking(width: int) -> dict[str, int]:
    """A warp for each 16 columns of a gate: all threads together hold the recurrent weight in registers."""
    return {"R": ENTRIES, **_warps(min(8, max(1, width // 16)))}


def _dropping(rate: float, seed: Tensor | None) -> dict[str, Any]:
    made = _threshold(rate, seed)
    return {"DROP": made["drop"], "KEPT": made["keep"]}


def _flags(keep: Tensor | None, rows: Tensor) -> Tensor:
    """What is real, as bytes; without padding, something in its place."""
    return rows if keep is None else keep.contiguous().view(torch.int8)


def _forward(
    rows: Tensor, keep: Tensor | None, seed: Tensor | None, weights: list[Tensor], rate: float, salt: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from regard.nn.fused_rows.lstm_kernels import lstm_forward, lstm_inputs

    rows, flags = rows.contiguous(), _flags(keep, rows)
    found = _forward_shapes(rows, keep, seed, weights, rate, salt, dtype)
    hidden, last, cell, gates, cells = found
    (batch, length, inputs), sides, width = rows.shape, len(weights) // 4, weights[1].shape[1]
    w_x, w_h, b_x, b_h = _by_direction(weights)
    shared, count = _shared(keep, weights, dtype), batch * length
    parts = cells.new_empty(gates.shape)
    tile = min(_TILE, 4 * width)
    lstm_inputs[(-(-count // _ROWS), 4 * width // tile, sides)](
        rows, flags, rows if seed is None else seed, w_x, b_x, b_h, parts, salt, count, INPUTS=inputs, R=_ROWS,
        TILE=tile, BLOCK=_BLOCK, **_dropping(rate, seed), **shared, **_warps(4),
    )  # fmt: skip
    lstm_forward[(-(-batch // ENTRIES), sides)](
        parts,
        flags,
        w_h,
        hidden,
        gates,
        cells,
        last,
        cell,
        batch,
        length,
        SIDES=sides,
        **shared,
        **_walking(width),
    )
    return found


def _forward_shapes(
    rows: Tensor, keep: Tensor | None, seed: Tensor | None, weights: list[Tensor], rate: float, salt: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (batch, length, _), sides, width = rows.shape, len(weights) // 4, weights[1].shape[1]
    return (
        rows.new_empty((batch, length, sides * width), dtype=dtype),
        rows.new_empty((sides, batch, width), dtype=dtype),
        rows.new_empty((sides, batch, width), dtype=dtype),
        rows.new_empty((sides, batch * length, 4 * width), dtype=dtype),
        rows.new_empty((sides, batch * length, width), dtype=_wide(dtype)),
    )


def _backward(
    grad: Tensor | None, grad_hidden: Tensor | None, grad_cell: Tensor | None, hidden: Tensor, gates: Tensor,
    cells: Tensor, rows: Tensor, keep: Tensor | None, seed: Tensor | None, weights: list[Tensor], rate: float,
    salt: int, dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    from regard.nn.fused_rows.lstm_kernels import lstm_backward, lstm_gradients

    rows, flags = rows.contiguous(), _flags(keep, rows)
    grad = grad if grad is None or grad.stride(2) == 1 else grad.contiguous()
    ends = [None if one is None else one.contiguous() for one in (grad_hidden, grad_cell)]
    (batch, length, inputs), sides, width = rows.shape, len(weights) // 4, weights[1].shape[1]
    w_x, w_h, _, _ = _by_direction(weights)
    shared, count = _shared(keep, weights, dtype), batch * length
    of_gates = torch.empty_like(gates)
    lstm_backward[(-(-batch // ENTRIES), sides)](
        *[rows if one is None else one for one in (grad, *ends)], flags, w_h, gates, cells, of_gates, batch, length,
        *((0, 0) if grad is None else grad.stride()[:2]), HAS_Y=grad is not None, HAS_H=ends[0] is not None,
        HAS_C=ends[1] is not None, **shared, **_walking(width),
    )  # fmt: skip
    found = [torch.empty_like(one, memory_format=torch.contiguous_format) for one in (rows, *weights)]
    pairs = [(found[kind], found[kind + len(weights) - 4]) for kind in range(1, 5)]
    across = min(_TILE, width)
    lines = sides * (4 * width // _TILE)
    of_inputs, of_hidden = lines * -(-inputs // across), lines * (width // across)
    programs = of_inputs + of_hidden + -(-count // _ROWS) * -(-inputs // across)
    lstm_gradients[(programs,)](
        of_gates, rows, hidden, flags, rows if seed is None else seed, w_x, *pairs, found[0], salt, count, length,
        of_inputs, of_hidden, INPUTS=inputs, SIDES=sides, R=_ROWS, TALL=_TILE, WIDTH=across, BLOCK=_BLOCK,
        **_dropping(rate, seed), **shared, **_warps(4),
    )  # fmt: skip
    return found


def _backward_shapes(
    grad: Tensor | None, grad_hidden: Tensor | None, grad_cell: Tensor | None, hidden: Tensor, gates: Tensor,
    cells: Tensor, rows: Tensor, keep: Tensor | None, seed: Tensor | None, weights: list[Tensor], *given: Any,
) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(one, memory_format=torch.contiguous_format) for one in (rows, *weights)]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    rows, keep, seed, weights, *ctx.given = inputs
    hidden, _, _, gates, cells = output
    ctx.save_for_backward(rows, keep, seed, hidden, gates, cells, *weights)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any,
    grad: Tensor | None,
    grad_hidden: Tensor | None,
    grad_cell: Tensor | None,
    *unused: Tensor | None,
) -> tuple[Any, ...]:
    rows, keep, seed, hidden, gates, cells, *weights = ctx.saved_tensors
    pulls = (grad, grad_hidden, grad_cell)
    if all(one is None for one in pulls):
        return None, None, None, [None] * len(weights), None, None, None
    if torch.is_grad_enabled():
        views: Any = fresh_views([rows, *weights])
        made = lstm_plain.layer(views[0], keep, seed, views[1:], *ctx.given[:2])
        pairs = [(one, pull.to(one.dtype)) for one, pull in zip(made, pulls, strict=True) if pull is not None]
        found: Any = gradients(pairs, views, again=True)
    else:
        found = torch.ops.regard.fused_lstm_backward.default(
            *pulls, hidden, gates, cells, rows, keep, seed, weights, *ctx.given
        )
    return found[0], None, None, list(found[1:]), None, None, None


_LIBRARY.impl("fused_lstm", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_lstm_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_lstm", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_lstm_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::fused_lstm", _differentiate, setup_context=_remember, lib=_LIBRARY)

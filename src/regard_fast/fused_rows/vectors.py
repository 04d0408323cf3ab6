"""Rows of vectors as one kernel, and the gradients of their linear map as another: embedding, positions, dropout.

    x = drop(W data + b + position)

Torch's way takes casts of the data and of both weights, a product, the sum, and on the way back two casts more, a
product and a sum over rows. The rows are those of autocast without its rounding: float32, as rows of tokens are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.formula.dropout import draw_seed
from regard.nn.positions import NoPositions, Sinusoidal
from regard.support.batched_gradients import take_one_by_one
from regard.support.differentiate import fresh_views, gradients
from regard_fast import fused_rows
from regard_fast.fused_rows import layers

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_OPTIONS = "float rate, bool waves, ScalarType dtype"
_LIBRARY.define(f"fused_vectors(Tensor data, Tensor weight, Tensor bias, Tensor? seed, {_OPTIONS}) -> Tensor")
_LIBRARY.define(
    f"fused_vectors_backward(Tensor grad, Tensor data, Tensor weight, Tensor? seed, {_OPTIONS}) -> (Tensor, Tensor)"
)
WIDEST = 64  # numbers of a vector; a whole line of the weight is held at once


@dataclass(frozen=True)
class VectorOptions:
    """The arguments of the operator after its tensors. `waves`: whether sinusoidal positions are added."""

    rate: float
    waves: bool
    dtype: torch.dtype  # of products

    def constants(self, data: Tensor, weight: Tensor, seed: Tensor | None) -> dict[str, Any]:
        """Those that both kernels take."""
        from regard.implementations.triton.launch import block_sizes
        from regard_fast.fused_rows import op
        from regard_fast.fused_rows.short_attention import triton_dtype
        from regard_fast.fused_rows.tokens import SITE

        dropped = op._threshold(self.rate, seed)
        constants: dict[str, Any] = {
            "K": data.shape[2], "D": weight.shape[0], "SITE": SITE, "DROP": dropped["drop"], "KEEP": dropped["keep"],
            "DT": triton_dtype(self.dtype), "WIDE": triton_dtype(op._wide(self.dtype)),
            "PADDED": block_sizes.padded(data.shape[2]),
        }
        return constants if block_sizes.INTERPRETED else {**constants, "num_warps": 4}


def refusal(data: Tensor, linear: Any, positions: Any, rate: float) -> str:
    """Why an embedding of vectors (b,n,width) must be called; empty if the kernels can make its rows."""
    if data.dim() != 3 or not 1 <= data.shape[2] <= WIDEST:
        return f"the data are not (b,n,width) with a width of at most {WIDEST}"
    if data.requires_grad:
        return "a gradient of the data is asked for"
    if type(linear) is not nn.Linear or linear.bias is None:
        return "the map is not a plain nn.Linear with a bias"
    if why := layers.circumstances(data, linear.out_features):
        return why
    if type(positions) not in (Sinusoidal, NoPositions):
        return "the positions are neither sinusoidal nor none"
    if not 0 <= rate < 1:
        return "everything is dropped"
    if layers.hooked(linear) or layers.hooked(positions):
        return "a module has hooks"
    if linear.weight.dtype != torch.float32 and not fused_rows.on_cpu:
        return "weights are not float32"
    return ""


def run(data: Tensor, linear: nn.Linear, positions: nn.Module, rate: float) -> Tensor:
    """The rows (b,n,dim); `refusal` must have been empty."""
    options = (rate, type(positions) is Sinusoidal, layers._dtype(data))
    seed = draw_seed(data.device) if rate else None
    rows: Tensor = torch.ops.regard.fused_vectors.default(data, linear.weight, linear.bias, seed, *options)
    return rows


def _forward(data: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, *given: Any) -> Tensor:
    from regard_fast.fused_rows import op
    from regard_fast.fused_rows.tokens import _kept_waves
    from regard_fast.fused_rows.vector_kernels import embed_vectors

    options, data = VectorOptions(*given), data.contiguous()
    encoded = _forward_shapes(data, weight, bias, seed, *given)
    rows, length, dim = data.shape[0] * data.shape[1], data.shape[1], weight.shape[0]
    places = _kept_waves(length, dim, encoded.device, encoded.dtype) if options.waves else encoded
    embed_vectors[(-(-rows // op.TUNING.rows),)](
        data, weight, bias, places, encoded if seed is None else seed, encoded, rows, length, WAVES=options.waves,
        R=op.TUNING.rows, **options.constants(data, weight, seed),
    )
    return encoded


def _forward_shapes(data: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, *given: Any) -> Tensor:
    return weight.new_empty((*data.shape[:2], weight.shape[0]))


def _backward(grad: Tensor, data: Tensor, weight: Tensor, seed: Tensor | None, *given: Any) -> tuple[Tensor, Tensor]:
    from regard_fast.fused_rows.vector_kernels import vector_gradients

    options, grad, data = VectorOptions(*given), grad.contiguous(), data.contiguous()
    d_weights = _backward_shapes(grad, data, weight, seed, *given)
    vector_gradients[(weight.shape[0] // 16,)](
        grad, data, grad if seed is None else seed, *d_weights, data.shape[0] * data.shape[1], TALL=16, BLOCK=128,
        STAGES=3, **options.constants(data, weight, seed),
    )
    return d_weights


def _backward_shapes(
    grad: Tensor, data: Tensor, weight: Tensor, seed: Tensor | None, *given: Any
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(weight, memory_format=torch.contiguous_format), weight.new_empty(weight.shape[0])


def plain(data: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, rate: float, waves: bool) -> Tensor:
    """The same in plain torch, for second derivatives and as the readable twin of the kernel."""
    from regard_fast.fused_rows.plain import dropped
    from regard_fast.fused_rows.tokens import SITE, _waves

    rows = F.linear(data, weight, bias)
    if waves:
        rows = rows + _waves(rows.shape[1], rows.shape[2], rows.device, rows.dtype)
    return dropped(rows, seed, rate, SITE, 0)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, rate, waves, dtype = inputs
    ctx.given = rate, waves, dtype
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    data, weight, bias, seed = ctx.saved_tensors
    none = [None] * len(ctx.given)
    if torch.is_grad_enabled():
        views = fresh_views([weight, bias])
        weight_view, shift = views
        assert weight_view is not None and shift is not None
        rows = plain(data, weight_view, shift, seed, *ctx.given[:2])
        return None, *gradients([(rows, grad)], views, again=True), None, *none
    d_weights = torch.ops.regard.fused_vectors_backward.default(grad, data, weight, seed, *ctx.given)
    return None, *d_weights, None, *none


_LIBRARY.impl("fused_vectors", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_vectors_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_vectors", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_vectors_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::fused_vectors", _differentiate, setup_context=_remember, lib=_LIBRARY)
take_one_by_one("fused_vectors_backward", _LIBRARY)

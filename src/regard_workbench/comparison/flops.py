"""Floating-point operations of a training step: forward and backward, multiply and add counted as two.

Counted are products: matrix products, convolutions, attention kernels, recurrent layers. Not counted are elementwise
operations (activations, norms, softmax, dropout, the sums and tanh of an additive score), embeddings, sorting and the
optimiser's update. For mechanisms that are mostly elementwise the count is too low, and time says more.

In attention only visible pairs count: a window of w out of n keys costs n·w, a causal mask half of n². A kernel may
compute more than that, since it works in blocks; a backward pass that recomputes something counts it again. Where
torch's own kernel gets a mask as a tensor, as for padding, every pair counts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regard.implementations.packing import unpack
from regard.implementations.tiled import op as tiled
from regard.implementations.tiled.layout import layout_of
from regard.nn.ntm import op as ntm
from regard.nn.parts import scan
from regard_workbench.models import Model
from regard_workbench.tasks.parts.batch import Batch

Shape = Sequence[int]
aten = torch.ops.aten

# torch's counter sees an operator of ours as one call. These are the functions inside, whose operations it can count.
# A fused kernel cannot be counted, so `tiled` is counted in its place: it computes the same products.
_INSIDE: dict[str, Callable[..., Any]] = {
    "regard::tiled": tiled.forward_by_strips,
    "regard::tiled_backward": tiled._backward,
    "regard::fused": lambda *arguments: tiled.forward_by_strips(*arguments, True),  # type: ignore[call-arg]
    "regard::fused_backward": lambda grad, grad_lse, out, lse, *rest: tiled._backward(grad, grad_lse, *rest),
    "regard::scan": scan._forward,
    "regard::scan_backward": scan._backward,
    "regard::ntm": ntm._forward,
    "regard::ntm_backward": ntm._backward,
}


def of_step(model: Model, batch: Batch) -> float:
    """Floating-point operations of one training step on a batch; sets gradients, but does not change weights."""

    def step() -> None:
        total, count = model.loss(model(batch), batch)
        (total / count.detach().clamp(min=1.0)).backward()

    return count(step)


def mean_of_steps(model: Model, batches: Sequence[Batch]) -> float:
    """Floating-point operations of a step, the mean over batches; equal shapes cost the same and are counted once."""
    shapes = [json.dumps(batch.shapes()) for batch in batches]
    flops = {shape: of_step(model, batch) for shape, batch in dict(zip(shapes, batches, strict=True)).items()}
    return statistics.fmean(flops[shape] for shape in shapes)


def count(call: Callable[[], object]) -> float:
    """Floating-point operations of a call."""
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    opened = _Opened(counter)
    with counter, opened:
        call()
    return counter.get_total_flops() - opened.hidden


class _Opened(TorchDispatchMode):
    """Runs our operators as the torch operations inside; `hidden` counts operations on hidden pairs."""

    def __init__(self, counter: FlopCounterMode) -> None:
        super().__init__()
        self.counter, self.hidden = counter, 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        inside = _INSIDE.get(func._schema.name)
        if inside is None:
            return func(*args, **(kwargs or {}))
        before = self.counter.get_total_flops()
        with self:
            output = inside(*args, **(kwargs or {}))
        if func._schema.name in _STRIPS:
            done = self.counter.get_total_flops() - before
            self.hidden += done * (1 - _visible_share(*args[_STRIPS[func._schema.name] :]))
        return output


# Index of the query among the arguments of the operators that walk strips.
_STRIPS = {"regard::tiled": 0, "regard::tiled_backward": 2, "regard::fused": 0, "regard::fused_backward": 4}


def _visible_share(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink: Tensor | None,
    seed: Tensor | None,
    tensors: list[Tensor],
    spec: str,
    scale: float,
    *rest: Any,
) -> float:
    """The share of visible pairs among those that the strips of `tiled` compute."""
    request = unpack(query, key, value, sink, tensors, spec, scale)
    layout, mask = layout_of(request, drops=seed is not None), request.mask
    walked = visible = 0.0
    for place in layout.walk(mask):
        rows = prod(span.stop - span.start for span in place.index)
        for run in place.strip.runs:
            pairs = rows * (run.stop - run.start)
            walked += pairs
            if run.partial and mask is not None:
                pairs *= float(mask.tile(layout.part(place, run)).double().mean())
            visible += pairs
    return visible / walked if walked else 1.0


def _fused(operator: Any, of_keys: int, of_values: int) -> Callable[..., int]:
    """The formula of one of torch's attention kernels: its number of products of key width and of value width."""
    names = [argument.name for argument in operator.default._schema.arguments]

    def rule(*shapes: Any, **named: Any) -> int:
        by_name = {**dict(zip(names, shapes, strict=False)), **named}
        *rows, queries, dim = by_name["query"]
        keys, width = by_name["key"][-2], by_name["value"][-1]
        pairs = queries * keys
        if by_name.get("is_causal"):
            pairs = sum(min(row + 1, keys) for row in range(queries))
        return int(2 * prod(rows) * pairs * (of_keys * dim + of_values * width))

    return rule


def _recurrent_layer(rows: Shape, inward: Shape, across: Shape, *rest: Any, **more: Any) -> int:
    """One direction of one layer: each position is multiplied with the input matrix and the state matrix."""
    return 2 * prod(rows[:-1]) * (prod(inward) + prod(across))


def _recurrent_layer_backward(rows: Shape, inward: Shape, across: Shape, *rest: Any, **more: Any) -> int:
    return 2 * _recurrent_layer(rows, inward, across)


def _recurrent(rows: Shape, weights: Sequence[Shape], *rest: Any, **more: Any) -> int:
    """All layers and directions at once: each position is multiplied with every matrix."""
    return 2 * prod(rows[:-1]) * sum(prod(weight) for weight in weights if len(weight) == 2)


def _recurrent_backward(rows: Shape, weights: Sequence[Shape], *rest: Any, **more: Any) -> int:
    return 2 * _recurrent(rows, weights)


def _matrix_vector(matrix: Shape, *rest: Any, **more: Any) -> int:
    return 2 * prod(matrix)


def _added_product(added: Shape, first: Shape, second: Shape, *rest: Any, **more: Any) -> int:
    """(…,m,k) times (…,k,n), added in place."""
    return 2 * prod(first) * second[-1]


_KERNELS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
_FORMULAS: dict[Any, Any] = {  # missing in torch's table, or counted there without the mask
    **{
        operator: _fused(operator, 1, 1)
        for operator in (getattr(aten, f"_scaled_dot_product_{kernel}") for kernel in _KERNELS)
    },
    **{  # scores again; then the gradients of weights and values, of queries and keys
        operator: _fused(operator, 3, 2)
        for operator in (getattr(aten, f"_scaled_dot_product_{kernel}_backward") for kernel in _KERNELS)
    },
    aten.mkldnn_rnn_layer: _recurrent_layer,
    aten.mkldnn_rnn_layer_backward: _recurrent_layer_backward,
    aten._cudnn_rnn: _recurrent,
    aten._cudnn_rnn_backward: _recurrent_backward,
    aten.addmm_: _added_product,
    aten.baddbmm_: _added_product,
    aten.mv: _matrix_vector,
    aten.dot: _matrix_vector,
}

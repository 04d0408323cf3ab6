"""A walk along a sequence, piece by piece, that carries a summary from each piece to the next.

`linear` and `global-query` are such walks. They are one operator of torch: the backward pass walks back and computes
every piece again, so that beside inputs, outputs and gradients it needs the memory of one piece, however long the
sequence is. When a backward pass is itself recorded, for second derivatives, it runs the pieces in plain torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.core.autocast import without_autocast
from regard.core.differentiate import (
    fresh_views,
    gradients,
    needs_plain_torch,
    record_for_autograd,
    transforming,
)
from regard.registry import Registry

Tensors = list[Tensor]
Kept = Tensor | None  # which positions are real, bool (b,l); None: all are
Result = tuple[Tensors, Tensors]

# A piece maps inputs (b,l,…) and a carry to outputs (b,l,…) and the carry that follows. Its last argument says that
# its derivative is recorded too: it must then hold to operations that torch differentiates twice.
Piece = Callable[[Tensors, Kept, Tensors, bool], Result]
PIECES: Registry[Piece] = Registry("piece of a scan")

_STRETCH = 64  # positions whose running sums are one product
BLOCK = 128  # positions that meet each other in one product
_ELEMENTS = {"cpu": 1 << 18}  # of the largest input, in one piece: what a processor keeps near at hand
_ELEMENTS_ELSEWHERE = 1 << 22

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_LIBRARY.define("scan(str piece, Tensor[] inputs, Tensor? keep, Tensor[] carry) -> Tensor[]")
_LIBRARY.define(
    "scan_backward(str piece, Tensor[] grads, Tensor[] inputs, Tensor? keep, Tensor[] history, bool[] needed) "
    "-> Tensor[]"
)


def scan(piece: str, inputs: Tensors, keep: Kept, carry: Tensors) -> Result:
    """The outputs (b,l,…) of a registered piece over inputs (b,l,…), and the carry behind the last position."""
    if needs_plain_torch():
        return _walked(piece, inputs, keep, carry)
    found: Tensors = torch.ops.regard.scan(piece, inputs, keep, carry)
    # Outputs, the carry, and for the backward pass the carry before each piece.
    count = len(found) - 2 * len(carry)
    return found[:count], found[count : count + len(carry)]


def _step(inputs: Tensors) -> int:
    """How many positions form one piece."""
    largest = max([tensor.shape[0] * math.prod(tensor.shape[2:]) for tensor in inputs])
    elements = _ELEMENTS.get(inputs[0].device.type, _ELEMENTS_ELSEWHERE)
    return max(BLOCK, elements // max(1, largest) // BLOCK * BLOCK)


def _parts(inputs: Tensors) -> Iterator[slice]:
    length, step = inputs[0].shape[1], _step(inputs)
    for start in range(0, length, step):
        yield slice(start, min(length, start + step))


def _kept(keep: Kept, part: slice) -> Kept:
    """Which positions of a part are real; None where all are, if that can be seen without waiting for a device."""
    if keep is None:
        return None
    here = keep[:, part]
    return None if here.device.type == "cpu" and not transforming() and bool(here.all()) else here


def _empty_outputs(piece: str, inputs: Tensors, carry: Tensors, length: int) -> Tensors:
    """Outputs of the right shapes and dtypes, not filled in; found from a single position that has no content."""
    one = [x.new_empty(x.shape[0], 1, *x.shape[2:], device="meta") for x in inputs]
    found, _ = PIECES[piece](one, None, [held.new_empty(held.shape, device="meta") for held in carry], False)
    return [x.new_empty(x.shape[0], length, *x.shape[2:], device=inputs[0].device) for x in found]


def _forward(piece: str, inputs: Tensors, keep: Kept, carry: Tensors) -> Tensors:
    parts, history, now, outputs = list(_parts(inputs)), [], carry, []
    if len(parts) != 1:
        outputs = _empty_outputs(piece, inputs, carry, inputs[0].shape[1])
    with without_autocast(inputs[0].device):
        for part in parts:
            history.append(now)
            found, now = PIECES[piece]([tensor[:, part] for tensor in inputs], _kept(keep, part), now, False)
            if len(parts) == 1:
                outputs = [one.contiguous() for one in found]
                break
            for whole, one in zip(outputs, found, strict=True):
                whole[:, part] = one
    after = [
        held.clone(memory_format=torch.contiguous_format) for held in now
    ]  # not views of something large
    stacks = [torch.stack(held) for held in zip(*history, strict=True)]
    return [*outputs, *after, *(stacks or [held.new_empty(0, *held.shape) for held in carry])]


def _forward_shapes(piece: str, inputs: Tensors, keep: Kept, carry: Tensors) -> Tensors:
    length = inputs[0].shape[1]
    pieces = -(-length // _step(inputs))
    return [
        *_empty_outputs(piece, inputs, carry, length),
        *[held.new_empty(held.shape) for held in carry],
        *[held.new_empty(pieces, *held.shape) for held in carry],
    ]


def _backward(
    piece: str, grads: Tensors, inputs: Tensors, keep: Kept, history: Tensors, needed: list[bool]
) -> Tensors:
    count = len(grads) - len(history)
    upstream, of_carry = grads[:count], grads[count:]
    totals = [
        torch.empty_like(x) if need else x.new_empty(0) for x, need in zip(inputs, needed, strict=False)
    ]
    for index, part in reversed(list(enumerate(_parts(inputs)))):
        with record_for_autograd(), without_autocast(inputs[0].device):
            leaves = [x[:, part].detach() for x in inputs] + [past[index].detach() for past in history]
            for leaf, need in zip(leaves, [*needed[: len(inputs)], *[True] * len(history)], strict=True):
                leaf.requires_grad_(need and leaf.is_floating_point())
            found, after = PIECES[piece](
                leaves[: len(inputs)], _kept(keep, part), leaves[len(inputs) :], False
            )
            pairs = zip([*found, *after], [*[grad[:, part] for grad in upstream], *of_carry], strict=True)
            parts = gradients(list(pairs), leaves)
        for total, one in zip(totals, parts, strict=False):
            if total.dim() > 1:
                total[:, part] = 0 if one is None else one
        of_carry = [
            torch.zeros_like(grad) if one is None else one.detach()
            for grad, one in zip(of_carry, parts[len(inputs) :], strict=True)
        ]
    return [*totals, *[grad.clone(memory_format=torch.contiguous_format) for grad in of_carry]]


def _backward_shapes(
    piece: str, grads: Tensors, inputs: Tensors, keep: Kept, history: Tensors, needed: list[bool]
) -> Tensors:
    totals = [
        torch.empty_like(x) if need else x.new_empty(0) for x, need in zip(inputs, needed, strict=False)
    ]
    return [*totals, *[grad.new_empty(grad.shape) for grad in grads[len(grads) - len(history) :]]]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    ctx.piece, given, keep, carry = inputs
    ctx.counts = len(given), len(carry)
    ctx.save_for_backward(keep, *given, *carry, *output[len(output) - len(carry) :])


def _differentiate(ctx: Any, grads: Tensors) -> tuple[None, list[Tensor | None], None, list[Tensor | None]]:
    count, held = ctx.counts
    keep, *saved = ctx.saved_tensors
    inputs, carry, history = saved[:count], saved[count : count + held], saved[count + held :]
    needed = [*ctx.needs_input_grad[1], *ctx.needs_input_grad[3]]
    upstream = grads[: len(grads) - held]  # nobody has asked for the carries between the pieces
    if torch.is_grad_enabled():
        found = _recorded(ctx.piece, inputs, keep, carry, upstream)
    else:
        parts = torch.ops.regard.scan_backward(ctx.piece, upstream, inputs, keep, history, needed)
        found = [part if need else None for part, need in zip(parts, needed, strict=True)]
    return None, found[:count], None, found[count:]


def _recorded(piece: str, inputs: Tensors, keep: Kept, carry: Tensors, grads: Tensors) -> list[Tensor | None]:
    """The same gradient with a graph of its own: the plain walk, left to autograd."""
    views = [view for view in fresh_views([*inputs, *carry]) if view is not None]
    inputs, carry = views[: len(inputs)], views[len(inputs) :]
    outputs, after = _walked(piece, inputs, keep, carry)
    with without_autocast(inputs[0].device):
        return gradients(list(zip([*outputs, *after], grads, strict=True)), [*inputs, *carry], again=True)


def _walked(piece: str, inputs: Tensors, keep: Kept, carry: Tensors) -> Result:
    """The outputs and the carry by the plain walk, which autograd records."""
    outputs = []
    with without_autocast(inputs[0].device):
        for part in _parts(inputs):
            found, carry = PIECES[piece](
                [tensor[:, part] for tensor in inputs], _kept(keep, part), carry, True
            )
            outputs.append(found)
    if not outputs:
        return _empty_outputs(piece, inputs, carry, 0), carry
    return [torch.cat(found, 1) for found in zip(*outputs, strict=True)], carry


_LIBRARY.impl("scan", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("scan_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::scan", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::scan_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::scan", _differentiate, setup_context=_remember, lib=_LIBRARY)


# What pieces are made of.


def spoilt_positions(*rows: Tensor) -> Tensor | None:
    """Where rows (b,l,…) are not finite, bool (b,l); None if they all are and that can be seen without waiting.

    In a product with a triangle what comes later has the factor 0, but 0 · NaN is NaN: such rows must stay out of it.
    """
    found = ~torch.stack([each.detach().flatten(2).sum(-1) for each in rows]).sum(0).isfinite()
    return None if found.device.type == "cpu" and not transforming() and not bool(found.any()) else found


def spoil_from(spoilt: Tensor, sums: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Sums (b,l,…) that are NaN from the first spoilt position on, and so is what is carried on (b,…)."""
    from_here = (spoilt.cumsum(1) > 0)[(..., *[None] * (sums.dim() - 2))]
    ever = spoilt.any(1)[(..., *[None] * (last.dim() - 1))]
    return sums.masked_fill(from_here, torch.nan), last.masked_fill(ever, torch.nan)


def packed(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """A float64 tensor as a state holds it in a narrower dtype: rounded, and the remainder, on a last axis of two.

    Sums that go on over very many steps lose nothing this way.
    """
    rounded = exact.to(dtype)
    return torch.stack([rounded, (exact - rounded.double()).to(dtype)], -1)


def unpacked(pair: Tensor) -> Tensor:
    """The float64 tensor that was packed."""
    return pair.double().sum(-1)


def prefix_sums(rows: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Sums (b,l,h,d) of the rows up to each, on top of `before` (b,h,d), and the last of them in float64.

    Short stretches are summed by a triangular product, which is far quicker than a running sum over rows; only the
    sums of whole stretches run on, in float64.
    """
    spoilt = spoilt_positions(rows)
    if spoilt is not None:
        rows = rows.masked_fill(spoilt[..., None, None], 0)
    batch, length, heads, dim = rows.shape
    size = min(_STRETCH, length)
    cut = F.pad(rows.flatten(2), (0, 0, 0, -length % size)).view(batch, -(-length // size), size, heads * dim)
    within = torch.ones(size, size, dtype=rows.dtype, device=rows.device).tril() @ cut
    start = before.flatten(1)[:, None]
    running = start + within[:, :, -1].double().cumsum(1)  # (b,stretches,h·d)
    first = torch.cat([start, running[:, :-1]], 1).to(rows.dtype)
    found = (within + first[:, :, None]).flatten(1, 2)[:, :length].view(batch, length, heads, dim)
    last = running[:, -1].view(batch, heads, dim)
    return (found, last) if spoilt is None else spoil_from(spoilt, found, last)


def prefix_log_sums(scores: Tensor, recorded: bool) -> Tensor:
    """log Σ exp of the scores up to each, along the second axis of (b,n,h)."""
    if not recorded:
        return torch.logcumsumexp(scores, 1)
    # The second derivative of torch's function is NaN where a gradient is zero: a triangle of rows instead.
    later = torch.ones(scores.shape[1], scores.shape[1], dtype=torch.bool, device=scores.device).triu(1)
    return scores[:, None].masked_fill(later[..., None], -torch.inf).logsumexp(2)

"""A scan along a sequence, chunk by chunk, that carries a summary from each chunk to the next.

`linear` and `global-query` are such scans. The scan is one custom operator: its backward pass goes through the chunks
in reverse and recomputes each one, so that besides inputs, outputs and gradients it needs memory for one chunk only,
whatever the length. For second derivatives the backward pass runs the chunks in plain torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from regard.registry import Registry
from regard.support.arguments import readable
from regard.support.autocast import without_autocast
from regard.support.batched_gradients import take_one_by_one
from regard.support.differentiate import fresh_views, gradients, needs_plain_torch, record_for_autograd
from regard.support.tracing import exporting

Tensors = list[Tensor]
Kept = Tensor | None  # False for padding, bool (b,l); None: no padding
Result = tuple[Tensors, Tensors]

# A piece is the function of one chunk: it maps inputs (b,l,…) and a carry to outputs (b,l,…) and the next carry. If its
# last argument is True, second derivatives are needed, and it must use operations that torch differentiates twice.
Piece = Callable[[Tensors, Kept, Tensors, bool], Result]
PIECES: Registry[Piece] = Registry("piece of a scan")

_STRETCH = 64  # positions whose prefix sums are computed by one matrix product
BLOCK = 128  # positions in one block of pairwise products
_ELEMENTS = {"cpu": 1 << 18}  # elements of the largest input in one chunk, so that it fits into the cache
_ELEMENTS_ELSEWHERE = 1 << 22

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_LIBRARY.define("scan(str piece, Tensor[] inputs, Tensor? keep, Tensor[] carry) -> Tensor[]")
_LIBRARY.define(
    "scan_backward(str piece, Tensor[] grads, Tensor[] inputs, Tensor? keep, Tensor[] history, bool[] needed) "
    "-> Tensor[]"
)


def scan(piece: str, inputs: Tensors, keep: Kept, carry: Tensors) -> Result:
    """Run a registered piece over inputs (b,l,…); return its outputs (b,l,…) and the carry after the last position."""
    if needs_plain_torch() or exporting():
        return _plain_scan(piece, inputs, keep, carry)
    tensors: Tensors = torch.ops.regard.scan(piece, inputs, keep, carry)
    # The operator returns the outputs, the carry and, for the backward pass, the carry before each chunk.
    count = len(tensors) - 2 * len(carry)
    return tensors[:count], tensors[count : count + len(carry)]


def _step(inputs: Tensors) -> int:
    """Return the number of positions in one chunk."""
    largest = max([tensor.shape[0] * math.prod(tensor.shape[2:]) for tensor in inputs])
    elements = _ELEMENTS.get(inputs[0].device.type, _ELEMENTS_ELSEWHERE)
    return max(BLOCK, elements // max(1, largest) // BLOCK * BLOCK)


def _parts(inputs: Tensors) -> Iterator[slice]:
    length = inputs[0].shape[1]
    if exporting():  # one chunk: a loop would be unrolled, and a graph would serve one length
        yield slice(0, length)
        return
    step = _step(inputs)
    for start in range(0, length, step):
        yield slice(start, min(length, start + step))


def _kept(keep: Kept, part: slice) -> Kept:
    """Return `keep` of one chunk; None without padding, if that can be read without a device synchronisation."""
    if keep is None:
        return None
    chunk = keep[:, part]
    return None if readable(chunk) and bool(chunk.all()) else chunk


def _empty_outputs(piece: str, inputs: Tensors, carry: Tensors, length: int) -> Tensors:
    """Return uninitialised outputs; their shapes and dtypes come from running one position on the meta device."""
    position = [x.new_empty(x.shape[0], 1, *x.shape[2:], device="meta") for x in inputs]
    outputs, _ = PIECES[piece](
        position, None, [tensor.new_empty(tensor.shape, device="meta") for tensor in carry], False
    )
    return [x.new_empty(x.shape[0], length, *x.shape[2:], device=inputs[0].device) for x in outputs]


def _forward(piece: str, inputs: Tensors, keep: Kept, carry: Tensors) -> Tensors:
    chunks, history, current, outputs = list(_parts(inputs)), [], carry, []
    if len(chunks) != 1:
        outputs = _empty_outputs(piece, inputs, carry, inputs[0].shape[1])
    with without_autocast(inputs[0].device):
        for chunk in chunks:
            history.append(current)
            chunk_outputs, current = PIECES[piece](
                [tensor[:, chunk] for tensor in inputs], _kept(keep, chunk), current, False
            )
            if len(chunks) == 1:
                outputs = [tensor.contiguous() for tensor in chunk_outputs]
                break
            for buffer, chunk_output in zip(outputs, chunk_outputs, strict=True):
                buffer[:, chunk] = chunk_output
    after = [
        tensor.clone(memory_format=torch.contiguous_format) for tensor in current
    ]  # copies, because a view would keep a large tensor alive
    stacks = [torch.stack(states) for states in zip(*history, strict=True)]
    return [*outputs, *after, *(stacks or [tensor.new_empty(0, *tensor.shape) for tensor in carry])]


def _forward_shapes(piece: str, inputs: Tensors, keep: Kept, carry: Tensors) -> Tensors:
    length = inputs[0].shape[1]
    pieces = -(-length // _step(inputs))
    return [
        *_empty_outputs(piece, inputs, carry, length),
        *[tensor.new_empty(tensor.shape) for tensor in carry],
        *[tensor.new_empty(pieces, *tensor.shape) for tensor in carry],
    ]


def _backward(piece: str, grads: Tensors, inputs: Tensors, keep: Kept, history: Tensors, needed: list[bool]) -> Tensors:
    count = len(grads) - len(history)
    upstream, of_carry = grads[:count], grads[count:]
    totals = [torch.empty_like(x) if need else x.new_empty(0) for x, need in zip(inputs, needed, strict=False)]
    for index, chunk in reversed(list(enumerate(_parts(inputs)))):
        with record_for_autograd(), without_autocast(inputs[0].device):
            leaves = [x[:, chunk].detach() for x in inputs] + [past[index].detach() for past in history]
            for leaf, need in zip(leaves, [*needed[: len(inputs)], *[True] * len(history)], strict=True):
                leaf.requires_grad_(need and leaf.is_floating_point())
            outputs, after = PIECES[piece](leaves[: len(inputs)], _kept(keep, chunk), leaves[len(inputs) :], False)
            pairs = zip([*outputs, *after], [*[grad[:, chunk] for grad in upstream], *of_carry], strict=True)
            gradients_of = gradients(list(pairs), leaves)
        for total, gradient in zip(totals, gradients_of, strict=False):
            if total.dim() > 1:
                total[:, chunk] = 0 if gradient is None else gradient
        of_carry = [
            torch.zeros_like(grad) if gradient is None else gradient.detach()
            for grad, gradient in zip(of_carry, gradients_of[len(inputs) :], strict=True)
        ]
    return [*totals, *[grad.clone(memory_format=torch.contiguous_format) for grad in of_carry]]


def _backward_shapes(
    piece: str, grads: Tensors, inputs: Tensors, keep: Kept, history: Tensors, needed: list[bool]
) -> Tensors:
    totals = [torch.empty_like(x) if need else x.new_empty(0) for x, need in zip(inputs, needed, strict=False)]
    return [*totals, *[grad.new_empty(grad.shape) for grad in grads[len(grads) - len(history) :]]]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    ctx.piece, scanned, keep, carry = inputs
    ctx.counts = len(scanned), len(carry)
    ctx.save_for_backward(keep, *scanned, *carry, *output[len(output) - len(carry) :])


def _differentiate(ctx: Any, grads: Tensors) -> tuple[None, list[Tensor | None], None, list[Tensor | None]]:
    count, carried = ctx.counts
    keep, *saved = ctx.saved_tensors
    inputs, carry, history = saved[:count], saved[count : count + carried], saved[count + carried :]
    needed = [*ctx.needs_input_grad[1], *ctx.needs_input_grad[3]]
    upstream = grads[: len(grads) - carried]  # the carries between the chunks are no outputs of `scan`
    if torch.is_grad_enabled():
        d_inputs = _recorded(ctx.piece, inputs, keep, carry, upstream)
    else:
        all_gradients = torch.ops.regard.scan_backward(ctx.piece, upstream, inputs, keep, history, needed)
        d_inputs = [gradient if need else None for gradient, need in zip(all_gradients, needed, strict=True)]
    return None, d_inputs[:count], None, d_inputs[count:]


def _recorded(piece: str, inputs: Tensors, keep: Kept, carry: Tensors, grads: Tensors) -> list[Tensor | None]:
    """Return the same gradients with an autograd graph, from the scan in plain torch."""
    views = [view for view in fresh_views([*inputs, *carry]) if view is not None]
    inputs, carry = views[: len(inputs)], views[len(inputs) :]
    outputs, after = _plain_scan(piece, inputs, keep, carry)
    with without_autocast(inputs[0].device):
        return gradients(list(zip([*outputs, *after], grads, strict=True)), [*inputs, *carry], again=True)


def _plain_scan(piece: str, inputs: Tensors, keep: Kept, carry: Tensors) -> Result:
    """Run the scan in plain torch, which autograd records."""
    outputs = []
    with without_autocast(inputs[0].device):
        for chunk in _parts(inputs):
            chunk_outputs, carry = PIECES[piece](
                [tensor[:, chunk] for tensor in inputs], _kept(keep, chunk), carry, True
            )
            outputs.append(chunk_outputs)
    if not outputs:
        return _empty_outputs(piece, inputs, carry, 0), carry
    return [torch.cat(column, 1) for column in zip(*outputs, strict=True)], carry


_LIBRARY.impl("scan", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("scan_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::scan", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::scan_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::scan", _differentiate, setup_context=_remember, lib=_LIBRARY)
take_one_by_one("scan_backward", _LIBRARY)


# Building blocks of pieces.


def nonfinite_positions(*rows: Tensor) -> Tensor | None:
    """Return where rows (b,l,…) are non-finite, bool (b,l); None if none is and that can be read without waiting.

    In a product with a triangular matrix later rows have the factor 0, but 0 · NaN is NaN, so they must be left out.
    """
    nonfinite = ~torch.stack([tensor.detach().flatten(2).sum(-1) for tensor in rows]).sum(0).isfinite()
    return None if readable(nonfinite) and not bool(nonfinite.any()) else nonfinite


def set_nan_from(nonfinite: Tensor, sums: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Set sums (b,l,…) to NaN from the first non-finite position on, and the carry (b,…) if there is one."""
    from_here = (nonfinite.cumsum(1) > 0)[(..., *[None] * (sums.dim() - 2))]
    ever = nonfinite.any(1)[(..., *[None] * (last.dim() - 1))]
    return sums.masked_fill(from_here, torch.nan), last.masked_fill(ever, torch.nan)


def lengthened(rows: Tensor, extra: int) -> Tensor:
    """Return rows (b,l,…) with `extra` rows of zeros after them.

    `pad` would tie a traced graph to whether there are any.
    """
    return torch.cat([rows, rows.new_zeros(rows.shape[0], extra, *rows.shape[2:])], 1)


def packed(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Store a float64 tensor in a narrower dtype as (rounded value, remainder) along a new last axis.

    Sums over very many steps thereby keep their precision in a state.
    """
    rounded = exact.to(dtype)
    return torch.stack([rounded, (exact - rounded.double()).to(dtype)], -1)


def unpacked(pair: Tensor) -> Tensor:
    """Return the float64 tensor of a packed pair."""
    return pair.double().sum(-1)


def prefix_sums(rows: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Return the prefix sums (b,l,h,d) of rows, starting from `before` (b,h,d), and the last one in float64.

    Within short stretches they are computed by a product with a triangular matrix, which is much faster than a
    cumulative sum over rows; only the sums of whole stretches are accumulated, in float64.
    """
    nonfinite = nonfinite_positions(rows)
    if nonfinite is not None:
        rows = rows.masked_fill(nonfinite[..., None, None], 0)
    batch, length, heads, dim = rows.shape
    size = _STRETCH if exporting() else min(_STRETCH, length)
    count = (length + size - 1) // size
    cut = lengthened(rows.flatten(2), count * size - length).view(batch, count, size, heads * dim)
    within = torch.ones(size, size, dtype=rows.dtype, device=rows.device).tril() @ cut
    start = before.flatten(1)[:, None]
    running = start + within[:, :, -1].double().cumsum(1)  # (b,stretches,h·d)
    first = torch.cat([start, running[:, :-1]], 1).to(rows.dtype)
    sums = (within + first[:, :, None]).flatten(1, 2)[:, :length].view(batch, length, heads, dim)
    last = running[:, -1].view(batch, heads, dim)
    return (sums, last) if nonfinite is None else set_nan_from(nonfinite, sums, last)


def prefix_log_sums(scores: Tensor, recorded: bool) -> Tensor:
    """Return the cumulative log-sum-exp of scores (b,n,h) along the second axis."""
    if not recorded:
        return torch.logcumsumexp(scores, 1)
    # The second derivative of torch.logcumsumexp is NaN where a gradient is zero.
    later = torch.ones(scores.shape[1], scores.shape[1], dtype=torch.bool, device=scores.device).triu(1)
    return scores[:, None].masked_fill(later[..., None], -torch.inf).logsumexp(2)

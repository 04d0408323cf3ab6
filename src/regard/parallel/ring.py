"""Ring attention: keys and values go around the ranks while each computes with those it has.

At step s rank r computes with the keys of rank r − s. Those of step s + 1 are already on their way. The backward pass
goes around once more, since keeping all keys would need the memory that sharding saves; gradients of keys and values go
straight back to their owner, who adds them up in the order of the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.parallel.exchange import Transfer, pack, unpack
from regard.parallel.merging import Merged, Upstream
from regard.parallel.schedule import Piece, RingBlock
from regard.parallel.work import Held, RingWork

_KEYS, _GRADIENTS = 0, 1  # kinds of messages


@dataclass
class _Message:
    """Keys and values, or gradients of them, that are on their way."""

    transfer: Transfer
    pieces: tuple[Piece, ...]  # what is received
    buffer: Tensor | None  # None: nothing

    def wait(self, key: Tensor, value: Tensor) -> Held:
        """Wait for the message; return what it holds."""
        self.transfer.wait()
        if self.buffer is None:
            return {}
        tensors = unpack(self.buffer, _shapes(self.pieces, key, value))
        return dict(zip(self.pieces, zip(tensors[::2], tensors[1::2], strict=True), strict=True))


def attend(work: RingWork, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The output (b,h,n,v) and log-sum-exp (b,h,n) of this rank's queries over the keys of all ranks."""
    merged: tuple[Tensor, Tensor] = _Ring.apply(work, query, key, value, *work.tensors)
    return merged


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, work: RingWork, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.work, ctx.random = work, _random_state(query.device) if work.dropout > 0 else None
        dtype = torch.promote_types(query.dtype, torch.float32)
        merged = Merged(query, value.shape[3], dtype, work.weighted)
        for _, pieces in _around(work, key, value):
            for block in work.blocks(tuple(pieces)):
                rows, keys, values = work.inputs(block, pieces)
                output, logsumexp = work.compute(block, rows.take(query), keys, values, tensors)
                for span, *output_part in zip(rows.spans, rows.split(output), rows.split(logsumexp), strict=True):
                    merged.add(span, *output_part)
        ctx.save_for_backward(query, key, value, merged.output, merged.logsumexp, *tensors)
        ctx.set_materialize_grads(False)
        return merged.output.to(query.dtype, copy=True), merged.logsumexp.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_logsumexp: Tensor | None) -> tuple[Any, ...]:
        query, key, value, output, logsumexp, *tensors = ctx.saved_tensors
        grad = torch.zeros_like(output) if grad is None else grad.to(output.dtype)
        if grad_logsumexp is None:
            grad_logsumexp = torch.zeros_like(logsumexp)
        upstream = Upstream(grad, grad_logsumexp, output, logsumexp)
        inputs = [query, key, value, *tensors]
        with _same_random_numbers(ctx.random, query.device):
            gradients = _Backward(ctx.work, inputs, ctx.needs_input_grad[1:], upstream).run()
        return None, *gradients


class _Backward:
    """The gradients of this rank's queries, keys and values, and this rank's share of those of other tensors."""

    def __init__(self, work: RingWork, inputs: list[Tensor], needed: tuple[bool, ...], upstream: Upstream) -> None:
        self.work, self.inputs, self.needed, self.upstream = work, inputs, needed, upstream
        self.query, self.key, self.value = inputs[:3]
        self.dtype = upstream.grad.dtype
        self.totals = [
            torch.zeros_like(tensor, dtype=torch.promote_types(tensor.dtype, self.dtype))
            if tensor.is_floating_point()
            else tensor
            for tensor in inputs
        ]

    def run(self) -> list[Tensor | None]:
        """Go around the ring; return the gradient of each input."""
        returning: _Message | None = None
        returns = self.needed[1] or self.needed[2]
        for step, pieces in _around(self.work, self.key, self.value):
            to_keys: Held = {
                piece: (torch.zeros_like(k, dtype=self.dtype), torch.zeros_like(v, dtype=self.dtype))
                for piece, (k, v) in pieces.items()
            }
            for block in self.work.blocks(tuple(pieces)):
                self._block(block, pieces, to_keys)
            if step == 0:
                self._add(to_keys)
            elif returns:
                self._finish(returning)
                returning = self._return(step, to_keys)
        self._finish(returning)
        return [
            total.to(tensor.dtype) if need else None
            for total, tensor, need in zip(self.totals, self.inputs, self.needed, strict=True)
        ]

    def _block(self, block: RingBlock, held: Held, to_keys: Held) -> None:
        work = self.work
        rows, *sides = work.inputs(block, held)
        inputs = [rows.take(self.query), *sides, *self.inputs[3:]]
        upstream = Upstream(*(rows.take(tensor) for tensor in self.upstream))
        for index, gradient in enumerate(work.gradients(block, inputs, self.needed, upstream)):
            if gradient is None:
                continue
            if index == 0:
                for span, its_part in zip(rows.spans, rows.split(gradient), strict=True):
                    self.totals[0][:, :, span] += its_part
            elif index <= 2:
                widths = [piece.width for piece in block.columns]
                for piece, its_part in zip(block.columns, gradient.split(widths, 2), strict=True):
                    to_keys[piece][index - 1].add_(its_part)
            else:
                self.totals[index] += gradient

    def _return(self, step: int, to_keys: Held) -> _Message:
        """Send the gradients of the keys of this step to their owner; receive those of the rank that used ours."""
        owner, user = (self.work.rank - step) % self.work.ranks, (self.work.rank + step) % self.work.ranks
        gradients = [gradient for pair in to_keys.values() for gradient in pair]
        used = self.work.schedule.wanted(user, self.work.rank)
        purpose = f"returning the gradients of keys at step {step} of the ring"
        tag = _tag(step, _GRADIENTS)
        return _start(self.work, purpose, (owner, gradients), (user, used), self.key, self.value, self.dtype, tag)

    def _finish(self, returning: _Message | None) -> None:
        """Add the gradients that another rank returned to our own."""
        if returning is not None:
            self._add(returning.wait(self.key, self.value))

    def _add(self, to_keys: Held) -> None:
        for piece, gradients in to_keys.items():
            for total, gradient in zip(self.totals[1:3], gradients, strict=True):
                total[:, :, self.work.where(piece)] += gradient


def _around(work: RingWork, key: Tensor, value: Tensor) -> Iterator[tuple[int, Held]]:
    """The steps of the ring: the keys and values to compute with, those of the next step on their way meanwhile."""
    coming = _request(work, 1, key, value) if work.ranks > 1 else None
    yield 0, _own(work, work.schedule.wanted(work.rank, work.rank), key, value)
    for step in range(1, work.ranks):
        assert coming is not None
        pieces = coming.wait(key, value)
        coming = _request(work, step + 1, key, value) if step + 1 < work.ranks else None
        yield step, pieces


def _own(work: RingWork, pieces: tuple[Piece, ...], key: Tensor, value: Tensor) -> Held:
    """Pieces of this rank's own keys and values."""
    spans = {piece: work.where(piece) for piece in pieces}
    return {piece: (key[:, :, span], value[:, :, span]) for piece, span in spans.items()}


def _request(work: RingWork, step: int, key: Tensor, value: Tensor) -> _Message:
    """Start to send our keys to the rank that computes with them at `step`, and to receive those that we need."""
    target, source = (work.rank + step) % work.ranks, (work.rank - step) % work.ranks
    sent = _own(work, work.schedule.wanted(target, work.rank), key, value)
    tensors = [tensor for pair in sent.values() for tensor in pair]
    wanted = work.schedule.wanted(work.rank, source)
    purpose = f"exchanging keys and values at step {step} of the ring"
    return _start(work, purpose, (target, tensors), (source, wanted), key, value, key.dtype, _tag(step, _KEYS))


def _start(
    work: RingWork,
    what: str,
    out: tuple[int, list[Tensor]],
    wanted: tuple[int, tuple[Piece, ...]],
    key: Tensor,
    value: Tensor,
    dtype: torch.dtype,
    tag: int,
) -> _Message:
    """Start to send parts to a rank, and to receive pieces from a rank; either may be empty."""
    (target, tensors), (source, pieces) = out, wanted
    sends = [(target, pack(tensors, dtype))] if tensors else []
    buffer = None
    if pieces:
        length = sum(torch.Size(shape).numel() for shape in _shapes(pieces, key, value))
        buffer = key.new_empty(length, dtype=dtype)
    receives = [] if buffer is None else [(source, buffer)]
    assert work.group is not None
    return _Message(Transfer(work.group, what, sends, receives, tag), pieces, buffer)


def _tag(step: int, kind: int) -> int:
    return 2 * step + kind


def _shapes(pieces: tuple[Piece, ...], key: Tensor, value: Tensor) -> list[tuple[int, ...]]:
    """The shapes of the keys and values of pieces, in turn."""
    return [(*tensor.shape[:2], piece.width, tensor.shape[3]) for piece in pieces for tensor in (key, value)]


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The state of the random numbers from which dropout draws its seeds."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


@contextmanager
def _same_random_numbers(state: tuple[Tensor, Tensor | None] | None, device: torch.device) -> Iterator[None]:
    """Within the block, draw what was drawn from `state` on: blocks come in the same order in both passes."""
    if state is None:
        yield
        return
    on_cpu, on_device = state
    with torch.random.fork_rng([] if on_device is None else [device]):
        torch.set_rng_state(on_cpu)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)
        yield

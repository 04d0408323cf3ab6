"""The end of a step on a GPU as two kernels: gradient norm, clipping and AdamW, skipped if anything is non-finite.

With torch's functions this takes two dozen launches, two of which (its fused AdamW) give each small tensor to one
multiprocessor. Here all tensors are cut into chunks of equal size, one program each, and two kernels do everything. The
arithmetic is torch's: `clip_grad_norm_`, then `AdamW`, whose own state is read and written.

After a non-finite loss or norm, this and every later update is skipped, so that the weights are still those of before
when the host reads the result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from regard.nn import fast_path

BLOCK = 1024  # elements that a program processes at once; a chunk has at least one block
CHUNKS = 1024  # approximate number of chunks; each program adds up the sums of all


@triton.jit
def _finite(x):
    return (x - x) == 0


@triton.jit
def square_sums(grads, sizes, steps, turns, sums, BLOCK: tl.constexpr):
    """Compute the sum of squares of each chunk of the gradient, and the number this step would have."""
    chunk = tl.program_id(0)
    address = tl.load(grads + chunk)
    size = tl.load(sizes + chunk)
    squares = tl.zeros((BLOCK,), tl.float32)
    if address != 0:
        grad = address.to(tl.pointer_type(tl.float32))
        for start in range(0, size, BLOCK):
            index = start + tl.arange(0, BLOCK)
            gradient = tl.load(grad + index, mask=index < size, other=0.0)
            squares += gradient * gradient
    tl.store(sums + chunk, tl.sum(squares))
    step = tl.load(steps + chunk).to(tl.pointer_type(tl.float32))
    tl.store(turns + chunk, tl.load(step) + 1.0)


@triton.jit
def adamw(
    grads, weights, copies, means, squares, steps, sizes, leads, decays, turns, sums, loss, rate, skipping, found,
    chunks, limit, BETA1: tl.constexpr, BETA2: tl.constexpr, LOG1: tl.constexpr, LOG2: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):
    """Clip and update one chunk, unless the loss or the norm is non-finite now or was before."""
    chunk = tl.program_id(0)
    lanes = tl.arange(0, PARTS)
    norm = tl.sqrt(tl.sum(tl.load(sums + lanes, mask=lanes < chunks, other=0.0)))
    loss_now = tl.load(loss).to(tl.float32)
    # Program 0 writes `skipping` while others read it; they decide the same with the old and the new value.
    finite = _finite(loss_now) & _finite(norm) & (tl.load(skipping) == 0)
    if chunk == 0:
        skipped = tl.where(finite, 0.0, 1.0)
        tl.store(skipping, skipped)
        tl.store(found, loss_now.to(tl.float64))
        tl.store(found + 1, norm.to(tl.float64))
        tl.store(found + 2, skipped.to(tl.float64))
    address = tl.load(grads + chunk)
    if finite & (address != 0):
        clip = tl.minimum(limit / (norm + 1e-6), 1.0)
        turn = tl.load(turns + chunk)
        if tl.load(leads + chunk) != 0:
            tl.store(tl.load(steps + chunk).to(tl.pointer_type(tl.float32)), turn)
        lr = tl.load(rate).to(tl.float32)
        kept = 1.0 - lr * tl.load(decays + chunk)
        # 1 − βᵗ loses digits if β is near 1, so it is computed in double precision, once per program.
        early1 = (1.0 - tl.exp(turn.to(tl.float64) * LOG1)).to(tl.float32)
        early2 = tl.sqrt((1.0 - tl.exp(turn.to(tl.float64) * LOG2)).to(tl.float32))
        stride = lr / early1
        grad = address.to(tl.pointer_type(tl.float32))
        weight = tl.load(weights + chunk).to(tl.pointer_type(tl.float32))
        mean = tl.load(means + chunk).to(tl.pointer_type(tl.float32))
        square = tl.load(squares + chunk).to(tl.pointer_type(tl.float32))
        narrow = tl.load(copies + chunk)  # 0: the weight has no copy in bfloat16
        copy = narrow.to(tl.pointer_type(tl.bfloat16))
        size = tl.load(sizes + chunk)
        for start in range(0, size, BLOCK):
            index = start + tl.arange(0, BLOCK)
            real = index < size
            g = tl.load(grad + index, mask=real, other=0.0) * clip
            m = tl.load(mean + index, mask=real, other=0.0)
            s = tl.load(square + index, mask=real, other=0.0)
            w = tl.load(weight + index, mask=real, other=0.0) * kept
            m = BETA1 * m + (1.0 - BETA1) * g
            s = BETA2 * s + (1.0 - BETA2) * g * g
            w -= stride * m / (tl.sqrt(s) / early2 + EPS)
            tl.store(mean + index, m, mask=real)
            tl.store(square + index, s, mask=real)
            tl.store(weight + index, w, mask=real)
            if narrow != 0:
                tl.store(copy + index, w.to(tl.bfloat16), mask=real)


def fits(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the two kernels compute the same as this optimiser."""
    if type(optimizer) is not torch.optim.AdamW:
        return False
    groups = optimizer.param_groups
    same = len({(group["betas"], group["eps"]) for group in groups}) == 1
    plain = not any(group["amsgrad"] or group["maximize"] for group in groups)
    every = [parameter for group in groups for parameter in group["params"]]
    dense = all(p.dtype == torch.float32 and p.is_contiguous() and p.numel() for p in every)
    return same and plain and dense and isinstance(groups[0]["lr"], Tensor)


def _log(beta: float) -> float:
    return math.log(beta) if beta else -1e30


class FusedUpdate:
    """Clip the gradients and apply AdamW, as two kernels."""

    def __init__(self, optimizer: torch.optim.Optimizer, limit: float) -> None:
        self.optimizer, self.limit = optimizer, limit
        pairs = [(p, group) for group in optimizer.param_groups for p in group["params"]]
        self.parameters: list[nn.Parameter] = [parameter for parameter, _ in pairs]
        first = optimizer.param_groups[0]
        (self.beta1, self.beta2), self.eps = first["betas"], first["eps"]
        device = self.parameters[0].device
        sizes = np.array([parameter.numel() for parameter in self.parameters])
        length = BLOCK * max(1, math.ceil(sizes.sum() / (BLOCK * CHUNKS)))
        counts = -(-sizes // length)
        self.owner = np.repeat(np.arange(len(sizes)), counts)  # the parameter of each chunk
        # The number of each chunk within its parameter.
        number = np.arange(len(self.owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.offsets = 4 * length * number
        self.chunks = len(self.owner)
        decays = np.array([group["weight_decay"] for _, group in pairs], dtype=np.float32)
        self.sizes = torch.from_numpy(np.minimum(length, sizes[self.owner] - length * number).astype(np.int32)).to(
            device
        )
        self.leads = torch.from_numpy((number == 0).astype(np.int32)).to(device)
        self.decays = torch.from_numpy(decays[self.owner]).to(device)
        self.turns, self.sums = (torch.empty(self.chunks, device=device) for _ in range(2))
        self.skipping = torch.zeros((), device=device)
        self.copies = fast_path.copies(self.parameters)  # what kernels read in bfloat16, instead of the weights
        self.held = [copy for copy in self.copies if copy is not None]
        self.pieces: tuple[Any, ...] = ()  # tensors of the optimiser state
        self.addresses: list[Tensor] = []  # of weights and state, by chunk
        self.eager_table = self.table()  # for steps that are not captured

    def table(self) -> Tensor:
        """An empty table for the addresses of the gradients. Each captured step has its own."""
        return torch.empty(self.chunks, dtype=torch.int64, device=self.sums.device)

    def gradient_addresses(self) -> Any:
        """The current address of each chunk's gradient, 0 for a missing gradient."""
        addresses = [0 if p.grad is None else p.grad.data_ptr() for p in self.parameters]
        base = np.array(addresses, dtype=np.int64)[self.owner]
        return np.where(base == 0, 0, base + self.offsets)

    def write(self, table: Tensor, addresses: Any = None) -> None:
        """Fill a table with addresses of the gradients, by default the current ones; not while a graph is captured."""
        sources = self.gradient_addresses() if addresses is None else addresses
        table.copy_(self._to_device(sources), non_blocking=True)

    def refresh(self) -> None:
        """Renew copies of weights that somebody else has changed."""
        for copy in self.held:
            if copy.version != copy.weight._version:  # without a call: this runs before every step
                copy.refresh()

    def ready(self) -> None:
        """Create the optimiser state if it is missing, and note its addresses; not while a graph is captured."""
        state = self.optimizer.state
        for p in self.parameters:
            if not state[p]:
                state[p] = {"step": torch.zeros((), device=p.device), "exp_avg": torch.zeros_like(p),
                            "exp_avg_sq": torch.zeros_like(p)}
        pieces = tuple(
            tensor for name in ("exp_avg", "exp_avg_sq", "step") for tensor in (state[p][name] for p in self.parameters)
        )
        if len(pieces) == len(self.pieces) and all(a is b for a, b in zip(pieces, self.pieces, strict=True)):
            return
        self.pieces, count = pieces, len(self.parameters)
        narrow = [None if copy is None else copy.copy for copy in self.copies]
        slices = (pieces[count * i : count * (i + 1)] for i in range(3))
        sources: list[Any] = [self.parameters, narrow, *slices]
        moved = [self.offsets, self.offsets // 2, self.offsets, self.offsets, np.zeros_like(self.offsets)]
        self.addresses = []
        for source, offsets in zip(sources, moved, strict=True):
            base = np.array([0 if t is None else t.data_ptr() for t in source], dtype=np.int64)[self.owner]
            self.addresses.append(self._to_device(np.where(base == 0, 0, base + offsets)))

    def __call__(self, loss: Tensor, table: Tensor, rate: Tensor | None = None, found: Tensor | None = None) -> Tensor:
        """Update the weights. Returns loss, gradient norm, and 1 if the update was skipped, as float64 (3,).

        `rate`: the learning rate instead of the optimiser's; `found`: where to write the result.
        """
        weights, copies, means, squares, steps = self.addresses
        rate = self.optimizer.param_groups[0]["lr"] if rate is None else rate
        if found is None:
            found = torch.empty(3, dtype=torch.float64, device=self.sums.device)
        square_sums[(self.chunks,)](table, self.sizes, steps, self.turns, self.sums, BLOCK=BLOCK)
        adamw[(self.chunks,)](
            table, weights, copies, means, squares, steps, self.sizes, self.leads, self.decays, self.turns, self.sums,
            loss, rate, self.skipping, found, self.chunks, float(self.limit),
            BETA1=self.beta1, BETA2=self.beta2, LOG1=_log(self.beta1), LOG2=_log(self.beta2), EPS=self.eps, BLOCK=BLOCK,
            PARTS=triton.next_power_of_2(self.chunks),
        )
        return found

    def _to_device(self, numbers: Any) -> Tensor:
        host = torch.from_numpy(numbers)
        device = self.sums.device
        return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)

"""Additive attention over few keys as one kernel forward and one backward, host side.

The kernels of `additive.py` cut rows into tiles of 64 by 64 pairs and take seven launches and more, each of which is
longer than the work where a sequence has a dozen rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.implementations.triton.additive.short_kernels import short_additive_backward, short_additive_forward
from regard.implementations.triton.launch import block_sizes
from regard.implementations.triton.launch.kernel_work import KernelWork, laid_out, strides
from regard.implementations.triton.launch.launching import launch

enabled = True  # tests of the other kernels switch it off
TILE = 1 << 13  # most numbers of the keys, or values, of a head: what the registers of one program hold
WORK = 1 << 18  # most evaluations of tanh by one program of the backward pass, one query after the other
ALL_WORK = 1 << 24  # most of them in a call: beyond, the other kernels, with fewer instructions for each, catch up
_PROGRAMS = 1056  # of the forward pass: eight for each multiprocessor of an H200


def refusal(work: KernelWork) -> str:
    """Why these kernels should not run an additive attention; empty if they should."""
    if not enabled:
        return "short additive attention is switched off"
    if work.sink is not None:
        return "there is a sink"
    batch, heads, queries, _ = work.prepared.sizes
    sizes, group = _sizes(work), heads // work.key.shape[1]
    tile = sizes["BLOCK_K"] * max(sizes["BLOCK_D"], sizes["BLOCK_V"])
    if tile > TILE:
        return f"keys or values of a head take {tile} numbers; up to {TILE} fit"
    walked = group * queries * sizes["BLOCK_K"] * sizes["BLOCK_D"]
    if walked > WORK or walked * batch * work.key.shape[1] > ALL_WORK:
        return "there are too many pairs"
    return ""


def run_forward(work: KernelWork) -> tuple[Tensor, Tensor]:
    """The output (b,h,q,v) and the log-sum-exp (b,h,q) in float32."""
    batch, heads, queries, _ = work.prepared.sizes
    output = work.query.new_empty(batch, heads, queries, work.value.shape[3])
    logsumexp = torch.empty(batch, heads, queries, dtype=torch.float32, device=work.query.device)
    reach = -(-batch * heads * queries // _PROGRAMS)
    launch(
        short_additive_forward, (batch * heads * -(-queries // reach),),
        **_common(work), OUT=output, LSE=logsumexp, reach=reach,
    )
    return output, logsumexp


def run_backward(work: KernelWork, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of queries, keys, values (in their dtype) and of the weight (in float32)."""
    (batch, heads, _, width), grad = work.query.shape, laid_out(grad)
    gradients = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (work.query, work.key, work.value)]
    weight_parts = torch.empty(batch, heads, width, dtype=torch.float32, device=work.query.device)
    launch(
        short_additive_backward, (batch * work.key.shape[1],),
        **_common(work), GRAD=grad, GRAD_STRIDES=strides(grad), OF_Q=gradients[0], OF_K=gradients[1], OF_V=gradients[2],
        OF_WEIGHT=weight_parts,
    )
    of_weight = weight_parts.sum((0, 1) if work.score.tensors[0].dim() == 1 else 0)  # in a fixed order
    return gradients[0], gradients[1], gradients[2], of_weight


def _sizes(work: KernelWork) -> dict[str, int]:
    """Powers of two that hold the keys and the widths."""
    width, across = (block_sizes.padded(rows.shape[3]) for rows in (work.key, work.value))
    return {"BLOCK_K": max(8, 1 << (work.key.shape[2] - 1).bit_length()), "BLOCK_D": width, "BLOCK_V": across}


def _warps(tile: int) -> int:
    """Of a program: up to 32 numbers of a tile for each thread, and fewer where that leaves enough to do."""
    return max(1, min(4, tile // 256), min(8, tile // 512))


def _common(work: KernelWork) -> dict[str, Any]:
    """What both kernels take."""
    prepared, weight, numbers, sizes = work.prepared, work.score.tensors[0], work.numbers(), _sizes(work)
    weight = weight.contiguous()
    tile = sizes["BLOCK_K"] * max(sizes["BLOCK_D"], sizes["BLOCK_V"])
    names = ("heads", "group", "q_len", "k_len", "scale", "threshold", "keep")
    return {
        "Q": work.query, "K": work.key, "V": work.value, "WEIGHT": weight,
        "SEED": work.unused if work.seed is None else work.seed, "TABLES": prepared.tables,
        "TABLE_STRIDES": prepared.strides, "NUMBERS": prepared.numbers, "Q_STRIDES": strides(work.query),
        "K_STRIDES": strides(work.key), "V_STRIDES": strides(work.value),
        "weight_stride": weight.stride(0) if weight.dim() == 2 and weight.shape[0] > 1 else 0,
        **{name: numbers[name] for name in names}, "FORM": prepared.form, "BIAS": prepared.bias_form,
        "DROPS": work.seed is not None, "D": work.query.shape[3], "WIDTH": work.value.shape[3], **sizes,
        "GPU": not block_sizes.SMALL, "num_warps": _warps(tile),
    }

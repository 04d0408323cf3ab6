"""Block sizes, warps and pipeline stages of each kernel, from measurements on an H200 (docs/results.md)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from triton import knobs

INTERPRETED: bool = knobs.runtime.interpret  # the kernels run on the CPU, in Python
REGISTERS = 65536  # of a multiprocessor of an H200


class BlockSizes(NamedTuple):
    """The sizes of a kernel's blocks, and its numbers of warps and pipeline stages."""

    block_q: int
    block_k: int
    warps: int
    stages: int
    programs: int = 0  # to run at a time on a multiprocessor, which limits the registers of each thread; 0: no limit

    def options(self) -> dict[str, int]:
        """The arguments that say how a kernel cuts its work, and the compiler's options."""
        limit = {"maxnreg": min(255, REGISTERS // (self.programs * self.warps * 32) // 8 * 8)} if self.programs else {}
        return {
            "BLOCK_Q": self.block_q, "BLOCK_K": self.block_k, "num_warps": self.warps, "num_stages": self.stages,
            **limit,
        }  # fmt: skip


def padded(width: int) -> int:
    """The next power of two, at least 16: what a matrix unit takes."""
    return max(16, 1 << (width - 1).bit_length())


def precision(dtype: torch.dtype) -> str:
    """How a kernel multiplies: six products of bfloat16 parts are as exact as float32, and run on the matrix units."""
    return "bf16x6" if dtype == torch.float32 and not INTERPRETED else "tf32"


def forward_shape(dtype: torch.dtype, width: int) -> BlockSizes:
    """For the forward kernel; `width`: of keys or values, padded, whichever is larger."""
    if INTERPRETED:
        return BlockSizes(16, 16, 1, 1)
    if dtype == torch.float32:
        return (
            BlockSizes(64, 32, 4, 2)
            if width <= 64
            else BlockSizes(128, 32, 8, 1)
            if width <= 128
            else BlockSizes(32, 16, 4, 2)
        )
    if width <= 64:
        return BlockSizes(64, 64, 4, 2)
    return BlockSizes(64, 64, 4, 3) if width <= 128 else BlockSizes(64, 32, 4, 2)


def keys_shape(dtype: torch.dtype, width: int) -> BlockSizes:
    """For the gradients of keys and values."""
    if INTERPRETED:
        return BlockSizes(16, 16, 1, 1)
    if dtype == torch.float32:
        return (
            BlockSizes(32, 64, 4, 1)
            if width <= 64
            else BlockSizes(32, 32, 4, 1)
            if width <= 128
            else BlockSizes(16, 16, 4, 1)
        )
    return BlockSizes(64, 64, 4, 2) if width <= 128 else BlockSizes(64, 64, 8, 1)


def queries_shape(dtype: torch.dtype, width: int) -> BlockSizes:
    """For the gradients of queries."""
    if INTERPRETED:
        return BlockSizes(16, 16, 1, 1)
    if dtype == torch.float32:
        return (
            BlockSizes(64, 32, 4, 1)
            if width <= 64
            else BlockSizes(32, 16, 4, 1)
            if width <= 128
            else BlockSizes(16, 16, 4, 1)
        )
    if width <= 64:
        return BlockSizes(64, 64, 4, 3)
    return BlockSizes(64, 64, 4, 2) if width <= 128 else BlockSizes(64, 32, 4, 2)


def distances_shape(dtype: torch.dtype, width: int) -> BlockSizes:
    """For the gradient of a bias by distance; its blocks are square."""
    if INTERPRETED:
        return BlockSizes(16, 16, 1, 1)
    if dtype == torch.float32 or width > 128:
        return BlockSizes(32, 32, 4, 1)
    return BlockSizes(64, 64, 4, 2)

"""Block sizes, warps and pipeline stages of each kernel, from measurements on an H200 (docs/results.md)."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
from triton import knobs

# Two questions. How kernels are launched: in Triton's interpreter, which runs them on the CPU, in Python.
INTERPRETED: bool = knobs.runtime.interpret
# And which kernels: small blocks, float32 in place of bfloat16 and no instructions of a GPU, as suits the interpreter.
# With REGARD_REHEARSE=1 it runs what an H200 would; tests then make its bfloat16 right (tests/triton/rehearsing.py).
SMALL: bool = INTERPRETED and os.environ.get("REGARD_REHEARSE") != "1"
REGISTERS = 65536  # of a multiprocessor of an H200
MULTIPROCESSORS = 132  # of an H200


class BlockSizes(NamedTuple):
    """The sizes of a kernel's blocks, and its numbers of warps and pipeline stages."""

    block_q: int
    block_k: int
    warps: int
    stages: int
    programs: int = 0  # to run at a time on a multiprocessor, which limits the registers of each thread; 0: no limit

    def options(self, limited: bool = True) -> dict[str, int]:
        """The arguments that say how a kernel cuts its work, and the compiler's options.

        `limited=False`: registers are not, for kernels that hold the addresses of rows in them.
        """
        options = {
            "BLOCK_Q": self.block_q, "BLOCK_K": self.block_k, "num_warps": self.warps, "num_stages": self.stages
        }
        if self.programs and limited:
            options["maxnreg"] = min(255, REGISTERS // (self.programs * self.warps * 32) // 8 * 8)
        return options


def padded(width: int) -> int:
    """The next power of two, at least 16: what a matrix unit takes."""
    return max(16, 1 << (width - 1).bit_length())


def precision(dtype: torch.dtype) -> str:
    """How a kernel multiplies: six products of bfloat16 parts are as exact as float32, and run on the matrix units."""
    return "bf16x6" if dtype == torch.float32 and not SMALL else "tf32"


# Of bfloat16 and float16, for widths up to 64, 128 and 256, by kernel and walk (`PreparedMask.walk`, or a normaliser
# other than softmax); a walk that is not listed takes the line "any".
HALF: dict[tuple[str, str], tuple[BlockSizes, BlockSizes, BlockSizes]] = {
    ("forward", "any"): (BlockSizes(64, 64, 4, 2, 4), BlockSizes(64, 64, 4, 3), BlockSizes(64, 32, 4, 2)),
    ("forward", "listed"): (BlockSizes(64, 64, 4, 3, 4), BlockSizes(64, 64, 4, 5), BlockSizes(64, 32, 4, 2)),
    ("forward", "hides"): (BlockSizes(64, 64, 4, 2, 3), BlockSizes(64, 64, 4, 3), BlockSizes(64, 32, 4, 2)),
    ("forward", "hides, listed"): (BlockSizes(64, 64, 4, 3, 3), BlockSizes(64, 64, 4, 5), BlockSizes(64, 32, 4, 2)),
    ("keys", "any"): (BlockSizes(64, 64, 4, 2), BlockSizes(64, 64, 4, 2), BlockSizes(64, 64, 8, 1)),
    ("keys", "short"): (BlockSizes(64, 64, 4, 2, 3), BlockSizes(64, 64, 4, 2), BlockSizes(64, 64, 8, 1)),
    ("keys", "biased"): (BlockSizes(64, 64, 4, 2, 3), BlockSizes(64, 64, 4, 2), BlockSizes(64, 64, 8, 1)),
    ("keys", "sigmoid"): (BlockSizes(64, 64, 4, 2, 3), BlockSizes(64, 64, 4, 2), BlockSizes(64, 64, 8, 1)),
    ("queries", "any"): (BlockSizes(64, 64, 4, 3, 3), BlockSizes(64, 64, 4, 2), BlockSizes(64, 32, 4, 2)),
    ("queries", "short"): (BlockSizes(64, 64, 4, 2, 3), BlockSizes(64, 64, 4, 2), BlockSizes(64, 32, 4, 2)),
    ("queries", "listed"): (BlockSizes(64, 64, 4, 3, 3), BlockSizes(64, 32, 4, 2, 3), BlockSizes(64, 32, 4, 2)),
    # Of `normalized_rows`, which holds no output: more programs fit beside each other.
    ("rows", "any"): (BlockSizes(64, 64, 4, 3, 4), BlockSizes(64, 64, 4, 2, 4), BlockSizes(64, 32, 4, 2, 3)),
}
_SINGLE: dict[str, tuple[BlockSizes, BlockSizes, BlockSizes]] = {  # of float32
    "forward": (BlockSizes(64, 32, 4, 2), BlockSizes(128, 32, 8, 1), BlockSizes(32, 16, 4, 2)),
    "rows": (BlockSizes(64, 32, 4, 2), BlockSizes(64, 32, 4, 1), BlockSizes(32, 16, 4, 2)),
    "keys": (BlockSizes(32, 64, 4, 1), BlockSizes(32, 32, 4, 1), BlockSizes(16, 16, 4, 1)),
    "queries": (BlockSizes(64, 32, 4, 1), BlockSizes(32, 16, 4, 1), BlockSizes(16, 16, 4, 1)),
}


def _sizes(kernel: str, dtype: torch.dtype, width: int, walk: str) -> BlockSizes:
    if SMALL:
        return BlockSizes(16, 16, 1, 1)
    column = 0 if width <= 64 else 1 if width <= 128 else 2
    if dtype == torch.float32:
        return _SINGLE[kernel][column]
    return HALF.get((kernel, walk), HALF[kernel, "any"])[column]


def forward_shape(dtype: torch.dtype, width: int, walk: str = "any") -> BlockSizes:
    """For the forward kernel; `width`: of keys or values, padded, whichever is larger."""
    return _sizes("forward", dtype, width, walk)


def rows_shape(dtype: torch.dtype, width: int) -> BlockSizes:
    """For the numbers of rows that other normalisers than softmax need first."""
    return _sizes("rows", dtype, width, "any")


def keys_shape(dtype: torch.dtype, width: int, walk: str = "any") -> BlockSizes:
    """For the gradients of keys and values."""
    return _sizes("keys", dtype, width, walk)


def queries_shape(dtype: torch.dtype, width: int, walk: str = "any") -> BlockSizes:
    """For the gradients of queries."""
    return _sizes("queries", dtype, width, walk)


def distances_shape(dtype: torch.dtype, width: int) -> BlockSizes:
    """For the gradient of a bias by distance; its blocks are square."""
    if SMALL:
        return BlockSizes(16, 16, 1, 1)
    if dtype == torch.float32 or width > 128:
        return BlockSizes(32, 32, 4, 1)
    return BlockSizes(64, 64, 4, 2)

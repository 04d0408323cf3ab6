"""Settings of the kernels: the one in place, and contexts in which another one holds."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from benchmarks.variants.cases import DEVICE, WORKS, Case, Sizes

from regard.dispatch import attention, repeated_calls
from regard.implementations.triton.launch import block_sizes, blocks
from regard.implementations.triton.launch.block_sizes import BlockSizes
from regard_workbench.bench.gpu.work import Size, Work


def forget() -> None:
    """Drop every plan and launch, which hold block sizes."""
    attention._PLANS.clear()
    repeated_calls.KNOWN.clear()
    blocks._BY_SPEC.clear()
    blocks._OF_MASKS.clear()


class Changed:
    """A context, to be entered again and again, in which an attribute or an entry of a dict has another value."""

    def __init__(self, owner: Any, name: Any, value: Any) -> None:
        self.owner, self.name, self.value = owner, name, value

    def __enter__(self) -> None:
        forget()
        names = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        self.before = names.get(self.name)
        names[self.name] = self.value

    def __exit__(self, *raised: Any) -> None:
        forget()
        names = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        if self.before is None:
            del names[self.name]
        else:
            names[self.name] = self.before


Context = contextlib.AbstractContextManager[None] | Changed


def walk_of(work: Work, size: Size) -> str:
    """How `block_sizes` names the walks of a mask."""
    options = work.options(size, DEVICE)
    sizes = (size.batch, size.heads, size.length, size.length)
    prepared = blocks.prepare(options.get("mask"), options.get("bias"), sizes, torch.device(DEVICE, 0))
    return prepared.walk


def in_place(kernel: str, walk: str, column: int) -> BlockSizes:
    """The setting that the tree has."""
    return block_sizes.HALF.get((kernel, walk), block_sizes.HALF[kernel, "any"])[column]


def setting(kernel: str, walk: str, column: int, sizes: Sizes) -> Changed:
    """Let a kernel have these sizes for one kind of walk and one width."""
    row = list(block_sizes.HALF.get((kernel, walk), block_sizes.HALF[kernel, "any"]))
    row[column] = BlockSizes(*sizes)
    return Changed(block_sizes.HALF, (kernel, walk), tuple(row))


def tried(case: Case) -> list[tuple[str, Context, str]]:
    """Name, context and entry of the setting in place and of every variant."""
    work, column = WORKS[case.work], 0 if case.size.width <= 64 else 1
    walk = walk_of(work, case.size)
    found: list[tuple[str, Context, str]] = [("in place", contextlib.nullcontext(), "")]
    for kernel, sizes in case.variants:
        if BlockSizes(*sizes) == in_place(kernel, walk, column):
            continue
        words = ", ".join(map(str, sizes))
        entry = f'HALF["{kernel}", "{walk}"][{column}] = BlockSizes({words})'
        found.append((f"{kernel} {'/'.join(map(str, sizes))}", setting(kernel, walk, column, sizes), entry))
    return found

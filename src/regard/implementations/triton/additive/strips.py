"""Attention with additive scores, host side: strips of rows, how programs split the work, prepared rows.

A score costs hundreds of operations, so the work has two halves: `score_tiles` writes the scores of a strip of complete
rows, at most `PAIRS` at a time, so that memory stays linear; then `additive` computes the output from them, or
`additive_backward` the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.implementations.triton.additive.pairs import prepare_rows, score_tiles
from regard.implementations.triton.launch import block_sizes
from regard.implementations.triton.launch.kernel_work import KernelWork, laid_out, strides
from regard.implementations.triton.launch.launching import Launch, launch

PAIRS = 6 << 20  # scores held at a time: 24 MiB, which stay in the cache of an H200
BLOCK = 16 if block_sizes.SMALL else 64  # rows and columns of a tile
LONGEST = 8  # most blocks that one program sums, for precision
_MULTIPROCESSORS = 2 if block_sizes.SMALL else block_sizes.MULTIPROCESSORS


class StripCut(NamedTuple):
    """Warps, occupancy and tile width of a kernel, from measurements on an H200 (docs/results.md)."""

    warps: int  # of a program
    programs: int  # at a time on one multiprocessor
    dims: int = 0  # of a tile, where a program does not take them all

    def options(self) -> dict[str, int]:
        """Compiler options, including the registers that each thread has when this many programs run at once."""
        registers = 65536 // (self.programs * self.warps * 32) // 8 * 8
        return {"num_warps": self.warps, "num_stages": 1} | ({} if block_sizes.INTERPRETED else {"maxnreg": registers})

    @lru_cache(maxsize=256)  # noqa: B019  (of constants)
    def splits(self, programs: int, blocks: int) -> tuple[int, int]:
        """Into how many programs to split each of `programs` loops over `blocks` blocks, and the blocks of each."""
        at_once = self.programs * _MULTIPROCESSORS

        def time(reach: int) -> float:
            many = -(-blocks // reach)
            return -(-programs * many // at_once) * reach + many * programs / (
                4 * at_once
            )  # rounds of blocks, and sums

        reach = min(range(1, min(blocks, LONGEST) + 1), key=time)
        return -(-blocks // reach), reach


OF_SCORES, OF_QUERIES, OF_KEYS, OF_VALUES = (StripCut(8, 3), StripCut(4, 4, 32), StripCut(4, 3, 64), StripCut(4, 2, 64))


class AdditiveStrip(NamedTuple):
    """Some heads (counted over the batch), and which blocks of their rows."""

    first_head: int
    heads: int
    first_block: int
    blocks: int


@lru_cache(maxsize=256)
def all_strips(batch: int, heads: int, group: int, blocks: int, pitch: int, pairs: int) -> list[AdditiveStrip]:
    """`strips`, once for each size; `pairs` is PAIRS."""
    return list(strips(batch, heads, group, blocks, pitch))


def strips(batch: int, heads: int, group: int, blocks: int, pitch: int) -> Iterator[AdditiveStrip]:
    """Cut batch × heads heads of `blocks` blocks of rows with `pitch` scores each.

    A strip is some batch entries, or some heads of one entry (those that share keys stay together), or some rows of
    one head.
    """
    most = PAIRS // (blocks * BLOCK * pitch)
    if most < 1:
        rows = _even(blocks, max(1, PAIRS // (BLOCK * pitch)))
        for head in range(batch * heads):
            for block in range(0, blocks, rows):
                yield AdditiveStrip(head, 1, block, min(rows, blocks - block))
        return
    if most >= heads:
        some = _even(batch, most // heads) * heads
    else:
        some = max((count for count in range(group, most + 1, group) if heads % count == 0), default=1)
    for head in range(0, batch * heads, some):
        yield AdditiveStrip(head, min(some, batch * heads - head), 0, blocks)


def _even(count: int, most: int) -> int:
    """The size of the parts when `count` is cut into as few parts of about equal size as `most` allows."""
    return -(-count // -(-count // most))


@dataclass
class AdditiveRows:
    """Queries and keys, prepared once for all pairs."""

    work: KernelWork
    backward: bool
    kept: Tensor | None = None  # the scores, where the forward pass kept them
    others: tuple[Tensor, ...] = ()  # tensors on which launches depend besides those of the work

    def __post_init__(self) -> None:
        work = self.work
        self.query, self.key, self.value = laid_out(work.query), laid_out(work.key), plain(work.value)
        weight = work.score.tensors[0]
        self.weight = (weight if weight.dim() == 2 else weight[None]).contiguous()
        self.batch, self.heads, queries, width = self.query.shape
        self.group = self.heads // self.key.shape[1]
        self.q_blocks, self.k_blocks = -(-queries // BLOCK), -(-self.key.shape[2] // BLOCK)
        self.pitch = self.k_blocks * BLOCK
        block = min(max(OF_QUERIES.dims, OF_KEYS.dims), block_sizes.padded(width))
        self.wide = -(-width // block) * block
        shared = self.batch * self.key.shape[1]
        self.transposed_q, self.powers_q, _, self.largest_q = self._buffers(
            self.batch * self.heads, self.q_blocks, False
        )
        self.transposed_k, self.powers_k, self.expm1_k, self.largest_k = self._buffers(shared, self.k_blocks, True)
        self.strips = all_strips(self.batch, self.heads, self.group, self.q_blocks, self.pitch, PAIRS)
        largest = max(strip.heads * strip.blocks for strip in self.strips)
        # The scores of a strip, and later their gradients.
        self.scratch = self.transposed_q.new_empty(largest * BLOCK * self.pitch)
        self.scores = self.scratch if self.kept is None else self.kept
        self.launches = work.launches(self.weight, *self.others)
        self.kind = (
            self.backward, self.kept is None, self.weight.dtype, self.weight_stride,
            *[(tensor.dtype, tensor.stride()) for tensor in self.others],
        )
        self._prepare(shared)

    def _prepare(self, shared: int) -> None:
        """Write what pairs need of each row."""
        columns = self.wide // min(self.wide, 32)
        of_queries = self.batch * self.heads * self.q_blocks * columns
        tensors = {
            "Q": self.query, "K": self.key, "WEIGHT": self.weight, "TRANSPOSED_Q": self.transposed_q,
            "TRANSPOSED_K": self.transposed_k, "POWERS_Q": self.powers_q, "POWERS_K": self.powers_k,
            "EXPM1": self.expm1_k, "LARGEST_Q": self.largest_q, "LARGEST_K": self.largest_k,
        }
        self.run(
            prepare_rows, of_queries + shared * self.k_blocks * columns, None, tensors,
            lambda: {
                "Q_STRIDES": strides(self.query), "K_STRIDES": strides(self.key), "weight_stride": self.weight_stride,
                "of_queries": of_queries, "heads": self.heads, "shared": self.key.shape[1],
                "q_len": self.query.shape[2], "k_len": self.key.shape[2], "scale": self.work.scale,
                "BACKWARD": self.backward, "D": self.query.shape[3], "WIDE": self.wide, "BLOCK": BLOCK,
                "BLOCK_D": min(self.wide, 32), "num_warps": 4,
            },
        )

    def run(
        self, kernel: Any, programs: int, strip: AdditiveStrip | None, tensors: dict[str, Any],
        rest: Callable[[], dict[str, Any]],
    ) -> None:
        """Launch a kernel for a strip with `tensors`, which change from call to call, and the `rest`, which does not.

        A launch is kept from the second call on: of a mask that serves once, it would be made in vain.
        """
        key, launches = (kernel.__name__, strip, self.kind), self.launches
        kernel_launch = None if launches is None else launches.get(key)
        if isinstance(kernel_launch, Launch):
            kernel_launch(*tensors.values())
            return
        arguments = {**rest(), **tensors}
        if kernel_launch is None or launches is None:
            launch(kernel, (programs,), **arguments)
            if launches is not None:
                launches[key] = False
            return
        launches[key] = Launch(kernel, (programs, 1, 1), arguments, list(tensors))
        launches[key](*tensors.values())

    def keepable(self) -> Tensor | None:
        """The scores, if a backward pass should find them: all of them are there, and smaller than the inputs."""
        inputs = sum(rows.numel() * rows.element_size() for rows in (self.query, self.key, self.value))
        return self.scratch if len(self.strips) == 1 and 4 * self.scratch.numel() <= inputs else None

    def _buffers(self, heads: int, blocks: int, keys: bool) -> tuple[Tensor, ...]:
        transposed = self.query.new_empty(heads, self.wide, 2, blocks * BLOCK, dtype=torch.float32)
        natural = (heads, blocks * BLOCK, self.wide)
        powers = transposed.new_empty(natural) if self.backward else transposed
        expm1 = transposed.new_empty(natural) if self.backward and keys else transposed
        return transposed, powers, expm1, transposed.new_empty(heads, blocks)

    @property
    def weight_stride(self) -> int:
        """From the weight of one head to that of the next."""
        return self.weight.stride(0) if self.weight.shape[0] > 1 else 0

    @property
    def pairs(self) -> dict[str, Any]:
        """The tensors of the kernels that compute with pairs, and `pairwise` their other arguments."""
        return {
            "STRIP": self.scratch, "Q": self.query, "K": self.key, "WEIGHT": self.weight, "LARGEST_Q": self.largest_q,
            "LARGEST_K": self.largest_k, **self.changing_tables,
        }

    @cached_property
    def pairwise(self) -> dict[str, Any]:
        return {
            "Q_STRIDES": strides(self.query), "K_STRIDES": strides(self.key), "weight_stride": self.weight_stride,
            "scale": self.work.scale, "FORM": self.work.prepared.form, "D": self.query.shape[3], "WIDE": self.wide,
            "GPU": not block_sizes.SMALL, **self.counts,
        }

    @cached_property
    def changing_tables(self) -> dict[str, Any]:
        """The tables of masks and biases, where they are made in every call."""
        return {} if self.work.prepared.fixed else {"TABLES": self.work.prepared.tables}

    @cached_property
    def counts(self) -> dict[str, int]:
        """Lengths, and the sizes of tiles."""
        queries, keys = self.query.shape[2], self.key.shape[2]
        return {
            "heads": self.heads, "group": self.group, "q_len": queries, "k_len": keys, "BLOCK_Q": BLOCK,
            "BLOCK_K": BLOCK,
        }

    @property
    def weights(self) -> dict[str, Any]:
        """The tensors of the kernels that turn scores into weights, and `weighing` their other arguments."""
        return {"STRIP": self.scores, **self.work.optional()}

    @cached_property
    def weighing(self) -> dict[str, Any]:
        form, numbers = self.work.form(), self.work.numbers()
        names = ("FORM", "BIAS", "DROPS", "PRECISION", "WIDTH")
        return {
            "SEED": self.tables["SEED"], "NUMBERS": self.tables["NUMBERS"], **self.counts,
            "threshold": numbers["threshold"], "keep": numbers["keep"], **{name: form[name] for name in names},
        }

    @cached_property
    def hiding(self) -> dict[str, Any]:
        """The arguments that say which keys no query sees."""
        visible_keys = {name: self.tables[name] for name in ("SEEN", "SEEN_STRIDES")}
        return visible_keys | {"HIDES": self.work.form()["HIDES"]}

    @cached_property
    def tables(self) -> dict[str, Any]:
        return self.work.tables(self.work.prepared.lists(BLOCK, BLOCK))

    @cached_property
    def by_query(self) -> dict[str, Any]:
        """Which tiles a block of queries visits."""
        return {name: self.tables[name] for name in ("LIST", "COUNTS", "TABLES", "TABLE_STRIDES", "LIST_STRIDES")}

    @cached_property
    def by_key(self) -> dict[str, Any]:
        """Which tiles a block of keys visits."""
        lists = self.work.prepared.lists(BLOCK, BLOCK, by_key=True)
        tables = self.work.tables(lists)
        edges = lists.edges if lists.edges.numel() else self.work.unused
        return {name: tables[name] for name in self.by_query} | {"EDGES": edges, "edges": self.q_blocks}

    def score(self, strip: AdditiveStrip) -> None:
        """Write the visible scores of a strip, unless they were kept."""
        if self.kept is not None:
            return
        self.run(
            score_tiles, strip.heads * strip.blocks * self.k_blocks, strip,
            {"TRANSPOSED_Q": self.transposed_q, "TRANSPOSED_K": self.transposed_k, **self.pairs},
            lambda: {**self.pairwise, **self.by_query, **bounds(strip), **OF_SCORES.options()},
        )


def bounds(strip: AdditiveStrip) -> dict[str, int]:
    """The arguments that say which rows a strip covers."""
    return {"first_head": strip.first_head, "first_block": strip.first_block, "row_blocks": strip.blocks}


def plain(rows: Tensor) -> Tensor:
    """AdditiveRows for matrix products. The interpreter cannot multiply bfloat16."""
    return laid_out(rows.float() if block_sizes.SMALL else rows)

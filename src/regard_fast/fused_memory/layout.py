"""The sizes of a call, and where its backward pass keeps the factors and sums of the weights' gradients."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from regard_fast.fused_rows.layout import Job, sizes

# Columns of a row of factors, each as wide as a slot. A row is a slot at a turn, as (turns,b,directions,slots). Nothing
# is written after the last turn, so its rows have only the first three columns.
SLOT, D_KEY, D_VALUE, MIXED, D_CANDIDATE, D_QUERY, QUERY, CANDIDATE, D_R, D_Z, D_N, D_H = range(12)
# Kinds of jobs of `memory_gradients`, long ones first: products of factors of all slots and of rows, added; of all
# slots; of slots that were written; of rows. Then totals of factors of all slots and of sums of rows, added; of factors
# of all slots; of written ones; of the sums of programs that wrote; of sums of rows.
BOTH, ALL_SLOTS, WRITTEN_SLOTS, ROWS, BOTH_TOTALS, ALL_TOTALS, WRITTEN_TOTALS, PROGRAM_TOTALS, ROW_TOTALS = range(9)


@dataclass(frozen=True)
class MemorySizes:
    """MemorySizes of a memory; `gated`: it is updated by a gated recurrent unit, else by residual and normalisation."""

    directions: int
    slots: int
    dim: int
    gated: bool

    @property
    def pitch(self) -> int:
        """Width of a row of factors."""
        return self.dim * (12 if self.gated else 7)

    @property
    def vectors(self) -> int:
        """Number of sums of a program: the gradients of gain and shift, if there are, and of the slots."""
        return self.dim * ((0 if self.gated else 2) + self.directions * self.slots)

    def shapes(self) -> list[tuple[int, ...]]:
        """The slots of each direction, the writer's query and output maps, the reader's key and value maps, the update.

        Each map is a weight and a bias. The update is two weights and two biases of a GRU, or gain and shift.
        """
        dim = self.dim
        maps: list[tuple[int, ...]] = [(dim, dim), (dim,)]
        last: list[tuple[int, ...]] = [(3 * dim, dim), (3 * dim, dim), (3 * dim,), (3 * dim,)]
        update = last if self.gated else [(dim,), (dim,)]
        return [*[(self.slots, dim)] * self.directions, *maps * 4, *update]

    def jobs(self, column: int, place: int, total: int, tall: int, width: int) -> list[Job]:
        """What `memory_gradients` computes for factors, sums and gradients that begin at these columns and this offset.

        `tall` and `width` are those of a tile; see `fused_rows/layout.py`.
        """
        dim = self.dim
        offsets = list(accumulate(sizes(self.shapes()), initial=total))
        jobs: list[Job] = []

        def matrix(into: int, left: int, right: int) -> None:
            kind = ALL_SLOTS if left in (D_KEY, D_VALUE) else WRITTEN_SLOTS
            left_column, right_column = column + left * dim, column + right * dim
            for i in range(0, dim, tall):
                for j in range(0, dim, width):
                    jobs.append((kind, left_column + i, right_column + j, into + i * dim + j, dim))

        def bias(into: int, left: int) -> None:
            kind = ALL_TOTALS if left in (D_KEY, D_VALUE) else WRITTEN_TOTALS
            for j in range(0, dim, width):
                jobs.append((kind, column + left * dim + j, 0, into + j, 0))

        def vector(into: int, start: int, count: int = 1) -> None:
            for j in range(0, count * dim, width):
                jobs.append((PROGRAM_TOTALS, place + start * dim + j, 0, into + j, 0))

        for side in range(self.directions):
            vector(offsets[side], (0 if self.gated else 2) + side * self.slots, self.slots)
        ask, ask_bias, out, out_bias, key, key_bias, value, value_bias, *update = offsets[self.directions :]
        maps = ((ask, D_QUERY, SLOT), (out, D_CANDIDATE, MIXED), (key, D_KEY, SLOT), (value, D_VALUE, SLOT))
        for into, left, right in maps:
            matrix(into, left, right)
        for into, left in ((ask_bias, D_QUERY), (out_bias, D_CANDIDATE), (key_bias, D_KEY), (value_bias, D_VALUE)):
            bias(into, left)
        if not self.gated:
            vector(update[0], 0)
            vector(update[1], 1)
            return jobs
        for gate, (mine, theirs) in enumerate(((D_R, D_R), (D_Z, D_Z), (D_N, D_H))):
            matrix(update[0] + gate * dim * dim, mine, CANDIDATE)
            matrix(update[1] + gate * dim * dim, theirs, SLOT)
            bias(update[2] + gate * dim, mine)
            bias(update[3] + gate * dim, theirs)
        return jobs


@dataclass(frozen=True)
class StaticSizes:
    """Sizes of a static memory.

    A row of factors is a slot of a batch entry, with these columns, each as wide as a slot: the learned slot, the
    memory, the gradients of its keys and of its values, the mixed values, the gradients of what is written and of the
    queries of the slots. Sums of a program, which has one batch entry: the gradients of gain and shift, of the biases
    of queries, output, keys and values, and of the slots.
    """

    slots: int
    dim: int

    @property
    def pitch(self) -> int:
        """Width of a row of factors."""
        return 7 * self.dim

    @property
    def vectors(self) -> int:
        """Number of sums of a program."""
        return (6 + self.slots) * self.dim

    def shapes(self) -> list[tuple[int, ...]]:
        """The slots, the writer's query and output maps, the reader's key and value maps, gain and shift."""
        maps: list[tuple[int, ...]] = [(self.dim, self.dim), (self.dim,)]
        return [(self.slots, self.dim), *maps * 4, (self.dim,), (self.dim,)]

    def jobs(self, column: int, place: int, total: int, tall: int, width: int) -> list[Job]:
        """As `MemorySizes.jobs`."""
        dim = self.dim
        offsets = list(accumulate(sizes(self.shapes()), initial=total))
        jobs: list[Job] = []
        for into, left, right in ((1, 6, 0), (3, 5, 4), (5, 2, 1), (7, 3, 1)):
            for i in range(0, dim, tall):
                for j in range(0, dim, width):
                    left_column, right_column = column + left * dim + i, column + right * dim + j
                    jobs.append((ALL_SLOTS, left_column, right_column, offsets[into] + i * dim + j, dim))
        for into, start, count in (
            (9, 0, 1), (10, 1, 1), (2, 2, 1), (4, 3, 1), (6, 4, 1), (8, 5, 1), (0, 6, self.slots)
        ):
            for j in range(0, count * dim, width):
                jobs.append((PROGRAM_TOTALS, place + start * dim + j, 0, offsets[into] + j, 0))
        return jobs

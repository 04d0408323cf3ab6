"""What a call of the kernels does, and where its backward pass keeps the factors and sums of the weights' gradients."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.implementations.lowering import may_cache

Job = tuple[int, int, int, int, int]


class RowPiece(Protocol):
    """What `weight_gradients` must know of a call: `Stages`, or the head at the end of a model."""

    @property
    def dim(self) -> int: ...
    @property
    def pitch(self) -> int: ...
    @property
    def vectors(self) -> int: ...
    def shapes(self) -> list[tuple[int, ...]]: ...
    def jobs(self, column: int, place: int, total: int, tall: int, width: int) -> Sequence[Job]: ...


@dataclass(frozen=True)
class Stages:
    """The stages of a call and their sizes. `maps`: how many linear maps follow the last normalisation."""

    out: bool
    feed: bool
    maps: int
    dim: int
    hidden: int = 0

    @property
    def pitch(self) -> int:
        """Width of a row of factors."""
        maps = (1 + self.maps) * self.dim if self.maps else 0
        feed = 2 * (self.dim + self.hidden) if self.feed else 0
        return maps + feed + (2 * self.dim if self.out else 0)

    @property
    def vectors(self) -> int:
        """Number of trained numbers that are not in a matrix."""
        maps = (2 + self.maps) * self.dim if self.maps else 0
        feed = 3 * self.dim + self.hidden if self.feed else 0
        return maps + feed + (self.dim if self.out else 0)

    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all weights in the order in which the kernels take them."""
        dim, hidden = self.dim, self.hidden
        weight_shapes: list[tuple[int, ...]] = []
        if self.out:
            weight_shapes += [(dim, dim), (dim,)]
        if self.feed:
            weight_shapes += [(dim,), (dim,), (hidden, dim), (hidden,), (dim, hidden), (dim,)]
        if self.maps:
            weight_shapes += [(dim,), (dim,), *[(dim, dim)] * self.maps, *[(dim,)] * self.maps]
        return weight_shapes

    def jobs(self, column: int, place: int, total: int, tall: int, width: int) -> list[Job]:
        """What `weight_gradients` computes, where factors, sums and gradients begin at these places."""
        return _jobs(self, column, place, total, tall, width)

    def split(self, weights: list[Tensor]) -> tuple[tuple[Tensor, ...], ...]:
        """The weights of the stages out and feed, of the last normalisation, and of the maps; empty where missing."""
        ends = [2 * self.out, 6 * self.feed, 2 * bool(self.maps), 2 * self.maps]
        groups, start = [], 0
        for size in ends:
            groups.append(tuple(weights[start : start + size]))
            start += size
        return tuple(groups)


def sizes(shapes: list[tuple[int, ...]]) -> list[int]:
    """The number of entries of each tensor."""
    return [shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes]


# Tables are never dropped: a captured graph knows the address of its table, and other numbers there would send the
# kernel's writes anywhere.
_TABLES: dict[Any, Tensor] = {}


def table_of(key: Hashable, make: Callable[[], Sequence[tuple[int, ...]]], device: torch.device) -> Tensor:
    """The jobs as a table on the device, one in each line, always the same one for the same key."""
    table = _TABLES.get((key, device))
    if table is None:
        table = torch.tensor(make(), dtype=torch.int32, device=device)
        if may_cache():
            _TABLES[key, device] = table
    return table


def jobs(
    groups: tuple[tuple[RowPiece, ...], ...], tall: int, width: int, device: torch.device
) -> tuple[Tensor, int, int]:
    """What `weight_gradients` computes for several calls, (jobs,5), and the height and width of a tile, if it fits.

    Factors and sums of the calls of a group lie side by side; the gradients of the weights of all groups do.
    """
    dim = groups[0][0].dim
    tall, width = min(tall, dim), min(width, dim)
    return table_of((groups, tall, width), lambda: _listed(groups, tall, width), device), tall, width


def _listed(groups: tuple[tuple[RowPiece, ...], ...], tall: int, width: int) -> list[Job]:
    group_jobs: list[Job] = []
    total = 0
    for number, group in enumerate(groups):
        column = place = 0
        for piece in group:
            piece_jobs = piece.jobs(column, place, total, tall, width)
            group_jobs += [(job[0] + 2 * number, *job[1:]) for job in piece_jobs]
            column, place = column + piece.pitch, place + piece.vectors
            total += sum(sizes(piece.shapes()))
    return sorted(group_jobs, key=lambda job: job[0] % 2)  # long jobs first


def _jobs(stages: Stages, column: int, place: int, total: int, tall: int, width: int) -> list[Job]:
    """The jobs of one call, whose factors, sums and gradients begin at these columns and this offset."""
    dim, hidden = stages.dim, stages.hidden
    offsets = []
    for size in sizes(stages.shapes()):
        offsets.append(total)
        total += size
    call_jobs: list[Job] = []

    def matrix(number: int, left: int, right: int) -> None:
        rows, columns = stages.shapes()[number]
        for i in range(0, rows, tall):
            for j in range(0, columns, width):
                call_jobs.append((0, left + i, right + j, offsets[number] + i * columns + j, columns))

    def vector(number: int, start: int) -> None:
        for j in range(0, stages.shapes()[number][0], width):
            call_jobs.append((1, start + j, 0, offsets[number] + j, 0))

    first = 2 * stages.out + 6 * stages.feed  # the last normalisation
    if stages.maps:
        vector(first, place)
        vector(first + 1, place + dim)
        for i in range(stages.maps):
            matrix(first + 2 + i, column + (1 + i) * dim, column)
            vector(first + 2 + stages.maps + i, place + (2 + i) * dim)
        column, place = column + (1 + stages.maps) * dim, place + (2 + stages.maps) * dim
    if stages.feed:
        start = 2 * stages.out
        vector(start, place)
        vector(start + 1, place + dim)
        matrix(start + 2, column + 2 * dim + hidden, column)
        vector(start + 3, place + 2 * dim)
        matrix(start + 4, column + dim, column + 2 * dim)
        vector(start + 5, place + 2 * dim + hidden)
        column, place = column + 2 * (dim + hidden), place + 3 * dim + hidden
    if stages.out:
        matrix(0, column + dim, column)
        vector(1, place)
    return call_jobs

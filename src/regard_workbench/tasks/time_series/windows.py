"""Windows of a series: what a forecast looks back at, what follows, and where values are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard_workbench.tasks.generated.draws import Generated
from regard_workbench.tasks.time_series.file import Numbers, SeriesTable, written_time

TOGETHER = 256  # windows that `all_windows` gives at once


class Span(NamedTuple):
    """A window of a series in standard units, and what follows it."""

    past: Tensor  # (context,columns); missing values are filled with the last known ones
    future: Tensor | None  # (horizon,columns); None where it is not known yet
    known: Tensor | None  # (horizon,columns): False where a value is missing
    begin: int  # the row of the table at which it begins
    table: SeriesTable


class Standard(NamedTuple):
    """A series in standard units, (rows,columns) each."""

    filled: Tensor  # with missing values filled
    values: Tensor  # with zeros there
    known: Tensor  # False there


class Windows(Generated[Span]):
    """All windows whose forecasts lie in one part of a series."""

    even = True  # all are of one length

    def __init__(self, table: SeriesTable, standard: Standard, first: int, count: int, sizes: tuple[int, int]) -> None:
        super().__init__(count, partial(_span, table, standard, first, sizes))
        self.standard, self.first, self.sizes = standard, first, sizes

    def rows(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Windows, what follows them, and where that is known, for several at once."""
        context, horizon = self.sizes
        begin = torch.tensor(chosen, dtype=torch.long)[:, None] + self.first
        past, future = begin + torch.arange(context), begin + context + torch.arange(horizon)
        return self.standard.filled[past], self.standard.values[future], self.standard.known[future]


def _span(table: SeriesTable, standard: Standard, first: int, sizes: tuple[int, int], index: int) -> Span:
    begin, middle, end = first + index, first + index + sizes[0], first + index + sum(sizes)
    return Span(standard.filled[begin:middle], standard.values[middle:end], standard.known[middle:end], begin, table)


def standardised(values: Numbers, center: Numbers, spread: Numbers) -> Standard:
    """Values less `center`, divided by `spread`.

    A missing value is filled with the last known one of its column, with the mean where there is none before it:
    nothing later is used.
    """
    scaled = (values - center) / spread
    present = ~np.isnan(scaled)
    last = np.maximum.accumulate(np.where(present, np.arange(len(scaled))[:, None], -1), 0)
    filled = np.where(last >= 0, np.take_along_axis(np.nan_to_num(scaled), np.maximum(last, 0), 0), 0.0)
    zeros = np.where(present, scaled, 0.0)
    return Standard(torch.from_numpy(filled).float(), torch.from_numpy(zeros).float(), torch.from_numpy(present))


def named_times(example: Span, begin: int, end: int) -> list[str]:
    """The times of some steps of a window and after it; those after the last row follow in equal steps."""
    table, first = example.table, example.begin
    after = max(0, first + end - len(table.times))
    more = table.times[-1] + table.step * np.arange(1, after + 1)
    times = np.concatenate([table.times, more])[first + begin : first + end]
    return [written_time(float(time), table.dated) for time in times]


def all_windows(windows: Windows, most: int | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All windows, or the first `most`, some at a time."""
    count = len(windows) if most is None else min(most, len(windows))
    for begin in range(0, count, TOGETHER):
        yield windows.rows(range(begin, min(begin + TOGETHER, count)))

"""Forecasting: the next values of a time series, from any CSV or from generated readings of machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from regard.errors import BadValue, unknown_name
from regard.support.arguments import finite_number, whole_number
from regard_workbench.csv_text import csv_text
from regard_workbench.tasks.answers import Forecast, ForecastSteps, PooledForecast
from regard_workbench.tasks.formats.file_errors import named
from regard_workbench.tasks.formats.reading import Data, checked_encoding, paths_of
from regard_workbench.tasks.formats.splits import checked_split, single_file
from regard_workbench.tasks.generated import machines
from regard_workbench.tasks.measures.forecast_errors import LINEAR_MAE, LINEAR_MSE, MAE, MSE, summed
from regard_workbench.tasks.measures.linear_forecast import LinearForecast, fitted
from regard_workbench.tasks.measures.metrics import LOSS, Answering, Metric, State
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.shown import Looked, Shown
from regard_workbench.tasks.parts.streams import Vectors
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.text.split_words import trimmed
from regard_workbench.tasks.time_series.file import SeriesTable, checked_gaps, read_series
from regard_workbench.tasks.time_series.parts import borders, usual_split
from regard_workbench.tasks.time_series.picture import forecast_figure, line_picture
from regard_workbench.tasks.time_series.windows import Span, Standard, Windows, all_windows, named_times, standardised

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".csv", ".tsv")
LOSSES = ("squared", "absolute")


@task("series")
class SeriesTask(Task):
    """Forecasts the next values of every column of a time series; without a file, of three generated machines.

    Columns are standardised by mean and standard deviation of the training part, and errors are in these units. Windows
    of validation and test look back into the part before; every window counts. `regard evaluate` prints the best linear
    forecast beside the model (`linear_mse`, `linear_mae`).

    Args:
        data: a CSV file, plain or .gz: a time column first (dates or numbers), numbers after
        context: steps a forecast looks back; default: 336, without a file 96
        horizon: steps it looks ahead; default: 96, without a file 24
        split: parts for training, validation and test in time order, as "12/4/4 months" (of 30 days) or "70/10/20 %";
            default: the first where a file holds 20 months, else the second
        columns: names of the columns to read, joined by commas; default: all
        dates: how times are written, as "%d.%m.%Y %H:%M"; default: ISO 8601 (2016-07-01 00:00:00), or numbers
        loss: what training minimises: squared errors, or absolute ones, which rare large errors sway less
        gaps: fill (rows missing in time are put in, without values) or join (rows are neighbours whatever their times)
        encoding: how the file is encoded
        seed: which readings are generated where there is no file
        whole: measure on all of a file, keep nothing of it for training; for a model trained on other data
    """

    takes = ("table",)
    metric = MSE
    tried = ("--example", "100")
    recipe = Recipe(
        model="forecaster",
        steps=800,
        batch_size=32,
        lr=3e-3,
        warmup=50,
        models={
            "forecaster": "forecaster(dim=32, layers=2, dropout=0.1)",
            "transformer": "transformer(dim=32, layers=2)",
            "seq2seq": "seq2seq(dim=32)",
        },
        compared=("forecaster", "lstm-attention"),
        reaches={"mse": 0.4},
    )

    def __init__(
        self,
        data: Data | None = None,
        context: int | None = None,
        horizon: int | None = None,
        split: str | None = None,
        columns: str | None = None,
        dates: str | None = None,
        gaps: str = "fill",
        loss: str = "squared",
        encoding: str = "utf-8",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        self.data = data
        sizes = (96, 24) if data is None else (336, 96)
        self.context = whole_number("context", sizes[0] if context is None else context, 2)
        self.horizon = whole_number("horizon", sizes[1] if horizon is None else horizon, 1)
        self.split, self.dates, self.gaps = split, dates, checked_gaps(gaps)
        self.columns = columns
        if loss not in LOSSES:
            raise unknown_name("loss", loss, LOSSES)
        self.absolute = loss == "absolute"
        self.encoding, self.seed, self.whole = checked_encoding(encoding), whole_number("seed", seed), whole
        self.names: tuple[str, ...] = ()
        self.center = self.spread = np.zeros(0)

    @cached_property
    def table(self) -> SeriesTable:
        """The series, in the units of its file."""
        if self.data is None:
            values, hour = machines.readings(self.seed), 3600.0
            times = machines.BEGIN + hour * np.arange(len(values), dtype=np.float64)
            return self._chosen(SeriesTable(machines.NAMES, values, times, hour, True), "the generated series")
        return self._read(single_file(paths_of(self.data), ENDINGS, "CSV file"))

    def _read(self, path: Path) -> SeriesTable:
        if path.is_dir():
            raise BadValue(f"data: expected a CSV file, and {str(path)!r} is a folder.")
        other = self.typed(encoding="latin-1")
        return self._chosen(read_series(path, self.encoding, self.dates, self.gaps, other), str(path))

    def _chosen(self, table: SeriesTable, where: str) -> SeriesTable:
        """The columns that were asked for, or those of the run."""
        wanted = self.names or tuple(filter(None, map(trimmed, (self.columns or "").split(","))))
        for name in wanted:
            if name in table.names:
                continue
            if not self.names:
                raise unknown_name(f"columns: column of {where}", name, table.names)
            raise BadValue(
                f"{where}: there is no column {name!r}, and this run reads {', '.join(self.names)}. "
                f"The file has {', '.join(table.names)}: name its columns as in the training data."
            )
        order = [table.names.index(name) for name in wanted or table.names]
        return replace(table, names=tuple(table.names[n] for n in order), values=table.values[:, order])

    @cached_property
    def ends(self) -> tuple[int, int, int]:
        """The rows at which training, validation and test end."""
        rows, needed = len(self.table.values), self.context + self.horizon
        if self.whole:
            self._refuse_short("the test", rows, needed)
            return 0, 0, rows
        step = self.table.step if self.table.dated else None
        ends = borders(usual_split(rows, step) if self.split is None else self.split, rows, step)
        self._refuse_short("training", ends[0], needed)
        self._refuse_short("validation", ends[1] - ends[0], self.horizon)
        self._refuse_short("the test", ends[2] - ends[1], self.horizon)
        return ends

    def _refuse_short(self, part: str, rows: int, needed: int) -> None:
        if rows < needed:
            raise BadValue(
                f"split: {named(self.data)}: the part for {part} has {rows:,} rows, and a window of "
                f"context={self.context} and "
                f"horizon={self.horizon} needs {needed:,} there. Make them shorter, or that part longer."
            )

    def _prepare(self) -> None:
        """Mean and standard deviation of each column, from known values of the training part."""
        part = self.table.values[: self.ends[0]] if not self.whole else self.table.values
        for name, column in zip(self.table.names, part.T, strict=True):
            if np.isnan(column).all():
                raise BadValue(f"data: column {name!r} has no value in the training part. Leave it out with columns=.")
        self.center, spread = np.nanmean(part, 0), np.nanstd(part, 0)
        self.spread = np.where(spread > 0, spread, 1.0)
        self.names = self.table.names

    def _known(self) -> tuple[str, ...]:
        """The columns; with their scale, from the data where no state was restored."""
        if not self.names:
            self._prepare()
        return self.names

    def standard(self, table: SeriesTable) -> Standard:
        """A series in the units of the training part."""
        self._known()
        return standardised(table.values, self.center, self.spread)

    def streams(self) -> dict[str, Vectors]:
        """A window: a number for each column at each step."""
        return {INPUTS: Vectors(len(self._known()), self.context)}

    def answers(self) -> list[Forecast]:
        """The next values; from what a model gives: those, a row for each coming step, or one row for all."""
        sizes = (self.horizon, len(self._known()), self.absolute)
        return [Forecast(*sizes), ForecastSteps(*sizes), PooledForecast(*sizes)]

    def metrics(self) -> tuple[Metric, ...]:
        """Mean squared and mean absolute error, in standard units."""
        return (LOSS, MSE, MAE)

    def examples(self, split: str) -> Windows:
        """Every window whose forecast lies inside a part, in time order."""
        checked_split(split)
        if self.whole and split == "train":
            raise BadValue("data: all of the file is measured, so that nothing is left for training.")
        begin, end = {
            "train": (self.context, self.ends[0]),
            "validation": (self.ends[0], self.ends[1]),
            "test": (self.ends[1], self.ends[2]),
        }[split]
        if self.whole:
            begin, end = self.context, self.ends[2]
        first, count = begin - self.context, end - begin - self.horizon + 1
        return Windows(self.table, self._standardised, first, count, (self.context, self.horizon))

    @cached_property
    def _standardised(self) -> Standard:
        return self.standard(self.table)

    def length(self, example: Span) -> int:
        """Steps of a window."""
        return len(example.past)

    def batch(
        self,
        examples: Sequence[Span],
        chosen: Sequence[int],
        generator: torch.Generator,
        model: Answering | None = None,
    ) -> Batch:
        """The same as `collate`, without making each window first."""
        if not isinstance(examples, Windows):
            return super().batch(examples, chosen, generator, model)
        past, future, known = examples.rows(chosen)
        return Batch.of(past, None, future, None if bool(known.all()) else known)

    def collate(self, examples: Sequence[Span], generator: torch.Generator) -> Batch:
        """Windows and what follows them; without that where an example has none."""
        past = torch.stack([example.past for example in examples])
        futures = [example.future for example in examples if example.future is not None]
        knowns = [example.known for example in examples if example.known is not None]
        if len(futures) < len(examples) or len(knowns) < len(examples):
            return Batch.of(past)
        known = torch.stack(knowns)
        return Batch.of(past, None, torch.stack(futures), None if bool(known.all()) else known)

    def examine(
        self, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The errors of the best linear forecast, fitted to the training windows."""
        if self.whole:
            return []
        yardstick = self._yardstick
        sums = {LINEAR_MSE: [0.0, 0.0], LINEAR_MAE: [0.0, 0.0]}
        for past, future, known in all_windows(self.examples(split), self.examined):
            found = yardstick(past)
            for metric, power in ((LINEAR_MSE, 2), (LINEAR_MAE, 1)):
                sums[metric] = metric.merge([sums[metric], summed(found, future, known, power)])
        return list(sums.items())

    @cached_property
    def _yardstick(self) -> LinearForecast:
        return fitted(all_windows(self.examples("train")))

    def protocol(self) -> dict[str, Any]:
        """Standardisation, parts, windows and missing values."""
        ends = self.ends
        found = {
            "windows": f"{self.context} steps, then {self.horizon}; every one counts; those of a part look back into "
            "the part before",
            "units": "standard: less the mean and divided by the standard deviation of the training part",
            "parts": f"rows 0–{ends[0] - 1:,} / –{ends[1] - 1:,} / –{ends[2] - 1:,} of {len(self.table.values):,}",
        }
        if self.table.notes:
            filling = "windows hold the last known value there, and errors leave them out"
            found["missing"] = f"{'; '.join(self.table.notes)}: {filling}"
        return found

    def parse(self, given: Mapping[str, str]) -> Span:
        """The last window of a CSV file."""
        if set(given) != {"table"}:
            return super().parse(given)  # type: ignore[no-any-return]  # which raises
        self._known()
        table = self._read(Path(given["table"]).expanduser())
        if len(table.values) < self.context:
            raise BadValue(
                f"--table: this run looks back {self.context} steps, and {given['table']!r} has "
                f"{len(table.values)} rows."
            )
        filled = self.standard(table).filled
        return Span(filled[-self.context :], None, None, len(filled) - self.context, table)

    def show(self, example: Span, batch: Batch) -> Shown:
        """The window of the first column as a picture; positions, and those of the forecast, are called by times."""
        times = named_times(example, 0, self.context + self.horizon)
        pieces, ahead = times[: self.context], times[self.context :]
        words = f"{self.names[0]}, {pieces[0]} to {pieces[-1]}"
        picture = line_picture(example.past[:, 0].numpy())
        return Shown(words, pieces, "steps", ahead, picture=picture, grid=(1, self.context))

    def answer_text(self, predicted: Any, example: Span) -> str:
        """A forecast as CSV: the times, and the columns in the units of the file."""
        values = np.array(predicted) * self.spread + self.center
        times = named_times(example, self.context, self.context + len(values))
        rows = ([time, *(f"{value:.6g}" for value in row)] for time, row in zip(times, values.tolist(), strict=True))
        return csv_text([["time", *self.names], *rows]).removesuffix("\n")

    def draw(self, predicted: Any, example: Span, looked: Looked | None) -> Figure:
        """Each column with its forecast and what followed; behind the first, what its forecast looked back at."""
        past, true = example.past.numpy() * self.spread + self.center, None
        if example.future is not None and example.known is not None:
            true = np.where(example.known.numpy(), example.future.numpy() * self.spread + self.center, np.nan)
        ahead = np.array(predicted) * self.spread + self.center
        times = named_times(example, 0, self.context + self.horizon)
        weights = [] if looked is None else looked.weights[0]
        return forecast_figure(self.names, past, ahead, times, weights, true)

    def state(self) -> dict[str, Any]:
        """Columns, their scale, and how far windows reach."""
        return {
            "columns": list(self._known()),
            "center": self.center.tolist(),
            "spread": self.spread.tolist(),
            "context": self.context,
            "horizon": self.horizon,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore columns, scale and sizes."""
        names, center, spread = state["columns"], state["center"], state["spread"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not names:
            raise BadValue("columns: expected a list of names, as `state` makes it.")
        if not len(center) == len(spread) == len(names):
            raise BadValue("center, spread: expected a number for each column, as `state` makes them.")
        self.names = tuple(names)
        self.center = np.array([finite_number("center", value) for value in center])
        self.spread = np.array([finite_number("spread", value, 0.0) for value in spread])
        self.context = whole_number("context", state["context"], 2)
        self.horizon = whole_number("horizon", state["horizon"], 1)

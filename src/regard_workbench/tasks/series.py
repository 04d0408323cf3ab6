"""Forecasting: the next values of a time series, from any CSV or from generated readings of machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import BadValue, unknown_name
from regard.support.arguments import finite_number, whole_number
from regard.support.declared import at_least, one_of, option
from regard_workbench.csv_text import csv_text
from regard_workbench.tasks.answers import Forecast, ForecastSteps, PooledForecast
from regard_workbench.tasks.formats.file_errors import named
from regard_workbench.tasks.formats.reading import Data, checked_encoding, paths_of
from regard_workbench.tasks.formats.splits import checked_split, single_file
from regard_workbench.tasks.generated import machines
from regard_workbench.tasks.measures import linear_forecast
from regard_workbench.tasks.measures.forecast_errors import LINEAR_MAE, LINEAR_MSE, MAE, MSE, summed
from regard_workbench.tasks.measures.metrics import Answering, Metric, State
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.data import Fitted, Kept
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.presenter import Presenter
from regard_workbench.tasks.parts.shared_options import WHOLE
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


@dataclass(frozen=True)
class SeriesScale(Fitted):
    """The columns with mean and standard deviation of each, and how far windows reach back and ahead."""

    columns: list[str]
    center: list[float]
    spread: list[float]
    context: int
    horizon: int

    @classmethod
    def restored(cls, state: Mapping[str, Any], task: Any) -> Self:
        columns, center, spread = state["columns"], state["center"], state["spread"]
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns) or not columns:
            raise BadValue("columns: expected a list of names, as `state` makes it.")
        if not len(center) == len(spread) == len(columns):
            raise BadValue("center, spread: expected a number for each column, as `state` makes them.")
        return cls(
            columns,
            [finite_number("center", mean) for mean in center],
            [finite_number("spread", deviation, 0.0) for deviation in spread],
            whole_number("context", state["context"], 2),
            whole_number("horizon", state["horizon"], 1),
        )

    def in_units(self, standard: Any) -> NDArray[np.float64]:
        """Standardised values in the units of the file."""
        return np.asarray(standard) * self.spread + self.center


class ForecastJudge(Judge):
    """Sets the best linear forecast beside a model."""

    def protocol(self, task: SeriesTask) -> dict[str, Any]:
        """Standardisation, parts, windows and missing values."""
        ends, scale, table = task.ends, task.fitted, task.table
        about = {
            "windows": f"{scale.context} steps, then {scale.horizon}; every one counts; those of a part look back into "
            "the part before",
            "units": "standard: less the mean and divided by the standard deviation of the training part",
            "parts": f"rows 0–{ends[0] - 1:,} / –{ends[1] - 1:,} / –{ends[2] - 1:,} of {len(table.values):,}",
        }
        if table.notes:
            filling = "windows hold the last known value there, and errors leave them out"
            about["missing"] = f"{'; '.join(table.notes)}: {filling}"
        return about

    def examine(
        self, task: SeriesTask, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The errors of the best linear forecast, fitted to the training windows."""
        if task.whole:
            return []
        forecast = task.yardstick
        sums = {LINEAR_MSE: [0.0, 0.0], LINEAR_MAE: [0.0, 0.0]}
        for past, future, observed in all_windows(task.examples(split), task.examined):
            expected = forecast(past)
            for metric, power in ((LINEAR_MSE, 2), (LINEAR_MAE, 1)):
                sums[metric] = metric.merge([sums[metric], summed(expected, future, observed, power)])
        return list(sums.items())


class SeriesPresenter(Presenter["SeriesTask"]):
    """Reads tables, shows windows as lines, and answers by a table of the next values."""

    takes = ("table",)

    def parse(self, task: SeriesTask, given: Mapping[str, str]) -> Any:
        """The last window of a CSV file."""
        if set(given) != {"table"}:
            return super().parse(task, given)  # which raises
        context = task.fitted.context
        table = task.read(Path(given["table"]).expanduser())
        if len(table.values) < context:
            raise BadValue(
                f"--table: this run looks back {context} steps, and {given['table']!r} has {len(table.values)} rows."
            )
        filled = task.standard(table).filled
        return Span(filled[-context:], None, None, len(filled) - context, table)

    def show(self, task: SeriesTask, example: Span, batch: Batch) -> Shown:
        """The window of the first column as a picture; positions, and those of the forecast, are called by times."""
        scale = task.fitted
        times = named_times(example, 0, scale.context + scale.horizon)
        pieces, ahead = times[: scale.context], times[scale.context :]
        words = f"{scale.columns[0]}, {pieces[0]} to {pieces[-1]}"
        picture = line_picture(example.past[:, 0].numpy())
        return Shown(words, pieces, "steps", ahead, picture=picture, grid=(1, scale.context))

    def answer_text(self, task: SeriesTask, predicted: Any, example: Span) -> str:
        """A forecast as CSV: the times, and the columns in the units of the file."""
        scale = task.fitted
        values = scale.in_units(predicted)
        times = named_times(example, scale.context, scale.context + len(values))
        rows = ([time, *(f"{value:.6g}" for value in row)] for time, row in zip(times, values.tolist(), strict=True))
        return csv_text([["time", *scale.columns], *rows]).removesuffix("\n")

    def draw(self, task: SeriesTask, predicted: Any, example: Span, looked: Looked | None) -> Figure:
        """Each column with its forecast and what followed; behind the first, what its forecast looked back at."""
        scale, true = task.fitted, None
        if example.future is not None and example.known is not None:
            true = np.where(example.known.numpy(), scale.in_units(example.future), np.nan)
        times = named_times(example, 0, scale.context + scale.horizon)
        weights = [] if looked is None else looked.weights[0]
        return forecast_figure(
            tuple(scale.columns), scale.in_units(example.past), scale.in_units(predicted), times, weights, true
        )


@task("series")
class SeriesTask(Task):
    """Forecasts the next values of every column of a time series; without a file, of three generated machines.

    Columns are standardised by mean and standard deviation of the training part, and errors are in these units. Windows
    of validation and test look back into the part before; every window counts. `regard evaluate` prints the best linear
    forecast beside the model (`linear_mse`, `linear_mae`).
    """

    judge = ForecastJudge.by(MSE, MAE)
    presenter = SeriesPresenter()
    fitted = Kept(SeriesScale)
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

    data: Data | None = option(
        "a CSV file, plain or .gz: a time column first (dates or numbers), numbers after", default=None
    )
    context: int | None = option(
        "steps a forecast looks back; default: 336, without a file 96", at_least(2), default=None
    )
    horizon: int | None = option("steps it looks ahead; default: 96, without a file 24", at_least(1), default=None)
    split: str | None = option(
        'parts for training, validation and test in time order, as "12/4/4 months" (of 30 days) or "70/10/20 %"; '
        "default: the first where a file holds 20 months, else the second",
        default=None,
    )
    columns: str | None = option("names of the columns to read, joined by commas; default: all", default=None)
    dates: str | None = option(
        'how times are written, as "%d.%m.%Y %H:%M"; default: ISO 8601 (2016-07-01 00:00:00), or numbers', default=None
    )
    gaps: str = option(
        "fill (rows missing in time are put in, without values) or join (rows are neighbours whatever their times)",
        lambda name, gaps: checked_gaps(gaps),
        default="fill",
    )
    loss: str = option(
        "what training minimises: squared errors, or absolute ones, which rare large errors sway less",
        one_of(LOSSES),
        default="squared",
    )
    encoding: str = option(
        "how the file is encoded", lambda name, encoding: checked_encoding(encoding), default="utf-8"
    )
    seed: int = option("which readings are generated where there is no file", whole_number, default=0)
    whole: bool = WHOLE

    @cached_property
    def table(self) -> SeriesTable:
        """The series, in the units of its file."""
        if self.data is None:
            values, hour = machines.readings(self.seed), 3600.0
            times = machines.BEGIN + hour * np.arange(len(values), dtype=np.float64)
            return self._chosen(SeriesTable(machines.NAMES, values, times, hour, True), "the generated series")
        return self.read(single_file(paths_of(self.data), ENDINGS, "CSV file"))

    def read(self, path: Path) -> SeriesTable:
        """The series in a file, in its units."""
        if path.is_dir():
            raise BadValue(f"data: expected a CSV file, and {str(path)!r} is a folder.")
        typed_encoding = self.typed(encoding="latin-1")
        return self._chosen(read_series(path, self.encoding, self.dates, self.gaps, typed_encoding), str(path))

    def _chosen(self, table: SeriesTable, where: str) -> SeriesTable:
        """The columns that were asked for, or those of the run."""
        scale: SeriesScale | None = vars(self).get("fitted")  # none while it is learned from this table
        wanted = scale.columns if scale else list(filter(None, map(trimmed, (self.columns or "").split(","))))
        for name in wanted:
            if name in table.names:
                continue
            if scale is None:
                raise unknown_name(f"columns: column of {where}", name, table.names)
            raise BadValue(
                f"{where}: there is no column {name!r}, and this run reads {', '.join(wanted)}. "
                f"The file has {', '.join(table.names)}: name its columns as in the training data."
            )
        order = [table.names.index(name) for name in wanted or table.names]
        return replace(table, names=tuple(table.names[n] for n in order), values=table.values[:, order])

    @cached_property
    def ends(self) -> tuple[int, int, int]:
        """The rows at which training, validation and test end."""
        return self._ends(self.fitted.context, self.fitted.horizon)

    def _ends(self, context: int, horizon: int) -> tuple[int, int, int]:
        def refuse_short(part: str, rows: int, needed: int) -> None:
            if rows < needed:
                raise BadValue(
                    f"split: {named(self.data)}: the part for {part} has {rows:,} rows, and a window of "
                    f"context={context} and horizon={horizon} needs {needed:,} there. Make them shorter, or that part "
                    "longer."
                )

        rows = len(self.table.values)
        if self.whole:
            refuse_short("the test", rows, context + horizon)
            return 0, 0, rows
        step = self.table.step if self.table.dated else None
        ends = borders(usual_split(rows, step) if self.split is None else self.split, rows, step)
        refuse_short("training", ends[0], context + horizon)
        refuse_short("validation", ends[1] - ends[0], horizon)
        refuse_short("the test", ends[2] - ends[1], horizon)
        return ends

    def fit(self) -> SeriesScale:
        """Mean and standard deviation of each column, from known values of the training part."""
        table, usual = self.table, (96, 24) if self.data is None else (336, 96)
        context, horizon = self.context or usual[0], self.horizon or usual[1]
        training = table.values[: self._ends(context, horizon)[2 if self.whole else 0]]
        for name, column in zip(table.names, training.T, strict=True):
            if np.isnan(column).all():
                raise BadValue(f"data: column {name!r} has no value in the training part. Leave it out with columns=.")
        spread = np.nanstd(training, 0)
        spread = np.where(spread > 0, spread, 1.0)
        return SeriesScale(list(table.names), np.nanmean(training, 0).tolist(), spread.tolist(), context, horizon)

    def standard(self, table: SeriesTable) -> Standard:
        """A series in the units of the training part."""
        return standardised(table.values, np.array(self.fitted.center), np.array(self.fitted.spread))

    def streams(self) -> dict[str, Vectors]:
        """A window: a number for each column at each step."""
        return {INPUTS: Vectors(len(self.fitted.columns), self.fitted.context)}

    def answers(self) -> list[Forecast]:
        """The next values; from what a model gives: those, a row for each coming step, or one row for all."""
        sizes = (self.fitted.horizon, len(self.fitted.columns), self.loss == "absolute")
        return [Forecast(*sizes), ForecastSteps(*sizes), PooledForecast(*sizes)]

    def examples(self, split: str) -> Windows:
        """Every window whose forecast lies inside a part, in time order."""
        checked_split(split)
        if self.whole and split == "train":
            raise BadValue("data: all of the file is measured, so that nothing is left for training.")
        context, horizon = self.fitted.context, self.fitted.horizon
        begin, end = {
            "train": (context, self.ends[0]),
            "validation": (self.ends[0], self.ends[1]),
            "test": (self.ends[1], self.ends[2]),
        }[split]
        if self.whole:
            begin, end = context, self.ends[2]
        first, count = begin - context, end - begin - horizon + 1
        return Windows(self.table, self._standardised, first, count, (context, horizon))

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
        past, future, observed = examples.rows(chosen)
        return Batch.of(past, None, future, None if bool(observed.all()) else observed)

    def collate(self, examples: Sequence[Span], generator: torch.Generator) -> Batch:
        """Windows and what follows them; without that where an example has none."""
        past = torch.stack([example.past for example in examples])
        futures = [example.future for example in examples if example.future is not None]
        knowns = [example.known for example in examples if example.known is not None]
        if len(futures) < len(examples) or len(knowns) < len(examples):
            return Batch.of(past)
        observed = torch.stack(knowns)
        return Batch.of(past, None, torch.stack(futures), None if bool(observed.all()) else observed)

    @cached_property
    def yardstick(self) -> linear_forecast.LinearForecast:
        """The best linear forecast."""
        return linear_forecast.fitted(all_windows(self.examples("train")))

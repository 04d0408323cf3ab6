"""The results of a comparison as rows: one for each contestant, one for each pair of contestants.

Rows are plain JSON data; a non-finite number is null and has an entry in `warnings`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import RegardError
from regard.registry import parse
from regard.support.multiple_tests import holm
from regard_workbench import tasks
from regard_workbench.comparison.bootstrap import bootstrap, draws
from regard_workbench.comparison.comparison import Comparison
from regard_workbench.comparison.convergence import Convergence, convergence
from regard_workbench.comparison.job import Contestant, Cost, Outcome
from regard_workbench.comparison.signature import signature
from regard_workbench.comparison.statistics import Bootstrap, interval, judge, paired, possible
from regard_workbench.models.parts.model import MODELS
from regard_workbench.models.parts.preset import with_preset
from regard_workbench.tasks.measures.metrics import SHARE, Metric, Numbers
from regard_workbench.tasks.parts.task import TASKS
from regard_workbench.training.loading import load_run
from regard_workbench.training.run_folder import durable
from regard_workbench.training.run_folder.metrics_file import plain

Row = dict[str, Any]
_SHARES = ("accuracy", "exact_match", "macro_f1")  # by every task that has them


def t_interval(row: Row, split: str, name: str) -> Row | None:
    """Mean and ends of a metric's interval as Student's t gives them, before `rows` clips them; None without it."""
    over = row[split].get(name)
    return over and {**over, **row.get("unclipped", {}).get(split, {}).get(name, {})}


def metric_of(name: str, decides: Metric) -> Metric:
    """A metric of the runs by its name, with its unit as far as that is known without the task."""
    return decides if name == decides.name else Metric(name, unit=SHARE if name in _SHARES else "")


def deciding(rows: Sequence[Row]) -> Metric:
    """The metric by which the rows are compared, with its name, direction and unit."""
    row = next((row for row in rows if row["decides"]), None)
    if row is None:
        return Metric("")
    return Metric(row["decides"], higher_is_better=row["higher_is_better"], unit=row["unit"])


def rows(comparison: Comparison) -> list[Row]:
    """One row for each contestant, in order: the fields that api.md promises for `results.json`, and more."""
    metric = _deciding(comparison, [run for run in comparison.outcomes if not run.error])
    reached = convergence(comparison, metric)
    return [_row(comparison, contestant, reached) for contestant in comparison.contestants]


def _row(comparison: Comparison, contestant: Contestant, reached: Convergence) -> Row:
    runs = runs_of(comparison, contestant)
    done = [run for run in runs if not run.error]
    cost = comparison.costs.get(contestant.label)
    attention = attention_of(contestant, comparison.task)
    decides = _deciding(comparison, done)
    warnings: list[str] = []
    unclipped: Row = {}
    measured = {
        split: _metrics(split, {run.seed: getattr(run, split) for run in done}, decides, warnings, unclipped)
        for split in ("validation", "test")
    }
    match = comparison.match
    trained = contestant.model if match is None else match.models[contestant.label]
    row: Row = {
        "label": contestant.label,
        "model": contestant.model,
        "attention": attention,
        "init_from": contestant.init_from,
        "task": comparison.task,
        "seeds": [run.seed for run in done],
        "parameters": cost.parameters if cost else next((run.parameters for run in done), None),
        "steps_per_second": cost.steps_per_second if cost else _speed(done),
        **measured,
        "unclipped": unclipped,
        **reached.row(contestant.label, warnings),
        "peak_memory_mib": cost.peak_memory_mib if cost else None,
        "flops_per_step": cost.flops_per_step if cost else None,
        "batch_size": _batch_size(cost),
        "match": None if match is None else match.by,
        "width": None if match is None else match.widths[contestant.label],
        "trained_as": trained,
        "steps": _mean([run.steps for run in done]),
        "seconds": _mean([run.seconds for run in done]),
        "budget": comparison.budget,
        "decides": decides.name,
        **decides.facts(),
        "failed": {str(run.seed): run.error for run in runs if run.error},
        "commands": {str(run.seed): run.command for run in runs},
        "data_sha256": ",".join(dict.fromkeys(run.data_sha256 for run in done if run.data_sha256)),
        "signature": signature(
            done,
            task=comparison.task,
            model=trained,
            attention=attention,
            budget=comparison.budget,
            trials=comparison.trials,
            match=None if match is None else match.by,
        ),
    }
    if cost is None and done:
        warnings.append("steps per second are those of the training runs, which may have run side by side")
    if comparison.trials:
        row["settings_chosen"] = comparison.chosen.get(contestant.label, {})
    row["warnings"] = warnings
    plain_row: Row = plain(row)
    return plain_row


def _deciding(comparison: Comparison, done: Sequence[Outcome]) -> Metric:
    """The metric that decides: the task's, unless the runs say another."""
    metric = TASKS[parse(comparison.task)[0]].metric
    run = next(iter(done), None)
    if run is None or run.metric == metric.name:
        return metric
    return Metric(run.metric, higher_is_better=run.higher_is_better)


def runs_of(comparison: Comparison, contestant: Contestant) -> list[Outcome]:
    """The runs of a contestant, by seed."""
    return sorted((run for run in comparison.outcomes if run.contestant == contestant), key=lambda run: run.seed)


def attention_of(contestant: Contestant, task: str) -> str:
    """The attention of a contestant by name: the one the user chose, or the default of its model."""
    if contestant.attention is not None:
        return contestant.attention
    bare = contestant.model
    name, options = parse(TASKS[parse(task)[0]].recipe.models.get(bare, bare))
    _, options = with_preset(name, MODELS[name].presets, options)
    return str(options.get("attention") or MODELS[name].attention_default or "its own")


def _metrics(
    split: str, found: Mapping[int, Mapping[str, float]], decides: Metric, warnings: list[str], unclipped: Row
) -> Row:
    """Each metric over the seeds; one that is missing or non-finite for a seed has no mean, and a warning.

    Intervals are clipped to what the metric can be; the ends before that go to `unclipped`.
    """
    names = dict.fromkeys(name for metrics in found.values() for name in metrics)
    row: Row = {}
    for name in {decides.name: None, **names} if names else {}:
        values = {seed: _number(metrics.get(name)) for seed, metrics in found.items()}
        over = interval(list(values.values()))
        clipped = possible(over.low, over.high, metric_of(name, decides))
        row[name] = {**over.row(), "low": clipped.low, "high": clipped.high}
        if clipped.cut:
            unclipped.setdefault(split, {})[name] = {"low": over.low, "high": over.high}
        bad = [str(seed) for seed, value in values.items() if not math.isfinite(value)]
        if bad:
            warnings.append(f"{split} {name} is missing or not finite with seed {', '.join(bad)}, so it has no mean")
    return row


def _batch_size(cost: Cost | None) -> int | None:
    """The examples of the step whose cost was measured."""
    shapes = list(cost.batch.values()) if cost else []
    return shapes[0][0] if shapes and shapes[0] else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _speed(done: Sequence[Outcome]) -> float | None:
    """The mean pace of the runs; records of earlier versions have only their steps and seconds, compiling included."""
    return _mean([run.steps_per_second or run.steps / run.seconds for run in done if run.seconds > 0])


def paired_rows(comparison: Comparison) -> list[Row]:
    """The paired comparisons on the deciding metric of the runs' task; none where fewer than two took part."""
    run = next((run for run in comparison.outcomes if not run.error and run.test), None)
    if run is None or len(comparison.contestants) < 2:
        return []
    try:
        task = load_run(run.folder, tell=lambda text: None)[0]
    except durable.ReadFailed:
        raise
    except (RegardError, OSError):  # its folder is gone: the metric as the task has it without options
        try:
            task = tasks.build(parse(comparison.task)[0])
        except RegardError:  # a plugin registered the task, and is not loaded here
            return []
    decides = next((metric for metric in task.metrics() if metric.name == run.metric), None)
    return [] if decides is None else pairs(comparison, decides)


def pairs(comparison: Comparison, decides: Metric) -> list[Row]:
    """Every pair of contestants on the deciding metric of the test: the difference first − second, and its tests.

    p values are given uncorrected and after Holm's correction over all pairs.
    """
    everyone = [contestant.label for contestant in comparison.contestants]
    done = {
        contestant.label: [run for run in runs_of(comparison, contestant) if not run.error and run.test]
        for contestant in comparison.contestants
    }
    first_run = next((run for runs in done.values() for run in runs), None)
    if first_run is None:
        return []
    metric = first_run.metric
    assert metric == decides.name, (metric, decides.name)
    reached = {label: {run.seed: _number(run.test.get(metric)) for run in runs} for label, runs in done.items()}
    drawn, blocks = _resamples([run for runs in done.values() for run in runs], decides)
    couples = list(itertools.combinations(everyone, 2))
    differences = [paired(reached[first], reached[second]) for first, second in couples]
    boots: list[Bootstrap | None] = [
        bootstrap(_of(drawn, done[first]), _of(drawn, done[second]), blocks) if difference.seeds and drawn else None
        for (first, second), difference in zip(couples, differences, strict=True)
    ]
    by_seeds = holm([difference.p for difference in differences])
    by_examples = holm([math.nan if boot is None else boot.p for boot in boots])
    pair_rows: list[Row] = []
    for couple, difference, boot, p_seeds, p_examples in zip(
        couples, differences, boots, by_seeds, by_examples, strict=True
    ):
        verdict = judge(couple, difference, boot, (p_seeds, p_examples), decides)
        row: Row = {
            "first": couple[0],
            "second": couple[1],
            "metric": metric,
            **decides.facts(),
            "seeds": difference.seeds,
            "left_out": sorted({*comparison.seeds} - {*difference.seeds}),
            "difference": difference.interval.row(),
            "p": difference.p,
            "p_holm": p_seeds,
            "bootstrap": None if boot is None else {**dataclasses.asdict(boot), "p_holm": p_examples},
            "better": verdict.better,
            "claim": verdict.sentence,
        }
        pair_rows.append(plain(row))
    return pair_rows


def _resamples(runs: Sequence[Outcome], metric: Metric) -> tuple[dict[tuple[Contestant, int], Numbers], int]:
    """The metric of each run in every resample, and the number of blocks; empty where runs had different test data."""
    counts = {len(run.blocks) for run in runs}
    measured = all(metric.name in block for run in runs for block in run.blocks)
    if len(counts) != 1 or 0 in counts or not measured or len({run.data_sha256 for run in runs}) != 1:
        return {}, 0
    (blocks,) = counts
    drawn = draws(blocks)
    return {
        (run.contestant, run.seed): metric.resampled([block[metric.name] for block in run.blocks], drawn)
        for run in runs
    }, blocks


def _of(drawn: Mapping[tuple[Contestant, int], Numbers], runs: Sequence[Outcome]) -> dict[int, Numbers]:
    return {run.seed: drawn[run.contestant, run.seed] for run in runs}

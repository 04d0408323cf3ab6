"""The results of a comparison as rows: one for each contestant, one for each pair of contestants.

Rows are plain JSON data; a non-finite number is null and has an entry in `warnings`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard import tasks
from regard.comparison.bootstrap import bootstrap, draws
from regard.comparison.comparison import Comparison
from regard.comparison.convergence import Convergence, convergence
from regard.comparison.job import Contestant, Cost, Outcome
from regard.comparison.matching import FLOPS, WITHIN, WORDS, spread
from regard.comparison.signature import signature
from regard.comparison.statistics import Bootstrap, holm, interval, judge, paired
from regard.errors import RegardError
from regard.models.model import MODELS
from regard.models.preset import with_preset
from regard.registry import parse
from regard.tasks.measures.metrics import Metric, Numbers
from regard.tasks.task import TASKS
from regard.training.config.budget import parse as parse_budget
from regard.training.config.recipe import complete
from regard.training.loading import load_run
from regard.training.run_folder.folder import RunFolder
from regard.training.run_folder.metrics_file import changed, plain

Row = dict[str, Any]


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
        "validation": _metrics("validation", {run.seed: run.validation for run in done}, decides.name, warnings),
        "test": _metrics("test", {run.seed: run.test for run in done}, decides.name, warnings),
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
            done, task=comparison.task, model=trained, attention=attention, budget=comparison.budget,
            trials=comparison.trials, match=None if match is None else match.by,
        ),
    }  # fmt: skip
    if cost is None and done:
        warnings.append("steps per second are those of the training runs, which may have run side by side")
    if comparison.trials:
        row["settings_chosen"] = comparison.chosen.get(contestant.label, {})
    row["warnings"] = warnings
    found: Row = plain(row)
    return found


def _deciding(comparison: Comparison, done: Sequence[Outcome]) -> Metric:
    """The metric that decides: the task's, unless the runs say another."""
    metric = TASKS[parse(comparison.task)[0]].metric
    run = next(iter(done), None)
    if run is None or run.metric == metric.name:
        return metric
    return Metric(run.metric, higher_is_better=run.higher_is_better)


def runs_of(comparison: Comparison, contestant: Contestant) -> list[Outcome]:
    """The runs of a contestant, by seed."""
    return sorted(
        (run for run in comparison.outcomes if run.contestant == contestant), key=lambda run: run.seed
    )


def attention_of(contestant: Contestant, task: str) -> str:
    """The attention of a contestant by name: the one the user chose, or the default of its model."""
    if contestant.attention is not None:
        return contestant.attention
    bare = contestant.model
    name, options = parse(TASKS[parse(task)[0]].recipe.models.get(bare, bare))
    _, options = with_preset(name, MODELS[name].presets, options)
    return str(options.get("attention") or MODELS[name].attention_default or "its own")


def _metrics(split: str, found: Mapping[int, Mapping[str, float]], decides: str, warnings: list[str]) -> Row:
    """Each metric over the seeds; one that is missing or non-finite for a seed has no mean, and a warning."""
    names = dict.fromkeys(name for metrics in found.values() for name in metrics)
    row: Row = {}
    for name in {decides: None, **names} if names else {}:
        values = {seed: _number(metrics.get(name)) for seed, metrics in found.items()}
        over = interval(list(values.values()))
        row[name] = {"mean": over.mean, "low": over.low, "high": over.high}
        bad = [str(seed) for seed, value in values.items() if not math.isfinite(value)]
        if bad:
            warnings.append(
                f"{split} {name} is missing or not finite with seed {', '.join(bad)}, so it has no mean"
            )
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
    reached = {
        label: {run.seed: _number(run.test.get(metric)) for run in runs} for label, runs in done.items()
    }
    drawn, blocks = _resamples([run for runs in done.values() for run in runs], decides)
    couples = list(itertools.combinations(everyone, 2))
    differences = [paired(reached[first], reached[second]) for first, second in couples]
    boots: list[Bootstrap | None] = [
        bootstrap(_of(drawn, done[first]), _of(drawn, done[second]), blocks)
        if difference.seeds and drawn
        else None
        for (first, second), difference in zip(couples, differences, strict=True)
    ]
    by_seeds = holm([difference.p for difference in differences])
    by_examples = holm([math.nan if boot is None else boot.p for boot in boots])
    found: list[Row] = []
    for couple, difference, boot, p_seeds, p_examples in zip(
        couples, differences, boots, by_seeds, by_examples, strict=True
    ):
        verdict = judge(couple, difference, boot, (p_seeds, p_examples), decides)
        over = difference.interval
        row: Row = {
            "first": couple[0],
            "second": couple[1],
            "metric": metric,
            **decides.facts(),
            "seeds": difference.seeds,
            "left_out": sorted({*comparison.seeds} - {*difference.seeds}),
            "difference": {"mean": over.mean, "low": over.low, "high": over.high},
            "p": difference.p,
            "p_holm": p_seeds,
            "bootstrap": None if boot is None else {**dataclasses.asdict(boot), "p_holm": p_examples},
            "better": verdict.better,
            "claim": verdict.sentence,
        }
        found.append(plain(row))
    return found


def _resamples(runs: Sequence[Outcome], metric: Metric) -> tuple[dict[tuple[Contestant, int], Numbers], int]:
    """The metric of each run in every resample, and the number of blocks; empty where runs had different test data."""
    counts = {len(run.blocks) for run in runs}
    known = all(metric.name in block for run in runs for block in run.blocks)
    if len(counts) != 1 or 0 in counts or not known or len({run.data_sha256 for run in runs}) != 1:
        return {}, 0
    (blocks,) = counts
    drawn = draws(blocks)
    return {
        (run.contestant, run.seed): metric.resampled([block[metric.name] for block in run.blocks], drawn)
        for run in runs
    }, blocks


def _of(drawn: Mapping[tuple[Contestant, int], Numbers], runs: Sequence[Outcome]) -> dict[int, Numbers]:
    return {run.seed: drawn[run.contestant, run.seed] for run in runs}


def fairness(comparison: Comparison) -> list[str]:
    """Why the results can be compared, as sentences; and prominently where they cannot."""
    done = [run for run in comparison.outcomes if not run.error]
    if not done:
        return ["No run finished: there is nothing to compare."]
    return [
        *_same_batches(done),
        *_unchanged_settings(done),
        *_unchanged_metrics(done),
        _same_test(done),
        _same_budget(comparison, done),
        _same_tuning(comparison),
        "Of each run the checkpoint that was best on validation was tested, once: nothing was chosen by the test.",
        _same_cost(comparison),
        *_sizes(comparison, done),
        *_missing(comparison),
    ]


def _same_batches(done: Sequence[Outcome]) -> list[str]:
    configs = [complete(run.settings) for run in done]
    made_of = ("data", "batch_size", "accumulate", "bucket")
    differing = [name for name in made_of if len({getattr(config, name) for config in configs}) > 1]
    if differing:
        return [
            f"NOTE: runs differ in {', '.join(differing)}, so that the same seed does not mean the same batches."
        ]
    return ["With the same seed, every contestant learned from the same batches in the same order."]


def _unchanged_settings(done: Sequence[Outcome]) -> list[str]:
    """Runs whose settings were changed when they were resumed."""
    changed: dict[str, int] = {}
    for run in done:
        for words in run.changes:
            changed[words] = changed.get(words, 0) + 1
    return [
        f"NOTE: settings were changed on resume in {count} of {len(done)} runs: {words}. A run that had them from its "
        "first step may end elsewhere."
        for words, count in changed.items()
    ]


def _unchanged_metrics(done: Sequence[Outcome]) -> list[str]:
    """Runs whose metrics.jsonl does not match its checksum."""
    found = [changed(RunFolder(Path(run.folder)).metrics, run.metrics) for run in done]
    return [f"NOTE: {why} Its curves may be wrong." for why in found if why]


def _same_test(done: Sequence[Outcome]) -> str:
    tested = [run for run in done if run.test]
    if not tested:
        return "No run was tested."
    hashes = sorted({run.data_sha256 for run in tested})
    if len(hashes) == 1:
        return f"All {len(tested)} runs were tested on the same examples (sha256 {hashes[0][:12]})."
    return (
        f"WARNING: the runs were tested on {len(hashes)} different sets of examples "
        f"({', '.join(each[:12] for each in hashes)}). Their test results must not be compared."
    )


def _same_budget(comparison: Comparison, done: Sequence[Outcome]) -> str:
    text = f"Each run had the same budget: {comparison.budget}"
    early = sum(run.stopped_by == "patience" for run in done)
    if early:
        text += f"; {early} of {len(done)} stopped early, because validation no longer improved"
    given = comparison.settings.get("budget")
    if given is not None and parse_budget(given).kind == "seconds":
        text += "; the number of steps depends on the machine and on other load"
    return text + "."


def _same_tuning(comparison: Comparison) -> str:
    if comparison.trials:
        return f"Each contestant was tuned with the same effort: {comparison.trials} trials, judged on validation."
    return "No contestant was tuned: all trained with the same settings."


def _same_cost(comparison: Comparison) -> str:
    costs = list(comparison.costs.values())
    if not costs:
        return "Steps per second are those of the training runs, which may have run side by side."
    where = sorted(
        {
            f"{cost.device or 'cpu'} with {cost.threads} thread{'s' * (cost.threads != 1)}"
            if cost.device in ("", "cpu")
            else cost.device
            for cost in costs
        }
    )
    return (
        "Steps per second, memory and FLOPs were measured after training, one contestant at a time with nothing else "
        f"running, on {' and '.join(where)}."
    )


def _sizes(comparison: Comparison, done: Sequence[Outcome]) -> list[str]:
    if comparison.match is not None:
        return [size_note(comparison.rows)]
    least, most = (end(run.parameters for run in done) for end in (min, max))
    if most <= 1.1 * least:
        return []
    return [
        f"The contestants differ in size: from {least:,} to {most:,} parameters, with the options that were given or "
        "the defaults of each model."
    ]


def size_note(rows: Sequence[Row]) -> str:
    """How near the contestants of a matched comparison are in size, as measured; empty where none was asked for."""
    by = next((row["match"] for row in rows if row["match"]), None)
    if by is None:
        return ""
    key = "flops_per_step" if by == FLOPS else "parameters"
    sizes = {row["label"]: float(row[key]) for row in rows if row[key]}
    widths = ", ".join(f"{row['label']} {row['width']}" for row in rows)
    if not sizes:
        return f"Equal size (--match {by}): no run finished. Widths: {widths}."
    apart = 100 * spread(sizes)
    text = (
        f"Equal size (--match {by}): {min(sizes.values()):,.0f} to {max(sizes.values()):,.0f} {WORDS[by]}, "
        f"{apart:.1f} % apart. Widths: {widths}."
    )
    if apart > 100 * WITHIN:
        return f"NOTE: {text} More than {100 * WITHIN:.0f} %: tuning or the device changed the sizes."
    return text


def _missing(comparison: Comparison) -> list[str]:
    failed = [
        f"{contestant.label} with seed {run.seed}"
        for contestant in comparison.contestants
        for run in runs_of(comparison, contestant)
        if run.error
    ]
    found = [f"NOTE: failed, and not part of any mean: {'; '.join(failed)}."] if failed else []
    return found + [f"Left out: {label}: {why}" for label, why in comparison.left_out]

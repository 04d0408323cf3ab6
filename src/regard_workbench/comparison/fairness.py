"""Why the results of a comparison can be compared, in sentences: batches, test data, budget, tuning, cost, size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard_workbench.comparison.comparison import Comparison
from regard_workbench.comparison.job import Outcome
from regard_workbench.comparison.matching import FLOPS, WITHIN, WORDS, spread
from regard_workbench.comparison.results import Row, runs_of
from regard_workbench.training.config.budget import parse as parse_budget
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.run_folder.folder import RunFolder
from regard_workbench.training.run_folder.metrics_file import changed

UNEQUAL = 1.1  # the largest over the smallest contestant, from which on sizes are called different


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
        return [f"NOTE: runs differ in {', '.join(differing)}, so that the same seed does not mean the same batches."]
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
    reasons = [changed(RunFolder(Path(run.folder)).metrics, run.metrics) for run in done]
    return [f"NOTE: {why} Its curves may be wrong." for why in reasons if why]


def _same_test(done: Sequence[Outcome]) -> str:
    tested = [run for run in done if run.test]
    if not tested:
        return "No run was tested."
    hashes = sorted({run.data_sha256 for run in tested})
    if len(hashes) == 1:
        return f"All {len(tested)} runs were tested on the same examples (sha256 {hashes[0][:12]})."
    return (
        f"WARNING: the runs were tested on {len(hashes)} different sets of examples "
        f"({', '.join(digest[:12] for digest in hashes)}). Their test results must not be compared."
    )


def _same_budget(comparison: Comparison, done: Sequence[Outcome]) -> str:
    text = f"Each run had the same budget: {comparison.budget}"
    early = sum(run.stopped_by == "patience" for run in done)
    if early:
        text += f"; {early} of {len(done)} stopped early, because validation no longer improved"
    budget = comparison.settings.get("budget")
    if budget is not None and parse_budget(budget).kind == "seconds":
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
        "Steps per second, memory and FLOPs were measured after training, one contestant at a time, on "
        f"{' and '.join(where)}. What else ran on the machine was not checked."
    )


def _sizes(comparison: Comparison, done: Sequence[Outcome]) -> list[str]:
    if comparison.match is not None:
        return [size_note(comparison.rows)]
    least, most = (end(run.parameters for run in done) for end in (min, max))
    if most <= UNEQUAL * least:
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


def unequal_sizes(rows: Sequence[Row]) -> tuple[float, float] | None:
    """The fewest and most parameters of contestants that were not matched; None where they hardly differ."""
    sizes = [float(row["parameters"]) for row in rows if row["parameters"] and row["match"] is None]
    return (min(sizes), max(sizes)) if sizes and max(sizes) > UNEQUAL * min(sizes) else None


def _missing(comparison: Comparison) -> list[str]:
    failed = [
        f"{contestant.label} with seed {run.seed}"
        for contestant in comparison.contestants
        for run in runs_of(comparison, contestant)
        if run.error
    ]
    notes = [f"NOTE: failed, and not part of any mean: {'; '.join(failed)}."] if failed else []
    return notes + [f"Left out: {label}: {why}" for label, why in comparison.left_out]

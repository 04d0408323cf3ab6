"""`compare(plan)` runs a comparison and writes its table, files and report.

    grid → widths of equal size → tuning, the same effort for each → runs → the cost of a step, alone → rows → files

All files of a comparison are in one folder. Repeating the command resumes it from there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from regard.errors import BadValue, unknown_name
from regard_workbench.comparison import matching, previous_runs, table
from regard_workbench.comparison.comparison import Comparison
from regard_workbench.comparison.costs import costs_of
from regard_workbench.comparison.engines.engine import Engine, Event
from regard_workbench.comparison.engines.local import Capacity, LocalEngine, capacity_for
from regard_workbench.comparison.grid import RunGrid, compose, jobs
from regard_workbench.comparison.job import Job, Outcome, Settings
from regard_workbench.comparison.matching import WORDS, Match
from regard_workbench.comparison.plan import ComparisonPlan
from regard_workbench.comparison.results import Row
from regard_workbench.comparison.shareable import plain_without_folders, shareable
from regard_workbench.training.config import budget, refuse
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.hardware import choose_device
from regard_workbench.training.run_folder import durable, metrics_file
from regard_workbench.training.run_folder.folder import RunFolder

ENGINES = ("local", "ray")


def compare(
    plan: ComparisonPlan,
    on_event: Callable[[Event], None] = lambda event: None,
    tell: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Run a plan. `on_event` is called with each event of a run, `tell` with other messages for the user.

    Raises `Stopped` after a signal; running the same plan again resumes it.
    """
    if plan.engine not in ENGINES:
        raise unknown_name("engine", plan.engine, ENGINES)
    grid = compose(plan.settings, plan.models, plan.attentions, plan.origins, beam=plan.beam)
    for label, why in grid.left_out:
        tell(f"left out: {label}: {why}")
    with _folder(plan.out):
        match = _matched(plan, grid, tell)
        if match is not None:
            grid = dataclasses.replace(grid, models=match.models)
        config = complete(grid.settings)
        gpu = choose_device(config.device).type == "cuda"
        room = capacity_for(
            len(grid.contestants) * len(plan.seeds), gpu=gpu, workers=plan.workers, threads=plan.threads
        )
        with _engine(plan, room) as unlimited:
            engine = Limited(unlimited, plan.timeout, plan.heartbeat)
            chosen = _tuned(plan, grid, engine, room, on_event)
            todo = jobs(grid, plan.seeds, plan.out, chosen=chosen, threads=room.threads, beam=plan.beam, use=plan.use)
            _check_previous_runs(todo, tell)
            outcomes = engine.run(todo, on_event)
            for outcome in outcomes:
                if why := metrics_file.changed(RunFolder(Path(outcome.folder)).metrics, outcome.metrics):
                    tell(why)
        comparison = Comparison(
            task=config.task,
            settings=grid.settings,
            contestants=grid.contestants,
            seeds=list(plan.seeds),
            outcomes=outcomes,
            costs=costs_of(todo, outcomes, plan.out, tell, _shorter(plan.timeout, plan.heartbeat)),
            left_out=grid.left_out,
            budget=budget_text(budget.budget_of(config)),
            command=plan.command,
            out=plan.out.absolute(),
            engine=plan.engine,
            trials=plan.trials,
            chosen=chosen,
            match=match,
            target=plan.target,
            columns=plan.columns,
        )
        tell("writing the report")
        write(comparison)
    return comparison


def budget_text(given: budget.Budget) -> str:
    """The length of each run, for people."""
    return f"{given.amount:,.15g} {given.kind}"


def write(comparison: Comparison) -> None:
    """Write results and differences as JSON, the table as CSV and LaTeX, and the report; each file whole or not."""
    # It draws: matplotlib, when it is imported, makes folders in the user's home.
    from regard_workbench.comparison import report

    comparison = shareable(comparison)
    rows = plain_without_folders(comparison.rows)
    files = {
        "results.json": _json(rows),
        "differences.json": _json(comparison.pairs),
        "results.csv": table.to_csv(rows),
        "results.tex": table.to_latex(rows, comparison.columns),
    }
    for name, content in files.items():
        durable.replace(comparison.out / name, content.encode())
    report.write(comparison, rows, comparison.report)


def _json(rows: Sequence[Row]) -> str:
    return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Limited:
    """An engine that gives every job, runs and trials alike, the limits of the plan."""

    engine: Engine
    timeout: float | None
    heartbeat: float | None

    def run(self, jobs: Iterable[Job], on_event: Callable[[Event], None]) -> list[Outcome]:
        """Run all jobs within the limits."""
        limited = (dataclasses.replace(job, timeout=self.timeout, heartbeat=self.heartbeat) for job in jobs)
        return self.engine.run(limited, on_event)


def _shorter(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _matched(plan: ComparisonPlan, grid: RunGrid, tell: Callable[[str], None]) -> Match | None:
    """The widths that the plan's `match` chooses; None where it asks for none, or nothing is compared."""
    if plan.match is None or len(grid.contestants) < 2:
        return None
    tell(f"choosing widths for equal {WORDS[plan.match]}")
    return matching.match({**grid.settings, "seed": plan.seeds[0]}, grid.contestants, plan.match)


@contextmanager
def _engine(plan: ComparisonPlan, room: Capacity) -> Iterator[Engine]:
    """The engine of a plan; a cluster that it starts ends with it."""
    if plan.engine == "local":
        if plan.address is not None:
            raise BadValue("--address: only --engine ray has one. Add --engine ray, or leave it out.")
        yield LocalEngine(room.workers)
        return
    # Loaded late: Ray takes a second, and may not be installed.
    from regard_workbench.comparison.engines.ray import RayEngine

    cores = None if plan.workers is None else plan.workers * room.threads
    with RayEngine(plan.address, threads=room.threads, cores=cores) as engine:
        yield engine


def _tuned(
    plan: ComparisonPlan, grid: RunGrid, engine: Engine, room: Capacity, on_event: Callable[[Event], None]
) -> dict[str, Settings]:
    """The settings that tuning chose, by a contestant's label."""
    if not plan.trials:
        return {}
    from regard_workbench.comparison.sweep import (
        tune_all,
    )  # loaded late: Optuna takes a second, and may not be installed

    tuned = tune_all(
        grid.contestants,
        {**grid.settings, "seed": plan.seeds[0]},
        plan.trials,
        plan.space,
        engine,
        plan.out.absolute() / "sweep",
        room.threads,
        on_event,
        use=plan.use,
        models=grid.models,
    )
    return {contestant.label: settings for contestant, settings in zip(grid.contestants, tuned, strict=True)}


def _check_previous_runs(todo: Sequence[Job], tell: Callable[[str], None]) -> None:
    """Refuse runs in the folder that had other settings; report those that are continued to a larger budget."""
    refuse([why for job in todo if (why := previous_runs.refusal(job))])
    for job in todo:
        previous_runs.finished(job, tell)  # reports outcomes that do not match their checksum
        if was := previous_runs.longer(job):
            tell(
                f"{job.folder}: continues a run of {was}. Its learning rate followed the schedule of the shorter run, "
                "so the result differs from a run in a fresh --out."
            )


@contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Create the folder of the comparison if needed, and lock it for this process."""
    if "\0" in str(out):
        raise BadValue("--out: a path cannot hold a NUL character.")
    if out.exists() and not out.is_dir():
        raise BadValue(f"--out: {out} is a file, not a folder.")
    if RunFolder(out).exists:
        raise BadValue(f"--out: {out} is a run of `regard train`. Choose another folder.")
    with ExitStack() as stack:
        try:
            durable.make_folder(out)
            stack.enter_context(RunFolder(out).locked())
        except OSError as trouble:
            cause = trouble.__cause__ if isinstance(trouble.__cause__, OSError) else trouble
            raise BadValue(f"--out: cannot write in {out}: {cause.strerror}. Choose another folder.") from trouble
        yield

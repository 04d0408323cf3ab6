"""Runs of an earlier command in the same folder: which are finished, which can be resumed, which have other settings.

An outcome is reused only where a fresh run would give the same result. A run may be continued to a larger budget;
no other setting that its result depends on may change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard_workbench.comparison.job import FILE, Job, Outcome, Settings
from regard_workbench.training.config import budget, flat
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.run_folder import checkpoints, durable, selection
from regard_workbench.training.run_folder.folder import RunFolder

JOB_FILE = "job.json"
# Settings that a result does not depend on, and the budget, which is compared separately.
FREE = ("out", "name", "log_every", "save_every", "keep", "report_to", "steps", "budget")


def finished(job: Job, tell: Callable[[str], None] = lambda text: None) -> Outcome | None:
    """The outcome of the same job, if its run finished and was measured in the same way.

    `tell` is called where an outcome does not match its checksum or the run's checkpoints; the run is measured again.
    """
    outcome = Outcome.load(job.folder, tell)
    if outcome is None or outcome.error or _plain(outcome.settings) != _plain(job.settings):
        return None
    measured = outcome.beam == job.beam and bool(outcome.blocks) if job.test else True
    if not measured or refusal(job) or longer(job):
        return None
    if why := _mismatch(outcome, job):
        tell(f"{job.folder}: {why} It is measured again.")
        return None
    return outcome


def _mismatch(outcome: Outcome, job: Job) -> str:
    """Why an outcome does not belong to the best checkpoint of the run; empty if it does."""
    if not outcome.checkpoint:  # of an earlier version
        return ""
    try:
        best = selection.require(RunFolder(Path(job.folder)), selection.BEST, lambda text: None)
    except durable.ReadFailed:  # it says nothing about the checkpoints
        raise
    except RegardError as trouble:
        return f"its outcome cannot be compared with its checkpoints: {trouble}"
    if (best.name, best.sha256) != (outcome.checkpoint, outcome.checkpoint_sha256):
        return f"its outcome is of {outcome.checkpoint}, its best checkpoint is {best.name}."
    if (best.state.get("settings") or {}).get("sha256", "") != outcome.settings_sha256:
        return "its outcome is of other settings."
    return ""


def forget(job: Job) -> None:
    """Remove an outdated outcome before the run resumes."""
    (Path(job.folder) / FILE).unlink(missing_ok=True)


def refusal(job: Job) -> str:
    """Why the run in a job's folder cannot be resumed with this job; empty if it can, or if there is no run."""
    run = RunFolder(Path(job.folder))
    if not run.exists:
        return ""
    before, current = _settings(run.settings()), _settings(job.settings)
    # The default of eval_every depends on the budget; a run that is continued keeps its own unless another one is set.
    before["eval_every"], current["eval_every"] = (
        _noted_settings(job).get("eval_every"),
        job.settings.get("eval_every"),
    )
    changed = [name for name in current if name not in FREE and before.get(name) != current[name]]
    if changed:
        differences = ", ".join(f"{name} was {before.get(name)!r} and is now {current[name]!r}" for name in changed)
        return f"{job.folder}: {differences}. Choose another --out."
    was, wanted = budget.budget_of(complete(run.settings())), budget.budget_of(complete(job.settings))
    if (was.kind, was.amount) == (wanted.kind, wanted.amount) or longer(job):
        return ""
    return f"{job.folder}: it was started with {was}, so it cannot become a run of {wanted}. Choose another --out."


def longer(job: Job) -> str:
    """The budget of the run in a job's folder, in words, if the job has a larger one of the same unit; else empty."""
    run = RunFolder(Path(job.folder))
    if not run.exists:
        return ""
    was, wanted = budget.budget_of(complete(run.settings())), budget.budget_of(complete(job.settings))
    return str(was) if was.kind == wanted.kind and was.amount < wanted.amount else ""


def steps_taken(job: Job) -> int:
    """The step of the run's newest checkpoint; 0 where there is none."""
    paths = checkpoints.paths(RunFolder(Path(job.folder)).checkpoints)
    return checkpoints.step_of(paths[0]) if paths else 0


def note(job: Job) -> Path:
    """Write the job into its folder, and return the path."""
    folder = Path(job.folder)
    with durable.reporting(folder):
        durable.make_folder(folder)
    durable.replace(folder / JOB_FILE, job.to_json().encode())
    return folder / JOB_FILE


def _noted_settings(job: Job) -> Settings:
    """The settings with which the run was last started."""
    try:
        return Job.from_json(durable.read(Path(job.folder) / JOB_FILE).decode()).settings
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    return dict(_plain(flat(dataclasses.asdict(complete(values)))))


def _plain(values: Any) -> Any:
    """The values as JSON gives them back: tuples become lists."""
    return json.loads(json.dumps(values))

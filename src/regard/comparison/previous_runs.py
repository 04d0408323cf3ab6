"""What an earlier command left: runs that need not run again, and runs that cannot become what is asked for now.

An outcome is taken over only where a fresh run would give the same. A run may be made longer; nothing else that its
result depends on may change in its folder.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.comparison.job import FILE, Job, Outcome, Settings
from regard.errors import RegardError
from regard.training.config import budget, flat
from regard.training.config.recipe import complete
from regard.training.run_folder import checkpoints, durable, selection
from regard.training.run_folder.folder import RunFolder

TOLD = "job.json"
# What a run's result does not depend on, and how long it is, which is looked at by itself.
FREE = ("out", "name", "log_every", "save_every", "keep", "report_to", "steps", "budget")


def finished(job: Job, tell: Callable[[str], None] = lambda text: None) -> Outcome | None:
    """The outcome of the same job, if its run came to an end and was measured in the same way.

    `tell` hears of an outcome that is not what was written, or not of what the run holds; the run is measured again.
    """
    found = Outcome.load(job.folder, tell)
    if found is None or found.error or _plain(found.settings) != _plain(job.settings):
        return None
    measured = found.beam == job.beam and bool(found.blocks) if job.test else True
    if not measured or refusal(job) or longer(job):
        return None
    if why := _of_another(found, job):
        tell(f"{job.folder}: {why} It is measured again.")
        return None
    return found


def _of_another(outcome: Outcome, job: Job) -> str:
    """Why an outcome is not of the checkpoint that everybody else takes for the best of the run; empty if it is."""
    if not outcome.checkpoint:  # of an earlier version
        return ""
    try:
        best = selection.require(RunFolder(Path(job.folder)), selection.BEST, lambda text: None)
    except RegardError as trouble:
        return f"its outcome cannot be compared with its checkpoints: {trouble}"
    if (best.name, best.sha256) != (outcome.checkpoint, outcome.checkpoint_sha256):
        return f"its outcome is of {outcome.checkpoint}, its best checkpoint is {best.name}."
    if (best.state.get("settings") or {}).get("sha256", "") != outcome.settings_sha256:
        return "its outcome is of other settings."
    return ""


def forget(job: Job) -> None:
    """Remove an outcome that no longer holds, before the run goes on."""
    (Path(job.folder) / FILE).unlink(missing_ok=True)


def refusal(job: Job) -> str:
    """Why the run in a job's folder cannot go on as this job; empty if it can, or if there is none."""
    run = RunFolder(Path(job.folder))
    if not run.exists:
        return ""
    before, now = _settings(run.settings()), _settings(job.settings)
    # How often a run validates follows from its length; a longer one keeps its pace unless somebody asks for another.
    before["eval_every"], now["eval_every"] = _told(job).get("eval_every"), job.settings.get("eval_every")
    changed = [name for name in now if name not in FREE and before.get(name) != now[name]]
    if changed:
        what = ", ".join(f"{name} was {before.get(name)!r} and is now {now[name]!r}" for name in changed)
        return f"{job.folder}: {what}. Choose another --out."
    was, wanted = budget.budget_of(complete(run.settings())), budget.budget_of(complete(job.settings))
    if (was.kind, was.amount) == (wanted.kind, wanted.amount) or longer(job):
        return ""
    return (
        f"{job.folder}: it was begun with {was}, so it cannot become one of {wanted}. Choose another --out."
    )


def longer(job: Job) -> str:
    """How long the run in a job's folder was to be, in words, where the job wants more of the same; else empty."""
    run = RunFolder(Path(job.folder))
    if not run.exists:
        return ""
    was, wanted = budget.budget_of(complete(run.settings())), budget.budget_of(complete(job.settings))
    return str(was) if was.kind == wanted.kind and was.amount < wanted.amount else ""


def steps_taken(job: Job) -> int:
    """The step of the run's newest checkpoint; 0 where there is none."""
    found = checkpoints.paths(RunFolder(Path(job.folder)).checkpoints)
    return checkpoints.step_of(found[0]) if found else 0


def note(job: Job) -> Path:
    """Write down what the run in a folder is told, and return where."""
    folder = Path(job.folder)
    with durable.reporting(folder):
        durable.make_folder(folder)
    durable.replace(folder / TOLD, job.to_json().encode())
    return folder / TOLD


def _told(job: Job) -> Settings:
    """The settings that were said when the run was last started."""
    try:
        return Job.from_json(durable.read(Path(job.folder) / TOLD).decode()).settings
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    return dict(_plain(flat(dataclasses.asdict(complete(values)))))


def _plain(values: Any) -> Any:
    """The same after a way through JSON, where a tuple becomes a list."""
    return json.loads(json.dumps(values))

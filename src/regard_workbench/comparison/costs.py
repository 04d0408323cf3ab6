"""The cost of a training step of each contestant, measured after all runs, one contestant at a time.

Each is measured in a process of its own (`step_cost.py`), so that one's memory is not the other's. costs.json keeps the
measurements, which are not repeated for the same settings.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from regard_workbench.comparison.engines.child import Child
from regard_workbench.comparison.engines.stopped import Stopped
from regard_workbench.comparison.job import Cost, Job, Outcome
from regard_workbench.comparison.limits import duration_text
from regard_workbench.training.run_folder import durable
from regard_workbench.training.signals import Signals

FILE = "costs.json"
SECONDS_BETWEEN_LOOKS = 0.05


def costs_of(
    todo: Sequence[Job], outcomes: Sequence[Outcome], out: Path, tell: Callable[[str], None], limit: float | None = None
) -> dict[str, Cost]:
    """The cost of each contestant with a finished run, by label; `limit`: seconds for one measurement."""
    stored = _known(out / FILE)
    costs: dict[str, Cost] = {}
    for job, outcome in zip(todo, outcomes, strict=True):
        label = job.contestant.label
        if outcome.error or label in costs:
            continue
        key = json.dumps([job.settings, job.threads], sort_keys=True)
        if key not in stored:
            tell(f"measuring a training step of {label}")
            measured = _measured(job, tell, limit)
            if measured is None:
                continue
            stored[key] = measured
            durable.replace(out / FILE, json.dumps(stored, indent=1).encode())
        costs[label] = Cost(**stored[key])
    return costs


def _known(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(durable.read(path))
        return {key: dataclasses.asdict(Cost(**cost)) for key, cost in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _measured(job: Job, tell: Callable[[str], None], limit: float | None) -> dict[str, Any] | None:
    """The cost of a job, measured by `step_cost.py` in a process of its own; None, with a message, if that fails."""
    request = json.dumps({"settings": job.settings, "threads": job.threads, "use": list(job.use)})
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        stdin.write(request.encode())
        stdin.seek(0)
        code = _run(
            [sys.executable, "-m", "regard_workbench.comparison.step_cost"], stdin, out, errors, job.threads, limit
        )
        for file in (out, errors):
            file.seek(0)
        if code == 0:
            return dataclasses.asdict(Cost(**json.loads(out.read().splitlines()[-1])))
        lines = errors.read().decode(errors="replace").strip().splitlines()
    why = lines[-1] if lines else f"exit code {code}"
    if code is None:
        assert limit is not None
        why = f"it took longer than {duration_text(limit)} and was stopped"
    tell(f"the cost of {job.contestant.label} could not be measured: {why}")
    return None


def _run(
    command: list[str], given: IO[bytes], out: IO[bytes], errors: IO[bytes], threads: int, limit: float | None
) -> int | None:
    """The exit code of a process, None if it exceeded its limit; raises `Stopped` after a signal."""
    child: Child | None = None

    def kill() -> None:
        if child is not None:
            child.kill()

    with Signals(kill) as signals:
        child = Child(command, stdin=given, stdout=out, stderr=errors, threads=threads)
        until = math.inf if limit is None else time.monotonic() + limit
        try:
            while (code := child.poll()) is None and time.monotonic() < until:
                if signals.received:
                    raise Stopped(signals.received)
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            child.wait(0.0)  # the next command measures again
    return code

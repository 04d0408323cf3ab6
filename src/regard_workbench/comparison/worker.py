"""One run of a comparison in this process: train, load the best checkpoint, measure it, write the outcome.

    python -m regard_workbench.comparison.worker runs/…/job.json

It resumes from the last checkpoint in the run's folder. A failed run has the reason in its outcome and the traceback on
stderr, which the engine writes to the run's log. When stdin ends, the parent process is gone: the run saves and stops.
Every batch sends a heartbeat to the engine.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import torch

from regard.errors import RegardError
from regard_workbench import plugins
from regard_workbench.comparison import previous_runs
from regard_workbench.comparison.engines.child import VARIABLE
from regard_workbench.comparison.engines.stopped import Stopped
from regard_workbench.comparison.job import Job, Outcome
from regard_workbench.models import Model
from regard_workbench.tasks import Task
from regard_workbench.tasks.measures.metrics import States, merged
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training.config import Config
from regard_workbench.training.evaluation import DecodingModel, Fingerprint, completions, decoding_of, evaluate
from regard_workbench.training.hardware import choose_device
from regard_workbench.training.loading import load
from regard_workbench.training.loop import COMPLETED
from regard_workbench.training.run import Result, train
from regard_workbench.training.run_folder import selection
from regard_workbench.training.run_folder.folder import RunFolder, environment
from regard_workbench.training.run_folder.lock import FolderLocked
from regard_workbench.training.run_folder.metrics_file import plain
from regard_workbench.training.signals import on_heartbeat, to_stderr
from regard_workbench.training.state import seed_everything

BLOCKS = 200  # enough for the test of a difference, few enough to be kept as text
LARGEST_BATCH = 32
PATIENCE = 60.0  # seconds until a process that was asked to stop must have released the folder
SECONDS_BETWEEN_BEATS = 0.2
FAILED = 1


def perform(job: Job) -> Outcome:
    """Run a job, or return its finished outcome. Raises `Stopped` after a signal; there is no outcome then."""
    plugins.load(job.use)
    torch.set_num_threads(job.threads)
    if (previous := previous_runs.finished(job, to_stderr)) is not None:
        return previous
    previous_runs.note(job)
    previous_runs.forget(job)
    try:
        _wait_for_folder(RunFolder(Path(job.folder)))
        result = train({**job.settings, "out": job.folder}, resume="auto", quiet=True)
        if result.exit_code:
            raise Stopped(result.exit_code - 128)
        outcome = _outcome(job, result)
    except Stopped:
        raise
    except Exception as trouble:  # of any kind: the other runs of the comparison continue
        traceback.print_exc()
        outcome = failed(job, reason(trouble))
    outcome.save()
    return outcome


def failed(job: Job, why: str) -> Outcome:
    """The outcome of a run that did not finish."""
    return Outcome(
        **dataclasses.asdict(job.contestant),
        seed=job.seed,
        settings=job.settings,
        folder=job.folder,
        error=why,
        steps=previous_runs.steps_taken(job),
        command=command_of(job),
        beam=job.beam,
    )


def reason(trouble: BaseException) -> str:
    """One line about an error."""
    lines = [line for line in str(trouble).splitlines() if line.strip()]
    if isinstance(trouble, RegardError) and lines:
        return " ".join(lines)
    return ": ".join([type(trouble).__name__, *lines[:1]])


def command_of(job: Job) -> str:
    """The command that reproduces this run alone."""
    words = ["regard", *(word for file in job.use for word in ("--use", file)), "train"]
    for name, value in job.settings.items():
        option = "--" + name.replace("_", "-")
        if name == "task":
            words.append(str(value))
        elif isinstance(value, bool):
            words.append(option if value else f"--no-{name}")
        elif isinstance(value, (list, tuple)):
            words += [option, ",".join(map(str, value))] if value else []
        elif value is not None:
            words += [option, str(value)]
    return shlex.join(words)


def in_blocks(task: Task, model: Model, config: Config) -> tuple[dict[str, float], list[States], str]:
    """The metrics of the test split, their states in each block of it, and a hash of the batches.

    The blocks depend on the number of examples alone, and random parts of a task (hidden words) are drawn from the same
    seed for every run, so that two runs can be compared block by block.
    """
    count = len(task.examples("test"))
    size = min(LARGEST_BATCH, -(-count // BLOCKS)) or 1
    pieces: list[States] = []
    device = choose_device(config.device)
    fingerprint = Fingerprint()

    def to_device(batch: Batch) -> Batch:
        fingerprint.add(batch)
        return batch.to(device)

    test_metrics = evaluate(task, model, "test", batch_size=size, to_device=to_device, on_batch=pieces.append) or {}
    together = -(-len(pieces) // BLOCKS) or 1
    metrics = task.metrics()
    blocks = [merged(metrics, pieces[start : start + together]) for start in range(0, len(pieces), together)]
    return test_metrics, blocks, fingerprint.hexdigest


def _outcome(job: Job, result: Result) -> Outcome:
    device = choose_device(str(job.settings.get("device", "auto")))
    loaded = load(job.folder, device=device)
    task, model, config = loaded.task, loaded.model, loaded.config
    decoding = DecodingModel(model, decoding_of(task, job.beam))
    seed_everything(config.seed)  # evaluation must not depend on how often the run was resumed
    size = config.batch_size or LARGEST_BATCH
    validation = evaluate(task, decoding, batch_size=size, seed=config.seed) or {}
    test, blocks, read = in_blocks(task, decoding, config) if job.test else ({}, [], "")
    if job.test:
        for split, numbers in (("validation", validation), ("test", test)):
            numbers |= completions(task, decoding, split, batch_size=size, most=COMPLETED, device=device)
    protocol = {name: str(how) for name, how in task.protocol().items() if name in test}
    return Outcome(
        **dataclasses.asdict(job.contestant),
        seed=job.seed,
        settings=job.settings,
        folder=job.folder,
        steps=result.steps,
        seconds=result.seconds,
        steps_per_second=result.steps_per_second,
        stopped_by=result.stopped_by,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        metric=task.metric.name,
        higher_is_better=task.metric.higher_is_better,
        validation=_numbers(validation),
        test=_numbers(test),
        best_step=(result.best or {}).get("step"),
        blocks=blocks,
        data_sha256=read,
        command=command_of(job),
        versions=_versions(device),
        protocol=protocol,
        beam=job.beam,
        direction=str(task.direction() or ""),
        changes=[str(change) for change in loaded.changes],
        checkpoint=loaded.checkpoint,
        checkpoint_sha256=loaded.sha256,
        settings_sha256=loaded.settings_sha256,
        metrics=selection.require(RunFolder(Path(job.folder)), selection.LAST, lambda text: None).state.get("metrics"),
    )


def _numbers(found: dict[str, float]) -> dict[str, float]:
    """Without non-finite values."""
    return {name: value for name, value in plain(found).items() if value is not None}


def _versions(device: torch.device) -> dict[str, str]:
    facts = environment(str(device))
    return {
        "regard": facts["regard"],
        "torch": str(torch.__version__),
        "python": facts["python"],
        "device": " ".join(name for name in (str(device), facts["gpu"] or "") if name),
    }


def _wait_for_folder(run: RunFolder) -> None:
    """Wait while a process of a killed command is still saving in the folder."""
    limit = time.monotonic() + PATIENCE
    while run.path.is_dir() and time.monotonic() < limit:
        try:
            with run.locked():
                return
        except FolderLocked:
            time.sleep(0.1)


def _stop_with_parent() -> None:
    """Stop when stdin ends: the engine holds its other end until the engine's process dies."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _send_heartbeats() -> None:
    """Tell the engine about progress, but not more often than it looks."""
    handle = int(os.environ.pop(VARIABLE, -1))
    if handle < 0:  # started by hand
        return
    os.set_inheritable(handle, False)
    sent_at = 0.0

    def beat() -> None:
        nonlocal sent_at
        if time.monotonic() - sent_at >= SECONDS_BETWEEN_BEATS:
            sent_at = time.monotonic()
            with suppress(OSError):  # the pipe is full, or the engine is gone
                os.write(handle, b".")

    on_heartbeat(beat)


def main(arguments: list[str] | None = None) -> int:
    """Run the job in a file. Returns 0, 1 if the run failed, 128 + n after signal n."""
    (file,) = sys.argv[1:] if arguments is None else arguments
    _stop_with_parent()
    _send_heartbeats()
    try:
        outcome = perform(Job.from_json(Path(file).read_text(encoding="utf-8")))
    except Stopped as stopped:
        return stopped.exit_code
    return FAILED if outcome.error else 0


if __name__ == "__main__":
    sys.exit(main())

"""The cost of one training step: time, memory, floating-point operations.

    python -m regard_workbench.comparison.step_cost < settings.json

It runs real training steps on the run's own batches and discards the result. Each contestant is measured in a process
of its own, without other contestants: speed measured beside other runs is not comparable, and memory that a process
has already allocated hides how much the next model needs.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from regard_workbench import plugins
from regard_workbench.comparison import flops
from regard_workbench.comparison.job import Cost, Settings
from regard_workbench.comparison.memory import peak_memory
from regard_workbench.training.build import Parts, build_model, build_task
from regard_workbench.training.config import Config
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.hardware import prepare
from regard_workbench.training.loop import Trainer
from regard_workbench.training.progress import WARM_UP
from regard_workbench.training.run_folder.folder import RunFolder
from regard_workbench.training.signals import Signals
from regard_workbench.training.state import seed_everything

SECONDS = 3.0
_WINDOW = 0.25  # seconds of one timing, which has at least one step
_FEWEST = 3  # timings, however slow a step is
_COUNTED = 8  # batches whose operations are counted; batches differ in length
_NEVER = 10**9  # steps: no validation, no checkpoint, no end
_MIB = 2**20


def measure(
    settings: Settings, threads: int, seconds: float = SECONDS, ready: Callable[[], object] = lambda: None
) -> Cost:
    """Steps per second, peak memory and operations of training with these settings.

    `threads`: of torch, on a CPU. `seconds`: duration of the timing after a warm-up. `ready` is called between warm-up
    and timing: processes that compile side by side wait there for their turn. On a CPU only the first call of a process
    measures memory correctly.
    """
    torch.set_num_threads(threads)
    config = _endless(settings)
    hardware = prepare(config)
    seed_everything(config.seed)
    task = build_task(config)
    with tempfile.TemporaryDirectory(prefix="regard-") as folder, Signals() as signals:

        def training(settings: Config) -> Trainer:
            task_and_model = Parts(task, build_model(settings, task))
            return Trainer(settings, RunFolder(Path(folder)), task_and_model, hardware, signals, quiet=True)

        # Data, and libraries that torch loads in the first step, do not count as memory of the model.
        _steps(training(dataclasses.replace(config, batch_size=1)), 0.0)
        _release_memory()
        with peak_memory(hardware.device) as peak:
            trainer = training(config)
            pace = _steps(trainer, seconds, ready)
            memory = peak()
    batches = [trainer.batch(index) for index in range(_COUNTED)]
    return Cost(
        steps_per_second=pace,
        peak_memory_mib=memory / _MIB,
        flops_per_step=trainer.accumulate * flops.mean_of_steps(trainer.model, batches),
        parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
        batch=batches[0].shapes(),
        device=_named(hardware.device),
        threads=threads,
    )


def _endless(settings: Settings) -> Config:
    """The settings without end, validation and checkpoints, which are not part of the cost of a step."""
    never = {"steps": _NEVER, "eval_every": _NEVER, "save_every": _NEVER}
    unsaid = dict.fromkeys(("budget", "patience", "init_from", "report_to"))
    return complete({**settings, **never, **unsaid})


def _steps(trainer: Trainer, seconds: float, ready: Callable[[], object] = lambda: None) -> float:
    """Steps per second, the median over timings; preparing batches is part of a step."""
    readings: list[float] = []
    with trainer.open():
        for _ in range(WARM_UP):
            trainer.advance()
        trainer.synchronize()
        ready()
        began = time.perf_counter()
        while len(readings) < _FEWEST or time.perf_counter() - began < seconds:
            start, steps = time.perf_counter(), 0
            while not steps or time.perf_counter() - start < min(_WINDOW, seconds):
                trainer.advance()
                steps += 1
            trainer.synchronize()  # waits until a GPU has finished
            readings.append(steps / (time.perf_counter() - start))
    return statistics.median(readings)


def _named(device: torch.device) -> str:
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def _release_memory() -> None:
    """Free unreferenced memory and return it to the system, so that the next measurement starts from it."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):  # only the C library of Linux offers it
        ctypes.CDLL(None).malloc_trim(0)


def main(arguments: list[str] | None = None) -> int:
    """Read what to measure as JSON from a file or stdin, and print the cost as JSON.

    `{"settings": {…}, "threads": 2, "seconds": 3, "use": ["my_model.py"]}`; all but the settings may be left out.
    """
    argv = sys.argv[1:] if arguments is None else arguments
    request: dict[str, Any] = json.loads(Path(argv[0]).read_text(encoding="utf-8") if argv else sys.stdin.read())
    plugins.load(request.get("use", ()))
    cost = measure(request["settings"], request.get("threads", 1), request.get("seconds", SECONDS))
    print(json.dumps(dataclasses.asdict(cost), ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())

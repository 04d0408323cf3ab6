"""Losses of short trainings: with the kernels and without, and with one step or several in a CUDA graph."""

from __future__ import annotations

import tempfile
from typing import Any

from bench.small_checking.training import CONTESTANTS, GROUP, trainer_of

CHECKED = 48  # steps whose losses are compared; `digits` has a smaller batch, which ends a group early, at step 40


def curve(task: str, model: str, device: str, fused: bool, group: int, steps: int) -> list[float]:
    """The losses of a short training; `group`: steps in a CUDA graph, 0: no graph."""
    from regard.nn import fast_path
    from regard_workbench.training.signals import Signals

    fast_path.enabled = fused
    with tempfile.TemporaryDirectory() as folder, Signals() as signals:
        trainer = trainer_of(task, model, device, False, folder, signals, graph=group > 0)
        results, step = [], trainer.engine.step

        def noted(*given: Any) -> Any:
            results.append(step(*given))
            return results[-1]

        trainer.engine.step = noted
        if group:
            trainer.engine.graphed_step.steps_per_graph = group
        with trainer.open():
            for _ in range(steps):
                trainer.advance()
            trainer.synchronize()
        return [one.result().loss for one in results]


def losses(number: int, device: str) -> dict[str, Any]:
    """Largest differences of losses with the kernels and without, and with one step or several in a graph."""
    task, model = CONTESTANTS[number]
    steps = CHECKED if device == "cuda" else 2
    dry = model.replace(")", ",dropout=0.0)")
    fused, unfused = (curve(task, dry, device, one, 0, steps) for one in (True, False))
    found: dict[str, Any] = {"model": model, "fused against unfused": apart(fused, unfused)}
    found |= {"unfused": unfused[::8], "fused": fused[::8]}
    if device == "cuda":
        eager, single = (curve(task, model, device, True, group, steps) for group in (0, 1))
        found["graph against eager, with dropout"] = apart(single, eager)
        if "lstm" not in model:
            grouped = curve(task, model, device, True, GROUP, steps)
            found |= {"group against single": apart(grouped, single), "grouped": grouped[::8]}
    return found


def apart(one: list[float], other: list[float]) -> float:
    """The largest relative difference of two curves."""
    return max(abs(a - b) / b for a, b in zip(one, other, strict=True))

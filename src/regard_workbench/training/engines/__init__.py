"""How a step is executed: eagerly, as a CUDA graph, or by several processes. `engine_for` chooses one of them."""

from __future__ import annotations

from collections.abc import Callable

from regard_workbench.training.build import Parts
from regard_workbench.training.config import Config
from regard_workbench.training.engines.eager import EagerEngine
from regard_workbench.training.engines.engine import StepEngine
from regard_workbench.training.hardware import Hardware


def engine_for(config: Config, hardware: Hardware, parts: Parts, tell: Callable[[str], None]) -> StepEngine:
    """The engine of a run. Only the one that is chosen is imported."""
    if not hardware.processes.single:
        from regard_workbench.training.engines.processes import ReplicatedEngine, ShardedEngine

        return (ShardedEngine if config.strategy == "fsdp" else ReplicatedEngine)(config, hardware, parts, tell)
    if config.strategy == "fsdp":
        tell("strategy: fsdp shards nothing in one process. Start several: torchrun --nproc_per_node=N -m regard")
    if uncaptured(config, hardware):
        return EagerEngine(config, hardware, parts, tell)
    from regard_workbench.training.engines.cuda_graph.engine import CapturedEngine

    return CapturedEngine(config, hardware, parts, tell)


def uncaptured(config: Config, hardware: Hardware) -> str:
    """Why steps of this run cannot be captured; empty if they can."""
    if not config.graph:
        return "graph is switched off"
    if hardware.device.type != "cuda":
        return "there is no GPU in this run"
    if config.accumulate != 1:
        return "a step is made of several batches"
    if not hardware.processes.single:
        return "the run has several processes"
    if hardware.accelerator.scaler is not None:
        return "16-mixed scales its loss"
    return ""

"""The device and the precision of a run, set up through Accelerate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

from regard.errors import BadValue
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training.config import Config
from regard_workbench.training.processes import Processes

_MIXED = {"bf16-mixed": "bf16", "16-mixed": "fp16"}  # of weights in float32
_TRUE = {"32": torch.float32, "64": torch.float64, "bf16": torch.bfloat16, "16": torch.float16}


@dataclass(frozen=True)
class Hardware:
    """The device and the dtype of the weights; `accelerator` does autocast, loss scaling and DDP."""

    accelerator: Accelerator
    dtype: torch.dtype  # of the weights
    processes: Processes

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = self.accelerator.device
        return device

    def to_device(self, batch: Batch) -> Batch:
        """Move a batch to the device, and cast floating-point inputs to the dtype of the weights."""
        if self.device.type == "cuda":
            # A copy from pageable memory waits until the device has finished all its work.
            batch = batch.pin()
        if self.device.type != "cpu":
            batch = batch.to(self.device)
        return batch.cast(self.dtype)


def choose_device(name: str) -> torch.device:
    """The requested device, if this machine has it; `auto` takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", _index_of_this_process())
        return torch.device("mps") if torch.backends.mps.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadValue(f"device: expected auto, cpu, cuda, cuda:1 or mps, got {name!r}.") from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise BadValue(f"device: {name} was requested, but torch sees {count} CUDA devices here. Try --device cpu.")
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise BadValue("device: mps was requested, but this machine has none. Try --device cpu.")
    elif device.type not in ("cpu", "mps"):
        raise BadValue(f"device: expected auto, cpu, cuda, cuda:1 or mps, got {name!r}.")
    return device


def _index_of_this_process() -> int:
    """Each process that torchrun starts on a machine takes a GPU of its own."""
    index, count = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if index >= count:
        raise BadValue(
            f"device: each process needs a GPU of its own, and process {index} of this machine (counted from 0) finds "
            f"only {count}. Try torchrun --nproc-per-node={count}, or --device cpu."
        )
    return index


def check_environment(config: Config) -> torch.device:
    """The device of a run; raise if this machine lacks what the settings require."""
    if config.report_to is not None:
        from regard_workbench.training.reporting import check_installed

        check_installed(config.report_to)
    device = choose_device(config.device)
    if _MIXED.get(config.precision) == "fp16" and device.type != "cuda":
        raise BadValue(f"precision: 16-mixed needs a GPU, and this run uses {device.type}. Try bf16-mixed.")
    return device


def prepare(config: Config) -> Hardware:
    """Set up Accelerate as the settings say."""
    device = check_environment(config)
    mixed = _MIXED.get(config.precision, "no")
    # Accelerate keeps one global state; a second run in this process may need another precision or device.
    AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
    before = os.environ.get("ACCELERATE_TORCH_DEVICE")
    if device.type == "cuda" and device.index is not None:
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(device)
    try:
        accelerator = Accelerator(mixed_precision=mixed, cpu=device.type == "cpu")
    finally:
        if before is None:
            os.environ.pop("ACCELERATE_TORCH_DEVICE", None)
    _check_context(config, accelerator.num_processes)
    if config.strategy == "fsdp" and accelerator.num_processes > 1:
        _check_fsdp(config)
    dtype = torch.float32 if mixed != "no" else _TRUE[config.precision.removesuffix("-true")]
    return Hardware(accelerator, dtype, Processes(accelerator, config.context_parallel))


def _check_context(config: Config, processes: int) -> None:
    if processes % config.context_parallel:
        raise BadValue(
            f"context_parallel: expected a divisor of the number of processes, got {config.context_parallel} for "
            f"{processes}. Start them with torchrun --nproc_per_node=N, with N a multiple of "
            f"{config.context_parallel}. One process alone trains with --context-parallel 1."
        )
    if config.context_parallel > 1 and config.compile:
        raise BadValue("context_parallel: a compiled model cannot exchange keys. Leave out --compile.")


def _check_fsdp(config: Config) -> None:
    if config.compile:
        raise BadValue("strategy: fsdp cannot shard a compiled model. Leave out --compile, or try --strategy ddp.")
    if config.precision == "16-mixed":
        raise BadValue(
            "strategy: fsdp does not scale losses, as 16-mixed needs. Try --precision bf16-mixed or --strategy ddp."
        )


@contextmanager
def any_shape() -> Iterator[None]:
    """Disable cuDNN attention, which builds a plan for each new shape: batches of text differ in length."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Use deterministic kernels only, within the block."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    benchmark = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.benchmark = benchmark

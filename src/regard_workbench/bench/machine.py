"""What this machine can do: hardware, packages by extra, and how fast each implementation runs here."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from regard import masks
from regard.dispatch.attention import attend
from regard.dispatch.plan import NAMES, implementation
from regard.errors import RegardError
from regard.formula import request
from regard.formula.call import Call
from regard.implementations import HAS_TRITON
from regard_workbench.extras import by_extra, installed, requirements

# extra: what it is for
EXTRAS = {
    "workbench": "the command line, training, reports and the viewer",
    "huggingface": "models and data of the Hugging Face Hub",
    "gpu": "fused kernels on NVIDIA GPUs",
    "onnx": "regard export --to onnx",
    "tensorboard": "--report-to tensorboard",
    "wandb": "--report-to wandb",
    "mlflow": "--report-to mlflow",
    "trackio": "--report-to trackio",
    "cluster": "regard compare --engine ray",
    "sweep": "regard compare --sweep",
    "series": "fast reading of CSV files",
    "sound": "FLAC, Ogg and other sounds",
    "agents": "environments of the task agent",
    "notebook": "the viewer in a notebook",
}
_SHAPES = {"cpu": (1, 4, 512, 64), "cuda": (4, 16, 2048, 64)}  # b, h, n, d of what is timed


def hardware() -> dict[str, Any]:
    """Processor, memory, GPUs and versions."""
    facts: dict[str, Any] = {
        "regard": installed("regard"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        facts["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    facts["gpus"] = [
        {"name": gpu.name, "memory_gib": round(gpu.total_memory / 2**30, 1), "capability": f"{gpu.major}.{gpu.minor}"}
        for gpu in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]
    facts["mps"] = torch.backends.mps.is_available()
    facts["triton"] = installed("triton") if HAS_TRITON else None
    return facts


def extras() -> list[dict[str, Any]]:
    """Each extra: whether its packages are installed, which are missing, and how to get them."""
    declared = by_extra(requirements())
    rows = []
    for name, purpose in EXTRAS.items():
        packages = declared.get(name, [])
        missing = [package for package in packages if installed(package) is None]
        rows.append(
            {
                "extra": name,
                "for": purpose,
                "installed": not missing and bool(packages),
                "missing": missing,
                "get": f'pip install "regard[{name}]"' if missing else None,
            }
        )
    return rows


def speeds(device: str, say: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """Milliseconds of causal attention, forward and with backward, by each implementation; or why it cannot run.

    An implementation may run forward alone: then `why_no_training` says why, and `training_ms` is None.
    """
    b, h, n, d = _SHAPES[device]
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    generator = torch.Generator(device=device).manual_seed(0)
    inputs = [torch.randn(b, h, n, d, device=device, dtype=dtype, generator=generator) for _ in range(3)]
    rows = []
    for name in NAMES:
        say(f"timing {name}")
        why = _refusal(name, inputs)
        row: dict[str, Any] = {"implementation": name, "shape": [b, h, n, d], "dtype": str(dtype)[6:], "why_not": why}
        if why is None:
            row["forward_ms"] = _milliseconds(partial(_forward, name, inputs), device)
            row["why_no_training"] = why = _refusal(name, _leaves(inputs))
            row["training_ms"] = None if why else _milliseconds(partial(_training, name, inputs), device)
        rows.append(row)
    return rows


def _refusal(name: str, inputs: Sequence[torch.Tensor]) -> str | None:
    if name == "triton" and not HAS_TRITON:
        return "Triton is not installed"
    query, key, value = inputs
    attend_request = request.build(Call(query, key, value, mask=masks.causal()))
    return implementation(name).refuse(attend_request)


def _forward(name: str, inputs: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        attend(*inputs, mask=masks.causal(), impl=name)


def _training(name: str, inputs: Sequence[torch.Tensor]) -> None:
    attend(*_leaves(inputs), mask=masks.causal(), impl=name).sum().backward()


def _leaves(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().requires_grad_() for tensor in inputs]


def _milliseconds(call: Callable[[], None], device: str, repeats: int = 5) -> float | str:
    """The best of a few calls after a first one, which may compile; the text of an error instead of a time."""
    try:
        best = math.inf
        for number in range(1 + repeats):
            started = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            if number:
                best = min(best, time.perf_counter() - started)
    except (RegardError, RuntimeError) as trouble:
        return f"{type(trouble).__name__}: {str(trouble).splitlines()[0][:200]}"
    return round(best * 1000, 3)

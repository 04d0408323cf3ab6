"""Peak memory of a block of code: on a GPU what torch allocates, on a CPU the resident size of this process.

The high-water mark on a CPU is the kernel's `VmHWM`, not `ru_maxrss`: the latter survives `exec`, so a child of a large
parent starts with the parent's peak and under-reports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Callable[[], float]]:
    """Yields a function that returns by how many bytes the peak exceeds the memory at the start."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield lambda: float(_allocated(device) - before)
    elif _reset_mark():
        before = _status("VmRSS")
        yield lambda: float(_status("VmHWM") - before)
    else:
        before = _largest_ever()
        yield lambda: float(_largest_ever() - before)


def _allocated(device: torch.device) -> int:
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def _reset_mark() -> bool:
    """Set the high-water mark of this process to its present size (proc(5)); False where that is not possible."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _status(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def _largest_ever() -> int:
    """The largest size of this process so far. It cannot be reset, so that growth below it is not measured."""
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

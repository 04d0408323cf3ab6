"""Circumstances that only a GPU has, in which kernels must compute the same: streams, threads, graphs, used memory.

Layouts, masks that change, hidden NaN, decoding and other kernels: `tests/triton`, which runs on a GPU, too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.cases.gpu.capture import captured
from bench.gpu_checking.formula import BOUNDS, DEVICE, NAMES, error, options, rows, same, trained
from regard import masks, scores


def on_another_stream() -> dict[str, Any]:
    """The current stream is used, not the default one."""
    given, asked = rows(1, 4, 1024, 64), options("window", 1024, 4)
    expected, stream = trained(*given, **asked), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = [trained(*given, **asked) for _ in range(5)]
    stream.synchronize()
    return {"ok": all(same(one, expected) for one in found)}


def in_threads() -> dict[str, Any]:
    """Six threads, each with a stream of its own."""
    asked = options("window", 1024, 4)
    work = [rows(1, 4, 1024, 64, seed=seed) for seed in range(6)]
    expected, wrong = [trained(*given, **asked) for given in work], []
    torch.cuda.synchronize()

    def run(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                if not same(trained(*work[index], **asked), expected[index]):
                    wrong.append(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return {"ok": not wrong and not any(thread.is_alive() for thread in threads), "wrong": wrong}


def in_a_graph() -> dict[str, Any]:
    """A captured call reads what its tensors hold when it is replayed."""
    found = {}
    for name in ("window", "global", "documents"):
        given, other = (rows(1, 4, 1024, 64, seed=seed) for seed in (0, 11))
        found[name] = _replayed(given, other, options(name, 1024, 4))
    return {"ok": all(found.values()), "by_mask": found}


def additive_in_a_graph() -> dict[str, Any]:
    """Additive scores of several strips, and of one whose scores are kept, captured with their backward pass."""
    found = {}
    for name, shape in (("several strips", (1, 1, 4096, 64)), ("kept scores", (16, 1, 256, 256))):
        given, other = (rows(*shape, dtype=torch.float32, seed=seed) for seed in (0, 11))
        score = scores.additive(torch.linspace(-1, 1, shape[3], device=DEVICE))
        found[name] = _replayed(given, other, {"score": score})
    return {"ok": all(found.values()), "by_case": found}


def _replayed(given: Sequence[Tensor], other: Sequence[Tensor], asked: dict[str, Any]) -> bool:
    """Whether a graph captured on `given` computes the same on `other` as a call does."""
    graph = captured(partial(trained, *given, **asked))
    expected = trained(*other, **asked)
    with torch.no_grad():
        for mine, theirs in zip(given, other, strict=True):
            mine.copy_(theirs)
    graph.replay()
    return same(graph.result, expected)


def in_used_memory() -> dict[str, Any]:
    """Tensors of other contents and shapes come to lie where others lay before."""
    worst, addresses, asked = 0.0, set(), options("window", 777, 4)
    for turn in range(12):
        given = rows(1, 4, 777 if turn % 3 else 1030, 64, seed=turn)
        addresses.add(given[0].data_ptr())
        worst = max(worst, error("window", trained(*given, **asked), given, turn % 4))
        del given
    return {"ok": worst < BOUNDS[torch.bfloat16], "error": worst, "addresses": len(addresses)}


def deterministically() -> dict[str, Any]:
    """Equal bits in deterministic mode."""
    given, found = rows(2, 4, 2048, 64), {}
    torch.use_deterministic_algorithms(True)
    try:
        for name in NAMES:
            asked = options(name, 2048, 4)
            first = trained(*given, **asked)
            found[name] = all(same(trained(*given, **asked), first) for _ in range(4))
    finally:
        torch.use_deterministic_algorithms(False)
    return {"ok": all(found.values()), "by_mask": found}


def on_other_devices() -> dict[str, Any]:
    """Launches on a GPU that is not the current one."""
    count, wrong = torch.cuda.device_count(), []
    for index in range(1, count):
        given = [part.detach().to(f"cuda:{index}") for part in rows(1, 4, 300, 64)]
        for part in given[:3]:
            part.requires_grad_()
        for _ in range(2):
            if not torch.isfinite(trained(*given, mask=masks.window(40, 3))[1]).all():
                wrong.append(index)
    return {"ok": not wrong, "devices": count}


ALL = (
    on_another_stream,
    in_threads,
    in_a_graph,
    in_used_memory,
    deterministically,
    additive_in_a_graph,
    on_other_devices,
)

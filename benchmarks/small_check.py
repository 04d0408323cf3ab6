"""Small models in few kernels: are the kernels right on this GPU, and how fast do training steps get?

    python benchmarks/small_check.py [--device cuda] [--seconds 1] [--patience 60] [--out FOLDER]

1. Each row-wise piece against float64, beside the same stages by torch in bf16; times of its kernels for several sizes.
2. Losses of a short training with the kernels and without, dropout off.
3. Steps per second of the loop, device time and kernels of one captured step, host time of one step of the loop.
All contestants of part 3 compile and warm up side by side while parts 1 and 2 run; then they are timed one after the
other. What fails prints its traceback, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SIZE = "layers=2,dim=128"
DECODER = ("language(context=64)", f"decoder({SIZE},num_heads=4)")
CONTESTANTS = (
    DECODER,
    ("digits", f"static-transformer({SIZE})"),
    ("digits(order=pixels)", f"static-transformer({SIZE})"),
    ("digits", f"dynamic-transformer({SIZE})"),
    ("digits", f"lstm-attention({SIZE})"),
)
# Whether the kernels are used, and several steps are one graph; all are compiled.
GROUP = 8  # steps in one graph, where they are grouped
MODES = {"unfused": (False, False), "fused": (True, False), "fused, grouped": (True, True)}
KINDS = ((False, False, 3), (True, True, 3), (True, True, 0), (True, False, 2))
TUNINGS: tuple[dict[str, int], ...] = (
    {},
    {"warps": 8},
    {"tile": 128},
    {"tile": 128, "warps": 8},
)
GRAD_TUNINGS: tuple[dict[str, int], ...] = ({}, {"grad_rows": 64, "grad_stages": 4})


def guarded(name: str, function: Callable[[], Any], results: dict[str, Any]) -> None:
    """Call a part; keep what it returns, or its traceback."""
    began = time.perf_counter()
    try:
        results[name] = function()
    except Exception:
        results[name] = {"error": traceback.format_exc()}
        print(f"{name} FAILED\n{results[name]['error']}", flush=True)
    print(f"  [{name}: {time.perf_counter() - began:.1f} s]", flush=True)


def replayed_us(function: Callable[[], Any], device: str, times: int = 50) -> float:
    """Microseconds of the kernels of a call, captured in a CUDA graph (on a CPU: of the call)."""
    if device == "cpu":
        function()
        return float("nan")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph_us(graph, times)


def graph_us(graph: Any, times: int = 50) -> float:
    """Microseconds of one replay, the median of five groups."""
    found = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / times * 1e3)
    return float(statistics.median(found))


def piece(kind: tuple[bool, bool, int], sizes: tuple[int, int, int, int], device: str) -> Any:
    """One set of stages: a function that runs it by some way, in some dtype, forward and backward."""
    from regard.nn.fused_rows import op, plain
    from regard.nn.fused_rows.layout import Stages

    (out, feed, maps), (batch, length, dim, heads) = kind, sizes
    stages = Stages(out, feed, maps, dim, 4 * dim if feed else 0)
    torch.manual_seed(1)
    exact = [
        torch.randn(shape, dtype=torch.float64, device=device) * shape[-1] ** -0.5
        for shape in stages.shapes()
    ]
    x = torch.randn(batch, length, dim, dtype=torch.float64, device=device)
    mixed = torch.randn(batch, heads, length, dim // heads, dtype=torch.float64, device=device)
    seed = torch.tensor([987654321987], device=device)
    rates, eps = [0.1, 0.2, 0.1], [1e-5, 1e-5]
    shape = (batch, heads, length, dim // heads)
    pulls = [torch.randn_like(x)] * bool(out or feed) + [
        torch.randn(shape, dtype=torch.float64, device=device) for _ in range(maps)
    ]

    def run(way: str) -> list[torch.Tensor]:
        wide = torch.float64 if way == "truth" else torch.float32
        weights = [one.to(wide).requires_grad_() for one in exact]
        rows, narrow = x.to(wide).requires_grad_(), torch.bfloat16 if device == "cuda" else torch.float32
        inner = mixed.to(wide if way == "truth" else narrow).requires_grad_()
        if way == "kernels":
            options = op.RowOptions(out, feed, maps, "gelu", rates, eps, 1, heads, narrow)
            last, ys = op.run(rows, inner if out else None, seed, weights, options)
            found = [*([last] if out or feed else []), *ys]
        else:
            with torch.autocast(device, torch.bfloat16, enabled=way == "torch"):
                found = plain.rows(
                    rows, inner if out else None, seed, weights, stages, "gelu", rates, eps, 1, [heads] * maps
                )
        ends = [rows, *([inner] if out else []), *weights]
        grads = torch.autograd.grad(
            found, ends, [pull.to(one.dtype) for pull, one in zip(pulls, found, strict=True)]
        )
        return [*found, *grads]

    return run


def piece_cases(device: str) -> list[tuple[Any, Any]]:
    """Stages and sizes to check."""
    if device == "cpu":
        return [(kind, (2, 3, 32, 2)) for kind in KINDS]
    return [
        *((kind, (32, 64, 128, 4)) for kind in KINDS),
        (KINDS[1], (3, 7, 64, 2)),
        (KINDS[1], (5, 13, 256, 8)),
    ]


def checked_piece(number: int, device: str) -> dict[str, Any]:
    """The largest relative error of outputs and gradients of one piece, beside that of torch in bf16."""
    kind, sizes = piece_cases(device)[number]
    run = piece(kind, sizes, device)
    truth = run("truth")

    def off(way: str) -> float:
        found = zip(run(way), truth, strict=True)
        return max(
            float((mine.detach().double() - one.detach()).norm() / one.detach().norm()) for mine, one in found
        )

    again = all(torch.equal(a, b) for a, b in zip(run("kernels"), run("kernels"), strict=True))
    mine, usual = off("kernels"), off("torch")
    right = mine < 1.5 * usual + 1e-3 and again
    return {
        "kind": kind,
        "sizes": sizes,
        "kernels": mine,
        "torch bf16": usual,
        "repeats": again,
        "right": right,
    }


def bound_piece(
    kind: tuple[bool, bool, int], sizes: tuple[int, int, int, int], dtype: torch.dtype, device: str
) -> Any:
    """Two functions that launch the kernels of a piece forward and backward; `dtype` is that of the weights."""
    from regard.nn.fused_rows import op
    from regard.nn.fused_rows.layout import Stages

    (out, feed, maps), (batch, length, dim, heads) = kind, sizes
    narrow = torch.bfloat16 if device == "cuda" else torch.float32
    options = op.RowOptions(out, feed, maps, "gelu", [0.1] * 3, [1e-5] * 2, 1, heads, narrow).listed()
    x = torch.randn(batch, length, dim, device=device)
    mixed = torch.randn(batch, heads, length, dim // heads, device=device).to(narrow) if out else None
    stages = Stages(out, feed, maps, dim, 4 * dim if feed else 0)
    weights = [torch.randn(shape, device=device).to(dtype) * 0.1 for shape in stages.shapes()]
    seed = torch.tensor([3], device=device)
    last, middle, ys = op._forward(x, mixed, seed, weights, *options)
    pulls = [torch.randn(one.shape, device=device).to(one.dtype) for one in ys]
    d_last = torch.randn_like(x) if out or feed else None

    def forward() -> None:
        op._forward(x, mixed, seed, weights, *options)

    def backward() -> None:
        op._backward(d_last, pulls, x, mixed, seed, middle, last, weights, *options)

    return forward, backward


def tuning_cases(device: str) -> list[tuple[Any, Any, torch.dtype, dict[str, int]]]:
    """Pieces, sizes, weights and sizes of blocks to time."""
    if device == "cpu":
        return [(KINDS[0], (1, 2, 32, 2), torch.float32, {})]
    long, short = (32, 64, 128, 4), (32, 8, 128, 4)
    found = [(KINDS[1], long, torch.bfloat16, tuning) for tuning in (*TUNINGS, *GRAD_TUNINGS[1:])]
    return [*found, (KINDS[1], short, torch.bfloat16, {}), (KINDS[1], short, torch.bfloat16, {"warps": 8})]


def compile_tuning(number: int, device: str) -> None:
    """In a process of its own: compile the kernels of one case into Triton's cache."""
    from regard.nn.fused_rows import op

    kind, sizes, dtype, tuning = tuning_cases(device)[number]
    vars(op.TUNING).update(tuning)
    for function in bound_piece(kind, sizes, dtype, device):
        function()


def timed_pieces(device: str) -> list[dict[str, Any]]:
    """Microseconds of forward and backward of the pieces for several sizes of blocks."""
    from regard.nn.fused_rows import op

    rows: list[dict[str, Any]] = []
    usual = dict(vars(op.TUNING))
    for kind, sizes, dtype, tuning in tuning_cases(device):
        vars(op.TUNING).update(usual | tuning)
        row: dict[str, Any] = {"kind": kind, "sizes": sizes, "weights": str(dtype), **tuning}
        try:
            forward, backward = bound_piece(kind, sizes, dtype, device)
            row |= {"forward": replayed_us(forward, device), "backward": replayed_us(backward, device)}
        except Exception as trouble:
            row["error"] = f"{type(trouble).__name__}: {trouble}"[:300]
        rows.append(row)
        print(row, flush=True)
    vars(op.TUNING).update(usual)
    return rows


def trainer_of(
    task: str, model: str, device: str, compiled: bool, folder: str, signals: Any, **more: Any
) -> Any:
    """A training without end, validations and checkpoints."""
    from regard.training.build import Parts, build_model, build_task
    from regard.training.config.recipe import complete
    from regard.training.hardware import prepare
    from regard.training.run_folder.folder import RunFolder
    from regard.training.state import seed_everything
    from regard.training.trainer import Trainer

    never = dict.fromkeys(("steps", "eval_every", "save_every"), 10**9)
    settings = {
        "task": task,
        "model": model,
        "batch_size": 32,
        "device": device,
        "compile": compiled,
        **never,
        **more,
    }
    if device == "cuda":
        settings["precision"] = "bf16-mixed"
    config = complete(settings)
    hardware = prepare(config)
    seed_everything(config.seed)
    made = build_task(config)
    return Trainer(
        config, RunFolder(Path(folder)), Parts(made, build_model(config, made)), hardware, signals, quiet=True
    )


def losses(number: int, device: str) -> dict[str, Any]:
    """Losses of the same short training with the kernels and without."""
    from regard.nn import fused_rows
    from regard.training.signals import Signals

    task, model = CONTESTANTS[number]
    curves = []
    for fused in (False, True):
        fused_rows.enabled = fused
        with tempfile.TemporaryDirectory() as folder, Signals() as signals:
            plain = model.replace(")", ",dropout=0.0)")
            trainer = trainer_of(task, plain, device, False, folder, signals, graph=False)
            curve = []
            with trainer.open():
                for _ in range(40 if device == "cuda" else 2):
                    trainer.advance()
                    trainer.synchronize()
                    curve.append(trainer.last_result.loss)
        curves.append(curve)
    most = max(abs(a - b) / b for a, b in zip(*curves, strict=True))
    every = slice(None, None, 8)
    return {
        "model": model,
        "largest difference": most,
        "unfused": curves[0][every],
        "fused": curves[1][every],
    }


def aside(function: Callable[..., Any], number: int, device: str, answers: Any) -> None:
    """In a process of its own: call a part and send what it returns, or its traceback."""
    torch.set_num_threads(1)
    try:
        answers.put(function(number, device))
    except Exception:
        answers.put({"part": function.__name__, "number": number, "error": traceback.format_exc()})


def chosen_modes(task: str, model: str) -> list[str]:
    """Recurrent layers have no fused rows, and their steps are not grouped; `dynamic-memory` has no fused rows yet."""
    if "lstm" in model:
        return ["unfused"]
    if "dynamic" in model:
        return ["fused, grouped"]
    return ["unfused", "fused, grouped"] if "pixels" in task else list(MODES)


def contestant(
    task: str, model: str, mode: str, device: str, seconds: float, warm: Any, turn: Any, results: Any
) -> None:
    """In a process of its own: warm up, wait for the turn, measure."""
    found: dict[str, Any] = {"task": task, "model": model, "mode": mode}
    try:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
        torch.set_num_threads(1)
        from regard.nn import fused_rows
        from regard.training.signals import Signals

        fused_rows.enabled, grouped = MODES[mode]
        with tempfile.TemporaryDirectory() as folder, Signals() as signals:
            trainer = trainer_of(task, model, device, device == "cuda", folder, signals)
            with trainer.open():
                trainer.learner._step.steps_per_graph = GROUP if grouped else 1
                for _ in range(40 if device == "cuda" else 2):
                    trainer.advance()
                trainer.synchronize()
                warm.release()
                if not turn.acquire(timeout=600):
                    return
                found |= measured(trainer, seconds, device)
    except Exception:
        warm.release()
        found["error"] = traceback.format_exc()
    results.put(found)


def measured(trainer: Any, seconds: float, device: str) -> dict[str, Any]:
    """Steps per second of the loop; device time and kernels of one captured step; host time of a step."""
    readings: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or not readings:
        start, taken = time.perf_counter(), 0
        while time.perf_counter() - start < min(0.25, seconds) or not taken:
            trainer.advance()
            taken += 1
        trainer.synchronize()
        readings.append(taken / (time.perf_counter() - start))
    found: dict[str, Any] = {"steps_per_second": statistics.median(readings)}
    graphed = trainer.learner._step
    if device == "cuda" and getattr(graphed, "captured", None):
        captured = next(iter(graphed.captured.values()))
        found["device_us"] = graph_us(captured.graph)
        for group in graphed.groups.values():
            if group is not None:
                found["grouped_us"] = graph_us(group.graph, 10) / group.count
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            captured.graph.replay()
            torch.cuda.synchronize()
        times: dict[str, list[float]] = {}
        for event in profile.events():
            times.setdefault(event.name[:60], []).append(event.device_time)
        found["kernels"] = sum(map(len, times.values()))
        found["kernel_us"] = round(sum(map(sum, times.values())), 1)
        longest = sorted(((sum(one), len(one), name) for name, one in times.items()), reverse=True)
        found["longest"] = [(round(total, 1), count, name) for total, count, name in longest[:25]]
    return found | {"host_us": host_us(trainer)}


def host_us(trainer: Any) -> float:
    """Microseconds of the loop for a step that launches nothing: preparing the batch, counting, logging."""
    from regard.training.step import StepResult

    learner, kept = trainer.learner, trainer.learner._step

    class Nothing:
        replayed = True

        def __call__(self, batches: Any) -> StepResult:
            list(batches)
            return StepResult(1.0, 1.0)

    def step(batches: Any) -> StepResult:
        """What `Learner.step` does with a captured step, without moving the batch."""
        found: StepResult = learner._step(batches)
        return found

    learner._step, learner.step = Nothing(), step
    try:
        for count in (50, 1000):
            start = time.perf_counter()
            for _ in range(count):
                trainer.advance()
    finally:
        learner._step = kept
        del learner.step
    return (time.perf_counter() - start) / count * 1e6


def main() -> int:
    """Run all parts; 1 if something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of one timing")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for all to warm up")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument(
        "--only", default="", help="parts to run: pieces, tuning, losses, steps (separated by commas)"
    )
    options = parser.parse_args()
    device: str = options.device
    results: dict[str, Any] = {}
    parts = set(options.only.split(",")) if options.only else {"pieces", "tuning", "losses", "steps"}
    spawn = multiprocessing.get_context("spawn")
    warm, started = spawn.Semaphore(0), []
    if "steps" in parts:
        for task, model in CONTESTANTS:
            for mode in chosen_modes(task, model):
                turn, answers = spawn.Semaphore(0), spawn.Queue()
                arguments = (task, model, mode, device, options.seconds, warm, turn, answers)
                child = spawn.Process(target=contestant, args=arguments, daemon=True)
                child.start()
                started.append((task, model, mode, child, turn, answers))
    asides: list[tuple[str, Any, Any]] = []
    counts = {"pieces": len(piece_cases(device)), "losses": 2, "tuning": len(tuning_cases(device))}
    functions = {"pieces": checked_piece, "losses": losses, "tuning": compile_tuning}
    for name, function in functions.items():
        for number in range(counts[name] if name in parts else 0):
            answers = spawn.Queue()
            process = spawn.Process(target=aside, args=(function, number, device, answers), daemon=True)
            process.start()
            asides.append((name, process, answers))
    end = time.monotonic() + options.patience
    for name, process, answers in asides:
        try:
            found = answers.get(timeout=max(1.0, end - time.monotonic()))
        except queue.Empty:
            found = {"error": f"{name}: not done in time"}
        process.kill()
        if name != "tuning" or (found and "error" in found):
            results.setdefault(name, []).append(found)
            print(name, found.get("error", found), flush=True)
    for _ in started:
        if not warm.acquire(timeout=max(0.0, end - time.monotonic())):
            break
    results["steps"] = []
    for task, model, mode, child, turn, answers in started:
        turn.release()
        try:
            found = answers.get(timeout=4 * options.seconds + 15)
        except queue.Empty:
            found = {"task": task, "model": model, "mode": mode, "error": "not warm or not done in time"}
        child.kill()
        results["steps"].append(found)
        numbers = {
            name: found.get(name)
            for name in ("steps_per_second", "device_us", "grouped_us", "kernels", "kernel_us", "host_us")
        }
        shown = " ".join(f"{name} {value:,.0f}" for name, value in numbers.items() if value is not None)
        print(f"{task:22} {model:42} {mode:12} {shown} {found.get('error', '')}", flush=True)
    if "tuning" in parts:
        guarded("timed", lambda: timed_pieces(device), results)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "small_check.json").write_text(
        json.dumps(results, indent=1, default=str) + "\n", encoding="utf-8"
    )
    for row in results["steps"]:
        if "fused" in row["mode"] and "longest" in row:
            print(row["task"], row["model"], row["mode"], *row["longest"], sep="\n  ")
    return int("error" in json.dumps(results, default=str))


if __name__ == "__main__":
    sys.exit(main())

"""Small models in few kernels: are the kernels right on this GPU, and how fast do training steps get?

    python benchmarks/small_check.py [--device cuda] [--seconds 2] [--patience 150] [--out FOLDER]

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
MODES = {"unfused": (False, True), "fused": (True, True), "fused eager": (True, False)}  # fused, compiled
KINDS = ((False, False, 3), (True, True, 3), (True, True, 0), (True, False, 2))
TUNINGS = (
    dict(),
    dict(warps=8),
    dict(tile=128),
    dict(tile=128, warps=8),
    dict(stages=3),
    dict(tile=32, stages=4),
    dict(rows=32, warps=8),
)
GRAD_TUNINGS = (dict(), dict(grad_rows=64, grad_stages=4), dict(grad_rows=256, grad_stages=2), dict(grad_warps=8))


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
    return statistics.median(found)


def piece(kind: tuple[bool, bool, int], sizes: tuple[int, int, int, int], device: str) -> Any:
    """One set of stages: a function that runs it by some way, in some dtype, forward and backward."""
    from regard.nn.fused_rows import op, plain
    from regard.nn.fused_rows.layout import Stages

    (out, feed, maps), (batch, length, dim, heads) = kind, sizes
    stages = Stages(out, feed, maps, dim, 4 * dim if feed else 0)
    torch.manual_seed(1)
    exact = [torch.randn(shape, dtype=torch.float64, device=device) * shape[-1] ** -0.5 for shape in stages.shapes()]
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
            options = op.Options(out, feed, maps, "gelu", rates, eps, 1, heads, narrow)
            last, ys = op.run(rows, inner if out else None, seed, weights, options)
            found = [*([last] if out or feed else []), *ys]
        else:
            with torch.autocast(device, torch.bfloat16, enabled=way == "torch"):
                found = plain.rows(
                    rows, inner if out else None, seed, weights, stages, "gelu", rates, eps, 1, [heads] * maps
                )
        ends = [rows, *([inner] if out else []), *weights]
        grads = torch.autograd.grad(found, ends, [pull.to(one.dtype) for pull, one in zip(pulls, found, strict=True)])
        return [*found, *grads]

    return run


def pieces(device: str) -> list[dict[str, Any]]:
    """The largest relative error of outputs and gradients of each piece."""
    rows = []
    cases = [(32, 64, 128, 4), (3, 7, 64, 2), (5, 13, 256, 8)] if device == "cuda" else [(2, 3, 32, 2)]
    for sizes in cases:
        for kind in KINDS:
            run = piece(kind, sizes, device)
            truth = run("truth")

            def off(way: str, run: Any = run, truth: Any = truth) -> float:
                found = zip(run(way), truth, strict=True)
                return max(float((mine.detach().double() - one.detach()).norm() / one.detach().norm()) for mine, one in found)

            again = all(torch.equal(a, b) for a, b in zip(run("kernels"), run("kernels"), strict=True))
            row = {"kind": kind, "sizes": sizes, "kernels": off("kernels"), "torch bf16": off("torch"), "repeats": again}
            row["right"] = bool(row["kernels"] < 1.5 * row["torch bf16"] + 1e-3 and again)
            rows.append(row)
            print(row, flush=True)
    return rows


def timed_pieces(device: str) -> list[dict[str, Any]]:
    """Microseconds of forward and backward of the pieces for several sizes of blocks."""
    from regard.nn.fused_rows import op

    rows: list[dict[str, Any]] = []
    usual = op.Tuning()
    cases = [(32, 64, 128, 4), (32, 8, 128, 4)] if device == "cuda" else [(1, 2, 32, 2)]
    for sizes in cases:
        for kind in KINDS[:2] if device == "cuda" else KINDS[:1]:
            (out, feed, maps), (batch, length, dim, heads) = kind, sizes
            options = op.Options(out, feed, maps, "gelu", [0.1] * 3, [1e-5] * 2, 1, heads,
                                 torch.bfloat16 if device == "cuda" else torch.float32)  # fmt: skip
            for dtype in (torch.bfloat16, torch.float32) if device == "cuda" else (torch.float32,):
                x = torch.randn(batch, length, dim, device=device)
                mixed = torch.randn(batch, heads, length, dim // heads, device=device).to(options.dtype) if out else None
                stages = op.Stages(out, feed, maps, dim, 4 * dim if feed else 0)
                weights = [torch.randn(shape, device=device).to(dtype) * 0.1 for shape in stages.shapes()]
                seed = torch.tensor([3], device=device)
                last, middle, ys = op._forward(x, mixed, seed, weights, *options.listed())
                pulls = [torch.randn(one.shape, device=device).to(one.dtype) for one in ys]
                d_last = torch.randn_like(x) if out or feed else None
                for tuning in (*TUNINGS, *GRAD_TUNINGS[1:]):
                    if dtype == torch.float32 and tuning:
                        continue
                    vars(op.TUNING).update(vars(usual) | tuning)
                    row: dict[str, Any] = {"kind": kind, "sizes": sizes, "weights": str(dtype), **tuning}
                    try:
                        forward = replayed_us(lambda: op._forward(x, mixed, seed, weights, *options.listed()), device)
                        backward = replayed_us(
                            lambda: op._backward(d_last, pulls, x, mixed, seed, middle, last, weights, *options.listed()),
                            device,
                        )  # fmt: skip
                        row |= {"forward": round(forward, 2), "backward": round(backward, 2)}
                    except Exception as trouble:
                        row["error"] = f"{type(trouble).__name__}: {trouble}"[:300]
                    rows.append(row)
                    print(row, flush=True)
                vars(op.TUNING).update(vars(usual))
    return rows


def trainer_of(task: str, model: str, device: str, compiled: bool, folder: str, signals: Any, **more: Any) -> Any:
    """A training without end, validations and checkpoints."""
    from regard.training.build import Parts, build_model, build_task
    from regard.training.config.recipe import complete
    from regard.training.hardware import prepare
    from regard.training.run_folder.folder import RunFolder
    from regard.training.state import seed_everything
    from regard.training.trainer import Trainer

    never = dict.fromkeys(("steps", "eval_every", "save_every"), 10**9)
    settings = {"task": task, "model": model, "batch_size": 32, "device": device, "compile": compiled, **never, **more}
    if device == "cuda":
        settings["precision"] = "bf16-mixed"
    config = complete(settings)
    hardware = prepare(config)
    seed_everything(config.seed)
    made = build_task(config)
    return Trainer(config, RunFolder(Path(folder)), Parts(made, build_model(config, made)), hardware, signals, quiet=True)


def losses(device: str) -> dict[str, Any]:
    """Losses of the same short training with the kernels and without."""
    from regard.nn import fused_rows
    from regard.training.signals import Signals

    found: dict[str, Any] = {}
    for task, model in (DECODER, CONTESTANTS[1]):
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
        fused_rows.enabled = False
        most = max(abs(a - b) / b for a, b in zip(*curves, strict=True))
        found[model] = {"largest relative difference": most, "unfused": curves[0][::8], "fused": curves[1][::8]}
        print(model, found[model], flush=True)
    return found


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

        fused_rows.enabled, compiled = MODES[mode]
        with tempfile.TemporaryDirectory() as folder, Signals() as signals:
            trainer = trainer_of(task, model, device, compiled and device == "cuda", folder, signals)
            with trainer.open():
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
    readings, began = [], time.perf_counter()
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
        return learner._step(batches)

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of one timing")
    parser.add_argument("--patience", type=float, default=150.0, help="seconds for all to warm up")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--only", default="", help="parts to run: pieces, tuning, losses, steps (separated by commas)")
    options = parser.parse_args()
    device, results = options.device, {}
    parts = set(options.only.split(",")) if options.only else {"pieces", "tuning", "losses", "steps"}
    spawn = multiprocessing.get_context("spawn")
    warm, started = spawn.Semaphore(0), []
    if "steps" in parts:
        for task, model in CONTESTANTS:
            for mode in MODES if "lstm" not in model else ["unfused"]:
                turn, answers = spawn.Semaphore(0), spawn.Queue()
                arguments = (task, model, mode, device, options.seconds, warm, turn, answers)
                child = spawn.Process(target=contestant, args=arguments, daemon=True)
                child.start()
                started.append((task, model, mode, child, turn, answers))
    end = time.monotonic() + options.patience
    if "pieces" in parts:
        guarded("pieces", lambda: pieces(device), results)
    if "losses" in parts:
        guarded("losses", lambda: losses(device), results)
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
        numbers = {name: found.get(name) for name in ("steps_per_second", "device_us", "kernels", "kernel_us", "host_us")}
        shown = " ".join(f"{name} {value:,.0f}" for name, value in numbers.items() if value is not None)
        print(f"{task:22} {model:42} {mode:12} {shown} {found.get('error', '')}", flush=True)
    if "tuning" in parts:
        guarded("tuning", lambda: timed_pieces(device), results)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "small_check.json").write_text(json.dumps(results, indent=1, default=str) + "\n", encoding="utf-8")
    for row in results["steps"]:
        if "fused" in row["mode"] and "longest" in row:
            print(row["task"], row["model"], row["mode"], *row["longest"], sep="\n  ")
    return int("error" in json.dumps(results, default=str))


if __name__ == "__main__":
    sys.exit(main())

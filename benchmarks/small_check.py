"""Small models in few kernels: are the kernels right on this GPU, and how fast do training steps get?

    python benchmarks/small_check.py [--device cuda] [--seconds 1] [--patience 60] [--out FOLDER] [--only PARTS]

1. Each row-wise piece, and attention over few keys, against float64, beside the same by torch in bf16.
2. Losses of a short training with the kernels and without, dropout off; and with one step or several in a graph, which
   must be the same numbers.
3. Steps per second of the loop with one step and with several in a graph; device time and kernels of a step; where the
   host's time goes. `lstm-attention`, whose groups have crashed, is tried in groups at the very end.
4. Times of the kernels for several sizes of blocks.
All contestants of part 3 compile and warm up side by side while parts 1 and 2 run; then they are timed one after the
other; who is not warm by then is ended, so that the GPU is quiet. What fails prints its traceback, and the rest goes
on. The file of results is written anew after each answer.
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
    ("digits", f"dynamic-transformer({SIZE})"),
    ("digits", f"lstm-attention({SIZE})"),
)
GROUP = 8  # steps in one graph, where they are grouped
CHECKED = (
    48  # steps whose losses are compared; `digits` has a smaller batch, which ends a group early, at step 40
)
WARM = (
    340  # steps before a timing: the smaller batch at the end of an epoch comes every 40 and is captured, too
)
KINDS = ((False, False, 3), (True, True, 3), (True, True, 0), (True, False, 2))
SHORT = ((64, 64, True), (16, 8, False), (8, 16, False), (4, 36, False))  # queries, keys, causal
TUNINGS: tuple[dict[str, int], ...] = (
    {},
    {"warps": 8},
    {"stages": 3},
    {"tile": 128},
    {"tile": 128, "warps": 8},
    {"tile": 128, "warps": 8, "stages": 3},
    {"grad_stages": 5},
    {"grad_rows": 64, "grad_stages": 5},
    {"grad_warps": 8},
    {"grad_rows": 256, "grad_warps": 8},
)


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


def checked_short(number: int, device: str) -> dict[str, Any]:
    """The largest relative error of attention over few keys and its gradients, beside that of torch in bf16."""
    from regard.nn.fused_rows.short_attention import PlainAttention, plain

    queries, keys, causal = SHORT[number]
    torch.manual_seed(2)
    batch = 32 if device == "cuda" else 2
    exact = [
        torch.randn(batch, n, 4, 32, dtype=torch.float64, device=device).transpose(1, 2)
        for n in (queries, keys, keys)
    ]
    pull = torch.randn_like(exact[0])
    narrow = torch.bfloat16 if device == "cuda" else torch.float32

    def run(way: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        given = [one.to(dtype).requires_grad_() for one in exact]
        found = way(*given)
        return [found.detach(), *torch.autograd.grad(found, given, pull.to(dtype))]

    truth = run(lambda *given: plain(*given, causal, 0.2), torch.float64)

    def off(way: Callable[..., torch.Tensor]) -> float:
        pairs = zip(run(way, narrow), truth, strict=True)
        return max(float((mine.double() - one).norm() / one.norm()) for mine, one in pairs)

    kernels = PlainAttention(causal, 0.2).run
    mine, usual = off(kernels), off(lambda *given: plain(*given, causal, 0.2))
    again = all(torch.equal(a, b) for a, b in zip(run(kernels, narrow), run(kernels, narrow), strict=True))
    right = mine < 1.5 * usual + 1e-3 and again
    return {"short": SHORT[number], "kernels": mine, "torch bf16": usual, "repeats": again, "right": right}


def bound_piece(sizes: tuple[int, int, int, int], device: str) -> dict[str, Callable[[], Any]]:
    """Functions that launch the kernels between two attentions forward and backward, and those of a stack's weights."""
    from regard.nn.fused_rows import op
    from regard.nn.fused_rows.layout import Stages

    batch, length, dim, heads = sizes
    narrow = torch.bfloat16 if device == "cuda" else torch.float32
    options = op.RowOptions(True, True, 3, "gelu", [0.1] * 3, [1e-5] * 2, 1, heads, narrow)
    x = torch.randn(batch, length, dim, device=device)
    mixed = torch.randn(batch, heads, length, dim // heads, device=device).to(narrow)
    pieces = [Stages(one, one, maps, dim, 4 * dim * one) for one, maps in ((False, 3), (True, 3), (True, 0))]
    weights = [torch.randn(shape, device=device).to(narrow) * 0.1 for shape in pieces[1].shapes()]
    seed = torch.tensor([3], device=device)
    last, middle, ys = op._forward(x, mixed, seed, weights, *options.listed())
    pulls = [torch.randn(one.shape, device=device).to(one.dtype) for one in ys]
    factors = op.Factors(pieces, x, narrow)
    factors.kept.zero_(), factors.sums.zero_()
    grads = x.new_empty(sum(torch.Size(shape).numel() for one in pieces for shape in one.shapes()))

    def backward() -> None:
        op.rows_back(x, pulls, x, mixed, seed, middle, last, weights, options, factors, 1)

    return {
        "forward": lambda: op._forward(x, mixed, seed, weights, *options.listed()),
        "backward": backward,
        "weights": lambda: factors.weight_gradients(grads),
    }


def tuning_cases(device: str) -> list[tuple[tuple[int, int, int, int], dict[str, int]]]:
    """Sizes of rows and of blocks to time."""
    if device == "cpu":
        return [((1, 2, 32, 2), {})]
    long, short = (32, 64, 128, 4), (32, 8, 128, 4)
    return [*((long, tuning) for tuning in TUNINGS), *((short, tuning) for tuning in TUNINGS[:6])]


def compile_tuning(number: int, device: str) -> dict[str, Any]:
    """In a process of its own: compile the kernels of one case into Triton's cache."""
    from regard.nn.fused_rows import op

    sizes, tuning = tuning_cases(device)[number]
    vars(op.TUNING).update(tuning)
    for function in bound_piece(sizes, device).values():
        function()
    return {}


def timed_pieces(device: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Microseconds of the kernels for several sizes of blocks."""
    from regard.nn.fused_rows import op

    usual = dict(vars(op.TUNING))
    for sizes, tuning in tuning_cases(device):
        vars(op.TUNING).update(usual | tuning)
        row: dict[str, Any] = {"sizes": sizes, **tuning}
        try:
            for name, function in bound_piece(sizes, device).items():
                row[f"{name}_us"] = round(replayed_us(function, device), 2)
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


def curve(task: str, model: str, device: str, fused: bool, group: int, steps: int) -> list[float]:
    """The losses of a short training; `group`: steps in a CUDA graph, 0: no graph."""
    from regard.nn import fused_rows
    from regard.training.signals import Signals

    fused_rows.enabled = fused
    with tempfile.TemporaryDirectory() as folder, Signals() as signals:
        trainer = trainer_of(task, model, device, False, folder, signals, graph=group > 0)
        results, step = [], trainer.learner.step

        def noted(batches: Any) -> Any:
            results.append(step(batches))
            return results[-1]

        trainer.learner.step = noted
        if group > 1:
            trainer.learner._step.steps_per_graph = group
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


def aside(function: Callable[..., Any], number: int, device: str, answers: Any) -> None:
    """In a process of its own: call a part and send what it returns, or its traceback."""
    torch.set_num_threads(1)
    try:
        answers.put(function(number, device))
    except Exception:
        answers.put({"part": function.__name__, "number": number, "error": traceback.format_exc()})


def contestant(
    task: str,
    model: str,
    device: str,
    seconds: float,
    tuning: dict[str, int],
    warm: Any,
    turn: Any,
    results: Any,
) -> None:
    """In a process of its own: warm up, wait for the turn, measure single steps, then groups."""
    named = {"task": task, "model": model}
    mode = "single"
    try:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
        torch.set_num_threads(1)
        from regard.nn.fused_rows import op
        from regard.training.signals import Signals

        vars(op.TUNING).update(tuning)
        count = WARM if device == "cuda" else 2
        with tempfile.TemporaryDirectory() as folder, Signals() as signals:
            trainer = trainer_of(task, model, device, device == "cuda", folder, signals)
            with trainer.open():
                for _ in range(count):
                    trainer.advance()
                trainer.synchronize()
                warm.release()
                if not turn.acquire(timeout=600):
                    return
                results.put({**named, "mode": mode, **measured(trainer, seconds, device)})
                mode = "grouped"
                if device == "cuda":
                    if not turn.acquire(timeout=600):
                        return
                    trainer.learner._step.steps_per_graph = GROUP
                    for _ in range(count):
                        trainer.advance()
                    trainer.synchronize()
                    results.put({**named, "mode": mode, **measured(trainer, seconds, device)})
    except Exception:
        warm.release()
        results.put({**named, "mode": mode, "error": traceback.format_exc()})


def measured(trainer: Any, seconds: float, device: str) -> dict[str, Any]:
    """Steps per second of the loop; device time and kernels of a captured step; host time of parts of the loop."""
    readings: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or not readings:
        start, taken = time.perf_counter(), 0
        while time.perf_counter() - start < min(0.25, seconds) or not taken:
            trainer.advance()
            taken += 1
        trainer.synchronize()
        readings.append(taken / (time.perf_counter() - start))
    found: dict[str, Any] = {
        "steps_per_second": statistics.median(readings),
        "readings": [round(one) for one in readings],
    }
    graphed = trainer.learner._step
    if device == "cuda" and getattr(graphed, "captured", None):
        found["host_parts_us"] = host_parts(trainer)
        captured = next(iter(graphed.captured.values()))
        groups = [group for group in graphed.groups.values() if group is not None]
        if groups:
            found["grouped_us"] = graph_us(groups[0].graph, 10) / groups[0].count
        else:
            found["device_us"] = graph_us(captured.graph)
            found |= kernels_of(captured.graph)
    return found | {"host_us": host_us(trainer)}


def kernels_of(graph: Any) -> dict[str, Any]:
    """The number of kernels of a captured step, their time, and the longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in profile.events():
        times.setdefault(event.name[:80], []).append(event.device_time)
    longest = sorted(((sum(one), len(one), name) for name, one in times.items()), reverse=True)
    return {
        "kernels": sum(map(len, times.values())),
        "kernel_us": round(sum(map(sum, times.values())), 1),
        "longest": [(round(total, 1), count, name) for total, count, name in longest[:25]],
    }


def host_parts(trainer: Any, steps: int = 400) -> dict[str, float]:
    """Microseconds per step that the host spends in parts of the loop; a part includes those that it calls."""
    from regard.training.cuda_graph.packed_batch import PackedBatch
    from regard.training.cuda_graph.step_group import QueuedSteps, StepGroup
    from regard.training.learner import Learner
    from regard.training.trainer import Trainer

    parts = {
        "fetching the batch": (type(trainer.data), "batch"), "snapshot": (Learner, "snapshot"),
        "copy-in of one step": (PackedBatch, "put"), "adding to a group": (StepGroup, "add"),
        "launch of a group": (StepGroup, "_launch"), "replay": (torch.cuda.CUDAGraph, "replay"),
        "waiting for a group": (QueuedSteps, "synchronize"), "reading results": (Trainer, "synchronize"),
        "whole step": (Trainer, "advance"),
    }  # fmt: skip
    spent = dict.fromkeys(parts, 0.0)
    kept = {name: getattr(owner, method) for name, (owner, method) in parts.items()}

    def clocked(name: str) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return kept[name](*given, **options)
            finally:
                spent[name] += time.perf_counter() - start

        return call

    for name, (owner, method) in parts.items():
        setattr(owner, method, clocked(name))
    try:
        for _ in range(steps):
            trainer.advance()
        trainer.synchronize()
    finally:
        for name, (owner, method) in parts.items():
            setattr(owner, method, kept[name])
    return {name: round(seconds / steps * 1e6, 1) for name, seconds in spent.items()}


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


class Report:
    """Results, printed as they come and written to a file after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[str, list[Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, part: str, found: dict[str, Any]) -> None:
        """Add one answer of a part."""
        self.results.setdefault(part, []).append(found)
        self.write()
        shown = {name: value for name, value in found.items() if name != "longest"}
        print(part, found.get("error", shown), flush=True)

    def write(self) -> None:
        """Write the file anew."""
        self.path.write_text(json.dumps(self.results, indent=1, default=str) + "\n", encoding="utf-8")


def read_tuning(text: str) -> dict[str, int]:
    """Sizes of blocks by the names of `regard.nn.fused_rows.op.Tuning`."""
    return {name: int(number) for name, number in (part.split("=") for part in text.split(","))}


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
        "--only", default="", help="parts to run: pieces, losses, steps, tuning (separated by commas)"
    )
    parser.add_argument(
        "--set", type=read_tuning, default={}, help="sizes of blocks for the steps, as in tile=128,warps=8"
    )
    parser.add_argument(
        "--also",
        type=read_tuning,
        action="append",
        default=[],
        help="more sizes of blocks, tried with the first two models; may be repeated",
    )
    options = parser.parse_args()
    device: str = options.device
    parts = set(options.only.split(",")) if options.only else {"pieces", "losses", "steps", "tuning"}
    report = Report(options.out / "small_check.json")
    spawn = multiprocessing.get_context("spawn")
    started = []
    entries = [(task, model, options.set) for task, model in CONTESTANTS]
    entries += [(task, model, tuning) for task, model in CONTESTANTS[:2] for tuning in options.also]
    for task, model, tuning in entries if "steps" in parts else ():
        warm, turn, answers = spawn.Semaphore(0), spawn.Semaphore(0), spawn.Queue()
        arguments = (task, model, device, options.seconds, tuning, warm, turn, answers)
        child = spawn.Process(target=contestant, args=arguments, daemon=True)
        child.start()
        started.append((task, model, tuning, child, warm, turn, answers))
    asides: list[tuple[str, Any, Any]] = []
    plan: list[tuple[str, Callable[..., Any], int]] = [
        ("pieces", checked_piece, len(piece_cases(device))),
        ("pieces", checked_short, len(SHORT)),
        ("losses", losses, len(CONTESTANTS)),
        ("tuning", compile_tuning, len(tuning_cases(device))),
    ]
    for part, function, count in plan:
        for number in range(count if part in parts else 0):
            answers = spawn.Queue()
            process = spawn.Process(target=aside, args=(function, number, device, answers), daemon=True)
            process.start()
            asides.append((part, process, answers))
    end = time.monotonic() + options.patience
    for part, process, answers in asides:
        try:
            found = answers.get(timeout=max(0.1, end - time.monotonic()))
        except queue.Empty:
            found = {"error": f"{part}: not done in time"}
        process.kill()
        if found:
            report.add(part, found)
    for *_, child, warm, _, _ in started:
        if not warm.acquire(timeout=max(0.0, end - time.monotonic())):
            child.kill()
    # Groups after all single steps, and those that have crashed last: what comes first is then certain.
    turns = [("single", one) for one in started] + [("grouped", one) for one in started[: len(CONTESTANTS)]]
    turns.sort(key=lambda pair: pair[0] == "grouped" and "lstm" in pair[1][1])
    for mode, (task, model, tuning, child, _, turn, answers) in turns:
        turn.release()
        try:
            found = answers.get(timeout=4 * options.seconds + (20 if child.is_alive() else 0.1))
        except queue.Empty:
            found = {"task": task, "model": model, "mode": mode, "error": "not warm or not done in time"}
            child.kill()
        if device == "cpu" and mode == "grouped":
            continue
        report.add("steps", {**found, "tuning": tuning})
    for *_, child, _, _, _ in started:
        child.kill()
    if "tuning" in parts:
        rows: list[dict[str, Any]] = report.results.setdefault("timed", [])
        timed_pieces(device, rows)
        report.write()
    for row in report.results.get("steps", []):
        if "longest" in row:
            print(row["task"], row["model"], row["mode"], *row["longest"][:15], sep="\n  ")
    return int("error" in json.dumps(report.results, default=str))


if __name__ == "__main__":
    sys.exit(main())

"""Settings of the kernels beside each other on a GPU: python -m benchmarks.kernel_variants --out variants.jsonl

For each case, the most valuable first: other block sizes, warps, stages and limits of registers than those in
`block_sizes.HALF`, each checked against float64 (and for equal bits in a second run), then timed in turns with the
setting in place and with FlexAttention. The table shows milliseconds; a variant that is faster names the entry of
`block_sizes.HALF` to set. Then additive scores (how score tiles share a multiprocessor), global tokens (how long a walk
may be before it is cut) and one token of decoding, each with the host's microseconds and, where a CUDA graph can hold
the call, the kernels alone. Each result is one line of JSON, written at once.

Other processes compile everything first (`--warm` seconds); what they did not reach is compiled where it is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from benchmarks.gpu_checking.timing import host_us
from torch import Tensor

import regard
from regard import scores
from regard.benchmarks.gpu import check, peers
from regard.benchmarks.gpu.events import group
from regard.benchmarks.gpu.structured import SPARSE, STRUCTURED
from regard.benchmarks.gpu.work import LONG_128, SHORT_64, SHORT_128, Size, Work, gradient, inputs, timed_call
from regard.core import attention
from regard.implementations.triton import additive_strips, block_sizes, blocks, pieces
from regard.implementations.triton.additive_strips import StripCut
from regard.implementations.triton.block_sizes import BlockSizes

DEVICE, DTYPE = "cuda", torch.bfloat16
WORKS = {work.name: work for work in (*SPARSE, *STRUCTURED)}
CALLS, ROUNDS = 20, 5
Sizes = tuple[int, ...]


class Case(NamedTuple):
    """What is computed, and the settings to try instead of the one in place: name of the kernel, then its sizes."""

    work: str
    size: Size
    train: bool
    variants: tuple[tuple[str, Sizes], ...]

    @property
    def name(self) -> str:
        """As in `regard bench`."""
        return f"{self.work}-{self.size.label}-{'train' if self.train else 'forward'}"


FORWARD_128: tuple[tuple[str, Sizes], ...] = (
    ("forward", (64, 64, 4, 2)), ("forward", (64, 64, 4, 3)), ("forward", (128, 64, 8, 3)),
    ("forward", (128, 128, 8, 2)),
)  # fmt: skip
LISTED_128: tuple[tuple[str, Sizes], ...] = (
    ("forward", (64, 64, 4, 2)), ("forward", (64, 64, 4, 3)), ("forward", (64, 64, 4, 5)), ("forward", (128, 64, 8, 5)),
)  # fmt: skip
FORWARD_64: tuple[tuple[str, Sizes], ...] = (
    ("forward", (64, 64, 4, 2)), ("forward", (64, 64, 4, 2, 4)), ("forward", (64, 64, 4, 3, 3)),
    ("forward", (128, 64, 8, 2, 2)), ("forward", (64, 128, 4, 2)),
)  # fmt: skip
BACKWARD_128: tuple[tuple[str, Sizes], ...] = (
    ("keys", (64, 64, 8, 2)), ("keys", (32, 64, 4, 3)), ("keys", (64, 32, 4, 3)), ("keys", (128, 64, 8, 2)),
    ("queries", (64, 64, 8, 2)), ("queries", (128, 64, 8, 2)), ("queries", (64, 32, 4, 3, 3)),
)  # fmt: skip
BACKWARD_64: tuple[tuple[str, Sizes], ...] = (
    ("keys", (64, 64, 4, 2, 3)), ("keys", (32, 64, 4, 3, 3)), ("keys", (64, 128, 8, 2)),
    ("queries", (64, 64, 4, 2, 4)), ("queries", (64, 64, 4, 2, 3)), ("queries", (128, 64, 8, 2, 2)),
)  # fmt: skip
CASES = (
    Case("documents", SHORT_128, False, LISTED_128),
    Case("alibi", SHORT_64, False, FORWARD_64),
    Case("documents", SHORT_128, True, BACKWARD_128),
    Case("window", SHORT_64, True, BACKWARD_64),
    Case("global", SHORT_128, False, LISTED_128),
    Case("alibi", SHORT_128, False, FORWARD_128),
    Case("alibi", SHORT_64, True, BACKWARD_64),
    Case("window", SHORT_64, False, FORWARD_64),
    Case("global", SHORT_128, True, BACKWARD_128),
    Case("prefix", SHORT_128, True, BACKWARD_128),
    Case("alibi", SHORT_128, True, BACKWARD_128),
    Case("documents", LONG_128, False, LISTED_128[:3]),
    Case("documents", LONG_128, True, BACKWARD_128[:3]),
    Case("prefix", SHORT_64, False, FORWARD_64),
    Case("prefix", SHORT_128, False, FORWARD_128),
    Case("window", SHORT_128, False, FORWARD_128),
    Case("documents", SHORT_64, False, FORWARD_64),
    Case("documents", SHORT_64, True, BACKWARD_64),
)


def forget() -> None:
    """Drop every plan and launch, which hold block sizes."""
    attention._PLANS.clear()
    blocks._BY_SPEC.clear()
    blocks._OF_MASKS.clear()


class Changed:
    """A context, to be entered again and again, in which an attribute or an entry of a dict has another value."""

    def __init__(self, owner: Any, name: Any, value: Any) -> None:
        self.owner, self.name, self.value = owner, name, value

    def __enter__(self) -> None:
        forget()
        names = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        self.before = names.get(self.name)
        names[self.name] = self.value

    def __exit__(self, *raised: Any) -> None:
        forget()
        names = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        if self.before is None:
            del names[self.name]
        else:
            names[self.name] = self.before


Context = contextlib.AbstractContextManager[None] | Changed


def walk_of(work: Work, size: Size) -> str:
    """How `block_sizes` names the walks of a mask."""
    options = work.options(size, DEVICE)
    sizes = (size.batch, size.heads, size.length, size.length)
    prepared = blocks.prepare(options.get("mask"), options.get("bias"), sizes, torch.device(DEVICE, 0))
    return prepared.walk


def in_place(kernel: str, walk: str, column: int) -> BlockSizes:
    """The setting that the tree has."""
    return block_sizes.HALF.get((kernel, walk), block_sizes.HALF[kernel, "any"])[column]


def setting(kernel: str, walk: str, column: int, sizes: Sizes) -> Changed:
    """Let a kernel have these sizes for one kind of walk and one width."""
    row = list(block_sizes.HALF.get((kernel, walk), block_sizes.HALF[kernel, "any"]))
    row[column] = BlockSizes(*sizes)
    return Changed(block_sizes.HALF, (kernel, walk), tuple(row))


def ours(options: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One call of ours, by name, so that nothing else is timed by mistake."""
    found = regard.attend(query, key, value, impl="triton", **options)
    assert isinstance(found, Tensor)
    return found


def tried(case: Case) -> list[tuple[str, Context, str]]:
    """Name, context and entry of the setting in place and of every variant."""
    work, column = WORKS[case.work], 0 if case.size.width <= 64 else 1
    walk = walk_of(work, case.size)
    found: list[tuple[str, Context, str]] = [("in place", contextlib.nullcontext(), "")]
    for kernel, sizes in case.variants:
        if BlockSizes(*sizes) == in_place(kernel, walk, column):
            continue
        words = ", ".join(map(str, sizes))
        entry = f'HALF["{kernel}", "{walk}"][{column}] = BlockSizes({words})'
        found.append((f"{kernel} {'/'.join(map(str, sizes))}", setting(kernel, walk, column, sizes), entry))
    return found


class Output:
    """Where results go, and the time that is left."""

    def __init__(self, path: str | None, seconds: float) -> None:
        self.path, self.begun, self.until = (
            None if path is None else Path(path),
            time.time(),
            time.time() + seconds,
        )

    def write(self, shown: str, **found: Any) -> None:
        """One line for people, one for machines."""
        at = round(time.time() - self.begun, 1)
        print(f"[{at:6.1f}] {shown}", flush=True)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"at": at, **found}, default=str) + "\n")

    def attempt(self, name: str, run: Callable[[], None]) -> None:
        """Run one case; its failure is written down and the others go on."""
        if time.time() > self.until:
            self.write(f"{name}: not reached", case=name, skipped=True)
            return
        try:
            run()
        except Exception as problem:
            forget()
            self.write(f"{name}: FAILED {type(problem).__name__}: {str(problem)[:200]}", case=name,
                       failed=traceback.format_exc())  # fmt: skip


def trained(call: Callable[..., Tensor], tensors: list[Tensor], upstream: Tensor | None) -> list[Tensor]:
    """The output, and the gradients if there is one of the output."""
    output = call(*tensors)
    return [output.detach(), *(() if upstream is None else torch.autograd.grad(output, tensors, upstream))]


def checked(case: Case, settings: list[Any]) -> dict[str, str]:
    """What is wrong with each setting, in two heads of the last batch entry, of 4096 positions at most."""
    work, small = WORKS[case.work], SHORT_128 if case.size is LONG_128 else case.size
    tensors = inputs(small, DEVICE, DTYPE, grad=case.train)
    upstream = gradient(small, DEVICE, DTYPE) if case.train else None
    options = work.options(small, DEVICE)
    exact = []
    for head in (0, small.heads - 1):
        own = [
            tensor.detach()[-1:, head : head + 1].double().requires_grad_(case.train) for tensor in tensors
        ]
        told = None if upstream is None else upstream[-1:, head : head + 1].double()
        asked = partial(regard.attend, impl="reference", **work.for_head(small, DEVICE)(head))
        exact.append((head, trained(asked, own, told)))
    wrong: dict[str, str] = {}
    for name, context, _ in settings:
        try:
            with context:
                first, second = (trained(partial(ours, options), tensors, upstream) for _ in range(2))
            if not all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
                wrong[name] = "other bits in a second run"
            for head, wanted in exact:
                far = max(
                    check.distance(a[-1:, head : head + 1], b) for a, b in zip(first, wanted, strict=True)
                )
                if not far <= check.LIMITS[DTYPE]:
                    wrong[name] = f"relative error {far:.2g} in head {head}"
        except Exception as problem:
            forget()
            wrong[name] = (
                f"{type(problem).__name__}: {str(problem).splitlines()[0][:160] if str(problem) else ''}"
            )
    return wrong


def measured(calls: dict[str, tuple[Context, Callable[[], Any]]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median milliseconds of each call in its context, in groups that take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (context, call) in calls.items():
            with context:
                for _ in range(3):
                    call()
                found[name].append(1e3 * group(call, CALLS, DEVICE))
    return {name: statistics.median(each) for name, each in found.items()}


def run_case(case: Case, output: Output) -> None:
    """Check, time and tell."""
    work, size = WORKS[case.work], case.size
    settings = tried(case)
    wrong = checked(case, settings)
    tensors = inputs(size, DEVICE, DTYPE, grad=case.train)
    upstream = gradient(size, DEVICE, DTYPE) if case.train else None
    call = timed_call(partial(ours, work.options(size, DEVICE)), tensors, upstream)
    flex = timed_call(peers.flex(work, size, DEVICE), tensors, upstream)
    calls = {name: (context, call) for name, context, _ in settings if name not in wrong}
    times = measured({**calls, "FlexAttention": (contextlib.nullcontext(), flex)})
    peer = times["FlexAttention"]
    output.write(
        f"{case.name}: FlexAttention {peer:.3f} ms", case=case.name, variant="FlexAttention", ms=peer
    )
    best = min(times[name] for name in calls) if calls else 0.0
    for name, _, entry in settings:
        if name in wrong:
            output.write(
                f"    {name:28s} WRONG: {wrong[name]}", case=case.name, variant=name, wrong=wrong[name]
            )
            continue
        mark = "  <- best" if times[name] == best else ""
        said = f"    {name:28s} {times[name]:.3f} ms  {peer / times[name]:.2f} x{mark}  {entry}"
        output.write(
            said, case=case.name, variant=name, ms=times[name], times_flex=peer / times[name], entry=entry
        )


def alone(call: Callable[[], Any]) -> float | str:
    """Milliseconds of the kernels alone: the call in a CUDA graph; or why it cannot be captured."""
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = call()
        graph.replay()
        found = statistics.median(1e3 * group(graph.replay, CALLS, DEVICE) for _ in range(ROUNDS))
        del kept
        return round(found, 4)
    except Exception as problem:
        torch.cuda.synchronize()
        return f"{type(problem).__name__}: {str(problem)[:120]}"


ADDITIVE = {"in place": None, "(8, 2)": StripCut(8, 2), "(4, 6)": StripCut(4, 6), "(4, 5)": StripCut(4, 5),
            "(4, 4)": StripCut(4, 4)}  # fmt: skip


def run_additive(output: Output, shape: tuple[int, ...] = (1, 1, 4096, 128)) -> None:
    """Additive scores: back to back, the host alone, the kernels alone."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    leaves = [torch.randn(shape, generator=generator, device=DEVICE).requires_grad_() for _ in range(3)]
    leaves.append(torch.randn(shape[3], generator=generator, device=DEVICE).requires_grad_())
    upstream = torch.randn(shape, generator=generator, device=DEVICE)

    def attend(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
        return regard.attend(query, key, value, score=scores.additive(weight), impl="triton")  # type: ignore[return-value]

    from regard.benchmarks.gpu.additive import checked as exact

    for name, cut in ADDITIVE.items():
        context = contextlib.nullcontext() if cut is None else Changed(additive_strips, "OF_SCORES", cut)
        with context:
            errors = exact(leaves, upstream)
            told = []
            for train in (False, True):
                call = timed_call(attend, leaves, upstream if train else None)
                for _ in range(3):
                    call()
                ms = statistics.median(1e3 * group(call, CALLS, DEVICE) for _ in range(ROUNDS))
                host = host_us(call, 20) if name == "in place" else 0.0
                kernels = alone(call) if name == "in place" else ""
                told.append({"train": train, "ms": ms, "host_us": host, "kernels_alone_ms": kernels})
        shown = "; ".join(f"{'train' if one['train'] else 'forward'} {one['ms']:.3f} ms"
                          + (f" (host {one['host_us']:.0f} us, kernels alone {one['kernels_alone_ms']})"
                             if one["host_us"] else "") for one in told)  # fmt: skip
        output.write(f"additive {shape}, OF_SCORES {name}: {shown}", case="additive", shape=shape, variant=name,
                     errors=errors, results=told)  # fmt: skip


def run_cuts(output: Output) -> None:
    """Global tokens: when a long walk is cut."""
    for size in (SHORT_128, LONG_128):
        work = WORKS["global"]
        for train in (False, True):
            tensors = inputs(size, DEVICE, DTYPE, grad=train)
            upstream = gradient(size, DEVICE, DTYPE) if train else None
            call = timed_call(partial(ours, work.options(size, DEVICE)), tensors, upstream)
            contexts = {f"PATIENCE = {n}": (Changed(pieces, "PATIENCE", n), call) for n in (2, 1, 4, 8)}
            times = measured(contexts, 3)
            shown = ", ".join(f"{name} {ms:.3f}" for name, ms in times.items())
            output.write(f"global {size.label} {'train' if train else 'forward'}: {shown} ms", case="cuts",
                         size=size.label, train=train, ms=times)  # fmt: skip


@torch.no_grad()
def run_decoding(output: Output) -> None:
    """One token over a cache of 4096, b1: what the host and the kernels take."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    query, key, value = (
        torch.randn(shape, generator=generator, device=DEVICE).to(DTYPE)
        for shape in ((1, 32, 1, 128), (1, 8, 4096, 128), (1, 8, 4096, 128))
    )
    exact = regard.attend(query.double(), key.double(), value.double(), impl="reference")
    calls: dict[str, Callable[[], Any]] = {
        "sdpa by itself": lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=True),
        "attend": lambda: regard.attend(query, key, value),
        "attend, impl=triton": lambda: regard.attend(query, key, value, impl="triton"),
        "torch's flash operator": lambda: torch._scaled_dot_product_flash_attention(query, key, value)[0],
        "torch's cuDNN operator": lambda: torch._scaled_dot_product_cudnn_attention(
            query, key, value, None, False
        )[0],
    }
    choice = torch._fused_sdp_choice(query, key, value, enable_gqa=True)
    output.write(
        f"decode b1 4k: torch chooses {choice} (1 flash, 2 efficient, 3 cuDNN)", case="decode", choice=choice
    )
    good = {}
    for name, call in calls.items():
        try:
            for _ in range(12):  # more than `sdpa` waits before cuDNN may plan
                call()
            far = check.distance(call(), exact)
            assert far <= check.LIMITS[DTYPE], f"relative error {far:.2g}"
            good[name] = call
        except Exception as problem:
            output.write(
                f"    {name}: {type(problem).__name__}: {str(problem)[:160]}", case="decode", variant=name
            )
    times = measured({name: (contextlib.nullcontext(), call) for name, call in good.items()}, 9)
    for name, call in good.items():
        host, kernels = host_us(call), alone(call)
        output.write(
            f"    {name:24s} {1e3 * times[name]:.1f} us back to back, host {host:.1f} us, kernels alone {kernels} ms",
            case="decode", variant=name, us=1e3 * times[name], host_us=host, kernels_alone_ms=kernels,
        )  # fmt: skip


def compile_part(part: int, parts: int) -> None:
    """What a process that compiles does: its share of the settings, and of FlexAttention's calls."""
    jobs: list[Callable[[], Any]] = []
    for case in CASES:
        jobs.append(partial(compile_flex, case))
        jobs += [partial(compile_setting, case, number) for number in range(len(case.variants) + 1)]
    for job in jobs[part::parts]:
        try:
            job()
        except Exception:  # where it is timed, it tells
            forget()


def compile_setting(case: Case, number: int) -> None:
    """One setting of a case."""
    settings = tried(case)
    if number < len(settings):
        work, size = WORKS[case.work], case.size
        tensors = inputs(size, DEVICE, DTYPE, grad=case.train)
        upstream = gradient(size, DEVICE, DTYPE) if case.train else None
        with settings[number][1]:
            trained(partial(ours, work.options(size, DEVICE)), tensors, upstream)


def compile_flex(case: Case) -> None:
    """FlexAttention."""
    tensors = inputs(case.size, DEVICE, DTYPE, grad=case.train)
    upstream = gradient(case.size, DEVICE, DTYPE) if case.train else None
    timed_call(peers.flex(WORKS[case.work], case.size, DEVICE), tensors, upstream)()


def warm(processes: int, seconds: float) -> int:
    """Let other processes compile; how many were stopped."""
    command = [sys.executable, "-m", "benchmarks.kernel_variants", "--compile"]
    running = [
        subprocess.Popen([*command, str(part), str(processes)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
        for part in range(processes)
    ]  # fmt: skip
    until, stopped = time.time() + seconds, 0
    for process in running:
        try:
            process.wait(max(0.1, until - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            stopped += 1
    return stopped


def main() -> None:
    """Compile side by side, then check and time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", help="file to which results are appended, one line of JSON each")
    parser.add_argument("--seconds", type=float, default=150, help="after so many no further case is begun")
    parser.add_argument(
        "--warm", type=float, default=55, help="seconds that other processes may compile; 0: none do"
    )
    parser.add_argument("--processes", type=int, default=14, help="how many compile at a time")
    parser.add_argument("--only", default="", help="parts of the names of cases to try, joined by commas")
    parser.add_argument("--compile", nargs=2, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compile:
        compile_part(*given.compile)
        return
    output = Output(given.out, given.seconds)
    if given.warm:
        stopped = warm(given.processes, given.warm)
        output.write(
            f"compiled by {given.processes} processes, {stopped} stopped", case="warm", stopped=stopped
        )
    jobs: list[tuple[str, Callable[[], None]]] = [
        (case.name, partial(run_case, case, output)) for case in CASES
    ]
    others = [
        ("decode", partial(run_decoding, output)), ("additive-4k", partial(run_additive, output)),
        ("cuts", partial(run_cuts, output)), ("additive-many", partial(run_additive, output, (64, 1, 256, 256))),
    ]  # fmt: skip
    chosen = [word for word in given.only.split(",") if word]
    for name, run in [*jobs[:2], *others[:2], *jobs[2:5], others[2], *jobs[5:], others[3]]:
        if not chosen or any(word in name for word in chosen):
            output.attempt(name, run)


if __name__ == "__main__":
    main()

"""Compile the Triton kernels for a GPU without one: python -m bench.compile_kernels --out usage.jsonl

The interpreter accepts what the compiler refuses: loop variables that change their type, tiles that are too small,
more shared memory than there is. Here the calls of `compiled_cases.py` run on CPU tensors with launches replaced by
compilations for an H200, or the GPU of another `--capability`; their results are meaningless. Each kernel is one line
of JSON: registers, bytes of spilled registers, shared memory, the warnings of ptxas that matrix products wait for each
other (`serialised`); or the compiler's message. At the end stands what spills or waits.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from bench.compiled_cases import cases

# KiB of shared memory that a program may have, by compute capability: A100; RTX 30 and 40; H100, H200; B200; RTX 50.
SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}


@contextlib.contextmanager
def kept_log() -> Iterator[io.StringIO]:
    """What ptxas says while Triton compiles. A kernel of the cache has no log, so that the cache is not asked."""
    log = io.StringIO()
    with knobs.nvidia.scope(), knobs.compilation.scope(), contextlib.redirect_stdout(log):
        knobs.nvidia.dump_ptxas_log = True
        knobs.compilation.always_compile = True
        yield log


def read_log(log: str) -> dict[str, Any]:
    """The numbers in a log of `ptxas -v` and its warnings that products are serialised (C7510 to C7519)."""
    registers = re.search(r"Used (\d+) registers", log)
    stack = re.search(r"(\d+) bytes stack frame", log)
    if registers is None or stack is None:
        raise ValueError(f"ptxas did not say what it used: {log[-500:]}")
    warned = [line for line in log.splitlines() if "wgmma" in line and "serialized" in line]
    codes = {code[0] if (code := re.search(r"C75\d\d", line)) else "without a code" for line in warned}
    return {"registers": int(registers[1]), "spilled": int(stack[1]), "serialised": sorted(codes)}


class NoDriver:
    """Stands for a GPU's driver: says what to compile for, and launches nothing."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind: str) -> str:
        from triton.backends.nvidia.driver import ty_to_cpp

        return str(ty_to_cpp(kind))


class Compilations:
    """What was compiled, each signature once."""

    def __init__(self, path: str | None, capability: int = 90) -> None:
        self.capability = capability
        self.path = None if path is None else Path(path)
        self.seen: set[Any] = set()
        self.written: list[dict[str, Any]] = []
        self.failed = 0
        self.case = ""

    def install(self) -> None:
        """Let every launch compile instead."""
        driver.set_active(NoDriver(self.capability))
        run, most = JITFunction.run, SHARED[self.capability] * 1024

        def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            begun = time.time()
            try:
                with kept_log() as log:
                    compiled = run(kernel, *args, grid=(1, 1, 1), warmup=True, **named)
            except Exception as problem:
                key = (kernel.__name__, str(problem)[:200])
                if key not in self.seen:
                    self.seen.add(key)
                    self.failed += 1
                    self.write(kernel=kernel.__name__, failed=f"{type(problem).__name__}: {problem}"[-1500:])
                return None
            fits = compiled.metadata.shared <= most
            if compiled.hash not in self.seen:
                self.seen.add(compiled.hash)
                usage = read_log(log.getvalue())
                usage |= {"shared": compiled.metadata.shared, "warps": compiled.metadata.num_warps}
                self.write(kernel=kernel.__name__, **usage, ok=fits, seconds=round(time.time() - begun, 1))
            if not fits:  # as Triton would on that GPU; some launches then ask for less
                raise OutOfResources(compiled.metadata.shared, most, "shared memory")
            return compiled

        JITFunction.run = compile_only

    def write(self, **found: Any) -> None:
        self.written.append({"case": self.case, **found})
        line = json.dumps(self.written[-1])
        print(line[:600], flush=True)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(line + "\n")

    def print_defects(self) -> None:
        """Name the kernels whose products wait for each other, and those that spill registers."""
        compiled = [one for one in self.written if "failed" not in one]
        waiting = [one for one in compiled if one["serialised"]]
        print(f"products that wait for each other: {len(waiting)}")
        for one in waiting:
            print(f"  {one['case']}, {one['kernel']}: {', '.join(one['serialised'])}")
        spilling = [one for one in compiled if one["spilled"]]
        print(f"registers that spill: {len(spilling)}")
        for one in spilling:
            print(f"  {one['case']}, {one['kernel']}: {one['spilled']} bytes at {one['registers']} registers")


def stand_in() -> None:
    """Let the implementation take CPU tensors for those of a GPU."""
    import regard.implementations.triton as implementation
    from regard.implementations.triton.launch import blocks, launching, raw_launches

    raw_launches._REFUSAL.append("nothing is launched")
    torch.cuda.current_device = lambda: -1  # what a CPU tensor's get_device says
    launching.processors = blocks.processors = lambda device: 132
    refuse = implementation.refuse
    implementation.refuse = lambda request: None if (why := refuse(request)) == "its kernels run on a GPU" else why
    whole = blocks.launch

    def order_here(kernel: Any, grid: Any, *values: Any, **named: Any) -> None:
        """Pieces of long rows depend on what `_order` counts."""
        whole(kernel, grid, *values, **named)
        if kernel is blocks._order:
            grades, index, counts, most, partial_grade, full_grade, _ = values
            lines = grades.reshape(-1, most)
            counts[:, 0] = (lines == partial_grade).sum(1)
            counts[:, 1] = counts[:, 0] + (lines == full_grade).sum(1)
            index.zero_()

    blocks.launch = order_here


def main() -> None:
    """Compile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="file to which results are appended")
    parser.add_argument("--only", default="", help="compile only cases whose name contains this")
    parser.add_argument("--capability", type=int, choices=SHARED, default=90, help="of the GPU; 90: H100, H200")
    given = parser.parse_args()
    found = Compilations(given.out, given.capability)
    found.install()
    stand_in()
    for name, call in cases():
        if given.only not in name:
            continue
        found.case = name
        try:
            call()
        except Exception:
            found.failed += 1
            found.write(failed=traceback.format_exc()[-2500:])
    found.print_defects()
    print(f"{len(found.seen)} kernels, {found.failed} failed")


if __name__ == "__main__":
    main()

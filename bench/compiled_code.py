"""What the assembler made of a Triton kernel, read without a GPU: registers, spills, products that wait, loops."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton import knobs

BINARIES = Path(triton.__file__).parent / "backends/nvidia/bin"
PRODUCT = "HGMMA"  # of a warp group on the matrix units of an H100 or H200; it runs beside other work


@contextlib.contextmanager
def kept_log() -> Iterator[io.StringIO]:
    """What ptxas says while Triton compiles. A kernel of the cache has no log, so that the cache is not asked."""
    heard = io.StringIO()
    with knobs.nvidia.scope(), knobs.compilation.scope(), contextlib.redirect_stdout(heard):
        knobs.nvidia.dump_ptxas_log = True
        knobs.compilation.always_compile = True
        yield heard


def usage(compiled: Any, log: str) -> dict[str, Any]:
    """What a thread and a program of a kernel use, what its products wait for, and the length of its loops."""
    found = {**read_log(log), "loops": loops_with_products(disassembled(compiled.asm["cubin"]))}
    return {**found, "shared": compiled.metadata.shared, "warps": compiled.metadata.num_warps}


def disassembled(binary: bytes) -> str:
    """The machine's instructions as text."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(BINARIES / "nvdisasm"), "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def read_log(log: str) -> dict[str, Any]:
    """The numbers in a log of `ptxas -v` and its warnings that products are serialised (C7510 to C7519)."""
    registers = re.search(r"Used (\d+) registers", log)
    stack = re.search(r"(\d+) bytes stack frame", log)
    if registers is None or stack is None:
        raise ValueError(f"ptxas did not say what it used: {log[-500:]}")
    warned = [line for line in log.splitlines() if "wgmma" in line and "serialized" in line]
    codes = {code[0] if (code := re.search(r"C75\d\d", line)) else "without a code" for line in warned}
    return {"registers": int(registers[1]), "spilled": int(stack[1]), "serialised": sorted(codes)}


def loops_with_products(code: str) -> list[tuple[int, int]]:
    """The instructions of each innermost loop with products in what `nvdisasm` prints, in the code's order.

    Of each loop two numbers: those of a turn that takes every jump over others, as in a tile that needs no mask, and
    all of them. A loop is what lies between a label and a jump back to it; parts behind it are not counted.
    """
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x?_?\d+):", line):
            labels[label[1]] = len(instructions)
        elif place := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
            instructions.append(place[1])
    jumps = {}
    for at, instruction in enumerate(instructions):
        if (jump := re.search(r"\bBRA.*`\((\.L_x?_?\d+)\)", instruction)) and jump[1] in labels:
            jumps[at] = labels[jump[1]]
    spans = {(start, end) for end, start in jumps.items() if start <= end}
    found = []
    for start, end in sorted(spans):
        inside = any((start, end) != other and start <= other[0] and other[1] <= end for other in spans)
        if not inside and any(PRODUCT in one for one in instructions[start : end + 1]):
            found.append((_shortest(start, end, jumps, instructions), end + 1 - start))
    return found


def _shortest(start: int, end: int, jumps: dict[int, int], instructions: list[str]) -> int:
    """The fewest instructions from `start` to `end`, both counted."""
    fewest = {start: 1}
    for at in range(start, end):
        if at in fewest:
            always = re.match(r"BRA(\.\w+)* `", instructions[at])
            for after in (jumps.get(at, at + 1), at if always else at + 1):
                if at < after <= end:
                    fewest[after] = min(fewest.get(after, end), fewest[at] + 1)
    return fewest[end]

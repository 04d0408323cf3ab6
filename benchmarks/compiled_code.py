"""What the assembler made of a Triton kernel, read without a GPU: registers, spills, products that wait, loops.

Triton keeps the PTX of a kernel. Its own ptxas assembles that once more here, because only then does it say what it
warns of: Triton throws the log away, and a kernel from its cache has none.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton

BINARIES = Path(triton.__file__).parent / "backends/nvidia/bin"
PRODUCT = "HGMMA"  # of a warp group on the matrix units of an H100 or H200; it runs beside other work


def usage(compiled: Any) -> dict[str, Any]:
    """Registers of a thread, bytes of local memory, shared memory of a program, and what its products wait for."""
    log, code = assembled(compiled.asm["ptx"])
    found = {**read_log(log), "loops": loops_with_products(code)}
    return {**found, "shared": compiled.metadata.shared, "warps": compiled.metadata.num_warps}


def assembled(ptx: str) -> tuple[str, str]:
    """What ptxas says about PTX, with the options that Triton gives it, and the machine's instructions as text."""
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    if target is None:
        raise ValueError("the PTX names no .target")
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        name = f"--gpu-name={target[1]}"  # a limit of registers is a line of the PTX
        log = _said("ptxas", "-lineinfo", "-v", name, str(source), "-o", str(binary), errors=True)
        return log, _said("nvdisasm", "-c", str(binary))


def _said(program: str, *options: str, errors: bool = False) -> str:
    ended = subprocess.run([str(BINARIES / program), *options], capture_output=True, text=True, check=True)
    return ended.stderr if errors else ended.stdout


def read_log(log: str) -> dict[str, Any]:
    """The numbers in a log of `ptxas -v` and its warnings that products are serialised (C7510 to C7519)."""
    registers = re.search(r"Used (\d+) registers", log)
    stack = re.search(r"(\d+) bytes stack frame", log)
    if registers is None or stack is None:
        raise ValueError(f"ptxas did not say what it used: {log[-500:]}")
    warned = [line for line in log.splitlines() if "wgmma" in line and "serialized" in line]
    codes = {code[0] if (code := re.search(r"C75\d\d", line)) else "without a code" for line in warned}
    return {"registers": int(registers[1]), "spilled": int(stack[1]), "serialised": sorted(codes)}


def loops_with_products(code: str) -> list[int]:
    """The instructions of each innermost loop with products in what `nvdisasm` prints, in the code's order.

    A loop is what lies between a label and a jump back to it; parts of it that were moved behind it are not counted.
    """
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x?_?\d+):", line):
            labels[label[1]] = len(instructions)
        elif place := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
            instructions.append(place[1])
    spans = []
    for end, instruction in enumerate(instructions):
        jump = re.search(r"\bBRA.*`\((\.L_x?_?\d+)\)", instruction)
        if jump and labels.get(jump[1], end + 1) <= end:
            spans.append((labels[jump[1]], end))
    found = []
    for start, end in sorted(set(spans)):
        inside = any((start, end) != other and start <= other[0] and other[1] <= end for other in spans)
        body = instructions[start : end + 1]
        if not inside and any(PRODUCT in one for one in body):
            found.append(len(body))
    return found

"""What `bench.compile_kernels` reads from the assembler: numbers of a log, warnings, and one kernel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

from bench import compile_kernels  # noqa: E402

QUIET = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'forward' for 'sm_90a'
ptxas info    : Function properties for forward
    {stack} bytes stack frame, 404 bytes spill stores, 416 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 408 bytes cumulative stack size
"""
WARNING = (
    "ptxas info    : ({code}) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "{why} in the function 'forward'\n"
)


def test_a_log_without_a_warning_says_that_nothing_is_serialised():
    found = compile_kernels.read_log(QUIET.format(stack=408))
    assert found == {"registers": 168, "spilled": 408, "serialised": []}


@pytest.mark.parametrize("code", ["C7510", "C7513", "C7515", "C7519"])
def test_the_code_of_a_warning_is_read(code):
    log = WARNING.format(code=code, why="insufficient register resources") + QUIET.format(stack=0)
    assert compile_kernels.read_log(log)["serialised"] == [code]


def test_a_warning_without_a_code_is_not_lost_and_each_code_comes_once():
    log = "".join(WARNING.format(code=code, why="x") for code in ("C7515", "C7513", "C7515"))
    log += WARNING.format(code="", why="a reason of a later version") + QUIET.format(stack=0)
    assert compile_kernels.read_log(log)["serialised"] == ["C7513", "C7515", "without a code"]


def test_a_log_without_numbers_is_refused():
    with pytest.raises(ValueError, match="did not say"):
        compile_kernels.read_log("ptxas fatal   : Memory allocation failure\n")


def compiled(tmp_path, *options):
    """The lines of the command, without a GPU, with a cache of its own; and what it printed."""
    path = tmp_path / "usage.jsonl"
    command = [sys.executable, "-m", "bench.compile_kernels", "--out", str(path), *options]
    given = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    given["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, env=given, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in path.read_text().splitlines()], ended.stdout


@pytest.mark.slow
def test_kernels_end_up_in_the_shared_memory_of_a_smaller_gpu(tmp_path):
    """A gaming card has 99 KiB where an H200 has 227. Triton 3.6 takes fewer stages for some of these kernels."""
    lines, printed = compiled(tmp_path, "--only", "documents d128", "--capability", "120")
    assert printed.endswith(" 0 failed\n") and all(one["ok"] == (one["shared"] <= 99 << 10) for one in lines)
    last = {one["kernel"]: one["ok"] for one in lines}
    assert {"forward", "of_keys", "of_queries"} <= last.keys() and all(last.values())


@pytest.mark.slow
def test_a_kernel_compiled_without_a_gpu_leaves_what_the_assembler_said(tmp_path):
    """Twice, since the second time Triton's cache holds the kernel, and no log of it."""
    for _ in range(2):
        lines, printed = compiled(tmp_path, "--only", "softcap d64")
        assert printed.endswith("4 kernels, 0 failed\n") and "registers that spill" in printed
    first, second = lines[:4], lines[4:]
    for one, two in zip(first, second, strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}
    found = {one["kernel"]: one for one in first}
    assert found.keys() == {"forward", "compute_row_stats", "of_keys", "of_queries"}
    for one in found.values():
        assert 16 <= one["registers"] <= 255 and isinstance(one["serialised"], list)


def test_the_list_at_the_end_names_what_is_serialised_and_what_spills(tmp_path, capsys):
    path = tmp_path / "usage.jsonl"
    found = compile_kernels.Compilations(str(path))
    for case, kernel, spilled, codes in (
        ("window d128", "forward", 0, []),
        ("sigmoid d64", "of_keys", 0, ["C7515"]),
        ("summary d64", "along_columns", 408, []),
    ):
        found.case = case
        found.write(kernel=kernel, registers=168, spilled=spilled, serialised=codes, ok=True)
    found.write(kernel="search", failed="CompilationError: no")
    capsys.readouterr()
    found.print_defects()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "products that wait for each other: 1",
        "  sigmoid d64, of_keys: C7515",
        "registers that spill: 1",
        "  summary d64, along_columns: 408 bytes at 168 registers",
    ]
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("serialised") for line in written] == [[], ["C7515"], [], None]

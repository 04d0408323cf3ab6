"""Promise 9: everything but `reference` trains in extra memory linear in length."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard import masks
from tests.contracts.memory_probe import PROBES

ROOT = Path(__file__).resolve().parents[2]
SHORT, LONG = 3072, 6144
TABLE = LONG * LONG * 4  # bytes of one n×n float32 array at the greater length: 144 MiB
GROWTH = TABLE // 4  # a quadratic term of one array would grow by 3/4 of it; training keeps several
GROUPS = {
    "tiled masks": ["tiled full", "tiled causal lengths", "tiled documents", "tiled own"],
    "tiled scores": ["tiled additive", "tiled shaw"],
    "tiled normalizers": ["tiled window entmax15", "tiled sparsemax relative", "tiled dropout"],
    "torch": ["sdpa", "sdpa lengths", "sdpa causal", "auto causal", "auto window", "auto dropout"],
    "views": ["weights of 16 rows", "summarize"],
}


def measure(names, *lengths):
    command = [sys.executable, "-m", "tests.contracts.memory_probe", ",".join(names), *map(str, lengths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: {int(n): x for n, x in row.items()} for name, row in json.loads(done.stdout).items()}


linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's high-water mark")


@linux
@pytest.mark.parametrize("group", GROUPS)
def test_extra_memory_grows_linearly(group):
    for name, found in measure(GROUPS[group], SHORT, LONG).items():
        growth = found[LONG] - found[SHORT]
        assert growth < GROWTH, (
            f"{name}: {found[SHORT] >> 20} MiB at {SHORT}, {found[LONG] >> 20} MiB at {LONG}"
        )
        assert found[LONG] < TABLE, f"{name}: {found[LONG] >> 20} MiB, as much as an n×n array"


@linux
def test_the_probe_sees_a_quadratic_implementation():
    found = measure(["reference"], SHORT, LONG)["reference"]
    assert found[LONG] - found[SHORT] > 3 * GROWTH
    assert found[LONG] > TABLE


def test_every_probe_is_in_a_group():
    assert {name for group in GROUPS.values() for name in group} | {"reference"} == set(PROBES)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("impl", ["tiled", "auto", "sdpa"])
def test_extra_memory_on_the_gpu_grows_linearly(impl):
    found = []
    for n in (8192, 16384):
        leaves = [torch.randn(1, 1, n, 64, device="cuda", requires_grad=True) for _ in range(3)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        regard.attend(*leaves, mask=masks.causal(), impl=impl).sum().backward()
        found.append(torch.cuda.max_memory_allocated() - before)
    assert found[1] - found[0] < 16384 * 16384 * 4 // 4

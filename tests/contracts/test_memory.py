"""Promise 9: everything but `reference` trains in extra memory linear in length."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard import masks
from tests.contracts.memory_probe import FIXED_THRESHOLD, PROBES

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SHORT, LONG = 1536, 3072
TABLE = LONG * LONG * 4  # bytes of one n×n float32 array at the greater length: 36 MiB
GROWTH = TABLE // 4  # a quadratic term of one array would grow by 3/4 of it; training keeps several
LIMIT = 64 << 20  # bytes of the tiles of any implementation, which do not depend on the length


@pytest.fixture(scope="module")
def measured():
    """Bytes of every probe at both lengths, measured in one process, which imports everything once."""
    command = [sys.executable, "-m", "tests.contracts.memory_probe", "all", str(SHORT), str(LONG)]
    done = subprocess.run(command, cwd=ROOT, env=FIXED_THRESHOLD, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: (row[str(SHORT)], row[str(LONG)]) for name, row in json.loads(done.stdout).items()}


linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's high-water mark")


@linux
@pytest.mark.parametrize("name", [name for name in PROBES if name != "reference"])
def test_extra_memory_grows_linearly(measured, name):
    short, long = measured[name]
    assert long - short < GROWTH, f"{short >> 20} MiB at {SHORT}, {long >> 20} MiB at {LONG}"
    assert long < LIMIT, f"{long >> 20} MiB at {LONG}"


@linux
def test_the_probe_sees_a_quadratic_implementation(measured):
    short, long = measured["reference"]
    assert long - short > 3 * GROWTH
    assert long > TABLE


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

"""Promise 9: every mechanism trains in extra memory that is linear in length, on the CPU too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import regard.nn
from tests.contracts.memory_probe import FIXED_THRESHOLD
from tests.nn.contracts.layers import SEQUENTIAL
from tests.nn.contracts.memory_probe import CONTROL

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
# Both long enough for the strips of `tiled` to have reached their full size, which is a constant of some 45 MiB for
# scores that autograd differentiates (`relative`): shorter lengths would measure how the strips grow up to it.
SHORT, LONG = 2304, 4608
TABLE = LONG * LONG * 4  # bytes of one n×n float32 array at the greater length: 81 MiB
GROWTH = TABLE // 4  # one such array would grow by 3/4 of it; training keeps several

linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's high-water mark")


def measure(names, *lengths):
    command = [sys.executable, "-m", "tests.nn.contracts.memory_probe", ",".join(names), *map(str, lengths)]
    done = subprocess.run(command, cwd=ROOT, env=FIXED_THRESHOLD, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    broken = {name: row for name, row in found.items() if isinstance(row, str)}
    assert not broken, "\n".join(f"{name}: {text}" for name, text in broken.items())
    return {name: {int(n): x for n, x in row.items()} for name, row in found.items()}


@pytest.fixture(scope="module")
def at_once():
    """Everything that works on all positions at once, and the control, in one process: most of its time is imports."""
    return measure([CONTROL, *(name for name in regard.nn.names() if name not in SEQUENTIAL)], SHORT, LONG)


@linux
def test_parallel_mechanisms_store_no_array_of_all_pairs(at_once):
    wrong = []
    for name, found in at_once.items():
        if name != CONTROL and found[LONG] - found[SHORT] >= GROWTH:
            wrong.append(f"{name}: {found[SHORT] >> 20} MiB at {SHORT}, {found[LONG] >> 20} MiB at {LONG}")
    assert not wrong, "\n".join(wrong)


@linux
def test_the_measurement_detects_an_array_of_all_pairs(at_once):
    """A layer that stores one n×n array must fail, or this file would pass for the wrong reason."""
    assert at_once[CONTROL][LONG] - at_once[CONTROL][SHORT] >= GROWTH


@linux
def test_sequential_mechanisms_store_the_same_for_each_step():
    """Each step stores the same amount for the backward pass, so memory grows in proportion to the steps."""
    names = sorted(SEQUENTIAL & set(regard.nn.names()))
    for name, found in measure(names, 256, 1024).items():
        assert found[1024] < 4.5 * found[256] + (8 << 20), f"{name}: {found}"

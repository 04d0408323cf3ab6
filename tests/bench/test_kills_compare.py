"""Comparisons that are killed at random end as if nobody had touched them: a few here, many in the nightly run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "kills", [pytest.param(2, marks=pytest.mark.slow), pytest.param(500, marks=pytest.mark.nightly)]
)
def test_random_kills_of_compare_leave_nothing_wrong(kills, tmp_path):
    command = [sys.executable, "-m", "bench.kills_compare", f"--kills={kills}", f"--folder={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["tried"] >= kills and not any(found["wrong"].values()), done.stderr
    assert done.returncode == 0

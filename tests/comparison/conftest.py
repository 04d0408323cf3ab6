"""What the tests of this folder share."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.comparison import forked_worker

# The script of the study and its helpers are imported here as the script itself imports them.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))


@pytest.fixture(autouse=True, scope="module")
def forked_workers():
    """Workers that this process starts are forked, not started from nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", forked_worker.Popen)
        yield

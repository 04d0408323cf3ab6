"""What the tests of this folder share."""

import subprocess

import pytest

from tests.comparison import forked_worker


@pytest.fixture(autouse=True, scope="module")
def forked_workers():
    """Workers that this process starts are forked, not started from nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", forked_worker.Popen)
        yield

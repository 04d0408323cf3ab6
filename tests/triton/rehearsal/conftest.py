"""These tests are for the kernels of a GPU: on one, or rehearsed by the interpreter (`REGARD_REHEARSE=1`)."""

import pytest

from tests.triton.conftest import LARGE_BLOCKS

SAMPLES = {"test_dynamic_memory": ("case0", "case5"), "test_static_memory": ("case0", "case3")}  # others are nightly

if not LARGE_BLOCKS:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items):
    """Leave the other cases of `SAMPLES` to the night: about a minute of a core is for all of the rehearsal."""
    for item in items:
        sample = SAMPLES.get(getattr(item, "originalname", "")) if "rehearsal" in item.nodeid else None
        if sample is not None and item.callspec.id not in sample:
            item.add_marker(pytest.mark.nightly)

"""These tests are for the kernels of a GPU: on one, or rehearsed by the interpreter (`REGARD_REHEARSE=1`)."""

from tests.triton.conftest import LARGE_BLOCKS

if not LARGE_BLOCKS:
    collect_ignore_glob = ["test_*.py"]

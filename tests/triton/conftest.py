"""Kernels run on a GPU where there is one, else in Triton's interpreter, to be asked for before any is defined.

`make test` runs this folder in processes of its own with `TRITON_INTERPRET=1`; by hand:
`TRITON_INTERPRET=1 pytest tests/triton`. With `REGARD_REHEARSE=1` the interpreter runs what a GPU would, see
`rehearsing.py`.
"""

import os
from contextlib import nullcontext

import pytest
import torch

from tests.triton.rehearsing import REHEARSED, rehearsed

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
LARGE_BLOCKS = HALVED = GPU or REHEARSED  # the blocks of an H200, and products of small models in bfloat16

if not GPU and os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items):
    """Ignore numpy's warnings in the interpreter, which a GPU does not give: inf − inf, e^1000, Triton 3.6's own."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"))
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"))
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning:numpy"))


@pytest.fixture(autouse=True, scope="session")
def fast_and_strict_interpreter():
    if GPU:
        yield None
        return
    from tests.triton.accesses import checked
    from tests.triton.interpreting import leave_out_waste

    with pytest.MonkeyPatch.context() as patch, checked(), rehearsed() if REHEARSED else nullcontext():
        leave_out_waste(patch)
        yield patch


@pytest.fixture(params=[False, True], ids=["by tensors", "by address"])
def by_address(request, monkeypatch):
    """Launches that repeat take tensors, as the interpreter's do, or addresses, as those on a GPU do."""
    if GPU or not request.param:
        yield []
        return
    from tests.triton.repeating import launched_by_address

    with launched_by_address(monkeypatch) as streams:
        yield streams

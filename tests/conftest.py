"""One deterministic setting for every test: seeds, threads, devices, Hypothesis."""

import os
import random
import signal
import sys
from pathlib import Path

# Inductor compiles in the test's own process: a pool of processes that is forked beside threads can wait for ever.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import numpy as np
import pytest
import torch

import regard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `from tests.oracle import …` works

from tests.missing_extras import pytest_runtest_call, pytest_runtest_setup  # noqa: F401 - hooks of pytest
from tests.selection import (  # noqa: F401 - hooks of pytest
    pytest_addoption,
    pytest_collection,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_sessionfinish,
)

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a bare GPU machine; the project's own environment always has it
    collect_ignore = ["masks/test_algebra.py", "test_normalizers_any_row.py", "test_repeated_calls_any_request.py"]
else:
    for name, examples in (("regard", 60), ("quick", 10)):
        settings.register_profile(
            name,
            deadline=None,
            derandomize=True,
            max_examples=examples,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        )
    settings.load_profile("regard")

    def pytest_configure(config):
        if config.option.quick:
            settings.load_profile("quick")


DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])

# A shell script starts background jobs with SIGINT ignored, and processes inherit that: tests of Ctrl-C would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from the same random state, whatever ran before it.

    `torch.manual_seed` would format the stack for each kind of device that this process has not touched.
    """
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)
    if "cuda" in DEVICES:
        torch.cuda.manual_seed_all(0)


@pytest.fixture
def fresh_tracer():
    """Nothing that was compiled before is found again, nor left behind."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Skip what `impl="sdpa"` refuses on a GPU: float32 and float64, and shapes without a fused kernel there.

    docs/results.md says why it refuses. A refusal of any other implementation fails the test.
    """
    try:
        return (yield)
    except regard.Unsupported as refusal:
        message = str(refusal)
        reasons = ("float32 kernels round", "no fused kernel")
        on_cuda = pyfuncitem.funcargs.get("device") == "cuda"
        if on_cuda and message.startswith("impl='sdpa' ") and any(reason in message for reason in reasons):
            pytest.skip(message)
        raise


@pytest.fixture(params=DEVICES)
def device(request):
    """Each device of this machine in turn."""
    return request.param

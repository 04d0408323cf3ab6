"""Engines: which one a run gets, that no other is imported for it, and that each has what the loop asks for."""

import subprocess
import sys

import pytest

from regard_workbench.training import Config, engines, hardware
from regard_workbench.training.build import Parts, build_model, build_task
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.engines.cuda_graph.engine import CapturedEngine
from regard_workbench.training.engines.eager import EagerEngine
from regard_workbench.training.engines.engine import StepEngine
from regard_workbench.training.engines.processes import ReplicatedEngine, ShardedEngine

PLAIN_RUN = """
import sys
from tests.training.toy import register
from regard_workbench.training import train
register()
train({"task": "toy", "steps": 2, "device": "cpu", "out": sys.argv[1]}, quiet=True)
print(*(name for name in sys.modules if name.startswith("regard_workbench.training")))
"""
NOT_FOR_A_PLAIN_RUN = (
    "engines.cuda_graph",
    "engines.processes",
    "engines.sharding",
    "engines.context",
    "averaging",
    "exporting",
    "init_from",
    "loaders",
    "loading",
    "reporting",
)


def engine_of(tell=print, **settings):
    config = complete(Config(task="toy", device="cpu", **settings))
    task = build_task(config)
    return engines.engine_for(config, hardware.prepare(config), Parts(task, build_model(config, task)), tell)


def test_a_process_alone_on_a_cpu_gets_the_eager_engine():
    told = []
    assert type(engine_of()) is type(engine_of(told.append, strategy="fsdp")) is EagerEngine
    assert len(told) == 1 and "fsdp shards nothing in one process" in told[0]


@pytest.mark.parametrize("engine", [EagerEngine, CapturedEngine, ReplicatedEngine, ShardedEngine])
def test_an_engine_has_what_the_loop_asks_for(engine):
    asked = [name for name in vars(StepEngine) if not name.startswith("_")]
    assert {"load", "begin", "snapshot", "step", "evaluated", "state"} <= set(asked)
    assert all(callable(getattr(engine, name)) for name in asked)


@pytest.mark.slow
def test_a_plain_run_imports_nothing_that_only_other_runs_need(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_RUN, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    modules = done.stdout.split()
    assert "regard_workbench.training.engines.eager" in modules
    names = [name.removeprefix("regard_workbench.training.") for name in modules]
    assert not [name for name in names if name.startswith(NOT_FOR_A_PLAIN_RUN)]

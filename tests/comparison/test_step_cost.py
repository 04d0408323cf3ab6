"""What a step costs: real steps, in real processes."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from regard_workbench import models, tasks
from regard_workbench.comparison import memory
from regard_workbench.comparison.job import Cost
from regard_workbench.comparison.memory import peak_memory
from regard_workbench.comparison.step_cost import measure
from regard_workbench.training.loop import Trainer

pytestmark = pytest.mark.slow
SMALL, WIDE = "encoder(layers=1, dim=16)", "encoder(layers=4, dim=384)"
SETTINGS = {"task": "digits", "model": SMALL, "device": "cpu", "seed": 3, "batch_size": 16}


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """Two models at once, each measured in a process of its own that works in an empty folder; one told by file."""
    running = {}
    for model in (SMALL, WIDE):
        told = json.dumps({"settings": {**SETTINGS, "model": model}, "threads": 1, "seconds": 0.1})
        file = tmp_path_factory.mktemp("told") / "told.json"
        file.write_text(told)
        folder = tmp_path_factory.mktemp("empty")
        process = subprocess.Popen(
            [sys.executable, "-m", "regard_workbench.comparison.step_cost", *([str(file)] if model == WIDE else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        running[model] = process, told if model == SMALL else "", folder
    found = {}
    for model, (process, told, folder) in running.items():
        output, errors = process.communicate(told, timeout=500)
        assert process.returncode == 0, errors
        assert not list(folder.iterdir())
        found[model] = Cost(**json.loads(output))
    return found


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def parameters_of(model):
    return sum(p.numel() for p in models.build(model, tasks.build("digits").problems()[0]).parameters())


def test_a_process_prints_the_cost_and_leaves_nothing_behind(costs):
    found = costs[SMALL]
    assert found.parameters == parameters_of(SMALL) and found.steps_per_second > 0
    assert found.batch == {"inputs": [16, 8, 8], "targets": [16]}
    assert (found.device, found.threads) == ("cpu", 1)


def test_memory_grows_with_the_model_by_what_its_training_holds(costs):
    # Weights, gradients and Adam's two averages, four bytes each; activations of so few rows are a small part.
    held = 4 * 4 * (parameters_of(WIDE) - parameters_of(SMALL)) / 2**20
    grown = costs[WIDE].peak_memory_mib - costs[SMALL].peak_memory_mib
    assert 0.9 * held < grown < 1.6 * held
    assert 0 < costs[SMALL].peak_memory_mib < 60


def test_operations_are_three_forward_passes_and_grow_with_the_batch(threads):
    once, twice = (measure({**SETTINGS, "batch_size": size}, 1, 0.0).flops_per_step for size in (16, 32))
    assert twice == pytest.approx(2 * once)
    apart = measure({**SETTINGS, "accumulate": 2}, 1, 0.0).flops_per_step
    assert apart == pytest.approx(2 * once)


def test_speed_is_that_of_the_steps_themselves(threads, monkeypatch):
    """Every step is slowed down by a known time and its own clock kept beside it."""
    advance, taken = Trainer.advance, []

    def slow(self):
        started = time.perf_counter()
        time.sleep(0.05)
        advance(self)
        taken.append(time.perf_counter() - started)

    monkeypatch.setattr(Trainer, "advance", slow)
    found = measure(SETTINGS, 1, 0.5).steps_per_second
    timed = taken[8 + 5 :]  # without the rehearsal of eight steps and the warm-up of five
    assert 1 / max(timed) <= found <= 1 / min(timed) < 20


def test_a_budget_or_patience_does_not_end_the_measurement(threads):
    given = {**SETTINGS, "budget": "1 seconds", "patience": 1, "eval_every": 1, "save_every": 1}
    assert measure(given, 1, 0.0).steps_per_second > 0


def test_neither_validation_nor_test_data_is_evaluated(threads, monkeypatch):
    monkeypatch.setattr(
        "regard_workbench.tasks.measures.metrics.Mean.of", lambda *given: pytest.fail("a measurement of quality")
    )
    assert measure(SETTINGS, 1, 0.0).steps_per_second > 0


def test_batches_of_different_lengths_are_averaged(threads):
    given = {"task": "dates", "model": "seq2seq(dim=16)", "device": "cpu", "batch_size": 8}
    found = measure(given, 1, 0.0)
    assert found.flops_per_step > 0 and set(found.batch) >= {"inputs", "targets"}


def test_the_peak_is_the_highest_point_and_not_the_end():
    with peak_memory(torch.device("cpu")) as peak:
        block = bytearray(64 * 2**20)
        block[::4096] = b"x" * len(block[::4096])
        del block
        assert 60 * 2**20 < peak() < 90 * 2**20


def test_without_a_mark_to_reset_the_largest_size_ever_is_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "nowhere" / "clear_refs")
    with peak_memory(torch.device("cpu")) as peak:
        assert peak() >= 0

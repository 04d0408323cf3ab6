"""Processes that share each sequence train as one process does: `regard train --context-parallel N`."""

import json

import pytest
import torch

from regard.training import train
from regard.training.run_folder import metrics_file

MODEL = "decoder(dim=8, layers=2, num_heads=2, dropout=0.0{})"


def settings(out, accumulate, model=MODEL.format(""), **changes):
    return {"task": "language(context=23)", "model": model, "steps": 3, "batch_size": 3, "accumulate": accumulate,
            "log_every": 1, "eval_every": 3, "eval_limit": 6, "device": "cpu", "out": str(out), **changes}  # fmt: skip


def trained(values):
    """In a rank: the error of a run, or what it told."""
    from accelerate.state import AcceleratorState

    from regard.errors import RegardError

    # The server that this process was forked from has trained alone; torchrun starts processes without such a state.
    AcceleratorState._reset_state(reset_partial_state=True)

    told = []
    try:
        train(values, quiet=True, tell=told.append)
    except RegardError as error:
        return str(error)
    return json.dumps(told)


def same_as_one(ranks, tmp_path, sharing, accumulate, **changes):
    """Train with `ranks` processes, `sharing` of them for each sequence, and compare with one process."""
    train(settings(tmp_path / "one", accumulate * ranks.count // sharing, **changes), quiet=True)
    many = settings(tmp_path / "many", accumulate, context_parallel=sharing, **changes)
    assert ranks.run(trained, many)[0].startswith("["), "the run failed"
    pairs = list(zip(*(metrics_file.read(tmp_path / name / "metrics.jsonl") for name in ("one", "many")), strict=True))
    assert len(pairs) == 3
    for one, found in pairs:
        assert found["loss"] == pytest.approx(one["loss"], rel=2e-6)
        assert found["grad_norm"] == pytest.approx(one["grad_norm"], rel=2e-5)
        assert found["tokens"] == one["tokens"] and found["lr"] == one["lr"]
        assert found.get("validation", {}) == pytest.approx(one.get("validation", {}), rel=2e-6)


def test_two_processes_that_share_each_sequence_train_as_one(two, tmp_path):
    same_as_one(two, tmp_path, sharing=2, accumulate=2)

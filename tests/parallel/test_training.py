"""Processes that share each sequence train as one process does: `regard train --context-parallel N`."""

import json

import pytest

from regard_workbench.training import train
from regard_workbench.training.run_folder import metrics_file

MODEL = "decoder(dim=8, layers=2, num_heads=2, dropout=0.0{})"


def settings(out, accumulate, model=MODEL.format(""), **changes):
    return {
        "task": "language(context=23)",
        "model": model,
        "steps": 3,
        "batch_size": 3,
        "accumulate": accumulate,
        "log_every": 1,
        "eval_every": 3,
        "eval_limit": 6,
        "device": "cpu",
        "out": str(out),
        **changes,
    }


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
        # No process holds a whole text that it could complete.
        expected = {name: value for name, value in one.get("validation", {}).items() if "completion" not in name}
        assert found.get("validation", {}) == pytest.approx(expected, rel=2e-6)


def test_two_processes_that_share_each_sequence_train_as_one(two, tmp_path):
    same_as_one(two, tmp_path, sharing=2, accumulate=2)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_mesh_of_two_by_two_trains_as_one_process(four, tmp_path, strategy):
    model = MODEL.format(", positions=none, attention=causal(positions=rotary))")[:-1]
    same_as_one(four, tmp_path, sharing=2, accumulate=1, strategy=strategy, model=model)


@pytest.mark.slow
def test_four_processes_share_a_sequence_of_five_positions(four, tmp_path):
    """There are eight chunks: some ranks hold one position, and one holds none."""
    same_as_one(four, tmp_path, sharing=4, accumulate=1, task="language(context=5)")


def test_settings_that_cannot_share_a_sequence_are_refused(two, tmp_path):
    cases = {
        "context_parallel: expected a divisor of the number of processes, got 3 for 2": {"context_parallel": 3},
        "context_parallel: encoder": {
            "context_parallel": 2,
            "task": "language(context=7, objective=hidden)",
            "model": "encoder(dim=8)",
        },
        "context_parallel: a compiled model": {"context_parallel": 2, "compile": True},
    }
    for index, (message, changes) in enumerate(cases.items()):
        found = two.run(trained, {**settings(tmp_path / f"run{index}", 1), **changes})
        assert all(message in text for text in found), found

"""The seed of dropout of a step: a function of its number, so that runs repeat and resume with equal bits."""

import pytest
import torch

pytest.importorskip("triton")

from regard.formula import dropout
from regard_fast.fused_rows import head
from regard_workbench.training import train
from regard_workbench.training.run_folder import checkpoints
from tests.triton.test_fused_head import batch_for, built, step_of
from tests.triton.test_fused_rows import DEVICE, kernels

assert kernels  # a fixture
SETTINGS = {
    "task": "language(level=character, context=7)",
    "model": "decoder(dim=16, layers=1, num_heads=1, dropout=0.3)",
    "batch_size": 3,
    "eval_every": 1000,
    "save_every": 1000,
    "eval_limit": 3,
    "device": DEVICE,
    "log_every": 1,
}


def losses(step, number, count=1):
    """The loss of a step with this seed, of weights that do not change."""
    step.seed = number
    for group in step.optimizer.param_groups:
        group["lr"] = 0.0
    return step([batch_for("decoder", seed) for seed in range(count)]).loss


def dropping(monkeypatch, **options):
    """A step of a decoder with dropout, which does not ask torch for a seed."""

    def refused(device):
        raise AssertionError("a seed was drawn")

    model = built("decoder")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    monkeypatch.setattr(head, "draw_seed", refused)
    return step_of(model.train(), **options)


def test_equal_seeds_drop_the_same_and_others_something_else(monkeypatch, kernels):
    step = dropping(monkeypatch)
    state = torch.get_rng_state()
    found = [losses(step, number) for number in (3, 2**61, 3, 4)]
    torch.manual_seed(11)
    assert losses(step, 3) == found[0] == found[2] and len(set(found)) == 3
    torch.set_rng_state(state)
    with pytest.raises(AssertionError, match="drawn"):
        losses(step, None)


def test_the_batches_of_a_step_drop_differently(monkeypatch, kernels):
    step, seeds = dropping(monkeypatch), []

    def noted(batch, seed, losses=step.losses):
        seeds.append(int(seed))
        return losses(batch, seed)

    step.losses = noted
    losses(step, 9, count=2)
    assert seeds == [9, 10]


def test_a_step_without_a_seed_draws_one_of_torch(kernels, monkeypatch):
    drawn = []

    def noted(device):
        drawn.append(dropout.draw_seed(device))
        return drawn[-1]

    step = dropping(monkeypatch)
    monkeypatch.setattr(head, "draw_seed", noted)
    losses(step, None)
    assert len(drawn) == 1


def test_a_resumed_run_drops_what_an_uninterrupted_one_does(tmp_path, kernels):
    train({**SETTINGS, "steps": 5, "out": str(tmp_path / "whole")}, quiet=True)
    train({**SETTINGS, "steps": 2, "out": str(tmp_path / "parts")}, quiet=True)
    train({"steps": 5, "out": str(tmp_path / "parts")}, resume=str(tmp_path / "parts"), quiet=True)
    one, other = (checkpoints.load_newest(tmp_path / name / "checkpoints", print)[0] for name in ("whole", "parts"))
    assert one.name == other.name and one.weights.keys() == other.weights.keys()
    assert all(torch.equal(value, other.weights[name]) for name, value in one.weights.items())

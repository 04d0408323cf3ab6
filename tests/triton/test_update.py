"""The two kernels that end a training step, beside torch's clipping and AdamW.

They run on a GPU where there is one, elsewhere in Triton's interpreter if that is switched on.
"""

import math
import os

import pytest
import torch
from torch import nn

from regard_workbench.training import optim

pytest.importorskip("triton")

from regard_workbench.training.engines.cuda_graph import fused_update
from regard_workbench.training.engines.cuda_graph.fused_update import FusedUpdate, fits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.skipif(
        DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="neither a GPU nor the interpreter"
    ),
    # The interpreter computes with numpy, which warns of what a GPU does without a word: inf − inf.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:regard_workbench.training.engines.cuda_graph.fused_update"),
]
BETAS = (0.9, 0.98)


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(37, 61), nn.LayerNorm(61), nn.Linear(61, 5), nn.Linear(2, 3)).to(DEVICE)


def adamw(model, lr):
    rate = torch.tensor(lr, device=DEVICE)
    return torch.optim.AdamW(optim.groups(model, 0.1), lr=rate, betas=BETAS, fused=True, capturable=DEVICE == "cuda")


def graded(model, optimizer, factor):
    """A loss that leaves the last layer without a gradient."""
    optimizer.zero_grad()
    x = torch.linspace(-1, 1, 11 * 37, device=DEVICE).view(11, 37)
    loss = factor * model[:3](x).square().mean()
    loss.backward()
    return loss.detach()


def step(update, loss):
    update.ready()
    update.write(update.eager_table)
    return update(loss, update.eager_table).tolist()


@pytest.mark.parametrize("limit", [0.3, math.inf])
@pytest.mark.parametrize("chunks", [1024, 2])
def test_steps_are_those_of_torch(monkeypatch, limit, chunks):
    monkeypatch.setattr(fused_update, "CHUNKS", chunks)
    monkeypatch.setattr(fused_update, "BLOCK", 256)
    mine, theirs = net(), net()
    ours, usual = adamw(mine, 0.01), adamw(theirs, 0.01)
    ending = FusedUpdate(ours, limit)
    for number in range(4):
        for optimizer in (ours, usual):
            optim.set_rate(optimizer, 0.01 * (number + 1))
        loss, norm, left_out = step(ending, graded(mine, ours, number + 1))
        wanted = graded(theirs, usual, number + 1)
        wanted_norm = nn.utils.clip_grad_norm_(theirs.parameters(), limit)
        usual.step()
        assert loss == pytest.approx(float(wanted), rel=1e-5) and norm == pytest.approx(float(wanted_norm), rel=1e-5)
        assert left_out == 0
    for mine_now, theirs_now in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine_now, theirs_now, rtol=1e-5, atol=1e-6)
    memory, wanted = optim.optimizer_state(ours, mine), optim.optimizer_state(usual, theirs)
    for name, value in wanted.items():
        # The weights differ in their last bits by now, so the gradients do, too.
        torch.testing.assert_close(memory[name], value, rtol=1e-5, atol=1e-7)
    assert memory["3.weight:step"] == 0  # it had no gradient


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_after_a_loss_that_is_no_number_nothing_changes_any_more(bad):
    model = net()
    optimizer = adamw(model, 0.01)
    ending = FusedUpdate(optimizer, 1.0)
    step(ending, graded(model, optimizer, 1.0))
    before = {**model.state_dict(), **optim.optimizer_state(optimizer, model)}
    before = {name: value.clone() for name, value in before.items()}
    found = step(ending, graded(model, optimizer, bad))
    assert not math.isfinite(found[0]) and found[2] == 1
    assert step(ending, graded(model, optimizer, 1.0))[2] == 1
    after = {**model.state_dict(), **optim.optimizer_state(optimizer, model)}
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_gradient_that_is_no_number_stops_it_too():
    model = net()
    optimizer = adamw(model, 0.01)
    ending, loss = FusedUpdate(optimizer, 1.0), graded(model, optimizer, 1.0)
    model[0].weight.grad[3, 5] = math.inf
    before = model[2].weight.clone()
    assert step(ending, loss)[2] == 1 and torch.equal(model[2].weight, before)


def test_a_state_that_was_loaded_is_found_where_it_lies_now():
    model = net()
    optimizer = adamw(model, 0.01)
    ending = FusedUpdate(optimizer, 1.0)
    step(ending, graded(model, optimizer, 1.0))
    state = {name: tensor.clone() for name, tensor in optim.optimizer_state(optimizer, model).items()}
    optim.restore_optimizer(optimizer, model, state)
    step(ending, graded(model, optimizer, 1.0))
    assert optim.optimizer_state(optimizer, model)["0.bias:step"] == 2


def test_only_a_plain_adamw_of_float32_fits():
    model = net()
    assert fits(adamw(model, 0.1))
    assert not fits(torch.optim.AdamW(model.parameters(), lr=0.1))  # its rate is not on the device
    assert not fits(torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), amsgrad=True, foreach=False))
    assert not fits(torch.optim.SGD(model.parameters(), lr=0.1))
    assert not fits(adamw(net().double(), 0.1))

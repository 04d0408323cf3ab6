"""Learning rates against their formulas; which weights decay; saving and restoring the optimiser state."""

import math

import pytest
import torch
from torch import nn

from regard.errors import BadValue
from regard_workbench.training import Optim, optim


def rates(schedule, warmup=5, steps=23, lr=0.7):
    return [optim.rate(Optim(lr=lr, warmup=warmup, schedule=schedule), step, steps) for step in range(steps)]


@pytest.mark.parametrize("schedule", ["cosine", "inverse-root", "halving", "constant"])
def test_the_learning_rate_rises_linearly_to_its_peak(schedule):
    assert rates(schedule)[:5] == pytest.approx([0.7 * n / 5 for n in (1, 2, 3, 4, 5)])
    assert max(rates(schedule)) == pytest.approx(0.7)


def test_cosine_falls_to_zero_after_the_last_step():
    found = rates("cosine")
    assert found[5:] == pytest.approx([0.35 * (1 + math.cos(math.pi * n / 18)) for n in range(18)])
    assert optim.rate(Optim(lr=0.7, warmup=5), 23, 23) == pytest.approx(0, abs=1e-12)


def test_inverse_root_is_vaswanis_formula():
    # d^-1/2 · min(n^-1/2, n · warmup^-3/2), n counted from 1, scaled to its peak
    found = rates("inverse-root")
    want = [0.7 * math.sqrt(5) * min(n**-0.5, n * 5**-1.5) for n in range(1, 24)]
    assert found == pytest.approx(want)


def test_halving_halves_the_rate_after_each_quarter_of_the_steps_that_follow_the_warm_up():
    # 18 steps after 5 of warm-up: quarters end after 4.5, 9 and 13.5 of them.
    assert rates("halving")[5:] == pytest.approx([0.7] * 5 + [0.35] * 4 + [0.175] * 5 + [0.0875] * 4)
    assert optim.rate(Optim(lr=0.8, warmup=0, schedule="halving"), 900, 10) == pytest.approx(0.1), "no further"


def test_sgd_moves_against_the_gradient_alone():
    layer = nn.Linear(3, 2)
    before = {name: one.detach().clone() for name, one in layer.named_parameters()}
    built = optim.build(layer, Optim(optimizer="sgd", lr=0.1, weight_decay=0.0))
    layer(torch.tensor([[1.0, -2.0, 0.5]])).sum().backward()
    built.step()
    moved = torch.tensor([1.0, -2.0, 0.5]).expand(2, 3)
    assert torch.allclose(layer.weight, before["weight"] - 0.1 * moved)
    assert torch.allclose(layer.bias, before["bias"] - 0.1)
    assert optim.optimizer_state(built, layer) == {}, "it has nothing to remember"


def test_constant_stays_and_without_warm_up_the_rate_starts_at_its_peak():
    assert rates("constant")[5:] == [0.7] * 18
    for schedule in ("cosine", "inverse-root", "halving", "constant"):
        assert rates(schedule, warmup=0)[0] == pytest.approx(0.7)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.norm, self.mix = nn.Embedding(5, 3), nn.LayerNorm(3), nn.Linear(3, 5)
        self.tied = nn.Linear(3, 5, bias=False)
        self.tied.weight = self.rows.weight
        self.lstm = nn.LSTM(3, 2)
        self.gain = nn.Parameter(torch.ones(2, 3))
        self.frozen = nn.Parameter(torch.ones(3, 3), requires_grad=False)


def test_only_matrices_decay():
    net = Net()
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    decayed, plain = optim.groups(net, 0.1)
    assert [names[id(p)] for p in decayed["params"]] == ["gain", "mix.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0"]
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert {names[id(p)] for p in plain["params"]} == {
        "rows.weight",
        "norm.weight",
        "norm.bias",
        "mix.bias",
        "lstm.bias_ih_l0",
        "lstm.bias_hh_l0",
    }


def test_embeddings_decay_where_that_is_asked_for():
    net = Net()
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    decayed, plain = optim.groups(net, 0.1, embeddings=True)
    assert {names[id(p)] for p in decayed["params"]} == {
        "gain",
        "rows.weight",
        "mix.weight",
        "lstm.weight_ih_l0",
        "lstm.weight_hh_l0",
    }
    assert {names[id(p)] for p in plain["params"]} == {
        "norm.weight",
        "norm.bias",
        "mix.bias",
        "lstm.bias_ih_l0",
        "lstm.bias_hh_l0",
    }
    built = optim.build(net, Optim(lr=0.1, weight_decay=0.2, decay_embeddings=True))
    assert len(built.param_groups[0]["params"]) == 5 and built.param_groups[0]["weight_decay"] == 0.2


@pytest.mark.parametrize("name", ["adamw", "rmsprop", "sgd"])
def test_the_optimiser_state_survives_a_round_trip(name):
    nets = [Net(), Net()]
    nets[1].load_state_dict(nets[0].state_dict())
    first, second = (optim.build(net, Optim(optimizer=name, lr=0.1)) for net in nets)

    def step(net, optimizer):
        optimizer.zero_grad()
        (net.mix(net.norm(net.rows(torch.tensor([1, 2])))) ** 2).sum().backward()
        optimizer.step()

    step(nets[0], first)
    nets[1].load_state_dict(nets[0].state_dict())
    optim.restore_optimizer(second, nets[1], optim.optimizer_state(first, nets[0]))
    for _ in range(2):
        step(nets[0], first)
        step(nets[1], second)
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(BadValue, match=r"other\.weight"):
        optim.restore_optimizer(second, nets[1], {"other.weight:step": torch.ones(())})


def test_a_model_without_parameters_is_refused():
    with pytest.raises(BadValue, match="no parameters"):
        optim.build(nn.Identity(), Optim(lr=0.1))

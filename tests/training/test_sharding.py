"""Which layers FSDP gathers one at a time, tested in one process; `test_distributed.py` has the rest."""

import pytest
import torch
from torch import nn

from regard_workbench import models
from regard_workbench.tasks import NextToken, Problem, Tokens
from regard_workbench.training.engines import sharding

LANGUAGE = Problem.of(Tokens(11, length=8), NextToken(11))


@pytest.mark.parametrize(
    ("name", "layers"), [("decoder(layers=3)", 3), ("transformer-xl(layers=2)", 2), ("lstm-attention", 0)]
)
def test_the_layers_of_a_stack_are_units(name, layers):
    model = models.build(name, LANGUAGE, dim=8)
    assert sharding.units(model) == (list(model.stack.layers) if layers else [])


def test_a_memory_with_a_learned_initial_state_is_no_unit():
    assert not sharding.units(models.build("dynamic-transformer", LANGUAGE, dim=8))


class Layer(nn.Module):
    def __init__(self, weight=None, state=None):
        super().__init__()
        self.map = nn.Linear(2, 2)
        if weight is not None:
            self.map.weight = weight
        if state is not None:
            self.initial_state = state


def test_layers_with_shared_weights_or_without_weights_are_no_units():
    lone, twice = Layer(), Layer()
    first = Layer()
    second = Layer(first.map.weight)
    inner = nn.Sequential(nn.ModuleList([Layer()]))
    layers = nn.ModuleList([lone, twice, twice, first, second, nn.ReLU(), inner])
    assert sharding.units(nn.Sequential(layers)) == [lone, twice, inner]


def test_a_layer_with_another_signature_of_initial_state_is_no_unit():
    def unlike(batch):
        return batch

    def none(batch, device, dtype):
        raise NotImplementedError

    odd, fine = Layer(state=unlike), Layer(state=none)
    assert sharding.units(nn.Sequential(nn.ModuleList([odd, fine]))) == [fine]


def test_a_tensor_that_is_not_sharded_stays_as_it_is():
    tensor = torch.ones(3)
    assert sharding.full_tensor(tensor) is tensor and sharding.local_shard(tensor) is tensor
    assert sharding.shard_like(tensor, torch.ones(3)) is tensor
    assert sharding.gather_tensors({"b": tensor, "a": tensor}, keep=True) == {"a": tensor, "b": tensor}
    assert sharding.gather_tensors({"a": tensor}, keep=False) == {}

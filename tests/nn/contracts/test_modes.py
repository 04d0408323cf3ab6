"""Evaluation is deterministic and modifies nothing; training differs by dropout or sampling only."""

import copy

import pytest
import torch

from regard import masks
from tests.nn.contracts.layers import HOLES, PLAIN, USES, named

by_case = pytest.mark.parametrize("case", PLAIN, ids=str)
by_use = pytest.mark.parametrize("cross", USES, ids=named)

# `hard` samples in training.
SAMPLES = {"hard"}


@pytest.mark.parametrize("case", PLAIN, ids=str)
@by_use
def test_evaluation_is_deterministic_and_modifies_nothing(case, cross):
    layer, inputs = case.build(cross, dropout=0.5), case.inputs(cross)
    before = [x.clone() for x in inputs]
    kept = copy.deepcopy(layer.state_dict())
    mask = masks.padding(HOLES)
    first = layer(*inputs, mask=mask)
    random = torch.random.get_rng_state()
    for _ in range(3):
        assert torch.equal(layer(*inputs, mask=mask), first)
    assert torch.equal(torch.random.get_rng_state(), random), "evaluation draws no random number"
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))
    assert all(torch.equal(x, kept[name]) for name, x in layer.state_dict().items())
    places = {x.untyped_storage().data_ptr() for x in [*inputs, *layer.parameters(), *layer.buffers()]}
    assert first.untyped_storage().data_ptr() not in places, "an output is no view of an input"
    first.detach().fill_(7.0)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


@pytest.mark.parametrize("case", [case for case in PLAIN if case.name not in SAMPLES], ids=str)
@by_use
def test_without_dropout_training_equals_evaluation(case, cross):
    layer, inputs = case.build(cross), case.inputs(cross)
    random = torch.random.get_rng_state()
    expected = layer(*inputs, mask=masks.padding(HOLES))
    layer.train()
    torch.testing.assert_close(layer(*inputs, mask=masks.padding(HOLES)), expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(torch.random.get_rng_state(), random), "without dropout nothing is drawn"


@by_case
@by_use
def test_dropout_acts_in_training_and_only_there(case, cross):
    layer, inputs = case.build(cross, dropout=0.5), case.inputs(cross)
    plain = case.build(cross)
    plain.load_state_dict(layer.state_dict())
    expected = plain(*inputs)
    torch.testing.assert_close(layer(*inputs), expected, rtol=0, atol=0)
    layer.train()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(layer(*inputs))
    assert torch.equal(drawn[0], drawn[1]), "the same seed, the same bits"
    assert not torch.allclose(drawn[0], drawn[2]), "another seed, other numbers"
    assert not torch.allclose(drawn[0], expected)
    layer.eval()
    assert torch.equal(layer(*inputs), expected), "and off again"


@pytest.mark.parametrize("case", [case for case in PLAIN if case.name in SAMPLES], ids=str)
def test_sampling_in_training_follows_the_seed(case):
    layer, inputs = case.build(cross=True).train(), case.inputs(cross=True)
    drawn = []
    for seed in (1, 1, *range(2, 8)):
        torch.manual_seed(seed)
        drawn.append(layer(*inputs))
    assert torch.equal(drawn[0], drawn[1])
    assert any(not torch.allclose(drawn[0], other) for other in drawn[2:])


@by_case
def test_every_parameter_affects_the_output(case):
    """In self- and cross-attention together, every parameter gets a gradient: zeros only where keys are chosen."""
    reached = set()
    for cross in USES:
        layer, inputs = case.build(cross), case.inputs(cross)
        loss = layer(*inputs).square().sum()
        if case.name == "interactive":
            loss = loss + sum(x.square().sum() for x in layer.both(inputs[0], inputs[-1]))
        names = [name for name, _ in layer.named_parameters()]
        grads = torch.autograd.grad(loss, list(layer.parameters()), allow_unused=True) if names else []
        found = {name: grad for name, grad in zip(names, grads, strict=True) if grad is not None}
        reached |= {name for name, grad in found.items() if case.name in SAMPLES or bool((grad != 0).any())}
    assert reached == set(names), f"never used: {sorted(set(names) - reached)}"

"""Copies of layers and states by state_dict, deepcopy and pickle equal the original and share nothing with it."""

import copy
import dataclasses
import io
import pickle

import pytest
import torch

from regard import masks
from regard.nn import State
from tests.nn.contracts.layers import ALL, HOLES, PLAIN, PRESETS, K
from tests.nn.contracts.stepping import steps


def through_pickle(thing):
    return pickle.loads(pickle.dumps(thing))


def through_a_file(layer):
    """torch.save and load of the weights only, like a checkpoint."""
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_copied_layer_equals_the_original(case):
    layer, inputs = case.build(cross=True), case.inputs(cross=True)
    mask = masks.padding(HOLES)
    expected = layer(*inputs, mask=mask)
    for make in (copy.deepcopy, through_pickle):
        twin = make(layer)
        assert torch.equal(twin(*inputs, mask=mask), expected)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1)
        assert torch.equal(layer(*inputs, mask=mask), expected), "a copy shares no weight"


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_a_state_dict_restores_the_weights(case):
    layer, inputs = case.build(cross=True), case.inputs(cross=True)
    expected = layer(*inputs)
    other = case.build(cross=True)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-0.5)
    other.load_state_dict(through_a_file(layer), strict=True)
    assert torch.equal(other(*inputs), expected)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_a_call_leaves_nothing_on_the_layer(case):
    """State is an argument and a result, never stored: the module is the same before and after."""
    layer, inputs = case.build(cross=True), case.inputs(cross=True)
    before = through_pickle(layer)
    layer(*inputs)
    plain = {name: x for name, x in vars(layer).items() if not name.startswith("_")}
    assert plain.keys() == {name for name in vars(before) if not name.startswith("_")}
    assert all(x == vars(before)[name] for name, x in plain.items() if isinstance(x, (int, float, str, bool)))
    assert all(torch.equal(x, before.state_dict()[name]) for name, x in layer.state_dict().items())


def tensors(state):
    """Every tensor of a state."""
    found = []
    state.map(lambda tensor: found.append(tensor) or tensor)
    return found


@pytest.mark.parametrize("case", PRESETS, ids=str)
def test_a_copied_state_continues_like_the_original(case):
    layer, (rows,) = case.build(), case.inputs()
    with torch.no_grad():
        _, state = steps(layer, rows[:, :4], (3, 1))
        expected, _ = layer(rows[:, 4:], state=state)
        for make in (copy.deepcopy, through_pickle, State.detach, lambda state: state.to("cpu")):
            twin = make(state)
            assert type(twin) is type(state)
            found, _ = layer(rows[:, 4:], state=twin)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        apart = copy.deepcopy(state)
        for tensor in tensors(apart):
            tensor.zero_()
        again, _ = layer(rows[:, 4:], state=state)
        torch.testing.assert_close(again, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", PRESETS, ids=str)
def test_a_state_in_an_autograd_graph_can_be_copied(case):
    layer, (rows,) = case.build(), case.inputs()
    _, state = steps(layer, rows[:, :4], (4,))
    expected, _ = layer(rows[:, 4:], state=state)
    torch.testing.assert_close(layer(rows[:, 4:], state=copy.deepcopy(state))[0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", PRESETS, ids=str)
def test_a_state_is_frozen_and_its_tensors_begin_with_the_batch(case):
    layer, (rows,) = case.build(), case.inputs()
    for state in (layer.initial_state(3), steps(layer, rows, (K,))[1]):
        assert isinstance(state, State)
        assert all(tensor.shape[0] == 3 for tensor in tensors(state))
        first = dataclasses.fields(state)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(state, first, None)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_an_initial_state_has_the_given_dtype(case):
    layer = case.build()
    for dtype in (torch.float32, torch.float64):
        made = layer.initial_state(2, torch.device("cpu"), dtype)
        assert all(x.dtype == dtype for x in tensors(made) if x.is_floating_point())
    if next(layer.parameters(), None) is not None:  # without weights a layer has no dtype of its own
        assert all(x.dtype == torch.float64 for x in tensors(layer.initial_state(2)) if x.is_floating_point())

"""Positions of multi-head attention are objects; a name is a way to write one."""

import copy
import pickle

import pytest
import torch

import regard
from regard.nn import Multihead, MultiheadPositions, Relative
from regard.nn.parts.multihead_positions import SCHEMES, ClippedPositions

DIM, HEADS, LENGTH = 8, 2, 5

by_scheme = pytest.mark.parametrize("name", SCHEMES.names())


def made(name):
    scheme = SCHEMES[name]
    return scheme(3) if issubclass(scheme, ClippedPositions) else scheme()


@by_scheme
def test_a_name_and_its_object_make_the_same_layer(name):
    torch.manual_seed(3)
    by_object = Multihead(DIM, HEADS, positions=made(name))
    torch.manual_seed(3)
    by_name = Multihead(DIM, HEADS, positions=name, max_distance=3)
    assert type(by_object.positions) is type(by_name.positions) and by_name.positions.name == name
    assert list(by_object.state_dict()) == list(by_name.state_dict())
    x = torch.randn(3, LENGTH, DIM)
    assert torch.equal(by_object(x), by_name(x))


@by_scheme
def test_a_scheme_is_exported_copied_and_pickled(name):
    scheme = SCHEMES[name]
    assert getattr(regard.nn, scheme.__name__) is scheme
    layer, x = Relative(DIM, HEADS, positions=made(name)), torch.randn(3, LENGTH, DIM)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))


def test_one_object_may_serve_several_layers():
    positions = regard.nn.ShawPositions(max_distance=3)
    first, second = (Multihead(DIM, HEADS, positions=positions) for _ in range(2))
    assert first.key_table is not second.key_table and first.key_table.shape == (7, DIM // HEADS)


def test_parameters_keep_the_names_that_checkpoints_have():
    added = {
        name: set(Multihead(DIM, HEADS, positions=name).state_dict()) - set(Multihead(DIM, HEADS).state_dict())
        for name in SCHEMES
    }
    assert added == {
        "rotary": set(),
        "alibi": set(),
        "t5": {"bias_table"},
        "shaw": {"key_table"},
        "transformer-xl": {"distance_map.weight", "content_bias", "position_bias"},
        "relative": {"bias_table"},
    }


class Nearest(MultiheadPositions):
    """Keys at an odd distance score less by a fixed amount: a scheme of a user."""

    def __init__(self, amount):
        self.amount = amount

    def pieces(self, layer, inputs):
        q, k = inputs.query.shape[2], inputs.key.shape[2]
        odd = (torch.arange(k) - torch.arange(k - q, k)[:, None]) % 2
        return {"bias": regard.biases.dense(-self.amount * odd[None, None].to(inputs.query.dtype))}


def test_a_scheme_of_ones_own_needs_no_other_code():
    layer = Multihead(DIM, HEADS, positions=Nearest(40.0)).double()
    weights = layer.weights(torch.randn(1, LENGTH, DIM, dtype=torch.float64))
    odd = (torch.arange(LENGTH) - torch.arange(LENGTH)[:, None]) % 2 == 1
    assert weights[..., odd].max() < 1e-9 < weights[..., ~odd].min()
    assert repr(layer.positions) == "Nearest(amount=40.0)"


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ("rotory", "positions: there is no 'rotory'. Did you mean 'rotary'"),
        (3, "positions: "),
        (torch.zeros(2), "positions: expected one of rotary"),
    ],
)
def test_what_is_no_scheme_is_refused(positions, message):
    for make in (Multihead, lambda dim, **options: regard.nn.build("multihead", dim, **options)):
        with pytest.raises(regard.RegardError, match=message):
            make(DIM, positions=positions)


def test_max_distance_is_checked_for_every_scheme():
    for positions in (None, *SCHEMES):
        with pytest.raises(regard.RegardError, match="max_distance"):
            Multihead(DIM, HEADS, positions=positions, max_distance=0)

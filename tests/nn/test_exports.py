"""Every mechanism is a class of `regard.nn`, the same layer that `build` makes from its name."""

import re
from typing import get_overloads

import pytest
import torch
from torch import nn

import regard
from regard.nn.parts.building import build

by_name = pytest.mark.parametrize("name", regard.nn.names())


def exported_class(name):
    layer = regard.nn.entry(name).layer
    return getattr(regard.nn, layer.__name__)


@by_name
def test_the_class_is_exported_and_makes_the_layer_that_build_makes(name):
    found, options = exported_class(name), {"num_heads": 2, **regard.nn.entry(name).needs}
    assert found is regard.nn.entry(name).layer and found.__name__ in regard.nn.__all__
    torch.manual_seed(7)
    by_class = found(6, **options)
    torch.manual_seed(7)
    by_build = build(name, 6, **options)
    assert type(by_build) is found
    assert list(by_class.state_dict()) == list(by_build.state_dict())
    for key, x in by_build.state_dict().items():
        assert torch.equal(by_class.state_dict()[key], x), key
    x = torch.randn(2, 5, 6)
    assert torch.equal(by_class.eval()(x), by_build.eval()(x))


@by_name
def test_num_heads_dropout_and_source_dim_may_be_positional(name):
    layer = exported_class(name)(6, 2, 0.25, 10)
    assert (layer.dim, layer.num_heads, layer.dropout, layer.source_dim) == (6, 2, 0.25, 10)


@by_name
def test_an_unknown_option_is_refused_with_the_known_ones(name):
    for make in (exported_class(name), lambda dim, **options: build(name, dim, **options)):
        with pytest.raises(regard.RegardError, match=f"option of {name}: there is no 'num_head'") as caught:
            make(6, num_head=2)
        assert all(option in str(caught.value) for option in ("dim", "num_heads", "dropout", "source_dim"))


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (regard.nn.Global, {"window": 3}),
        (regard.nn.Causal, {"causal": False}),
        (regard.nn.Hard, {"normalize": "softmax"}),
        (regard.nn.LocalM, {"align": "bottom-right"}),
    ],
)
def test_an_option_that_a_preset_fixes_is_refused(make, option):
    with pytest.raises(regard.RegardError, match=f"there is no '{next(iter(option))}'"):
        make(6, **option)


def test_a_subclass_may_add_options():
    class Sharper(regard.nn.Local):
        def __init__(self, dim, *, sharpness, **options):
            super().__init__(dim, **options)
            self.sharpness = sharpness

    assert Sharper(6, sharpness=2, window=3).window == 3


def test_everything_in_all_is_there_and_in_dir():
    assert len(set(regard.nn.__all__)) == len(regard.nn.__all__)
    assert set(regard.nn.__all__) <= set(dir(regard.nn))


def test_every_name_and_alias_has_an_overload_of_build_with_its_class():
    overloads = {}
    for form in get_overloads(build):
        for name in re.findall(r"'([^']+)'|\"([^\"]+)\"", form.__annotations__["name"]):
            overloads[name[0] or name[1]] = form.__annotations__["return"]
    entries = [regard.nn.entry(name) for name in regard.nn.names()]
    expected = {name: one.layer.__name__ for one in entries for name in (one.name, *one.aliases)}
    assert overloads == expected


def test_blocks_take_a_layer_that_was_made_from_its_class():
    attention = regard.nn.Local(6, 2, window=3)
    block = regard.nn.EncoderLayer(6, attention)
    assert block.attention is attention and isinstance(block.feed_forward, regard.nn.FeedForward)
    assert block(torch.randn(2, 5, 6)).shape == (2, 5, 6)
    assert isinstance(regard.nn.Cache.empty(2, 1, 3, 3), regard.nn.State)
    assert isinstance(regard.nn.Sinusoidal(6), regard.nn.PositionalEncoding) and isinstance(block, nn.Module)

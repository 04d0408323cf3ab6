"""A model seen in part, or not at all: the block warns on exit, and analyses of all layers are refused."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.observation.coverage import PartialView


class SeenAttention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class UnseenAttention(nn.Module):
    """Attention without a softmax."""

    def forward(self, x):
        return (x @ x.mT).sigmoid() @ x


class Model(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def drawn():
    return torch.randn(2, 3, 7, 5)


def test_a_model_seen_whole_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with regard.observe(Model(SeenAttention(), SeenAttention())) as seen:
            seen.model(drawn())
    assert seen.unseen == []


def test_modules_that_were_not_seen_are_named_once_with_a_reason():
    model = Model(SeenAttention(), UnseenAttention(), UnseenAttention())
    with pytest.warns(PartialView) as told, regard.observe(model) as seen:
        model(drawn())
        model(drawn())
    assert len(told) == 1
    text = str(told[0].message)
    assert "layers.1 (UnseenAttention)" in text and "layers.2" in text and "layers.0" not in text
    assert [one.path for one in seen.unseen] == ["layers.1", "layers.2"]
    assert "not seen: layers.1" in repr(seen)
    assert told[0].filename == __file__


def test_modules_that_did_not_run_cause_no_warning():
    model = Model(SeenAttention())
    model.spare = UnseenAttention()
    with regard.observe(model) as seen:
        model(drawn())
    assert seen.unseen == []


def test_a_model_that_was_not_called_causes_a_warning():
    with pytest.warns(PartialView, match="not called"), regard.observe(Model(SeenAttention())):
        pass


def test_a_model_without_attention_causes_a_warning():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    with pytest.warns(PartialView, match="no module of this model looks like attention"), regard.observe(model):
        model(drawn())


def test_an_error_in_the_block_is_not_followed_by_a_warning():
    with warnings.catch_warnings(), pytest.raises(ZeroDivisionError):
        warnings.simplefilter("error")
        with regard.observe(Model(SeenAttention())):
            raise ZeroDivisionError


@pytest.mark.parametrize("ask", ["rollout", "flow"])
def test_analyses_of_all_layers_are_refused_where_some_were_not_seen(ask):
    model = Model(SeenAttention(), UnseenAttention())
    with pytest.warns(PartialView), regard.observe(model) as seen:
        model(drawn())
    with pytest.raises(regard.RegardError, match=r"layers\.1 \(UnseenAttention\)"):
        getattr(seen, ask)()
    assert getattr(seen, ask)(layers=["layers.0"]).shape == (7, 7)  # a list of layers is taken as it is


def test_other_analyses_warn_that_they_cover_a_part():
    model = Model(SeenAttention(), UnseenAttention())
    with pytest.warns(PartialView), regard.observe(model) as seen:
        model(drawn())
    with pytest.warns(PartialView, match="heads: the result covers only the part"):
        assert len(seen.heads()) == 3
    with pytest.warns(PartialView, match="ablate"):
        seen.ablate({"layers.0": [0]}, loss=lambda output: output.sum())
    with pytest.warns(PartialView, match="difference"), pytest.warns(PartialView, match="other"):
        seen.difference(seen)


@pytest.mark.parametrize("ask", ["rollout", "flow", "heads", "ablate"])
def test_analyses_are_refused_where_nothing_was_seen(ask):
    model = Model(UnseenAttention())
    with pytest.warns(PartialView, match="nothing was seen"), regard.observe(model) as seen:
        model(drawn())
    with pytest.raises(regard.RegardError, match="nothing was seen"):
        getattr(seen, ask)()
    with pytest.raises(regard.RegardError, match="nothing was seen"):
        seen.difference(seen)


def test_a_compiled_forward_is_named_as_the_reason():
    model = Model(SeenAttention(), SeenAttention())
    model.layers[1].forward = torch.compile(model.layers[1].forward, backend="eager")
    with pytest.warns(PartialView, match=r"layers\.1 .*layers\.1 is compiled"), regard.observe(model) as seen:
        model(drawn())
    assert seen.names() == ["layers.0"]
    with pytest.raises(regard.RegardError, match="compiled"):
        seen.rollout()


def test_a_compiled_model_is_named_as_the_reason():
    model = Model(SeenAttention())
    model.forward = torch.compile(model.forward, backend="eager")
    with pytest.warns(PartialView, match="the model is compiled"), regard.observe(model) as seen:
        model(drawn())
    assert len(seen) == 0 and len(seen.unseen) == 1


def test_the_compiled_copy_of_an_observed_model_is_not_the_model():
    model = Model(SeenAttention())
    compiled = torch.compile(model, backend="eager")
    with pytest.warns(PartialView), regard.observe(model) as seen:
        compiled(drawn())
    assert len(seen) == 0

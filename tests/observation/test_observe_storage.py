"""What is stored: equal masks once, and tensors that were written to since are refused."""

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import RegardError
from regard.observation.capture.huggingface import Eager
from regard.observation.capture.storage import Storage
from tests.observation import peers
from tests.observation.peers import BAR, largest


def biases(seen):
    readings = [seen[name].reading() for name in seen.names()]
    pairs = [reading.pairs if isinstance(reading, Eager) else reading for reading in readings]
    return [part.bias.tensor for part in pairs if part.bias is not None]


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": torch.float16}], ids=str)
@pytest.mark.parametrize("way", ["sdpa", "eager"])
def test_layers_of_t5_share_one_position_bias(way, options):
    model = peers.with_attention(peers.small("t5").encoder, way)
    ids = peers.ids(11)
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    with torch.no_grad(), regard.observe(model, **options) as seen:
        model(input_ids=ids, attention_mask=mask)
    found = biases(seen)
    assert len(found) == 2 and found[0].shape[-2:] == (11, 11)
    assert len({bias.untyped_storage().data_ptr() for bias in found}) == 1
    maps = peers.eager_maps(model, input_ids=ids, attention_mask=mask)
    bar = BAR if "dtype" not in options else 2e-3
    for name, expected in zip(seen.names(), maps, strict=True):
        assert largest(seen[name].weights(), expected) <= bar


def test_different_biases_are_stored_separately():
    class Layers(nn.Module):
        def forward(self, q, biases):
            for bias in biases:
                q = F.scaled_dot_product_attention(q, q, q, attn_mask=bias)
            return q

    model, q = Layers(), torch.randn(1, 2, 5, 3)
    first, second = torch.randn(1, 2, 5, 5), torch.randn(1, 2, 5, 5)
    with regard.observe(model) as seen:
        model(q, [first, second, first.clone(), second, first])
    expected = [first, second, first, second, first]
    assert all(torch.equal(bias, own) for bias, own in zip(biases(seen), expected, strict=True))
    assert len({bias.data_ptr() for bias in biases(seen)}) == 2


def test_a_mask_that_was_changed_between_calls_is_not_shared():
    class Again(nn.Module):
        def forward(self, q, bias):
            first = F.scaled_dot_product_attention(q, q, q, attn_mask=bias)
            bias.mul_(2)
            return F.scaled_dot_product_attention(first, q, q, attn_mask=bias)

    model, q, bias = Again(), torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 5)
    with regard.observe(model) as seen:
        model(q, bias)
    with pytest.raises(RegardError, match="changed in place"):
        seen["Again"].weights()
    assert seen["Again#2"].weights().shape == (1, 2, 5, 5)


WRITES = {
    ".data": lambda tensor: tensor.data.mul_(1.5),
    "numpy": lambda tensor: numpy.multiply(tensor.detach().numpy(), 1.5, out=tensor.detach().numpy()),
    "a version": lambda tensor: tensor.detach().mul_(1.5),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_weights_of_a_layer_whose_parameters_were_overwritten_are_refused(write, need_weights, training):
    model = nn.MultiheadAttention(12, 4, batch_first=True).train(training)
    x = torch.randn(2, 5, 12)
    with torch.no_grad(), regard.observe(model) as seen:
        model(x, x, x, need_weights=need_weights)
    site = seen[seen.names()[0]]
    before = site.weights().clone()
    WRITES[write](model.in_proj_weight)
    if site.kind == "scaled_dot_product_attention":  # queries and keys themselves are stored
        assert torch.equal(site.weights(), before)
    else:
        with pytest.raises(RegardError, match="changed in place"):
            site.weights()


@pytest.mark.parametrize("write", WRITES)
def test_weights_of_a_fast_path_whose_parameters_were_overwritten_are_refused(write):
    model = nn.TransformerEncoderLayer(12, 4, 17, batch_first=True).eval()
    with torch.no_grad(), regard.observe(model) as seen:
        model(torch.randn(2, 5, 12))
    assert seen["self_attn"].kind == "_transformer_encoder_layer_fwd"
    seen["self_attn"].weights()
    WRITES[write](model.self_attn.in_proj_weight)
    with pytest.raises(RegardError, match="changed in place"):
        seen["self_attn"].weights()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("which", ["query", "key", "mask"])
def test_weights_of_inputs_that_were_overwritten_are_refused(write, which):
    class Own(nn.Module):
        def forward(self, q, k, mask):
            return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    model = Own()
    given = {"query": torch.randn(1, 2, 7, 5), "key": torch.randn(1, 2, 7, 5), "mask": torch.randn(7, 7)}
    with regard.observe(model) as seen:
        model(*given.values())
    seen["Own"].weights()
    WRITES[write](given[which])
    with pytest.raises(RegardError, match="changed in place"):
        seen["Own"].weights()


def test_non_finite_values_are_not_detected_as_a_change():
    kept = Storage().activation(torch.full((3, 5), torch.nan), "x")
    assert kept.get().isnan().all()
    strided = Storage().activation(torch.randn(7, 11, 6)[1:5, ::2].transpose(0, 1), "x")
    assert strided.get().shape == (6, 4, 6)
    for empty in (torch.zeros(0, 3), torch.zeros(()), torch.zeros(1, 4).expand(5, 4)):
        assert torch.equal(Storage().activation(empty, "x").get(), empty)

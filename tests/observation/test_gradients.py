"""Gradient × attention against autograd on weights that are written out."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.errors import RegardError


class Model(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call
        self.scale = nn.Parameter(torch.tensor(1.3, dtype=torch.float64))

    def forward(self, q, k, v):
        return self.call(q * self.scale, k, v).square().sum()


def written_out(q, k, v, scale, causal):
    """The weights as a leaf, and their gradient by autograd."""
    scores = (q * scale) @ k.repeat_interleave(2, 1).mT / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    weights = scores.softmax(-1).detach().requires_grad_()
    (weights @ v.repeat_interleave(2, 1)).square().sum().backward()
    return weights.detach() * weights.grad


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def ours(q, k, v):
    return regard.attend(q, k, v, mask=regard.masks.causal(align="top-left"))


def drawn():
    torch.manual_seed(3)
    return [torch.randn(2, heads, length, 5, dtype=torch.float64) for heads, length in ((4, 7), (2, 11), (2, 11))]


@pytest.mark.parametrize(("call", "causal"), [(sdpa, True), (ours, True)])
def test_weights_times_gradient_agree_with_autograd(call, causal):
    q, k, v = drawn()
    model = Model(call)
    with regard.observe(model, gradients=True) as seen:
        loss = model(q, k, v)
    seen.gradient(loss)
    expected = written_out(q, k, v, 1.3, causal)
    site = seen[seen.names()[0]]
    torch.testing.assert_close(site.times_gradient(), expected)
    torch.testing.assert_close(site.times_gradient(rows=[5, 2], heads=[3, 0]), expected[:, [3, 0]][:, :, [5, 2]])
    loss.backward()  # the model's own backward pass still works
    assert model.scale.grad is not None


def test_a_call_that_the_number_does_not_depend_on_gives_zeros():
    q, k, v = drawn()
    model = Model(sdpa)
    with regard.observe(model, gradients=True) as seen:
        model(q, k, v)
        second = model(q * 0.5, k, v)
    seen.gradient(second)
    site = seen["Model"]
    assert site.calls == 2
    assert not site.times_gradient(call=0).any() and site.times_gradient(call=1).any()


def test_hugging_faces_eager_and_sdpa_agree():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32
    )
    model = transformers.BertForSequenceClassification(config).eval()
    ids, found = torch.randint(0, 31, (2, 13)), []
    for how in ("eager", "sdpa"):
        model.set_attn_implementation(how)
        with regard.observe(model, gradients=True) as seen:
            logits = model(ids).logits
        seen.gradient(logits[0, 1])
        found.append(torch.stack([seen[name].times_gradient() for name in seen.names()]))
    torch.testing.assert_close(found[0], found[1], atol=1e-7, rtol=1e-4)
    assert found[0].abs().max() > 0


def test_missing_gradients_are_refused():
    q, k, v = drawn()
    model = Model(sdpa)
    with regard.observe(model) as seen:
        loss = model(q, k, v)
    with pytest.raises(RegardError, match="gradients=True"):
        seen.gradient(loss)
    with pytest.raises(RegardError, match="call seen"):
        seen["Model"].times_gradient()
    with pytest.raises(RegardError, match="one number"):
        seen.gradient(q)

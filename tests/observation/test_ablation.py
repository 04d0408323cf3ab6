"""Ablation against the same model computed by hand with the head's contribution left out."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.errors import RegardError


class Own(nn.Module):
    """Two heads per layer written out, so that one can be left out."""

    def __init__(self, fused):
        super().__init__()
        self.maps = nn.ModuleList([nn.Linear(14, 3 * 14) for _ in range(2)])
        self.out = nn.Linear(14, 5)
        self.fused = fused

    def heads(self, x, layer):
        q, k, v = self.maps[layer](x).unflatten(-1, (3, 2, 7)).permute(2, 0, 3, 1, 4)
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / 7**0.5).masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v

    def forward(self, x, silent=()):
        for layer in range(2):
            mixed = self.heads(x, layer)
            for where, head in silent:
                if where == layer:
                    mixed = torch.cat([mixed[:, :head], mixed[:, head : head + 1] * 0, mixed[:, head + 1 :]], 1)
            x = x + mixed.transpose(1, 2).flatten(2)
        return self.out(x)


@pytest.fixture
def model():
    torch.manual_seed(1)
    return Own(fused=True).double()


@pytest.fixture
def by_hand(model):
    twin = Own(fused=False).double()
    twin.load_state_dict(model.state_dict())
    return twin


def watched(model, x):
    with regard.observe(model) as seen:
        model(x)
    return seen


def test_silencing_a_head_is_leaving_it_out(model, by_hand):
    x = torch.randn(3, 11, 14, dtype=torch.float64)
    seen = watched(model, x)
    for site, (layer, head) in (("Own", (0, 1)), ("Own#2", (1, 0))):
        found = seen.ablate({site: [head]}, loss=lambda out: out.square().mean())
        assert found.before == pytest.approx(by_hand(x).square().mean().item(), rel=1e-12)
        assert found.after == pytest.approx(by_hand(x, [(layer, head)]).square().mean().item(), rel=1e-12)


def test_a_logit_is_that_of_the_last_position_of_the_first_example(model, by_hand):
    x = torch.randn(3, 11, 14, dtype=torch.float64)
    found = watched(model, x).ablate([("Own", 0), ("Own#2", 1)], logit=4)
    assert found.before == pytest.approx(by_hand(x)[0, -1, 4].item(), rel=1e-12)
    assert found.after == pytest.approx(by_hand(x, [(0, 0), (1, 1)])[0, -1, 4].item(), rel=1e-12)
    assert found.change == found.after - found.before


def test_every_head_on_its_own_comes_with_the_largest_change_first(model, by_hand):
    x = torch.randn(2, 5, 14, dtype=torch.float64)
    found = watched(model, x).ablate(logit=(1, 3, 2))
    assert sorted(one.heads[0] for one in found) == [("Own", 0), ("Own", 1), ("Own#2", 0), ("Own#2", 1)]
    changes = [abs(one.change) for one in found]
    assert changes == sorted(changes, reverse=True)
    (site, head), *_ = found[0].heads
    after = by_hand(x, [(0 if site == "Own" else 1, head)])[1, 3, 2].item()
    assert found[0].after == pytest.approx(after, rel=1e-12)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_heads_of_torchs_layers_are_silenced_on_every_path(training, norm_first):
    layer = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
    layer = layer.double().train(training)
    x = torch.randn(3, 7, 12, dtype=torch.float64)
    with torch.no_grad():
        found = watched(layer, x).ablate({"self_attn": [1]}, loss=lambda out: out.square().sum())
        layer.self_attn.out_proj.weight[:, 6:] = 0  # the output projection of the second head
        assert found.after == pytest.approx(layer(x).square().sum().item(), rel=1e-9)
    assert found.after != found.before


def test_the_loss_of_the_output_is_the_default_measure(model):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            out = self.inner(x)
            return type("Output", (), {"loss": out.mean(), "logits": out})()

    x = torch.randn(2, 5, 14, dtype=torch.float64)
    found = watched(Wrapped(), x).ablate({"inner": [0]})
    assert found.before == pytest.approx(model(x).mean().item(), rel=1e-12)
    assert "loss" in repr(found) and "inner head 0" in repr(found)


def test_heads_of_our_mechanisms_are_silenced_and_linear_is_refused():
    layer = regard.nn.build("additive", dim=12, num_heads=2).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    seen = watched(layer, x)
    found = seen.ablate({seen.names()[0]: [0]}, loss=lambda out: out.square().sum())
    assert found.after != found.before
    linear = regard.nn.build("linear", dim=12, num_heads=2).double()
    seen = watched(linear, x)
    with pytest.raises(regard.Unsupported, match="cannot be changed"):
        seen.ablate({seen.names()[0]: [0]}, loss=lambda out: out.sum())


def test_heads_are_silenced_only_during_an_ablation(model):
    x = torch.randn(2, 5, 14, dtype=torch.float64)
    before = model(x)
    watched(model, x).ablate(logit=0)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": {"Own": [2]}, "logit": 0}, "has 2 heads"),
        ({"heads": {"Own": []}, "logit": 0}, "at least one"),
        ({"heads": {"own": [0]}, "logit": 0}, "Did you mean"),
        ({"heads": {"Own": [0]}}, "no loss of its own"),
        ({"heads": {"Own": [0]}, "logit": (0, 99, 0)}, "index into logits"),
        ({"heads": {"Own": [0]}, "logit": (0, 1)}, "3 numbers"),
        ({"heads": {"Own": [0]}, "logit": 0, "loss": torch.sum}, "both"),
        ({"heads": {"Own": [0]}, "loss": lambda out: out}, "one number"),
    ],
)
def test_wrong_arguments_are_refused(model, options, words):
    seen = watched(model, torch.randn(2, 5, 14, dtype=torch.float64))
    with pytest.raises(RegardError, match=words):
        seen.ablate(**options)

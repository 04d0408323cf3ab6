"""`forecaster` and `linear-forecaster`: patches by hand, columns apart, causal attention, scale carried through."""

import pytest
import torch

from regard import observe
from regard.errors import RegardError
from regard_workbench import models
from regard_workbench.tasks import Batch, Problem, Shown, Vectors
from regard_workbench.tasks.answers import Forecast

CONTEXT, HORIZON, COLUMNS, B = 23, 7, 3, 2
PROBLEM = Problem.of(Vectors(COLUMNS, CONTEXT), Forecast(HORIZON, COLUMNS))


def small(name="forecaster", problem=PROBLEM, **options):
    sizes = {"dim": 8, "layers": 2, "num_heads": 2, "patch": 5, "stride": 3} if name == "forecaster" else {}
    torch.manual_seed(11)
    return models.build(name, problem, **{**sizes, **options}).double().eval()


def window(seed=3):
    return torch.randn(B, CONTEXT, COLUMNS, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize(("context", "count"), [(336, 42), (512, 64)])
def test_patches_are_as_many_as_published(context, count):
    """PatchTST/42 and PatchTST/64: patches of 16 every 8 steps, the end padded by a stride."""
    model = models.build("forecaster", Problem.of(Vectors(7, context), Forecast(96, 7)), dim=16)
    assert model.count == count and model.values.in_features == count * 16


@pytest.mark.parametrize(("patch", "stride"), [(5, 3), (4, 4), (1, 1), (16, 8), (29, 2), (40, 7)])
def test_patches_hold_every_value_and_end_with_the_newest(patch, stride):
    model = small(patch=patch, stride=stride)
    steps = torch.arange(CONTEXT).double().expand(1, 1, CONTEXT)
    found = model.patches(steps)[0, 0]
    assert found.shape == (model.count, patch)
    padded = [0.0] * model.before + list(range(CONTEXT)) + [CONTEXT - 1.0] * stride
    assert found.tolist() == [padded[n * stride : n * stride + patch] for n in range(model.count)]
    assert (model.count - 1) * stride + patch == len(padded), "nothing is left over"
    assert set(found.flatten().tolist()) == set(map(float, range(CONTEXT)))


def test_the_forecast_moves_with_the_window_and_grows_with_it():
    model, x = small(), window()
    factor, shift = torch.tensor([2.0, 0.5, 30.0]).double(), torch.tensor([-5.0, 1000.0, 0.25]).double()
    found, expected = model(Batch.of(x * factor + shift)), model(Batch.of(x)) * factor + shift
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-3)  # the added 1e-5 of the variance is not scaled
    plain = small(normalize=False)
    assert not torch.allclose(plain(Batch.of(x + 5)), plain(Batch.of(x)) + 5, atol=1e-2)


@pytest.mark.parametrize("name", ["forecaster", "linear-forecaster"])
def test_columns_share_weights_and_do_not_see_each_other(name):
    model, x = small(name), window()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    found = model(Batch.of(x))
    assert found.shape == (B, HORIZON, COLUMNS)
    assert torch.allclose(model(Batch.of(x[:, :, [2, 0, 1]])), found[:, :, [2, 0, 1]])
    other = x.clone()
    other[:, :, 1] = torch.nan
    assert torch.equal(model(Batch.of(other))[:, :, [0, 2]], found[:, :, [0, 2]])


def test_a_patch_attends_to_itself_and_earlier_ones():
    model = small()
    with observe(model) as seen:
        model(Batch.of(window()))
    assert len(seen.names()) == 2
    for name in seen.names():
        weights = seen[name].weights()
        assert weights.shape == (B * COLUMNS, 2, model.count, model.count)
        assert (weights.triu(1) == 0).all() and torch.allclose(weights.sum(-1), torch.ones(()).double())


def test_the_linear_forecast_is_the_last_value_plus_weighted_changes():
    model, x = small("linear-forecaster"), window()
    assert torch.equal(model(Batch.of(x)), x[:, -1:].expand(-1, HORIZON, -1)), "before training: the last value"
    torch.nn.init.normal_(model.map.weight), torch.nn.init.normal_(model.map.bias)
    found = model(Batch.of(x))
    for b in range(B):
        for c in range(COLUMNS):
            last = x[b, -1, c]
            expected = model.map.weight @ (x[b, :, c] - last) + model.map.bias + last
            assert torch.allclose(found[b, :, c], expected)


def test_layers_begin_with_nothing_to_add_to_a_linear_forecast():
    model, yardstick, x = small(linear=True), small("linear-forecaster"), 40 + 7 * window()
    torch.nn.init.normal_(yardstick.map.weight), torch.nn.init.normal_(yardstick.map.bias)
    model.map.load_state_dict(yardstick.map.state_dict())
    assert torch.allclose(model(Batch.of(x)), yardstick(Batch.of(x)))
    torch.nn.init.normal_(model.values.weight)
    found = model(Batch.of(x)) - yardstick(Batch.of(x))
    plain = small()
    plain.load_state_dict(model.state_dict(), strict=False)
    expected = plain(Batch.of(x)) - x.mean(1, keepdim=True)
    assert found.abs().max() > 0.1 and torch.allclose(found, expected)


@pytest.mark.parametrize("attention", ["causal(positions=rotary)", "local(window=3)", "linear", "additive"])
def test_another_attention_can_be_put_in(attention):
    found = small(attention=attention, positions="sinusoidal")(Batch.of(window()))
    assert found.shape == (B, HORIZON, COLUMNS) and found.isfinite().all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(RegardError, match=r"reads windows of 23 steps, got 22"):
        small()(Batch.of(window()[:, 1:]))
    with pytest.raises(RegardError, match=r"stride: expected at most patch=4, got 5"):
        small(patch=4, stride=5)
    with pytest.raises(RegardError, match="cannot be causal"):
        small(attention="static-memory")
    with pytest.raises(RegardError, match="no place for another attention"):
        small("linear-forecaster", attention="local")


def test_patches_are_called_by_their_first_and_last_step():
    model = small()
    shown = model.relabel(Shown("x", [f"t{n}" for n in range(CONTEXT)], "steps", grid=(1, CONTEXT)))
    assert shown.called == "patches" and len(shown.pieces) == model.count and shown.grid == (1, model.count)
    assert shown.pieces[1] == "t3 – t7" and shown.pieces[-1].endswith("– t22")


def test_every_parameter_is_trained_and_half_precision_keeps_a_large_level():
    model = small().train()
    model(Batch.of(window())).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    half = small().to(torch.bfloat16)
    level = half(Batch.of(1000 + window().float()))
    assert (level - 1000).abs().max() < 10

"""`transformer(preset=vaswani)` against torch's own layers and the paper's formulas; norm, residual and activation."""

import pytest
import torch

import regard
from regard_workbench import models
from regard_workbench.tasks import Batch, HiddenTokens, NextToken, OneOf, Problem, Tokens, Writes
from regard_workbench.training import Config, optim
from regard_workbench.training.config.recipe import complete
from tests.models.torch_twin import torch_twin

WORDS, OUT, N, T, B, DIM, HIDDEN = 23, 19, 11, 7, 3, 24, 29
PROBLEM = Problem.of(Tokens(WORDS, length=N), Writes(OUT, T, start=1, end=2))


def test_the_preset_is_the_base_model_of_the_paper():
    with torch.device("meta"):
        model = models.build("transformer(preset=vaswani)", PROBLEM)
    layers = [*model.encoder.layers, *model.decoder.layers]
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (6, 6)
    assert isinstance(model.encoder.norm, torch.nn.Identity)  # a last normalisation belongs to norm="pre"
    for layer in layers:
        assert (layer.attention.dim, layer.attention.num_heads, layer.attention.head_dim) == (512, 8, 64)
        assert layer.feed_forward.rise.out_features == 2048 and layer.feed_forward.activation == "relu"
        assert not layer.around_attention.before and layer.around_attention.residual
        assert (layer.around_attention.dropout.p, layer.feed_forward.dropout.p, layer.attention.dropout) == (0.1, 0, 0)
    assert model.embedding.dropout.p == model.target_embedding.dropout.p == 0.1
    # By hand: an attention has 4·512² weights; a feed-forward block 2·512·2048 and 2048 + 512 biases; a norm 2·512.
    attention, block, norm = 4 * 512**2, 2 * 512 * 2048 + 2048 + 512, 2 * 512
    wanted = 6 * (attention + block + 2 * norm) + 6 * (2 * attention + block + 3 * norm)
    found = sum(p.numel() for stack in (model.encoder, model.decoder) for p in stack.parameters())
    assert found == wanted == 44_101_632


def test_the_preset_computes_what_torchs_layers_compute():
    name = f"transformer(preset=vaswani, dim={DIM}, hidden={HIDDEN}, layers=2)"
    model = models.build(name, PROBLEM).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    encoder, decoder = torch_twin(model)
    inputs, targets = torch.randint(3, WORDS, (B, N)), torch.randint(3, OUT, (B, T))
    keep = torch.arange(N) < torch.tensor([N, 5, 8])[:, None]
    source = encoder(model.embedding(inputs), src_key_padding_mask=~keep)
    shifted = torch.cat([torch.ones(B, 1, dtype=torch.long), targets[:, :-1]], 1)
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    rows = decoder(model.target_embedding(shifted), source, tgt_mask=later, memory_key_padding_mask=~keep)
    wanted = rows @ model.target_embedding.rows.weight.T + model.head.logits.bias
    assert torch.allclose(model(Batch.of(inputs, keep, targets)), wanted, atol=1e-10)


def test_the_embedding_is_scaled_and_gets_the_papers_sinusoids():
    model = models.build(f"transformer(preset=vaswani, dim={DIM}, layers=1)", PROBLEM).double().eval()
    rows = model.embedding(torch.full((1, N), 4))[0].detach()
    scaled = DIM**0.5 * model.embedding.rows.weight[4].detach()
    for position in (0, 3, N - 1):
        for column in (0, 1, 6, 7):
            angle = torch.tensor(position / 10000 ** (column // 2 * 2 / DIM), dtype=torch.float64)
            wave = angle.sin() if column % 2 == 0 else angle.cos()
            assert float(rows[position, column]) == pytest.approx(float(scaled[column] + wave), abs=1e-6)


def test_training_takes_the_papers_optimiser_and_its_learning_rate():
    config = complete(Config(task="dates", model="transformer(preset=vaswani)"))
    chosen = config.optim
    assert (chosen.optimizer, chosen.betas, chosen.weight_decay) == ("adamw", (0.9, 0.98), 0.0)
    assert (chosen.smoothing, chosen.schedule, chosen.warmup, chosen.clip) == (0.1, "inverse-root", 4000, 0.0)
    for step in (1, 137, 3999, 4000, 4001, 16000, 100_000):
        wanted = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert optim.rate(chosen, step - 1, 100_000) == pytest.approx(wanted, rel=1e-12), step


def test_the_learning_rate_follows_another_width_and_warm_up_and_given_settings_win():
    small = complete({"task": "dates", "model": "transformer(preset=vaswani, dim=64)", "optim.warmup": 100}).optim
    assert (small.lr, small.warmup) == (pytest.approx((64 * 100) ** -0.5), 100)
    given = {"optim.lr": 3e-4, "optim.schedule": "cosine", "optim.weight_decay": 0.5, "optim.smoothing": 0.0}
    own = complete({"task": "dates", "model": "transformer(preset=vaswani)", **given}).optim
    assert (own.lr, own.schedule, own.weight_decay, own.smoothing) == (3e-4, "cosine", 0.5, 0.0)
    again = complete(complete(Config(task="dates", model="transformer(preset=vaswani)")))
    assert again.optim.warmup == 4000
    plain = complete(Config(task="dates", model="transformer()")).optim
    assert (plain.weight_decay, plain.schedule) == (0.01, "cosine")


def test_an_unknown_preset_is_named():
    with pytest.raises(regard.RegardError, match=r"preset: there is no 'vaswan'. Did you mean 'vaswani'\?"):
        models.build("transformer(preset=vaswan)", PROBLEM)
    with pytest.raises(regard.RegardError, match="Did you mean 'vaswani'"):
        complete(Config(task="dates", model="transformer(preset=vaswan)"))
    with pytest.raises(regard.RegardError, match="preset"):
        models.build("seq2seq(preset=vaswani)", PROBLEM)


KINDS = {
    "encoder": Problem.of(Tokens(WORDS, length=N), OneOf(5)),
    "static-transformer": Problem.of(Tokens(WORDS, length=N), HiddenTokens(WORDS, blank=1)),
    "dynamic-transformer": Problem.of(Tokens(WORDS, length=N), OneOf(5)),
    "decoder": Problem.of(Tokens(WORDS, length=N), NextToken(WORDS)),
    "transformer-xl": Problem.of(Tokens(WORDS, length=N), NextToken(WORDS)),
    "transformer": PROBLEM,
    "gla": PROBLEM,
}


@pytest.mark.parametrize("name", KINDS)
def test_every_stack_takes_norm_residual_and_activation(name):
    options = "dim=16, layers=2, activation=relu"
    model = models.build(f"{name}({options}, norm=none, residual=false)", KINDS[name])
    stacks = [model.encoder, model.decoder] if hasattr(model, "encoder") else [model.stack]
    layers = [layer for stack in stacks for layer in stack.layers]
    arounds = [part for layer in layers for part in layer.children() if hasattr(part, "before")]
    assert len(arounds) >= 4 and all(not around.residual and not list(around.parameters()) for around in arounds)
    assert all(layer.feed_forward.activation == "relu" for layer in layers)
    usual = models.build(f"{name}({options})", KINDS[name])
    gone = sum(p.numel() for p in usual.parameters()) - sum(p.numel() for p in model.parameters())
    assert gone == 2 * 16 * (len(arounds) + len(stacks))  # a gain and a shift for each part, and at each stack's end
    inputs = torch.randint(3, OUT, (B, N))
    targets = torch.zeros(B, dtype=torch.long) if KINDS[name].answer.needs == "pooled" else inputs
    assert model(Batch.of(inputs, None, targets)).isfinite().all()


def test_without_residuals_a_stack_is_its_parts_one_after_the_other():
    model = models.build("encoder(dim=16, layers=2, norm=none, residual=false)", KINDS["encoder"]).double().eval()
    x = torch.randn(B, N, 16, dtype=torch.float64)
    wanted = x
    for layer in model.stack.layers:
        wanted = layer.feed_forward(layer.attention(wanted))
    assert torch.allclose(model.stack(x), wanted, atol=1e-12)

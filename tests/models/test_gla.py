"""`gla` as translator and as language model, alone and as encoder-decoder, and with an encoder at a lower rate."""

import pytest
import torch
from torch.nn.functional import layer_norm

import regard
from regard_workbench import models
from regard_workbench.models.parts.rate import LowerRate
from regard_workbench.tasks import Batch, NextToken, Problem, Tokens, Writes

WORDS, OUT, N, T, B, DIM = 23, 19, 11, 7, 3, 12
TRANSLATE = Problem.of(Tokens(WORDS, length=N), Writes(OUT, T, start=1, end=2))
LANGUAGE = Problem.of(Tokens(WORDS, length=4 * N), NextToken(WORDS))
LANGUAGE_FORMS = ["gla()", "gla(form=encoder-decoder)", "gla(form=encoder-decoder, upsample=3)"]


def small(name, problem, **options):
    torch.manual_seed(4)
    model = models.build(name, problem, **{"dim": DIM, "layers": 2, "num_heads": 2, **options}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(*shape, seed=3):
    return torch.randint(3, OUT, shape, generator=torch.Generator().manual_seed(seed))


def normed(norm, x):
    return layer_norm(x, (DIM,), norm.weight, norm.bias)


def within(layer, x):
    """Causal global-query of one head over rows (n,dim), position by position."""
    queries, keys = x @ layer.query_map.weight.T, x @ layer.key_map.weight.T
    found = []
    for i in range(len(x)):
        scores = torch.stack([queries[j] @ keys[j] for j in range(i + 1)])
        share = scores.softmax(0)[i]
        found.append(share * x[i] + (1 - share) * x[: i + 1].mean(0))
    return torch.stack(found)


def across(layer, x, source, visible):
    """Global-query of one head from rows (q,dim) to a source (k,dim), query by query; nothing visible: zeros."""
    queries, keys = x @ layer.query_map.weight.T, source @ layer.key_map.weight.T
    found = []
    for i in range(len(x)):
        seen = [j for j in range(len(source)) if visible(i, j)]
        shares = torch.stack([queries[i] @ keys[j] for j in seen]).softmax(0) if seen else []
        found.append(sum((a * source[j] for a, j in zip(shares, seen, strict=True)), torch.zeros_like(x[0])))
    return torch.stack(found)


def layer_by_hand(layer, x, source=None, visible=None):
    """A layer with normalisation before each part."""
    x = x + within(layer.attention, normed(layer.around_attention.norm, x))
    if source is not None:
        x = x + across(layer.cross, normed(layer.around_cross.norm, x), source, visible)
    return x + layer.feed_forward(normed(layer.around_feed_forward.norm, x))


def stack_by_hand(stack, x, *source):
    for layer in stack.layers:
        x = layer_by_hand(layer, x, *source)
    return normed(stack.norm, x)


def test_a_language_model_alone_equals_its_formulas():
    model, given = small("gla", LANGUAGE, num_heads=1), tokens(1, N)
    rows = stack_by_hand(model.decoder, model.embedding(given)[0])
    wanted = rows @ model.embedding.rows.weight.T + model.head.logits.bias
    assert torch.allclose(model(Batch.of(given))[0], wanted, atol=1e-9)


@pytest.mark.parametrize("rate", [1, 2, 3])
def test_an_encoder_decoder_language_model_equals_its_formulas(rate):
    model, given = small(f"gla(form=encoder-decoder, upsample={rate})", LANGUAGE, num_heads=1), tokens(1, N)
    x = model.embedding(given)[0]
    if rate == 1:
        source = stack_by_hand(model.encoder, x)
    else:
        low = torch.stack([grouped(model.rate, x, g) for g in range(-(-N // rate))])
        encoded = stack_by_hand(model.encoder, low)
        source = torch.cat([model.rate.up(row).view(rate, DIM) for row in encoded])
    # Row j of the source belongs to a group whose last position is j // rate · rate + rate − 1. It is placed there, the
    # others of its group behind it, and position i sees what is placed at i or before.
    rows = stack_by_hand(model.decoder, x, source, lambda i, j: j + rate - 1 <= i)
    wanted = rows @ model.embedding.rows.weight.T + model.head.logits.bias
    assert torch.allclose(model(Batch.of(given))[0], wanted, atol=1e-9)


def grouped(lower, x, group):
    """One row of the lower rate, from the positions of a group; missing ones count as zeros."""
    mine = x[group * lower.rate : (group + 1) * lower.rate]
    missing = torch.zeros(lower.rate - len(mine), DIM, dtype=x.dtype)
    return lower.down(torch.cat([mine, missing]).flatten())


@pytest.mark.parametrize("rate", [2, 3, 13])
def test_the_lower_rate_joins_groups_and_takes_them_apart(rate):
    lower, x = LowerRate(DIM, rate).double(), torch.randn(B, N, DIM, dtype=torch.float64)
    keep = torch.arange(N) < torch.tensor([N, 4, 1])[:, None]
    rows, real = lower.lowered(x.masked_fill(~keep[..., None], torch.nan), keep)
    assert rows.shape == (B, -(-N // rate), DIM)
    for e, length in enumerate((N, 4, 1)):
        assert real[e].sum() == -(-length // rate)
        for group in range(-(-length // rate)):
            assert torch.allclose(rows[e, group], grouped(lower, x[e, :length], group), atol=1e-12)
    raised = lower.raised(rows, N)
    for position in range(N):
        part = lower.up(rows[:, position // rate]).view(B, rate, DIM)[:, position % rate]
        assert torch.allclose(raised[:, position], part, atol=1e-12)


@pytest.mark.parametrize("rate", [2, 3])
def test_a_translator_encodes_at_the_lower_rate_and_attends_at_that_of_the_input(rate):
    model = small("gla", TRANSLATE, upsample=rate)
    read, attended = [], []
    model.encoder.layers[0].attention.register_forward_pre_hook(lambda _, args: read.append(args[0].shape[1]))
    model.decoder.layers[0].cross.register_forward_pre_hook(lambda _, args: attended.append(args[1].shape[1]))
    given = Batch.of(tokens(B, N), None, tokens(B, T, seed=5))
    logits = model(given)
    assert logits.shape == (B, T, OUT) and (read, attended) == ([-(-N // rate)], [N])
    keep = torch.arange(N) < torch.tensor([N, 5, 2])[:, None]
    together = model(Batch.of(given.inputs, keep, given.targets))
    for row, length in enumerate((N, 5, 2)):
        alone = model(Batch.of(given.inputs[row : row + 1, :length], None, given.targets[row : row + 1]))
        assert torch.allclose(together[row], alone[0], atol=1e-9)
    cached, plain = (model.generate(given, cached=c, method="beam", beam=3, max_length=T) for c in (True, False))
    assert [h[0].tokens for h in cached] == [h[0].tokens for h in plain]


@pytest.mark.parametrize("name", LANGUAGE_FORMS)
def test_a_language_model_never_sees_the_future_but_all_of_the_past(name):
    model, given = small(name, LANGUAGE), tokens(1, N)
    rows = model.embedding.rows(given).detach().requires_grad_()
    model.embedding.rows.register_forward_hook(lambda *_: rows)
    for position in (0, 1, 4, N - 1):
        reached = torch.autograd.grad(model(Batch.of(given))[0, position].square().sum(), rows)[0][0].abs().sum(1)
        assert [j for j in range(N) if reached[j] > 0] == list(range(position + 1))


@pytest.mark.parametrize("name", LANGUAGE_FORMS)
def test_a_language_model_continues_padded_prompts_in_steps_as_in_one_call(name):
    model, given = small(name, LANGUAGE), tokens(B, 5)
    keep = torch.arange(5) < torch.tensor([5, 3, 4])[:, None]
    together = model(Batch.of(given, keep))
    for row, length in enumerate((5, 3, 4)):
        alone = model(Batch.of(given[row : row + 1, :length]))[0]
        assert torch.allclose(together[row, :length], alone, atol=1e-9)
    state, found = model.initial_state(B), []
    for part in given.split((2, 1, 2), 1):
        logits, state = model.step(part, state)
        found.append(logits)
    assert torch.allclose(torch.cat(found, 1), model(Batch.of(given)), atol=1e-9)
    for method in ("greedy", "beam"):
        cached, plain = (model.generate(Batch.of(given), cached=c, method=method, max_length=4) for c in (True, False))
        assert [h[0].tokens for h in cached] == [h[0].tokens for h in plain]


def shares(layer, x):
    """α_i of one head: the weight of a position on itself, less that on any other."""
    weights = layer.weights(x)[0, 0].detach()
    own = torch.arange(len(weights))
    return weights[own, own] - weights[own, own.roll(1)]


def test_projected_queries_and_keys_tell_positions_apart_where_plain_ones_do_not():
    """After a normalisation the plain score |x_i|² is the same for all positions, so every α_i is 1/n."""
    torch.manual_seed(1)
    x = layer_norm(torch.randn(1, 32, 64), (64,))
    plain = regard.nn.build("global-query", dim=64)
    assert float(shares(plain, x).max() - shares(plain, x).min()) < 1e-3
    projected = regard.nn.build(models.MODELS["gla"].attention_default, dim=64)
    assert float(shares(projected, x).max()) > 0.1


def test_every_attention_of_the_model_projects_queries_and_keys():
    for problem, name in ((TRANSLATE, "gla"), (LANGUAGE, "gla(form=encoder-decoder)")):
        model = small(name, problem)
        for layer in [*model.encoder.layers, *model.decoder.layers]:
            assert layer.attention.projects == "query-key"
        assert all(layer.cross.projects == "query-key" for layer in model.decoder.layers)
    bare = small("gla", TRANSLATE, attention="global-query", cross="global-query")
    assert not list(bare.encoder.layers[0].attention.parameters())


def test_forms_that_do_not_fit_are_refused():
    with pytest.raises(regard.RegardError, match="form: expected 'encoder-decoder' for another sequence"):
        small("gla(form=decoder)", TRANSLATE)
    with pytest.raises(regard.RegardError, match="form: expected 'decoder' or 'encoder-decoder'"):
        small("gla(form=encoder)", LANGUAGE)
    with pytest.raises(regard.RegardError, match=r"upsample: a decoder alone.*form=encoder-decoder"):
        small("gla(upsample=2)", LANGUAGE)
    with pytest.raises(regard.RegardError, match="upsample: expected a whole number of at least 1"):
        small("gla(upsample=0)", TRANSLATE)
    with pytest.raises(regard.RegardError, match="causal"):
        small("gla(form=encoder-decoder, cross=static-memory)", LANGUAGE)

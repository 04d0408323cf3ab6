"""Generation without calling modules: the same texts and log-probabilities as by modules, or modules are called."""

import pytest
import torch
from torch import nn

import regard
from regard_workbench import models
from regard_workbench.models.parts.plain_steps import plain_steps
from regard_workbench.tasks import Batch, NextToken, Problem, Tokens

WORDS, LENGTH = 23, 97
PROBLEM = Problem.of(Tokens(WORDS, length=LENGTH), NextToken(WORDS))
PLAIN = {
    "default": {},
    "post-norm, relu": {"norm": "post", "activation": "relu"},
    "rms, gated, silu": {"norm_type": "rms", "gated": True, "activation": "silu"},
    "no norm, no residual": {"norm": "none", "residual": False},
    "learned positions": {"positions": "learned"},
    "no positions, unscaled, not tied": {"positions": "none", "scaled_embedding": False, "tied": False},
    "grouped heads without bias": {"attention": "multihead(kv_heads=2, bias=False)"},
    "embedding norm": {"embedding_norm": "layer"},
}
OTHERS = {
    "rotary": {"attention": "multihead(positions=rotary)"},
    "window": {"attention": "causal(window=5)"},
    "sparsemax": {"attention": "multihead(normalize=sparsemax)"},
    "sink": {"attention": "multihead(sink=true)"},
    "linear": {"attention": "linear"},
    "another scale": {"attention": "multihead(scale=0.3)"},
    "normalised queries": {"attention": "multihead(qk_norm=true)"},
}


def built(**options):
    torch.manual_seed(5)
    return models.build("decoder", PROBLEM, layers=3, dim=24, num_heads=4, **options).double().eval()


def steps_of(decoder):
    with torch.no_grad():
        return plain_steps(decoder.embedding, decoder.stack, decoder.head)


def tokens_of(found):
    return [[one.tokens for one in row] for row in found]


def prompts(rows, length):
    return torch.randint(0, WORDS, (rows, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
def test_each_step_equals_that_of_the_modules(options):
    decoder = built(**options)
    plain, tokens = steps_of(decoder), prompts(2, 75)
    assert plain is not None
    with torch.no_grad():
        _, state = decoder.step(tokens[:, :3], decoder.initial_state(2))
        own = plain.begin(state)
        for place in range(3, 75):  # beyond the room of the first buffer and of the first stretch of positions
            expected, state = decoder.step(tokens[:, place : place + 1], state)
            found, own = plain.step(tokens[:, place : place + 1], own)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_texts_equal_those_written_without_a_cache(method):
    decoder, batch = built(), Batch.of(prompts(3, 2))
    options = {"method": method, "max_length": 31}
    seeds = [torch.Generator().manual_seed(7) for _ in range(2)]
    drawn = [{"generator": seed} if method == "sample" else {} for seed in seeds]
    found = decoder.generate(batch, **options, **drawn[0])
    expected = decoder.generate(batch, cached=False, **options, **drawn[1])
    assert tokens_of(found) == tokens_of(expected)
    for row, other in zip(found, expected, strict=True):
        assert [one.score for one in row] == pytest.approx([one.score for one in other])


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_other_attentions_keep_their_modules(options):
    assert steps_of(built(**options)) is None


def test_a_prompt_of_one_token_begins_with_an_empty_state():
    decoder = built()
    found = decoder.generate(Batch.of(prompts(2, 1)), max_length=9)
    expected = decoder.generate(Batch.of(prompts(2, 1)), max_length=9, cached=False)
    assert tokens_of(found) == tokens_of(expected)


@pytest.mark.parametrize("change", ["hook", "pre-hook", "training", "subclass", "own forward", "global hook"])
def test_a_changed_module_is_called(change):
    decoder = built()
    part = decoder.stack.layers[1].feed_forward.rise
    handle = None
    if change == "hook":
        part.register_forward_hook(lambda *_: None)
    elif change == "pre-hook":
        part.register_forward_pre_hook(lambda *_: None)
    elif change == "training":
        part.train()
    elif change == "subclass":
        decoder.stack.layers[1].feed_forward.rise = type("Adapted", (nn.Linear,), {})(24, 96).double().eval()
    elif change == "own forward":
        part.forward = lambda rows: rows
    else:
        handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert steps_of(decoder) is None
    finally:
        if handle is not None:
            handle.remove()


def test_gradients_and_autocast_need_modules():
    decoder = built()
    assert plain_steps(decoder.embedding, decoder.stack, decoder.head) is None
    with torch.autocast("cpu"):
        assert steps_of(decoder) is None


def test_an_observed_generation_records_every_layer():
    decoder = built()
    with regard.observe(decoder) as seen:
        assert steps_of(decoder) is None
        decoder.generate(Batch.of(prompts(1, 3)), max_length=5)
    assert len(seen.names()) == 3


def test_weights_that_change_between_generations_are_read_again():
    decoder, batch = built(), Batch.of(prompts(1, 3))
    decoder.generate(batch, max_length=7)
    for weight in decoder.parameters():
        weight.data.mul_(-1.5)  # counts no version
    found = decoder.generate(batch, max_length=7)
    assert tokens_of(found) == tokens_of(decoder.generate(batch, max_length=7, cached=False))

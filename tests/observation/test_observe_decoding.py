"""Generation with a cache: each step is a call, whose weights are those of eager attention at that step."""

import pytest
import torch

import regard
from tests.observation import peers
from tests.observation.peers import BAR, largest

STEPS = 4


@torch.no_grad()
def written(model, tokens, **options):
    return model.generate(
        input_ids=tokens,
        max_new_tokens=STEPS,
        min_new_tokens=STEPS,
        do_sample=False,
        return_dict_in_generate=True,
        pad_token_id=0,
        **options,
    )


def eager_steps(model, tokens, **options):
    """attentions[step][layer] of the plain implementation."""
    return written(peers.with_attention(model, "eager"), tokens, output_attentions=True, **options)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
def test_each_step_of_a_generation_is_a_call(kind, attention):
    model, tokens = peers.small(kind), peers.ids(7, batch=2)
    oracle = eager_steps(model, tokens)
    model = peers.with_attention(model, attention)
    alone = written(model, tokens).sequences
    with regard.observe(model) as seen:
        out = written(model, tokens).sequences
    assert torch.equal(out, alone)
    for layer, name in enumerate(seen.names()):
        site = seen[name]
        assert site.calls == STEPS
        for step in range(STEPS):
            expected = oracle.attentions[step][layer]
            assert site.shape(step) == tuple(expected.shape)
            assert largest(site.weights(call=step), expected) <= BAR, (name, step)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_weights_over_a_preallocated_cache_are_right_or_refused(attention):
    """A static cache writes into the keys that earlier steps were computed with: snapshotted, or refused."""
    model, tokens = peers.small("llama"), peers.ids(7, batch=2)
    static = {"cache_implementation": "static", "disable_compile": True}
    oracle = eager_steps(model, tokens, **static)
    model = peers.with_attention(model, attention)
    with regard.observe(model) as seen:
        written(model, tokens, **static)
    shown = 0
    for layer, name in enumerate(seen.names()):
        assert seen[name].calls == STEPS
        for step in range(STEPS):
            try:
                found = seen[name].weights(call=step)
            except regard.RegardError:
                assert step < STEPS - 1  # the last step's cache was not written to afterwards
                continue
            shown += 1
            expected = oracle.attentions[step][layer]
            keys = found.shape[-1]  # a prompt may be computed without the cache's empty end
            assert largest(found, expected[..., :keys]) <= BAR, (name, step)
            assert not expected[..., keys:].any()
    assert shown >= len(seen)


def test_an_encoder_decoder_attends_to_its_source_at_each_step():
    model, tokens = peers.small("t5"), peers.ids(11, batch=2)
    oracle = eager_steps(model, tokens)
    with regard.observe(model) as seen:
        written(model, tokens)
    names = seen.names()
    assert [seen[name].calls for name in names] == [1, 1, STEPS, STEPS, STEPS, STEPS]
    crossing = [name for name in names if seen[name].calls == STEPS and seen[name].shape()[3] == 11]
    assert len(crossing) == 2
    for layer, name in enumerate(crossing):
        for step in range(STEPS):
            expected = oracle.cross_attentions[step][layer]
            assert largest(seen[name].weights(call=step), expected) <= BAR
    writing = [name for name in names[2:] if name not in crossing]
    for layer, name in enumerate(writing):
        for step in range(STEPS):
            expected = oracle.decoder_attentions[step][layer]
            assert largest(seen[name].weights(call=step), expected) <= BAR


def test_beams_are_the_batch_of_each_step():
    model, tokens = peers.small("llama"), peers.ids(5, batch=1)
    oracle = eager_steps(model, tokens, num_beams=3)
    with regard.observe(model) as seen:
        out = written(model, tokens, num_beams=3)
    assert torch.equal(out.sequences, oracle.sequences)
    for layer, name in enumerate(seen.names()):
        for step in range(STEPS):
            expected = oracle.attentions[step][layer]
            assert largest(seen[name].weights(call=step), expected) <= BAR


def test_only_the_last_calls_are_kept_when_asked():
    model, tokens = peers.small("llama"), peers.ids(5)
    with regard.observe(model, calls=2) as seen:
        written(model, tokens)
    site = seen[seen.names()[0]]
    assert site.weights().shape[-1] == 5 + STEPS - 1
    with pytest.raises((regard.RegardError, IndexError)):
        site.weights(call=-3)

"""Compiled models on regard compute what they compute uncompiled: whole models, layers, training, steps of decoding."""

import pytest
import torch

from tests.interop.huggingface.models import CLOSE, apart, built, on, padding
from tests.observation import peers

BACKEND = "aot_eager"  # traced and differentiated as for every backend; only the code that runs is not generated
pytestmark = [
    pytest.mark.slow,  # a tracer runs
    pytest.mark.usefixtures("fresh_tracer"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]


@pytest.mark.nightly
@torch.no_grad()
def test_a_whole_model_is_one_graph_for_every_length():
    model = on(built("mistral"), "regard")
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND, dynamic=True)
    torch._dynamo.utils.counters.clear()
    graphs = torch._dynamo.utils.counters["stats"]
    for length in (17, 23):  # rows of fewer than 16 keys go to another implementation, in another graph
        text, mask = peers.ids(length), padding(2, length, "left")
        found, expected = compiled(text, attention_mask=mask).logits, model(text, attention_mask=mask).logits
        assert apart(found[mask.bool()], expected[mask.bool()]) <= CLOSE
    assert graphs["unique_graphs"] == 1


@torch.no_grad()
def test_compiled_layers_take_masks_that_were_made_outside():
    model, text, mask = on(built("mistral"), "regard"), peers.ids(13), padding(2, 13, "left")
    expected = model(text, attention_mask=mask).logits
    for layer in model.model.layers:
        layer.forward = torch.compile(layer.forward, fullgraph=True, backend=BACKEND)
    found = model(text, attention_mask=mask).logits
    assert apart(found[mask.bool()], expected[mask.bool()]) <= CLOSE


@pytest.mark.nightly
def test_a_compiled_training_step_has_the_same_gradients():
    model, text = on(built("gemma2"), "regard").train(), peers.ids(11)
    model(text, labels=text, use_cache=False).loss.backward()
    expected = {name: one.grad.clone() for name, one in model.named_parameters()}
    model.zero_grad()
    torch.compile(model, fullgraph=True, backend=BACKEND)(text, labels=text, use_cache=False).loss.backward()
    largest = max(one.abs().max() for one in expected.values())
    for name, one in model.named_parameters():
        assert (one.grad - expected[name]).abs().max() <= CLOSE * largest, name


@pytest.mark.nightly
@torch.no_grad()
def test_compiled_steps_with_a_static_cache_write_the_same_tokens():
    model, prompt = on(built("mistral"), "regard"), peers.ids(7)
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": padding(2, 7, "left")}
    expected = model.generate(prompt, **options, cache_implementation="static")
    model.forward = torch.compile(model.forward, backend=BACKEND)
    assert torch.equal(model.generate(prompt, **options, cache_implementation="static"), expected)

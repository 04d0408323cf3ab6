"""`"regard:NAME(options)"` puts another mechanism into an existing model."""

import pytest
import torch

import regard
from regard import biases, masks
from regard.nn.linear import linear_attention
from tests.interop.huggingface.models import CLOSE, apart, built, first_output, on, padding
from tests.observation import peers


@torch.no_grad()
def test_local_makes_a_sliding_window_of_llama_as_mistral_has_it():
    windowed, model, text = built("mistral"), built("llama"), peers.ids(13)
    model.load_state_dict(windowed.state_dict())
    mask = padding(2, 13, "left")
    expected = on(windowed, "eager")(text, attention_mask=mask).logits
    found = on(model, "regard:local(window=5)")(text, attention_mask=mask).logits
    assert apart(found[mask.bool()], expected[mask.bool()]) <= CLOSE
    assert apart(on(model, "regard")(text).logits, expected) > 0.01


@pytest.mark.parametrize("way", ["greedy", "beams", "static", "no_cache"])
@pytest.mark.parametrize("name", ["local(window=5)", "multihead(positions=alibi)", "linear", "dot", "hard"])
@torch.no_grad()
def test_every_cache_gives_the_tokens_of_no_cache(name, way):
    model, prompt = on(built("llama"), f"regard:{name}"), peers.ids(7)
    same = {"max_new_tokens": 6, "do_sample": False, "attention_mask": padding(2, 7, "left"), "min_new_tokens": 6}
    options = {
        "greedy": {},
        "beams": {"num_beams": 3},
        "static": {"cache_implementation": "static"},
        "no_cache": {"use_cache": False},
    }[way]
    beams = {"num_beams": 3} if way == "beams" else {}
    expected = model.generate(prompt, use_cache=False, **same, **beams)
    assert torch.equal(model.generate(prompt, **same, **options), expected)


def heads_of(model, monkeypatch):
    """Queries, keys and values of every layer of a pass, and what the layer made of them."""
    from transformers import AttentionInterface

    seen = []
    function = AttentionInterface()[model.config._attn_implementation]

    def noted(module, query, key, value, mask, **options):
        out = function(module, query, key, value, mask, **options)
        seen.append((query, key, value, options, out[0].transpose(1, 2)))
        return out

    monkeypatch.setitem(AttentionInterface._global_mapping, model.config._attn_implementation, noted)
    return seen


@torch.no_grad()
def test_pieces_of_a_mechanism_act_on_the_heads_of_the_model(monkeypatch):
    expected = {
        "multihead(positions=alibi)": lambda q, k, v, scale: regard.attend(
            q, k, v, mask=masks.causal(), bias=biases.alibi(6), scale=scale
        ),
        "multihead(normalize=sparsemax)": lambda q, k, v, scale: regard.attend(
            q, k, v, mask=masks.causal(), normalize="sparsemax", scale=scale
        ),
        "dot": lambda q, k, v, scale: regard.attend(q, k, v, mask=masks.causal(), score="dot"),
        "hard": lambda q, k, v, scale: regard.attend(q, k, v, mask=masks.causal(), normalize="hard"),
        "linear(feature_map=relu)": lambda q, k, v, scale: linear_attention(
            q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), causal=True, feature_map="relu"
        ),
    }
    for name, oracle in expected.items():
        model = on(built("llama"), f"regard:{name}")
        seen = heads_of(model, monkeypatch)
        model(peers.ids(11))
        assert len(seen) == 2
        for query, key, value, options, found in seen:
            assert apart(found, oracle(query, key, value, options["scaling"])) <= CLOSE, name


@torch.no_grad()
def test_causal_makes_a_decoder_of_bert():
    model, text = on(built("bert"), "regard:causal"), peers.ids(11)
    other = text.clone()
    other[:, 7:] = 5
    assert torch.equal(model(text).last_hidden_state[:, :7], model(other).last_hidden_state[:, :7])


@torch.no_grad()
def test_a_window_leaves_attention_to_another_sequence_alone():
    model, given = built("t5"), peers.inputs("t5")
    plain = on(model, "regard")(**given, output_attentions=True)
    found = on(model, "regard:local(window=3)")(**given, output_attentions=True)
    for weights in found.encoder_attentions:
        near = (torch.arange(11)[:, None] - torch.arange(11)).abs() <= 1
        assert bool((weights[..., ~near] == 0).all())
    for weights in found.decoder_attentions:
        distance = torch.arange(7)[:, None] - torch.arange(7)
        assert bool((weights[..., (distance < 0) | (distance > 2)] == 0).all())
    for before, after in zip(plain.cross_attentions, found.cross_attentions, strict=True):
        assert bool((after > 0).all())
        assert before.shape == after.shape


def test_a_changed_model_trains():
    model = on(built("llama"), "regard:hard").train()
    model(**peers.inputs("llama")).logits.square().mean().backward()
    assert all(one.grad.isfinite().all() for one in model.parameters())
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


@torch.no_grad()
def test_a_changed_model_is_observed():
    model = on(built("llama"), "regard:local(window=3)")
    with regard.observe(model) as seen:
        model(peers.ids(11))
    for name in seen.names():
        assert bool((seen[name].weights()[:, :, 5, :3] == 0).all())
        assert bool((seen[name].weights()[:, :, 5, 3:6] > 0).all())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lokal", "Did you mean 'local'"),
        ("relative", "weights of its own .key_table."),
        ("ntm", "weights of its own"),
        ("global-query", "layer of its own"),
        ("local-m(score=dot)", "from the beginning of a source"),
        ("multihead(positions=rotary)", "rotates queries and keys"),
        ("multihead(sink=true)", "weights of its own .sink."),
        ("hard(estimator=reinforce)", "training loop"),
        ("local(windw=3)", "Did you mean 'window'"),
        ("local(num_heads=2)", "belongs to the model"),
        ("local(window=3", "expected NAME"),
        ("", "expected NAME"),
    ],
)
def test_a_mechanism_that_does_not_fit_is_refused_by_name(name, words):
    with pytest.raises(regard.RegardError, match=words):
        on(built("llama"), f"regard:{name}")


def test_what_linear_attention_cannot_do_is_refused():
    given = peers.inputs("llama")
    with pytest.raises(regard.BadValue, match="output_attentions"):
        on(built("llama"), "regard:linear")(**given, output_attentions=True)
    with pytest.raises(regard.BadValue, match="dense tensor"):
        built_model = on(built("llama"), "regard:linear")
        built_model(**given, attention_mask=torch.ones(2, 1, 11, 11, dtype=torch.bool))
    with pytest.raises(regard.BadValue, match="window"):
        on(built("mistral"), "regard:linear")(**given)
    with pytest.raises(regard.BadValue, match="soft-capping"):
        on(built("gemma2"), "regard:linear")(**given)
    with pytest.raises(regard.BadValue, match="a bias"):
        on(built("t5"), "regard:linear")(**peers.inputs("t5"))
    with pytest.raises(regard.BadValue, match="caps its scores"):
        on(built("gemma2"), "regard:dot")(**given)


def test_an_even_window_is_refused_where_it_has_two_sides():
    with pytest.raises(regard.BadValue, match="odd number"):
        on(built("bert"), "regard:local(window=4)")(**peers.inputs("bert"))


@torch.no_grad()
def test_alibi_is_added_to_the_bias_of_a_model():
    model, given = built("t5"), peers.inputs("t5")
    plain = first_output(on(model, "regard")(**given))
    assert apart(first_output(on(model, "regard:multihead(positions=alibi)")(**given)), plain) > 1e-3


def test_registering_twice_changes_nothing():
    from transformers import PreTrainedModel

    from regard.interop import huggingface

    huggingface.register()
    before = PreTrainedModel.get_correct_attn_implementation
    huggingface.register()
    assert PreTrainedModel.get_correct_attn_implementation is before

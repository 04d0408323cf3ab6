"""Hugging Face models on attn_implementation="regard" compute what they compute on their own eager attention."""

import pytest
import torch

import regard
import regard.dispatch.attention as dispatch
from regard.masks import Mask
from tests.interop.huggingface.models import CAUSAL, CLOSE, KINDS, apart, built, first_output, on, padding
from tests.observation import peers


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_outputs_equal_those_of_eager_attention(kind):
    model, given = built(kind), peers.inputs(kind)
    expected, found = first_output(on(model, "eager")(**given)), first_output(on(model, "regard")(**given))
    assert apart(found, expected) <= CLOSE


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("vit", "whisper")])
@torch.no_grad()
def test_padded_batches_equal_those_of_eager_attention(kind, side):
    model, given = built(kind), peers.inputs(kind)
    mask = padding(*given["input_ids"].shape, side)
    expected = first_output(on(model, "eager")(**given, attention_mask=mask))
    found = first_output(on(model, "regard")(**given, attention_mask=mask))
    real = mask.bool() if "decoder_input_ids" not in given else torch.ones(expected.shape[:2], dtype=torch.bool)
    assert apart(found[real], expected[real]) <= CLOSE


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_returned_attentions_are_those_of_eager_attention(kind):
    model, given = built(kind), peers.inputs(kind)
    expected = peers.eager_maps(model, **given)
    out = on(model, "regard")(**given, output_attentions=True)
    found = [*out.get("attentions", ())]
    if "encoder_attentions" in out:
        both = zip(out.decoder_attentions, out.cross_attentions, strict=True)
        found = [*out.encoder_attentions, *(one for pair in both for one in pair)]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert peers.largest(ours, theirs) <= CLOSE


@pytest.mark.parametrize("way", ["greedy", "beams", "static"])
@pytest.mark.parametrize("kind", [*CAUSAL, "t5", "bart"])
@torch.no_grad()
def test_generation_writes_the_tokens_of_eager_attention(kind, way):
    model, prompt = (built(kind), torch.randint(3, peers.WORDS, (2, 7), generator=torch.Generator().manual_seed(3)))
    options = {"greedy": {}, "beams": {"num_beams": 3}, "static": {"cache_implementation": "static"}}[way]
    mask = padding(2, 7, "right" if kind in ("t5", "bart") else "left")
    options |= {"attention_mask": mask, "max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    expected = on(model, "eager").generate(prompt, **options)
    assert torch.equal(on(model, "regard").generate(prompt, **options), expected)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss", "t5", "bert"])
def test_gradients_equal_those_of_eager_attention(kind):
    model, given = built(kind), peers.inputs(kind)
    found = {}
    for name in ("eager", "regard"):
        model.zero_grad()
        first_output(on(model, name)(**given)).square().mean().backward()
        found[name] = {at: one.grad for at, one in model.named_parameters() if one.grad is not None}
    assert found["regard"].keys() == found["eager"].keys()
    largest = max(one.abs().max() for one in found["eager"].values())
    for at, expected in found["eager"].items():
        assert (found["regard"][at] - expected).abs().max() <= CLOSE * largest, at


def test_dropout_acts_in_training_only():
    model = built("bert")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout) and not hasattr(module, "query"):
            module.p = 0.0
    assert model.encoder.layer[0].attention.self.dropout.p == 0.0
    model.encoder.layer[0].attention.self.dropout.p = 0.5
    given = peers.inputs("bert")
    on(model, "regard").train()
    assert not torch.equal(model(**given).last_hidden_state, model(**given).last_hidden_state)
    model.eval()
    assert torch.equal(model(**given).last_hidden_state, model(**given).last_hidden_state)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
@torch.no_grad()
def test_packed_sequences_do_not_see_each_other(kind):
    model = on(built(kind), "regard")
    one, two = peers.ids(5, batch=1), peers.ids(7, batch=1)
    apart_each = torch.cat([model(one).logits, model(two).logits], 1)
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    packed = model(torch.cat([one, two], 1), position_ids=positions, use_cache=False).logits
    assert apart(packed, apart_each) <= CLOSE
    ends = torch.tensor([0, 5, 12], dtype=torch.int32)
    told = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 7, "max_length_k": 7}
    both = model(torch.cat([one, two], 1), position_ids=positions, use_cache=False, **told).logits
    assert apart(both, apart_each) <= CLOSE
    # With a padding mask of ones transformers does not look for packed sequences; the lengths alone have to do.
    ones = torch.ones(1, 12, dtype=torch.long)
    by_lengths = model(torch.cat([one, two], 1), ones, positions, use_cache=False, **told).logits
    assert apart(by_lengths, apart_each) <= CLOSE


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3"])
@torch.no_grad()
def test_pieces_with_a_cache_give_what_one_call_gives(kind, cache):
    from transformers import DynamicCache, StaticCache

    model, text = on(built(kind), "regard"), peers.ids(13)
    whole = model(text).logits
    config = model.config
    past = StaticCache(config=config, max_cache_len=17) if cache == "static" else DynamicCache(config=config)
    parts, first = [], 0
    for size in (3, 1, 5, 1, 1, 2):
        parts.append(model(text[:, first : first + size], past_key_values=past).logits)
        first += size
    assert apart(torch.cat(parts, 1), whole) <= CLOSE


@torch.no_grad()
def test_later_tokens_never_change_earlier_outputs():
    """Also where no mask is given at all, as a layer that is used by itself is called."""
    for kind in CAUSAL:
        model = on(built(kind), "regard")
        text = peers.ids(11)
        other = text.clone()
        other[:, 7:] = (other[:, 7:] + 1) % peers.WORDS
        assert torch.equal(model(text).logits[:, :7], model(other).logits[:, :7])
    layer = on(built("llama"), "regard").model.layers[0].self_attn
    rows = torch.randn(2, 9, 24)
    angles = layer.config.head_dim
    places = (torch.ones(2, 9, angles), torch.zeros(2, 9, angles))
    changed = rows.clone()
    changed[:, 5:] += 1.0
    plain, after = layer(rows, places, None)[0], layer(changed, places, None)[0]
    assert torch.equal(plain[:, :5], after[:, :5])
    assert not torch.equal(plain[:, 5:], after[:, 5:])


@pytest.mark.parametrize("kind", ["llama", "gemma2", "bert"])
@torch.no_grad()
def test_dense_masks_of_a_caller_are_used_as_they_are(kind):
    model, text = built(kind), peers.ids(9)
    visible = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(5)) < 0.6
    visible |= torch.eye(9, dtype=torch.bool)
    added = torch.zeros(2, 1, 9, 9).masked_fill(~visible, torch.finfo(torch.float32).min)
    expected = first_output(on(model, "eager")(text, attention_mask=added))
    on(model, "regard")
    assert apart(first_output(model(text, attention_mask=added)), expected) <= CLOSE
    assert apart(first_output(model(text, attention_mask=visible)), expected) <= CLOSE


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("llama", {"masks.causal()"}),
        ("mistral", {"masks.window(4, after=0)"}),
        ("gemma3", {"masks.causal()", "masks.window(4, after=0)"}),
        ("bert", {"None"}),
    ],
)
@torch.no_grad()
def test_attention_gets_the_structure_of_the_mask(kind, expected, monkeypatch):
    given, attend = [], dispatch.attend
    monkeypatch.setattr(
        dispatch, "attend", lambda *args, **options: given.append(options["mask"]) or attend(*args, **options)
    )
    model = on(built(kind), "regard")
    model(peers.ids(11), attention_mask=torch.ones(2, 11))
    assert set(map(repr, given)) == expected
    given.clear()
    model(peers.ids(11), attention_mask=padding(2, 11, "left"))
    assert all(isinstance(mask, Mask) and "dense" not in mask.spec for mask in given)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "mistral", "gemma2", "gpt_oss", "t5", "vit"])
@torch.no_grad()
def test_observed_weights_are_those_of_eager_attention(kind):
    model, given = built(kind), peers.inputs(kind)
    expected = peers.eager_maps(model, **given)
    on(model, "regard")
    before = first_output(model(**given))
    with regard.observe(model) as seen:
        after = first_output(model(**given))
    assert torch.equal(before, after)
    assert len(seen) == len(expected)
    for name, theirs in zip(seen.names(), expected, strict=True):
        assert seen[name].how == "exact"
        assert peers.largest(seen[name].weights(), theirs) <= CLOSE, name


@torch.no_grad()
def test_checkpointed_layers_train_as_others_do():
    model, given = built("llama"), peers.inputs("llama")
    on(model, "regard").train()
    gradients = []
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": True})
            model.enable_input_require_grads()
        model.zero_grad()
        with torch.enable_grad():
            model(**given, use_cache=False).logits.square().mean().backward()
        gradients.append([one.grad.clone() for one in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        assert torch.allclose(plain, again, atol=1e-6)


def test_the_paged_cache_of_continuous_batching_is_refused():
    model = on(built("llama"), "regard")
    with pytest.raises(regard.Unsupported, match="paged cache"):
        model(**peers.inputs("llama"), cache=object(), use_cache=False)


@torch.no_grad()
def test_a_layer_that_calls_itself_causal_sees_all_keys_if_its_model_asks_for_them():
    """Phi-4's image encoder: its model asks for a bidirectional mask, its layers say `is_causal = True`."""
    transformers = pytest.importorskip("transformers")
    vision = pytest.importorskip("transformers.models.phi4_multimodal.modeling_phi4_multimodal")
    config = transformers.models.phi4_multimodal.Phi4MultimodalVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    torch.manual_seed(0)
    model, image = vision.Phi4MultimodalVisionModel(config).eval(), torch.randn(1, 3, 28, 28)
    assert all(layer.self_attn.is_causal for layer in model.encoder.layers)
    expected = on(model, "eager")(image).last_hidden_state
    assert apart(on(model, "regard")(image).last_hidden_state, expected) <= CLOSE

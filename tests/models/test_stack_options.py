"""Options that foreign checkpoints brought along, by themselves: what each changes, and what it refuses."""

import math

import pytest
import torch

from regard.errors import BadValue
from regard.nn import build
from regard.nn.parts.blocks import make_norm
from regard.nn.parts.rotary_scaling import RotaryScaling
from regard.nn.positions import rotary
from regard.registry import parse, written
from regard_workbench import models
from regard_workbench.models.parts.embedding import StreamEmbedding
from regard_workbench.models.parts.stack import Stack
from regard_workbench.tasks.answers import NextToken, OneOf, RowVectors
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens, Vectors


def test_each_layer_may_have_its_own_mechanism():
    stack = Stack(12, 3, "causal(window=2), causal, local(window=3)", causal=True, num_heads=2)
    assert [layer.attention.window for layer in stack.layers] == [2, None, 3]
    assert all(layer.attention.num_heads == 2 for layer in stack.layers)
    with pytest.raises(BadValue, match="one for each of 3 layers, got 2"):
        Stack(12, 3, "causal, causal", causal=True)


def test_layers_that_share_positions_have_one_table_and_one_gradient():
    stack = Stack(12, 3, "multihead(positions=t5(buckets=8, max_distance=5))", num_heads=3, shared_positions=True)
    names = [name for name, _ in stack.named_parameters() if "bias_table" in name]
    assert names == ["layers.0.attention.bias_table"] and stack.layers[2].attention.bias_table.shape == (8, 3)
    for attention in ("multihead", "multihead(positions=rotary)"):
        with pytest.raises(BadValue, match="shared_positions: every layer must add one table"):
            Stack(12, 2, attention, shared_positions=True)


def test_heads_may_be_wider_or_narrower_than_their_share():
    layer = build("multihead", dim=12, num_heads=4, key_dim=5, kv_heads=2, output_bias=False)
    assert layer.query_map.weight.shape == (20, 12) and layer.key_map.weight.shape == (10, 12)
    assert layer.output_map.weight.shape == (12, 20) and layer.output_map.bias is None
    assert layer.head_dim == 5 and layer(torch.randn(2, 7, 12)).shape == (2, 7, 12)
    causal = build("causal", dim=10, num_heads=4, key_dim=6, positions="rotary")  # 10 is no multiple of 4
    x = torch.randn(1, 3, 10)
    step, state = causal(x[:, :2], state=causal.initial_state(1))
    last, _ = causal(x[:, 2:], state=state)
    torch.testing.assert_close(torch.cat([step, last], 1), causal(x))


def test_scale_is_the_factor_of_the_scores():
    torch.manual_seed(1)
    plain, scaled = build("multihead", dim=8, num_heads=2), build("multihead", dim=8, num_heads=2, scale=1.0)
    scaled.load_state_dict(plain.state_dict())
    with torch.no_grad():
        scaled.query_map.weight.mul_(0.5)  # 1/√4
        scaled.query_map.bias.mul_(0.5)
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(scaled(x), plain(x))


def test_linear_scaling_puts_positions_nearer_to_each_other():
    x = torch.randn(1, 2, 6, 8)
    found = rotary(x, torch.arange(6), 100.0, RotaryScaling("linear", factor=4.0))
    torch.testing.assert_close(found, rotary(x, torch.arange(6) / 4, 100.0))


def test_llama3_keeps_fast_waves_and_slows_long_ones_by_hand():
    scaling = RotaryScaling("llama3", factor=8.0, length=100, low=1.0, high=4.0)
    turns = torch.tensor([10.0, 4.0, 2.5, 1.0, 0.3], dtype=torch.float64)  # in 100 positions
    frequencies = turns * 2 * math.pi / 100
    kept = torch.tensor([1.0, 1.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    wanted = frequencies * (kept + (1 - kept) / 8)
    torch.testing.assert_close(scaling.scaled(frequencies, 10000.0), wanted)


def test_yarn_grows_queries_and_keys_with_the_factor():
    assert RotaryScaling("yarn", factor=16.0).growth == pytest.approx(0.1 * math.log(16) + 1)
    assert (
        RotaryScaling("yarn", factor=16.0, gain=1.5).growth == 1.5 and RotaryScaling("linear", factor=9.0).growth == 1
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("scaling=dynamic", "scaling: expected one of none, linear, llama3, yarn"),
        ("factor=0", "factor: expected a finite number above 0"),
        ("base=-1", "base: expected a finite number above 0"),
        ("scaling=llama3, low=4, high=4", "high: expected more than low=4"),
        ("length=0", "length: expected"),
        ("speed=3", "speed"),
        ("base=fast", "base: rotary takes a number"),
    ],
)
def test_rotary_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(BadValue, match=words):
        build("multihead", dim=8, num_heads=2, positions=f"rotary({options})")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"window": 4, "positions": "rotary(base=5.0)", "bias": False},
            "x(window=4, positions=rotary(base=5.0), bias=False)",
        ),
        ({"a": "None", "b": None, "c": "1e3", "d": "it's"}, None),
        ({"each": "causal(window=3), causal"}, "x(each='causal(window=3), causal')"),
        ({"eps": 1e-12, "word": "sinusoidal-split", "pair": (1, 2)}, None),
        ({}, "x"),
    ],
)
def test_what_is_written_is_read_again(options, text):
    assert parse(written("x", options)) == ("x", options)
    assert text is None or written("x", options) == text


def test_positions_that_count_real_tokens_do_not_depend_on_where_padding_is():
    embedding = StreamEmbedding(Tokens(11, padding=2, length=6), 4, positions="counted")
    assert embedding.positions.table.shape == (9, 4)
    right, left = torch.tensor([[5, 7, 9, 2, 2]]), torch.tensor([[2, 2, 5, 7, 9]])
    torch.testing.assert_close(embedding(right)[:, :3], embedding(left)[:, 2:])
    wanted = embedding.rows.weight[5] * 2 + embedding.positions.table[3]  # √4; the first position is padding + 1
    torch.testing.assert_close(embedding(left)[0, 2], wanted)
    with pytest.raises(BadValue, match="'counted' positions count tokens"):
        StreamEmbedding(Tokens(11), 4, positions="counted")


def test_segments_and_the_norm_of_an_embedding_by_hand():
    embedding = StreamEmbedding(Tokens(11), 4, positions="none", scaled=False, norm="layer", norm_eps=1e-3, segments=2)
    ids = torch.tensor([[[5, 0], [5, 1]]])
    rows = embedding.rows.weight[5] + embedding.segments
    wanted = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, unbiased=False, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(embedding(ids)[0], wanted)
    torch.testing.assert_close(embedding(ids[..., 0])[0], wanted[[0, 0]])
    with pytest.raises(BadValue, match="only tokens have segments"):
        StreamEmbedding(Vectors(3), 4, segments=2)


def test_the_row_of_an_example_may_be_that_of_its_first_position():
    problem = Problem.of(Tokens(11, length=7), OneOf(3))
    model = models.build("encoder(dim=8, layers=1, pooling=first, before_head=tanh)", problem).eval()
    batch = Batch.of(torch.randint(3, 11, (2, 5)))
    rows = model.rows(batch)[:, 0]
    torch.testing.assert_close(model(batch), model.head.logits(torch.tanh(model.before_head.map(rows))))
    for option in ("pooling=last", "before_head=softmax"):
        with pytest.raises(BadValue, match=option.partition("=")[0]):
            models.build(f"encoder({option})", problem)


def test_a_head_without_bias_has_none_and_a_model_without_head_gives_its_rows():
    problem = Problem.of(Tokens(11, length=7), NextToken(11))
    model = models.build("decoder(dim=8, layers=1, head_bias=false)", problem)
    assert model.head.logits.bias is None and "head.logits.bias" not in model.state_dict()
    bare = models.build("encoder(dim=8, layers=1)", Problem.of(Tokens(11), RowVectors(8))).eval()
    batch = Batch.of(torch.randint(3, 11, (2, 5)))
    assert torch.equal(bare(batch), bare.rows(batch)) and not list(bare.head.parameters())


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norm_eps_is_added_to_the_variance(kind):
    x = torch.full((1, 4), 1e-3)
    x[0, 0] = -1e-3
    square = x.var(unbiased=False) if kind == "layer" else x.square().mean()
    centred = x - x.mean() if kind == "layer" else x
    torch.testing.assert_close(make_norm(kind, 4, 1e-2)(x), centred / (square + 1e-2).sqrt())
    with pytest.raises(BadValue, match="norm_eps"):
        make_norm(kind, 4, 0.0)

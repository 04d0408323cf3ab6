"""Operations of a step, against counts worked out by hand."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import regard
from regard import masks
from regard_workbench import models, tasks
from regard_workbench.comparison import flops
from regard_workbench.comparison.flops import count, of_step

b, h, n, d, v = 2, 3, 128, 16, 24


def forward_and_backward(call):
    """Operations of a call and of the gradient of its sum."""
    found = []
    forward = count(lambda: found.append(call().sum()))
    return forward, count(found[0].backward)


def heads(length, width):
    return torch.randn(b, h, length, width, requires_grad=True)


def test_a_linear_layer_multiplies_and_adds_once_for_each_weight():
    layer = nn.Linear(7, 11)
    rows = torch.randn(5, 3, 7, requires_grad=True)
    forward, backward = forward_and_backward(lambda: layer(rows))
    assert forward == 2 * 15 * 7 * 11 and backward == 2 * forward


def test_products_without_gradient_are_counted_once():
    layer = nn.Linear(7, 11)
    assert forward_and_backward(lambda: layer(torch.randn(15, 7))) == (2 * 15 * 7 * 11, 2 * 15 * 7 * 11)


@pytest.mark.parametrize("impl", ["reference", "tiled", "sdpa"])
def test_full_attention_scores_every_pair_and_sums_once(impl):
    query, key, value = heads(n, d), heads(n, d), heads(n, d)
    forward, backward = forward_and_backward(lambda: regard.attend(query, key, value, impl=impl))
    assert forward == 4 * b * h * n * n * d
    # Four products backward; five where the scores are computed again.
    assert backward == (8 if impl == "reference" else 10) * b * h * n * n * d


@pytest.mark.parametrize("impl", ["reference", "tiled", "sdpa"])
def test_queries_keys_and_values_may_differ_in_length_and_width(impl):
    query, key, value = heads(50, d), heads(n, d), heads(n, v if impl != "sdpa" else d)
    assert count(lambda: regard.attend(query, key, value, impl=impl)) == 2 * b * h * 50 * n * (d + value.shape[-1])


def pairs_of(mask, length):
    """How many pairs a mask of positions leaves, found one by one."""
    ones = torch.ones(1, 1, length, 1)
    return int((regard.weights(ones, ones, mask=mask) > 0).sum())


@pytest.mark.parametrize("mask", [masks.window(9), masks.causal(), masks.causal() & masks.window(33)])
@pytest.mark.parametrize("length", [100, 700])
def test_pairs_that_a_mask_hides_do_not_count(mask, length):
    query, key, value = (heads(length, d) for _ in range(3))
    forward, backward = forward_and_backward(lambda: regard.attend(query, key, value, mask=mask, impl="tiled"))
    assert forward == pytest.approx(4 * b * h * d * pairs_of(mask, length), rel=1e-9)
    assert backward == pytest.approx(2.5 * forward, rel=1e-9)


def test_torchs_causal_kernel_counts_as_ours():
    query, key, value = (heads(n, d) for _ in range(3))
    both = [
        forward_and_backward(lambda: regard.attend(query, key, value, mask=masks.causal(), impl=impl))  # noqa: B023
        for impl in ("sdpa", "tiled")
    ]
    assert both[0] == pytest.approx(both[1]) and both[0][0] == 4 * b * h * d * n * (n + 1) // 2


def test_a_window_costs_in_proportion_to_length_and_width():
    def cost(length, width):
        query, key, value = (heads(length, d) for _ in range(3))
        return count(lambda: regard.attend(query, key, value, mask=masks.window(width)))

    once = cost(2048, 65)
    assert cost(4096, 65) / once == pytest.approx(2, rel=0.02)
    assert cost(2048, 129) / once == pytest.approx(129 / 65, rel=0.04)


@pytest.mark.parametrize("kernel", ["flash_attention", "efficient_attention", "cudnn_attention"])
def test_kernels_of_a_gpu_are_counted_by_the_same_rule(kernel):
    """No GPU is needed to read the rule; its place for `is_causal` is torch's own."""
    operator = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}")
    place = [argument.name for argument in operator.default._schema.arguments].index("is_causal")
    shape = (b, h, n, d)
    given = [shape, shape, shape, *[None] * (place - 3), True]
    assert flops._FORMULAS[operator](*given) == 4 * b * h * d * n * (n + 1) // 2
    assert flops._FORMULAS[operator](shape, shape, shape) == 4 * b * h * d * n * n
    backward = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_backward")
    assert flops._FORMULAS[backward](shape, shape, shape, shape) == 10 * b * h * d * n * n


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_a_recurrent_layer_meets_its_matrices_at_each_position(kind, gates, both):
    layer = kind(16, 32, batch_first=True, bidirectional=both)
    rows = torch.randn(4, 10, 16, requires_grad=True)
    forward, backward = forward_and_backward(lambda: layer(rows)[0])
    assert forward == (1 + both) * 2 * 40 * gates * 32 * (16 + 32)
    assert backward == pytest.approx(2 * forward, rel=0.05)  # the first state, zeros, needs no gradient


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_padding_that_is_packed_away_is_not_counted(kind, gates):
    layer = kind(16, 32, batch_first=True)
    packed = pack_padded_sequence(torch.randn(3, 10, 16), torch.tensor([10, 6, 1]), batch_first=True)
    assert count(lambda: layer(packed)) == 2 * 17 * gates * 32 * (16 + 32)


def test_recurrent_layers_on_a_gpu_are_counted_by_the_same_rule():
    """cuDNN gets all layers and directions at once; no GPU is needed to read the formula."""
    weights = [(128, 16), (128, 32), (128,), (128,)] * 2
    rule = flops._FORMULAS[torch.ops.aten._cudnn_rnn]
    assert rule((10, 4, 16), weights) == 2 * 2 * 40 * 128 * (16 + 32)
    assert flops._FORMULAS[torch.ops.aten._cudnn_rnn_backward]((10, 4, 16), weights) == 8 * 40 * 128 * 48


def test_products_that_are_added_in_place_count():
    total, first, second = torch.zeros(3, 5), torch.randn(3, 4), torch.randn(4, 5)
    assert count(lambda: total.addmm_(first, second)) == 2 * 3 * 4 * 5
    batch = torch.zeros(2, 3, 5)
    assert count(lambda: batch.baddbmm_(first.expand(2, 3, 4), second.expand(2, 4, 5))) == 2 * 2 * 3 * 4 * 5
    assert count(lambda: torch.mv(first, second[:, 0])) == 2 * 3 * 4


def made(task, model, attention=None):
    posed = tasks.build(task)
    posed.pose(models.problem_for(model, posed.problems()))
    network = models.build(model, posed.problem, attention=attention)
    examples = posed.examples("train")
    return posed, network, posed.collate([examples[i] for i in range(4)], torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("task", "model", "attention"),
    [
        ("digits", "encoder", None),
        ("digits", "static-transformer", None),
        ("digits", "dynamic-transformer", None),
        ("digits", "lstm-attention", None),
        ("digits", "encoder", "linear"),
        ("digits", "encoder", "relative"),
        ("digits", "encoder", "hard"),
        ("digits", "encoder", "local-p"),
        ("copy(max_length=5)", "ntm", None),
        ("dates", "seq2seq", None),
        ("dates", "gla", None),
    ],
)
def test_a_step_costs_about_three_times_its_forward_pass(task, model, attention):
    _, network, batch = made(regard.registry.parse(task)[0], model, attention)
    forward = count(lambda: network(batch))
    assert of_step(network, batch) / forward == pytest.approx(3, rel=0.12)


def test_the_count_of_a_transformer_is_that_of_its_matrices_and_its_attention():
    _, network, batch = made("digits", "encoder(layers=2, dim=64, hidden=256)")
    positions, dim = 4 * 8, 64
    layer = positions * (4 * dim * dim + 2 * dim * 256) + 2 * 4 * 8 * 8 * dim  # projections, hidden layer, attention
    whole = 2 * (positions * 8 * dim + 2 * layer + 4 * dim * 10)  # the embedding, two layers, the head
    assert count(lambda: network(batch)) == whole


def test_counting_leaves_weights_as_they_were():
    _, network, batch = made("digits", "encoder")
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    assert of_step(network, batch) > 0
    assert all(torch.equal(before[name], weight) for name, weight in network.state_dict().items())

"""What a mechanism weighed: against the layer's own account, against states, and against the formulas by hand."""

import pytest
import torch
import torch.nn.functional as F

import regard
from regard import nn
from regard.nn.mechanism import names
from regard.observation.watching import Unseen, calls, weighed

DIM, HEADS, N = 6, 2, 7


def built(name, **options):
    torch.manual_seed(1)
    return nn.build(name, dim=DIM, num_heads=HEADS, **options).eval()


def rows(n=N):
    return torch.randn(1, n, DIM)


@pytest.mark.parametrize(
    "name", [name for name in names() if callable(getattr(built(name), "weights", None))]
)
def test_the_weights_of_a_layer_are_its_own(name):
    layer, x = built(name), rows()
    (found, *_) = weighed(lambda: layer(x), layer)
    assert torch.equal(found.heads, layer.weights(x)[0].detach())
    assert found.heads.shape == (HEADS, N, N)


@pytest.mark.parametrize("name", names())
def test_every_mechanism_has_something_to_show_and_its_rows_add_up_to_one(name):
    layer, x = built(name), rows()
    found = weighed(lambda: layer(x), layer)
    assert found
    for part in found:
        sums = part.heads.sum(-1)
        if name == "local-p":  # Luong's weights fade without being normalised
            assert bool((sums <= 1 + 1e-5).all())
        elif "segment by segment" not in part.part:
            assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5), part.part


def test_watching_changes_nothing_and_leaves_no_hook():
    layer, x = built("static-memory", slots=3), rows()
    before = layer(x)
    weighed(lambda: layer(x), layer)
    assert torch.equal(layer(x), before)
    assert not any(part._forward_hooks for part in layer.modules())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", ["elu", "relu"])
def test_effective_weights_of_linear_mix_its_values_into_its_output(causal, feature_map):
    layer, x = built("linear", causal=causal, feature_map=feature_map), rows()
    (found,) = weighed(lambda: layer(x), layer)
    assert found.how == "effective"
    values = layer.value_map(x)[0].unflatten(-1, (HEADS, -1)).transpose(0, 1)  # (h,n,d)
    mixed = (found.heads @ values).transpose(0, 1).flatten(1)
    assert torch.allclose(layer.output_map(mixed), layer(x)[0], atol=1e-5)
    if causal:
        assert torch.equal(found.heads, found.heads.tril())


def test_linear_over_a_source_has_a_row_for_each_query():
    layer, query, source = built("linear"), rows(3), rows(5)
    (found,) = weighed(lambda: layer(query, source), layer)
    assert found.heads.shape == (HEADS, 3, 5)


def test_linear_in_steps_says_that_it_has_no_weights():
    layer = built("linear", causal=True)
    with pytest.raises(Unseen, match="only sums"):
        weighed(lambda: layer(rows(1), state=layer.initial_state(1)), layer)


def test_global_query_is_effective_within_a_sequence_and_exact_over_a_source():
    layer = built("global-query")
    assert weighed(lambda: layer(rows()), layer)[0].how == "effective"
    assert weighed(lambda: layer(rows(2), rows(5)), layer)[0].how == "exact"


def test_static_memory_is_written_by_its_slots_and_read_by_every_element():
    layer, x = built("static-memory", slots=3), rows()
    writing, reading = weighed(lambda: layer(x), layer)
    slots = layer.slots[None]
    assert torch.allclose(writing.heads, layer.writer.weights(slots, x)[0])
    assert torch.allclose(reading.heads, layer.reader.weights(x, layer.write(x))[0])
    assert (writing.rows, writing.columns, reading.rows, reading.columns) == (
        "slot", "source", "position", "slot",
    )  # fmt: skip


@pytest.mark.parametrize("length", [1, 3, 4, 7, 8])
def test_dynamic_memory_reads_what_a_state_would_hold(length):
    """Step by step, each element attends to the memory of its state and to its segment so far."""
    layer, x, slots, size = built("dynamic-memory", slots=2, segment=3), rows(length), 2, 3
    *_, reading = weighed(lambda: layer(x), layer)
    assert reading.heads.shape == (HEADS, length, slots + length)
    state = layer.initial_state(1)
    for i in range(length):
        begin = i // size * size
        seen = torch.cat([state.memory, x[:, begin : i + 1]], 1)
        own = layer.reader.weights(x[:, i : i + 1], seen)[0, :, 0]
        expected = torch.zeros(HEADS, slots + length)
        expected[:, :slots] = own[:, :slots]
        expected[:, slots + begin : slots + i + 1] = own[:, slots:]
        assert torch.allclose(reading.heads[:, i], expected, atol=1e-6)
        _, state = layer(x[:, i : i + 1], state=state)


def test_dynamic_memory_is_written_by_complete_segments_that_somebody_reads():
    layer, x, size = built("dynamic-memory", slots=2, segment=3), rows(8), 3
    writing, _ = weighed(lambda: layer(x), layer)
    state = layer.initial_state(1)
    for s in range(2):
        part = slice(s * size, (s + 1) * size)
        expected = layer.writer.weights(state.memory, x[:, part])[0]
        assert torch.allclose(writing.heads[:, :, part], expected, atol=1e-6)
        _, state = layer(x[:, part], state=state)
    assert (writing.heads[:, :, 6:] == 0).all()  # the open segment has written nothing


def test_the_reading_of_an_ntm_is_a_softmax_of_cosines():
    layer, x = built("ntm", slots=5, width=4), rows()
    writing, reading = weighed(lambda: layer(x), layer)
    _, trace, after = layer.tape(x)
    assert torch.allclose(writing.heads, trace.write[0].transpose(0, 1))
    keys = layer.key_map(x)[0].view(N, HEADS, 1, 4)
    beta = F.softplus(layer.strength_map(x))[0].view(N, HEADS, 1)
    expected = (beta * F.cosine_similarity(keys, after.memory[0], dim=-1)).softmax(-1)
    assert torch.allclose(reading.heads, expected.transpose(0, 1), atol=1e-5)


def test_hard_attention_shows_its_choice():
    layer, x = built("hard"), rows()
    (found,) = weighed(lambda: layer(x), layer)
    assert ((found.heads == 0) | (found.heads == 1)).all() and "choice" in found.part


def test_a_layer_that_was_not_called_is_unseen():
    layer = built("multihead")
    with pytest.raises(Unseen, match="not called"):
        weighed(lambda: None, layer)


def test_calls_are_noted_in_order_with_what_came_out():
    layer = torch.nn.Linear(2, 2)
    found = calls(lambda: (layer(torch.zeros(1, 2)), layer(torch.ones(1, 2))), layer)[layer]
    assert [float(call.given[0].sum()) for call in found] == [0.0, 2.0]
    assert torch.equal(found[1].result, layer(torch.ones(1, 2)))


@pytest.mark.parametrize(("q", "k"), [(3, 5), (5, 3)])
def test_a_linear_layer_from_the_top_left_shows_what_each_query_reached(q, k):
    torch.manual_seed(0)
    layer = regard.nn.build("linear", dim=6, num_heads=2, causal=True, align="top-left").double().eval()
    query, source = torch.randn(2, q, 6, dtype=torch.float64), torch.randn(2, k, 6, dtype=torch.float64)
    with torch.no_grad(), regard.observe(layer) as seen:
        found = layer(query, source)
    weights = seen[seen.names()[0]].weights()
    reached = torch.arange(k) <= torch.arange(q)[:, None]
    assert ((weights > 0) == reached).all()
    values = layer.value_map(source).unflatten(-1, (2, 3)).transpose(1, 2)
    mixed = layer.output_map((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixed, found, rtol=1e-9, atol=1e-9)

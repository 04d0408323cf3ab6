"""Observed mechanisms of ours: against their own `weights`, against states, and against formulas written by hand."""

import pytest
import torch
import torch.nn.functional as F

import regard
from regard import nn
from regard.nn.parts.mechanism import names
from regard.observation.capture.reading import Unreadable

DIM, HEADS, N = 6, 2, 7


def built(name, **options):
    torch.manual_seed(1)
    return nn.build(name, dim=DIM, num_heads=HEADS, **options).eval()


def rows(n=N):
    return torch.randn(1, n, DIM)


def observed(layer, *args, **kwargs):
    """The sites of one call, in the order of their calls."""
    with torch.no_grad(), regard.observe(layer) as seen:
        layer(*args, **kwargs)
    return [seen[name] for name in seen.names()]


def heads(site):
    """The weights of the first example, (h,q,k)."""
    return site.weights()[0]


@pytest.mark.parametrize("name", [name for name in names() if callable(getattr(built(name), "weights", None))])
def test_observed_weights_are_those_the_layer_computes_itself(name):
    layer, x = built(name), rows()
    (found, *_) = observed(layer, x)
    assert torch.equal(heads(found), layer.weights(x)[0].detach())
    assert heads(found).shape == (HEADS, N, N)


@pytest.mark.parametrize("name", names())
def test_every_mechanism_has_a_site_and_its_rows_sum_to_one(name):
    layer, x = built(name), rows()
    found = observed(layer, x)
    assert found
    for part in found:
        sums = heads(part).sum(-1)
        if name == "local-p":  # Luong's weights are scaled down and not normalised
            assert bool((sums <= 1 + 1e-5).all())
        elif not part.name.endswith("writing"):  # slots that are written segment by segment
            assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5), part.name


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", ["elu", "relu"])
def test_effective_weights_of_linear_mix_its_values_into_its_output(causal, feature_map):
    layer, x = built("linear", causal=causal, feature_map=feature_map), rows()
    (found,) = observed(layer, x)
    assert found.how == "effective"
    values = layer.value_map(x)[0].unflatten(-1, (HEADS, -1)).transpose(0, 1)  # (h,n,d)
    mixed = (heads(found) @ values).transpose(0, 1).flatten(1)
    assert torch.allclose(layer.output_map(mixed), layer(x)[0], atol=1e-5)
    if causal:
        assert torch.equal(heads(found), heads(found).tril())


def test_linear_over_a_source_has_a_row_for_each_query():
    layer, query, source = built("linear"), rows(3), rows(5)
    (found,) = observed(layer, query, source)
    assert heads(found).shape == (HEADS, 3, 5)


def test_linear_in_steps_says_that_it_has_no_weights():
    layer = built("linear", causal=True)
    (found,) = observed(layer, rows(1), state=layer.initial_state(1))
    with pytest.raises(Unreadable, match="only sums"):
        found.weights()


def test_global_query_is_effective_within_a_sequence_and_exact_over_a_source():
    layer = built("global-query")
    assert observed(layer, rows())[0].how == "effective"
    assert observed(layer, rows(2), rows(5))[0].how == "exact"


def test_static_memory_is_written_by_its_slots_and_read_by_every_element():
    layer, x = built("static-memory", slots=3), rows()
    writing, reading = observed(layer, x)
    slots = layer.slots[None]
    assert torch.allclose(heads(writing), layer.writer.weights(slots, x)[0])
    assert torch.allclose(heads(reading), layer.reader.weights(x, layer.write(x))[0])
    assert (writing.rows, writing.columns, reading.rows, reading.columns) == ("slot", "source", "position", "slot")


@pytest.mark.parametrize("length", [1, 3, 4, 7, 8])
def test_dynamic_memory_reads_what_a_state_would_hold(length):
    """Step by step, each element attends to the memory of its state and to its segment so far."""
    layer, x, slots, size = built("dynamic-memory", slots=2, segment=3), rows(length), 2, 3
    *_, reading = observed(layer, x)
    assert heads(reading).shape == (HEADS, length, slots + length)
    state = layer.initial_state(1)
    for i in range(length):
        begin = i // size * size
        seen = torch.cat([state.memory, x[:, begin : i + 1]], 1)
        own = layer.reader.weights(x[:, i : i + 1], seen)[0, :, 0]
        expected = torch.zeros(HEADS, slots + length)
        expected[:, :slots] = own[:, :slots]
        expected[:, slots + begin : slots + i + 1] = own[:, slots:]
        assert torch.allclose(heads(reading)[:, i], expected, atol=1e-6)
        _, state = layer(x[:, i : i + 1], state=state)


def test_dynamic_memory_is_written_by_complete_segments_that_a_later_position_reads():
    layer, x, size = built("dynamic-memory", slots=2, segment=3), rows(8), 3
    writing, _ = observed(layer, x)
    state = layer.initial_state(1)
    for s in range(2):
        part = slice(s * size, (s + 1) * size)
        expected = layer.writer.weights(state.memory, x[:, part])[0]
        assert torch.allclose(heads(writing)[:, :, part], expected, atol=1e-6)
        _, state = layer(x[:, part], state=state)
    assert (heads(writing)[:, :, 6:] == 0).all()  # the open segment has written nothing


def test_the_reading_of_an_ntm_is_a_softmax_of_cosines():
    layer, x = built("ntm", slots=5, width=4), rows()
    writing, reading = observed(layer, x)
    _, trace, after = layer.tape(x)
    assert torch.allclose(heads(writing), trace.write[0].transpose(0, 1))
    keys = layer.key_map(x)[0].view(N, HEADS, 1, 4)
    beta = F.softplus(layer.strength_map(x))[0].view(N, HEADS, 1)
    expected = (beta * F.cosine_similarity(keys, after.memory[0], dim=-1)).softmax(-1)
    assert torch.allclose(heads(reading), expected.transpose(0, 1), atol=1e-5)


def test_hard_attention_shows_its_choice():
    layer, x = built("hard"), rows()
    (found,) = observed(layer, x)
    assert ((heads(found) == 0) | (heads(found) == 1)).all()


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


def test_dynamic_memory_over_a_source_shows_how_its_slots_are_read():
    layer, query, source = built("dynamic-memory", slots=2, segment=3), rows(4), rows(8)
    (found,) = observed(layer, query, source)
    assert (found.rows, found.columns) == ("position", "slot")
    state = layer.initial_state(1)
    _, state = layer(query, source, state=state)
    assert torch.allclose(heads(found), layer.reader.weights(query, state.memory)[0], atol=1e-6)


def test_a_padded_example_of_dynamic_memory_says_that_it_has_no_map():
    layer = built("dynamic-memory", slots=2, segment=3)
    keep = torch.tensor([[True, True, False, True, True]])
    sites = observed(layer, rows(5), mask=regard.masks.padding(keep))
    with pytest.raises(Unreadable, match="padded"):
        sites[-1].weights()

"""Static memory against loops over its definition."""

import copy
import pickle

import pytest
import torch
from torch.nn.functional import layer_norm

from regard import masks
from regard.nn import build
from tests.nn.test_memory_layers import DIM, EXACT, HOLES, WIDE, B, K, Q, attended, made, rows

SLOTS = 4


def layer_of(**options):
    return made("static-memory", slots=SLOTS, **options)


def by_definition(layer, query, source):
    """One entry: slots attend to the source, then queries to the slots."""
    attends = lambda i, j: True  # noqa: E731
    memory = layer.slots + attended(layer.writer, layer.slots, source, attends)
    memory = layer_norm(memory, (DIM,), layer.norm.weight, layer.norm.bias)
    return attended(layer.reader, query, memory, attends)


@pytest.mark.parametrize("padded", [False, True])
def test_slots_read_the_source_and_queries_read_the_slots(padded):
    layer, query, source = layer_of(source_dim=WIDE), rows(B, Q, DIM), rows(B, K, WIDE)
    keep = HOLES if padded else torch.ones(B, K, dtype=torch.bool)
    if padded:
        source = source.masked_fill(~keep[..., None], torch.nan)
    out = layer(query, source, mask=masks.padding(keep) if padded else None)
    for e in range(B):
        torch.testing.assert_close(out[e], by_definition(layer, query[e], source[e, keep[e]]), **EXACT)


def test_without_a_source_the_queries_are_summarised():
    layer, x = layer_of(), rows(B, K, DIM)
    nonfinite = x.masked_fill(~HOLES[..., None], torch.inf)
    out = layer(nonfinite, mask=masks.padding(HOLES))
    assert out.isfinite().all()
    for e in range(B):
        expected = by_definition(layer, x[e, HOLES[e]], x[e, HOLES[e]])
        torch.testing.assert_close(out[e, HOLES[e]], expected, **EXACT)


def test_one_query_sees_everything_through_the_memory():
    layer, x = layer_of(), rows(1, K, DIM)
    changed = x.clone()
    changed[:, -1] += 1
    assert not torch.allclose(layer(changed)[:, :-1], layer(x)[:, :-1])


def test_a_source_that_is_all_padding_does_not_reach_the_slots():
    layer, query, source = layer_of(), rows(B, Q, DIM), rows(B, K, DIM)
    nothing = masks.padding(torch.zeros(B, K, dtype=torch.bool))
    out = layer(query, source * torch.nan, mask=nothing)
    torch.testing.assert_close(out, layer(query, source[:, :0]), **EXACT)
    memory = layer_norm(layer.slots + layer.writer.output_map.bias, (DIM,), layer.norm.weight, layer.norm.bias)
    expected = attended(layer.reader, query[0], memory, lambda i, j: True)
    torch.testing.assert_close(out[0], expected, **EXACT)
    grads = torch.autograd.grad(out.sum(), [layer.slots, layer.norm.weight, *layer.reader.parameters()])
    assert all(grad.isfinite().all() for grad in grads)


def test_the_first_call_writes_and_later_ones_only_read():
    layer, query, source = layer_of(source_dim=WIDE), rows(B, Q, DIM), rows(B, K, WIDE)
    mask = masks.padding(HOLES)
    expected = layer(query, source, mask=mask)
    first, state = layer(query[:, :2], source, mask=mask, state=layer.initial_state(B))
    again, _ = layer(query[:, 2:], source, mask=mask, state=state)
    alone, after = layer(query[:, 2:], state=state)
    torch.testing.assert_close(torch.cat([first, again], 1), expected, **EXACT)
    torch.testing.assert_close(again, alone, rtol=0, atol=0)
    assert after.memory is state.memory and after.seen == Q
    with pytest.raises(ValueError, match="source: the memory of this state holds a source of length 7"):
        layer(query, source[:, 1:], state=state)


def test_without_a_source_the_queries_of_the_first_call_are_the_memory():
    layer, x = layer_of(), rows(B, K, DIM)
    keep = HOLES[:, :4]
    _, state = layer(x[:, :4], mask=masks.padding(keep), state=layer.initial_state(B))
    later = x[:, 4:].masked_fill(~HOLES[:, 4:, None], torch.nan)
    found, state = layer(later, mask=masks.padding(HOLES[:, 4:]), state=state)
    assert found.isfinite().all()
    expected = layer(x[:, 4:], x[:, :4], mask=masks.padding(keep))
    torch.testing.assert_close(found[HOLES[:, 4:]], expected[HOLES[:, 4:]], **EXACT)
    with pytest.raises(ValueError, match="source: the memory of this state was written by the queries"):
        layer(x, x, state=state)


def test_a_state_can_be_copied_reordered_and_continued_twice():
    layer, x = layer_of(), rows(B, K, DIM)
    _, state = layer(x, state=layer.initial_state(B))
    expected, _ = layer(x[:, :2], state=state)
    for copied in (copy.deepcopy(state), pickle.loads(pickle.dumps(state.detach()))):
        torch.testing.assert_close(layer(x[:, :2], state=copied)[0], expected, rtol=0, atol=0)
    index = torch.tensor([2, 0, 0, 1])
    moved, _ = layer(x[index, :2], state=state.reorder(index))
    torch.testing.assert_close(moved, expected[index], **EXACT)
    with pytest.raises(ValueError, match=r"state: expected a batch of .* got a batch of 3"):
        layer(x[:1], state=state)
    with pytest.raises(TypeError, match="state: expected the result of initial_state"):
        layer(x, state=layer.reader.initial_state(B))


def test_at_least_one_slot_is_needed():
    with pytest.raises(ValueError, match="slots: expected a whole number of at least 1"):
        build("static-memory", dim=DIM, slots=0)
    assert "slots=4" in repr(layer_of())

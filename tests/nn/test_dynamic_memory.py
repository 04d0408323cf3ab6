"""Dynamic memory against its definition, computed element by element."""

import pytest
import torch
from torch.nn.functional import linear

import regard
from regard import masks
from regard.nn import build
from tests.nn.test_memory_layers import DIM, EXACT, WIDE, B, attended, made, rows

LENGTH, SLOTS = 11, 4
GAPS = torch.ones(B, LENGTH, dtype=torch.bool)
GAPS[0, [0, 4, 5, 10]] = False
GAPS[2, :] = torch.tensor([0, 1, 0, 0, 0, 1, 1, 0, 1, 1, 0], dtype=torch.bool)


def layer_of(segment=3, **options):
    return made("dynamic-memory", slots=SLOTS, segment=segment, **options)


def everything(i, j):
    return True


def rewritten(layer, memory, segment):
    """The memory (m,dim) after the gated recurrent unit has read a segment (n,dim)."""
    given = attended(layer.writer, memory, segment, everything)
    gate = layer.gate
    x_r, x_z, x_n = linear(given, gate.weight_ih, gate.bias_ih).chunk(3, 1)
    h_r, h_z, h_n = linear(memory, gate.weight_hh, gate.bias_hh).chunk(3, 1)
    forget = torch.sigmoid(x_z + h_z)
    new = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
    return (1 - forget) * new + forget * memory


def by_definition(layer, x, keep):
    """One entry, element by element; padding gets zeros."""
    memory, segment, found = layer.slots, [], []
    for row, real in zip(x, keep, strict=True):
        if not real:
            found.append(torch.zeros(DIM, dtype=x.dtype))
            continue
        segment.append(row)
        seen = torch.cat([memory, torch.stack(segment)])
        found.append(attended(layer.reader, row[None], seen, everything)[0])
        if len(segment) == layer.segment:
            memory, segment = rewritten(layer, memory, torch.stack(segment)), []
    return torch.stack(found)


def fed(layer, x, sizes, keep=None):
    """The outputs of the layer for consecutive parts, and the last state."""
    state, found, start = layer.initial_state(len(x)), [], 0
    for size in sizes:
        part = slice(start, start + size)
        mask = None if keep is None else masks.padding(keep[:, part])
        out, state = layer(x[:, part], mask=mask, state=state)
        found, start = [*found, out], start + size
    assert start == x.shape[1]
    return torch.cat(found, 1), state


@pytest.mark.parametrize("segment", [1, 3, 4, 16])
@pytest.mark.parametrize("padded", [False, True])
def test_all_segments_at_once_equal_the_definition(segment, padded):
    layer, x = layer_of(segment), rows(B, LENGTH, DIM)
    keep = GAPS if padded else torch.ones_like(GAPS)
    given = x.masked_fill(~keep[..., None], torch.nan)
    out = layer(given, mask=masks.padding(keep) if padded else None)
    for e in range(B):
        torch.testing.assert_close(out[e], by_definition(layer, x[e], keep[e]), **EXACT)


SPLITS = [(1,) * LENGTH, (4, 7), (2, 0, 3, 6), (10, 1), (LENGTH,)]


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("segment", [1, 3, 16])
def test_any_split_into_calls_equals_one_call(segment, sizes):
    layer, x = layer_of(segment), rows(B, LENGTH, DIM)
    torch.testing.assert_close(fed(layer, x, sizes)[0], layer(x), **EXACT)
    nonfinite = x.masked_fill(~GAPS[..., None], torch.nan)
    found, state = fed(layer, nonfinite, sizes, GAPS)
    torch.testing.assert_close(found, layer(x, mask=masks.padding(GAPS)), **EXACT)
    assert state.seen == LENGTH
    assert state.count.tolist() == [n % segment for n in GAPS.sum(1).tolist()]


def test_a_segment_writes_only_when_it_is_complete():
    layer, x = layer_of(4), rows(1, 4, DIM)
    _, state = layer(x[:, :3], state=layer.initial_state(1))
    torch.testing.assert_close(state.memory[0], layer.slots, rtol=0, atol=0)
    torch.testing.assert_close(state.open[:, :3], x[:, :3], rtol=0, atol=0)
    _, state = layer(x[:, 3:], state=state)
    torch.testing.assert_close(state.memory[0], rewritten(layer, layer.slots, x[0]), **EXACT)
    assert state.count.tolist() == [0] and (state.open == 0).all()


@pytest.mark.parametrize("padded", [False, True])
def test_a_source_is_written_to_its_end_and_then_read(padded):
    layer, query, source = layer_of(source_dim=WIDE), rows(B, 5, DIM), rows(B, LENGTH, WIDE)
    keep = GAPS if padded else torch.ones_like(GAPS)
    mask = masks.padding(keep) if padded else None
    out = layer(query, source.masked_fill(~keep[..., None], torch.nan), mask=mask)
    for e in range(B):
        memory, real = layer.slots, linear(source[e, keep[e]], layer.source_map.weight, layer.source_map.bias)
        for start in range(0, len(real), 3):
            memory = rewritten(layer, memory, real[start : start + 3])
        torch.testing.assert_close(out[e], attended(layer.reader, query[e], memory, everything), **EXACT)


def test_a_source_is_written_once_for_all_steps():
    layer, query, source = layer_of(source_dim=WIDE), rows(B, 5, DIM), rows(B, LENGTH, WIDE)
    mask = masks.padding(GAPS)
    first, state = layer(query[:, :2], source, mask=mask, state=layer.initial_state(B))
    again, _ = layer(query[:, 2:], source, mask=mask, state=state)
    alone, _ = layer(query[:, 2:], state=state)
    torch.testing.assert_close(torch.cat([first, again], 1), layer(query, source, mask=mask), **EXACT)
    torch.testing.assert_close(again, alone, rtol=0, atol=0)
    with pytest.raises(ValueError, match="source: the memory of this state holds a source of length 11"):
        layer(query, source[:, 1:], state=state)


def test_a_source_that_is_all_padding_leaves_the_slots_unchanged():
    layer, query, source = layer_of(), rows(B, 5, DIM), rows(B, LENGTH, DIM)
    out = layer(query, source * torch.nan, mask=masks.lengths(torch.zeros(B, dtype=torch.int64)))
    torch.testing.assert_close(out[1], attended(layer.reader, query[1], layer.slots, everything), **EXACT)
    torch.testing.assert_close(out, layer(query, source[:, :0]), **EXACT)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_non_finite_element_shows_in_its_own_and_later_outputs_only(poison):
    layer, x = layer_of(), rows(B, LENGTH, DIM)
    past = lambda out: (out[:, :4] * rows(B, 4, DIM, seed=3)).sum()  # noqa: E731
    clean = layer(x)
    expected = torch.autograd.grad(past(clean), list(layer.parameters()), allow_unused=True)
    x[1, 4, 2] = poison
    for out in (layer(x), layer(x, mask=masks.full()), fed(layer, x, (5, 1, 5))[0], fed(layer, x, (3, 8))[0]):
        assert out[1, 4:].isnan().all()
        torch.testing.assert_close(out[1, :4], clean[1, :4], **EXACT)
        torch.testing.assert_close(out[[0, 2]], clean[[0, 2]], **EXACT)
    grads = torch.autograd.grad(past(layer(x)), list(layer.parameters()), allow_unused=True)
    for found, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(found, wanted, **EXACT)


def test_errors_name_the_argument():
    layer, x = layer_of(), rows(B, LENGTH, DIM)
    _, state = layer(x, state=layer.initial_state(B))
    with pytest.raises(ValueError, match="source: the memory of this state was written by the queries"):
        layer(x, x, state=state)
    with pytest.raises(ValueError, match=r"state: expected a batch of .* got a batch of 3"):
        layer(x[:2], state=state)
    with pytest.raises(TypeError, match="state: expected the result of initial_state"):
        layer(x, state=made("static-memory", slots=SLOTS).initial_state(B))
    for mask in (masks.causal(), torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()):
        with pytest.raises(regard.RegardError, match="depends on the query"):
            layer(x, mask=mask)
    for option in ("slots", "segment"):
        with pytest.raises(ValueError, match=f"{option}: expected a whole number of at least 1"):
            build("dynamic-memory", dim=DIM, **{option: 0})
    assert "slots=4, segment=3" in repr(layer)

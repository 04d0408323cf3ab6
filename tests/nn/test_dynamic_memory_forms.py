"""The two updates of `dynamic-memory` and reading in both directions: numbers worked by hand, and plain loops."""

import math

import pytest
import torch
from torch.nn.functional import layer_norm

import regard
from regard import masks
from regard.nn import build
from tests.nn.test_dynamic_memory import GAPS, LENGTH, SLOTS, everything, layer_of, rewritten
from tests.nn.test_memory_layers import DIM, EXACT, WIDE, B, attended, made, rows

FORMS = [(update, both) for update in ("gru", "memory") for both in (False, True)]


def updated(layer, memory, segment):
    """The memory (m,dim) after a segment (n,dim), by the formula of the layer's form."""
    if layer.update == "gru":
        return rewritten(layer, memory, segment)
    added = memory + attended(layer.writer, memory, segment, everything)
    return layer_norm(added, (DIM,), layer.norm.weight, layer.norm.bias)


def segments_of(layer, real):
    return [real[start : start + layer.segment] for start in range(0, len(real), layer.segment)]


def passed(layer, memory, segments):
    """The memory after several segments, one after the other."""
    for segment in segments:
        memory = updated(layer, memory, segment)
    return memory


def by_definition(layer, x, keep):
    """One entry, element by element; padding gets zeros."""
    segments = segments_of(layer, x[keep])
    found = []
    for s, segment in enumerate(segments):
        memory = passed(layer, layer.slots, segments[:s])
        for i, row in enumerate(segment):
            seen = torch.cat([memory, segment[: i + 1]])
            if layer.bidirectional:
                later = passed(layer, layer.later_slots, segments[:s:-1])
                seen = torch.cat([memory, later, segment])
            found.append(attended(layer.reader, row[None], seen, everything)[0])
    out = torch.zeros_like(x)
    if found:
        out[keep] = torch.stack(found)
    return out


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("segment", [1, 3, 16])
@pytest.mark.parametrize(("update", "both"), FORMS)
def test_each_form_equals_its_definition(update, both, segment, padded):
    layer, x = layer_of(segment, update=update, bidirectional=both), rows(B, LENGTH, DIM)
    keep = GAPS if padded else torch.ones_like(GAPS)
    given = x.masked_fill(~keep[..., None], torch.nan)
    out = layer(given, mask=masks.padding(keep) if padded else None)
    for e in range(B):
        torch.testing.assert_close(out[e], by_definition(layer, x[e], keep[e]), **EXACT)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("update", "both"), FORMS)
def test_a_source_is_written_to_its_end_in_each_form(update, both, padded):
    layer = layer_of(update=update, bidirectional=both)
    query, source = rows(B, 5, DIM), rows(B, LENGTH, DIM, seed=2)
    keep = GAPS if padded else torch.ones_like(GAPS)
    mask = masks.padding(keep) if padded else None
    given = source.masked_fill(~keep[..., None], torch.nan)
    first, state = layer(query[:, :2], given, mask=mask, state=layer.initial_state(B))
    steps = torch.cat([first, layer(query[:, 2:], state=state)[0]], 1)
    torch.testing.assert_close(steps, layer(query, given, mask=mask), **EXACT)
    for e in range(B):
        segments = segments_of(layer, source[e, keep[e]])
        memory = passed(layer, layer.slots, segments)
        if both:
            memory = torch.cat([memory, passed(layer, layer.later_slots, segments[::-1])])
        torch.testing.assert_close(steps[e], attended(layer.reader, query[e], memory, everything), **EXACT)


def plain_layer(update):
    """A layer of width 2 with one slot of zeros, in which attention returns the mean of what it sees."""
    layer = build("dynamic-memory", dim=2, slots=1, segment=1, update=update)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        for heads in (layer.writer, layer.reader):
            heads.value_map.weight.copy_(torch.eye(2))
            heads.output_map.weight.copy_(torch.eye(2))
        if update == "gru":
            layer.gate.weight_ih[4:].copy_(torch.eye(2))  # the candidate n; the gate z stays sigmoid(0) = ½
        else:
            layer.norm.weight.fill_(1.0)
    return layer


def test_the_numbers_of_update_memory_worked_by_hand():
    """M_1 = norm([2, 0]) = [1, −1];  M_2 = norm([1, −1] + [0, 4]) = norm([1, 3]) = [−1, 1]."""
    layer, source, query = (plain_layer("memory"), torch.tensor([[[2.0, 0.0], [0.0, 4.0]]]), torch.ones(1, 1, 2))
    found = [layer(query, source[:, :count])[0, 0].tolist() for count in (0, 1, 2)]
    for mine, wanted in zip(found, ([0, 0], [1, -1], [-1, 1]), strict=True):
        assert mine == pytest.approx(wanted, abs=1e-4)  # the norm's eps
    # Within a sequence: x_1 reads the mean of M_0 and itself, x_2 that of M_1 and itself.
    assert layer(source)[0].flatten().tolist() == pytest.approx([1, 0, 0.5, 1.5], abs=1e-4)


def test_the_numbers_of_update_gru_worked_by_hand():
    """M_1 = ½·tanh([2, 0]);  M_2 = ½·tanh([0, 4]) + ½·M_1."""
    layer, source, query = plain_layer("gru"), torch.tensor([[[2.0, 0.0], [0.0, 4.0]]]), torch.ones(1, 1, 2)
    wanted = [math.tanh(2) / 4, math.tanh(4) / 2]
    assert layer(query, source)[0, 0].tolist() == pytest.approx(wanted, abs=1e-6)
    assert layer(source)[0, 1].tolist() == pytest.approx([math.tanh(2) / 4, 2], abs=1e-6)


def test_update_memory_over_one_segment_is_the_memory_of_static_memory():
    static = made("static-memory", slots=SLOTS, source_dim=DIM)
    dynamic = layer_of(segment=LENGTH, update="memory")
    dynamic.load_state_dict(static.state_dict())
    query, source, mask = rows(B, 5, DIM), rows(B, LENGTH, DIM, seed=2), masks.padding(GAPS)
    torch.testing.assert_close(dynamic(query, source), static(query, source), **EXACT)
    torch.testing.assert_close(dynamic(query, source, mask=mask), static(query, source, mask=mask), **EXACT)


@pytest.mark.parametrize("update", ["gru", "memory"])
def test_in_both_directions_every_element_depends_on_every_other(update):
    layer, x = layer_of(update=update, bidirectional=True), rows(1, LENGTH, DIM).requires_grad_()
    for i in (0, 5, LENGTH - 1):
        reached = torch.autograd.grad(layer(x)[0, i].square().sum(), x)[0][0].abs().sum(1) > 0
        assert reached.all(), i


def test_a_reversed_sequence_of_whole_segments_swaps_the_two_memories():
    layer, x = layer_of(4, bidirectional=True), rows(B, 12, DIM)
    swapped = layer_of(4, bidirectional=True)
    swapped.load_state_dict(
        {**layer.state_dict(), "slots": layer.later_slots, "later_slots": layer.slots}
    )  # attention does not depend on the order of its keys
    torch.testing.assert_close(swapped(x.flip(1)).flip(1), layer(x), **EXACT)


def test_a_non_finite_element_shows_everywhere_in_both_directions_but_in_no_other_entry():
    layer, x = layer_of(bidirectional=True), rows(B, LENGTH, DIM)
    clean = layer(x)
    wanted = torch.autograd.grad(clean[[0, 2]].sum(), list(layer.parameters()))
    x[1, 4, 2] = torch.nan
    out = layer(x)
    assert out[1].isnan().all()
    torch.testing.assert_close(out[[0, 2]], clean[[0, 2]], **EXACT)
    for found, expected in zip(torch.autograd.grad(out[[0, 2]].sum(), list(layer.parameters())), wanted, strict=True):
        torch.testing.assert_close(found, expected, **EXACT)


def test_what_both_directions_cannot_do_is_refused():
    layer, x = layer_of(bidirectional=True), rows(B, LENGTH, DIM)
    with pytest.raises(ValueError, match="state: a layer with bidirectional=True reads a sequence from both ends"):
        layer(x, state=layer.initial_state(B))
    with pytest.raises(ValueError, match="a decoder cannot attend to later positions, got dynamic-memory with bidir"):
        regard.nn.parts.blocks.DecoderLayer(DIM, "dynamic-memory(bidirectional=true)")
    with pytest.raises(ValueError, match=r"update: there is no 'grus'. Did you mean 'gru'\?"):
        build("dynamic-memory", dim=DIM, update="grus")
    assert "update='gru', bidirectional=True" in repr(layer)


def test_an_encoder_layer_reads_in_both_directions_unless_its_options_say_otherwise():
    encoder, decoder = regard.nn.parts.blocks.EncoderLayer, regard.nn.parts.blocks.DecoderLayer
    assert encoder(DIM, "dynamic-memory").attention.bidirectional
    assert not encoder(DIM, "dynamic-memory(bidirectional=false)").attention.bidirectional
    assert not encoder(DIM, "dynamic-memory", causal=True).attention.bidirectional
    assert not decoder(DIM, "dynamic-memory").attention.bidirectional
    assert not build("dynamic-memory", dim=DIM).bidirectional


@pytest.mark.parametrize("both", [False, True])
def test_the_forms_have_numerically_right_gradients(both):
    layer, x = layer_of(2, update="memory", bidirectional=both), rows(2, 5, DIM)
    mask = masks.padding(torch.tensor([[1, 0, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool))

    def every_use(x, *_):
        return torch.cat([layer(x), layer(x, mask=mask), layer(x[:, :2], x, mask=mask)], 1)

    assert torch.autograd.gradcheck(every_use, [x.requires_grad_(), *layer.parameters()], fast_mode=True)


def test_a_source_of_another_width_is_mapped_in_both_directions():
    layer = layer_of(bidirectional=True, source_dim=WIDE)
    source = rows(B, LENGTH, WIDE)
    found = layer(rows(B, 5, DIM), source)
    assert found.shape == (B, 5, DIM)
    assert not torch.allclose(found, layer(rows(B, 5, DIM), source.flip(1)))

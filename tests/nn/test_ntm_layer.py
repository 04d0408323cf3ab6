"""The mechanism `ntm`: the source is written step by step, then the queries read by content."""

import pytest
import torch

import regard.nn
from regard import masks
from regard.errors import BadType, BadValue
from regard.nn import ntm
from regard.nn.ntm import plain

B, Q, K, DIM, SOURCE = 2, 3, 5, 6, 4
KEEP = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], dtype=torch.bool)

FORMS = {
    "feed-forward": {},
    "lstm": {"controller": "lstm"},
    "one writes, three read": {"num_heads": 3, "write_heads": 1, "width": 5},
    "constant": {"initial": "constant", "hidden": 7},
}
by_form = pytest.mark.parametrize("form", FORMS)


def build(form="feed-forward", dtype=torch.float64, **options):
    torch.manual_seed(3)
    options = {"num_heads": 2, "source_dim": SOURCE, "slots": 7, **FORMS[form], **options}
    layer = regard.nn.build("ntm", dim=DIM, **options).to(dtype).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return layer


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(B, Q, DIM, generator=generator, dtype=torch.float64)
    return query.to(dtype), torch.randn(B, K, SOURCE, generator=generator, dtype=torch.float64).to(dtype)


def read_by_loops(layer, query, memory):
    """Query by query and head by head, with the function for one head."""
    found = torch.zeros(B, query.shape[1], layer.dim, dtype=query.dtype)
    for i in range(query.shape[1]):
        keys, strengths = (layer.key_map(query[:, i]), torch.nn.functional.softplus(layer.strength_map(query[:, i])))
        reads = []
        for head in range(layer.num_heads):
            key = keys[:, head * layer.width : (head + 1) * layer.width]
            weights = ntm.content_address(memory, key, strengths[:, head : head + 1])
            reads.append(ntm.read(memory, weights))
        found[:, i] = layer.output_map(torch.cat(reads, 1))
    return found


def written_by_steps(layer, source):
    """The memory after the source, one plain step after another."""
    tape, layout = layer.tape, layer.tape.layout
    state = tape.initial_state(B, dtype=source.dtype)
    hidden = torch.zeros(B, layout.hidden, dtype=source.dtype)
    before = plain.Carried(hidden, hidden if layout.lstm else hidden[:, :0], state.write_weights, state.memory)
    trained = plain.Weights(tape.controller.recurrent, tape.heads.weight, tape.heads.bias)
    for element in source.unbind(1):
        before = plain.step(layout, tape.controller.input(element), trained, before)
    return before.memory


@by_form
def test_the_source_is_written_and_the_queries_read(form):
    layer, (query, source) = build(form), inputs()
    expected = read_by_loops(layer, query, written_by_steps(layer, source))
    torch.testing.assert_close(layer(query, source), expected, rtol=1e-10, atol=1e-10)


def test_without_a_source_the_queries_are_written_and_then_read():
    layer, (query, _) = build(source_dim=None), inputs()
    expected = read_by_loops(layer, query, written_by_steps(layer, query))
    torch.testing.assert_close(layer(query), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer(query), layer(query, query))


@by_form
@pytest.mark.parametrize("cuts", [[1, 2, 3, 4], [2], [0, 5]])
def test_any_split_of_the_source_gives_the_same_memory_and_reads(form, cuts):
    layer, (query, source) = build(form), inputs()
    expected, last = layer(query, source, mask=masks.padding(KEEP), state=layer.initial_state(B))
    torch.testing.assert_close(expected, layer(query, source, mask=masks.padding(KEEP)))
    state = layer.initial_state(B)
    for start, stop in zip([0, *cuts], [*cuts, K], strict=True):
        state = layer.write(source[:, start:stop], state, mask=masks.padding(KEEP[:, start:stop]))
    torch.testing.assert_close(layer(query, state=state)[0], expected)
    torch.testing.assert_close(state.memory, last.memory)
    torch.testing.assert_close(state.write_weights, last.write_weights)
    assert state.seen == last.seen == K


def test_a_later_part_may_come_with_a_mask_over_all_parts_so_far():
    layer, (query, source) = build(), inputs()
    expected = layer(query, source, mask=masks.padding(KEEP))
    state = layer.write(source[:, :2], layer.initial_state(B), mask=masks.padding(KEEP[:, :2]))
    state = layer.write(source[:, 2:], state, mask=masks.padding(KEEP))
    torch.testing.assert_close(layer(query, state=state)[0], expected)


def test_a_source_is_written_once_however_often_it_is_passed():
    layer, (query, source) = build(), inputs()
    expected = layer(query, source, mask=masks.padding(KEEP))
    state, found = layer.initial_state(B), []
    for t in range(Q):
        given = None if t == 1 else source
        out, state = layer(query[:, t : t + 1], given, mask=masks.padding(KEEP), state=state)
        found.append(out)
    torch.testing.assert_close(torch.cat(found, 1), expected)
    assert state.seen == state.source == K
    with pytest.raises(BadValue, match=r"length 5, got a source of length 4.*write\(part, state\)"):
        layer(query, source[:, 1:], state=state)


def test_a_memory_written_by_queries_accepts_no_source():
    layer, (query, _) = build(source_dim=None), inputs()
    _, state = layer(query, state=layer.initial_state(B))
    with pytest.raises(BadValue, match="written by the queries"):
        layer(query, query, state=state)


def test_states_are_immutable_and_read_writes_nothing():
    layer, (query, source) = build(), inputs()
    out, state = layer(query, source, state=layer.initial_state(B))
    before = state.memory.clone()
    torch.testing.assert_close(layer.read(query, state), out)
    layer(query, source, state=state)
    assert torch.equal(state.memory, before)
    again, after = layer(query, state=state)
    torch.testing.assert_close(again, out)
    assert torch.equal(after.memory, before)


def test_a_source_that_is_all_padding_leaves_the_initial_memory():
    layer, (query, source) = build(), inputs()
    nothing = layer.read(query, layer.initial_state(B))
    torch.testing.assert_close(layer(query, source[:, :0]), nothing)
    torch.testing.assert_close(layer(query, source, mask=masks.lengths([0, 0])), nothing)
    constant = regard.nn.build("ntm", dim=DIM, source_dim=SOURCE, initial="constant").double()
    found = constant(query, source[:, :0])
    torch.testing.assert_close(found, constant.output_map.bias.expand_as(found), rtol=0, atol=1e-4)


def test_errors_name_the_argument():
    layer, (query, source) = build(), inputs()
    with pytest.raises(BadType, match=r"^state: "):
        layer(query, source, state=object())
    with pytest.raises(BadValue, match=r"^state: "):
        layer(query, source, state=layer.initial_state(B + 1))
    with pytest.raises(BadValue, match=r"^source: "):
        layer(query)
    with pytest.raises(BadValue, match="option of ntm"):
        regard.nn.build("ntm", dim=4, slot=3)
    with pytest.raises(BadValue, match=r"^write_heads: "):
        regard.nn.build("ntm", dim=4, write_heads=0)

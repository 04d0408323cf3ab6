"""`dot`, `general`, `concat`, `additive` against loops over the equations of their papers."""

import math

import pytest
import torch

import regard
from regard import masks
from regard.nn import build

B, Q, K, DIM = 2, 3, 5, 6
NAMES = ["dot", "general", "concat", "additive"]


def made(name, **options):
    return build(name, dim=DIM, **options).double()


def rows(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def score(name, compare, head, query, key):
    """The score of one query and one key, as the papers write it."""
    if name == "dot":
        return float(sum(q * k for q, k in zip(query, key, strict=True)))
    if name == "general":
        return float(query @ (compare.weight[head] @ key))
    if name == "concat":
        hidden = compare.weight[head] @ torch.cat([query, key])
    else:
        hidden = compare.query_weight[head] @ query + compare.key_weight[head] @ key
    return float(sum(v * math.tanh(x) for v, x in zip(compare.vector[head], hidden, strict=True)))


@torch.no_grad()
def by_loops(name, layer, query, source, visible):
    """Context vectors (b,q,dim) and weights (b,h,q,k), pair by pair. `visible(b,i,j)`: whether query i sees key j."""
    if layer.source_map is not None:
        source = source @ layer.source_map.weight.T
    width = layer.head_dim
    out = torch.zeros_like(query)
    weights = torch.zeros(len(query), layer.num_heads, query.shape[1], source.shape[1], dtype=torch.float64)
    for b in range(len(query)):
        for head in range(layer.num_heads):
            part = slice(head * width, (head + 1) * width)
            for i in range(query.shape[1]):
                seen = [j for j in range(source.shape[1]) if visible(b, i, j)]
                raw = [math.exp(score(name, layer.compare, head, query[b, i, part], source[b, j, part])) for j in seen]
                for j, number in zip(seen, raw, strict=True):
                    weights[b, head, i, j] = number / sum(raw)
                    out[b, i, part] += number / sum(raw) * source[b, j, part]
    return out, weights


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("source_dim", [None, 7])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_weights_equal_those_of_the_paper(name, source_dim, heads):
    layer = made(name, num_heads=heads, source_dim=source_dim)
    query, source = rows(B, Q, DIM), rows(B, K, source_dim or DIM, seed=1)
    keep = torch.tensor([[True] * K, [True, False, True, True, False]])
    out, weights = by_loops(name, layer, query, source, lambda b, i, j: keep[b, j])
    torch.testing.assert_close(layer(query, source, mask=masks.padding(keep)), out, rtol=0, atol=1e-12)
    found = layer.weights(query, source, mask=masks.padding(keep))
    torch.testing.assert_close(found, weights, rtol=0, atol=1e-12)
    part = layer.weights(query, source, mask=masks.padding(keep), rows=[2, 0], heads=[heads - 1])
    torch.testing.assert_close(part, found[:, [heads - 1]][:, :, [2, 0]])


@pytest.mark.parametrize("name", NAMES)
def test_causal_rows_see_themselves_and_earlier_rows(name):
    layer, query = made(name, num_heads=3, causal=True), rows(B, K, DIM)
    out, _ = by_loops(name, layer, query, query, lambda b, i, j: j <= i)
    torch.testing.assert_close(layer(query), out, rtol=0, atol=1e-12)


def test_a_dot_product_by_hand():
    # q = (1, 0), h = (ln 2, 0) and (0, 5): scores ln 2 and 0, weights 2/3 and 1/3.
    source = torch.tensor([[[math.log(2), 0.0], [0.0, 5.0]]])
    layer = build("dot", dim=2)
    torch.testing.assert_close(layer.weights(torch.tensor([[[1.0, 0.0]]]), source), torch.tensor([[[[2 / 3, 1 / 3]]]]))
    expected = torch.tensor([[[2 / 3 * math.log(2), 5 / 3]]])
    torch.testing.assert_close(layer(torch.tensor([[[1.0, 0.0]]]), source), expected)


def test_the_matrix_of_general_is_not_transposed():
    # q = (1, 0), h = (0, ln 3): q·W h = W[0][1]·ln 3. With W transposed it would be W[1][0]·ln 3 = 0.
    layer = build("general", dim=2)
    with torch.no_grad():
        layer.compare.weight.copy_(torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]))
    source = torch.tensor([[[0.0, math.log(3)], [0.0, 0.0]]])
    found = layer.weights(torch.tensor([[[1.0, 0.0]]]), source)
    torch.testing.assert_close(found, torch.tensor([[[[3 / 4, 1 / 4]]]]))


@pytest.mark.parametrize(("name", "expected"), [("concat", 7 * 2 * 6 + 7), ("additive", 7 * 6 + 7 * 6 + 7)])
def test_attention_dim_is_the_width_of_the_hidden_layer(name, expected):
    layer = made(name, attention_dim=7)
    assert sum(p.numel() for p in layer.parameters()) == expected
    query, source = rows(B, Q, DIM), rows(B, K, DIM, seed=1)
    out, _ = by_loops(name, layer, query, source, lambda b, i, j: True)
    torch.testing.assert_close(layer(query, source), out, rtol=0, atol=1e-12)
    _, state = layer(query, source, state=layer.initial_state(B))
    assert (state.keys.shape, state.values.shape) == ((B, 1, K, 7), (B, 1, K, DIM))
    with pytest.raises(ValueError, match="attention_dim"):
        made(name, attention_dim=0)


PAPER = {"dot": [], "general": [(1, 6, 6)], "concat": [(1, 6, 12), (1, 6)], "additive": [(1, 6, 6), (1, 6, 6), (1, 6)]}


@pytest.mark.parametrize(("name", "expected"), PAPER.items())
def test_each_has_the_parameters_of_its_paper_and_no_others(name, expected):
    assert [tuple(p.shape) for p in made(name).parameters()] == expected
    wider = [tuple(p.shape) for p in made(name, source_dim=7).parameters()]
    assert sorted(wider) == sorted([*expected, (DIM, 7)])
    assert list(made(name, source_dim=7).state_dict()) == [n for n, _ in made(name, source_dim=7).named_parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_they_have_no_window(name):
    with pytest.raises(regard.RegardError, match="window"):
        build(name, dim=DIM, window=3)


@pytest.mark.parametrize("name", NAMES)
def test_steps_over_a_source_project_it_once(name, monkeypatch):
    layer = made(name, num_heads=2, source_dim=7)
    query, source = rows(B, Q, DIM), rows(B, K, 7, seed=1)
    mask = masks.lengths(torch.tensor([5, 2]))
    whole = layer(query, source, mask=mask)
    calls = []
    project = layer.project_source
    monkeypatch.setattr(layer, "project_source", lambda *given: calls.append(1) or project(*given))
    state, found = layer.initial_state(B), []
    for step in range(Q):
        given = {"source": source, "mask": mask} if step == 0 else {}
        out, state = layer(query[:, step : step + 1], state=state, **given)
        found.append(out)
    assert len(calls) == 1
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=0, atol=1e-10)


def test_a_layer_without_parameters_makes_states_of_its_own_dtype():
    assert build("dot", dim=DIM).double().initial_state(B).keys.dtype == torch.float64
    assert build("dot", dim=DIM).initial_state(B, dtype=torch.bfloat16).keys.dtype == torch.bfloat16


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize(
    "name",
    [
        "additive",
        "concat",
        "local-p(window=3)",
        "local-p(window=3, renormalize=True)",
        "local-m(window=3, gaussian=True)",
    ],
)
def test_one_query_gives_what_it_gives_among_others(name, num_heads):
    """A step projects and weighs by other code; its outputs and gradients stay those of one call."""
    torch.manual_seed(3)
    layer = regard.nn.build(name, dim=6, num_heads=num_heads).double()
    query = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    source = torch.randn(2, 7, 6, dtype=torch.float64, requires_grad=True)
    mask = masks.lengths(torch.tensor([7, 4]))
    weighing = torch.randn(2, 5, 6, dtype=torch.float64)
    inputs = [query, source, *layer.parameters()]

    def by_steps():
        state, found = layer.initial_state(2), []
        for row in query.split(1, 1):
            out, state = layer(row, source, mask=mask, state=state)
            found.append(out)
        return torch.cat(found, 1)

    together, apart = layer(query, source, mask=mask), by_steps()
    torch.testing.assert_close(apart, together, rtol=1e-10, atol=1e-12)
    expected = torch.autograd.grad((together * weighing).sum(), inputs)
    for found, slope in zip(torch.autograd.grad((apart * weighing).sum(), inputs), expected, strict=True):
        torch.testing.assert_close(found, slope, rtol=1e-8, atol=1e-10)

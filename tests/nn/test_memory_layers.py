"""Key-value memory, query-key memory and the two layers made of them, against loops over their definitions."""

import math

import pytest
import torch
from torch.nn.functional import layer_norm, linear

import regard
from regard import masks
from regard.nn import build

B, Q, K, DIM, HEADS, WIDE = 3, 5, 7, 6, 2, 11
EXACT = {"rtol": 1e-10, "atol": 1e-10}
HOLES = torch.tensor([[1, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]], dtype=torch.bool)


def made(name, **options):
    """A layer in float64 with random numbers in every parameter."""
    torch.manual_seed(7)
    layer = build(name, dim=DIM, **{"num_heads": HEADS, **options}).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def rows(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attended(heads, query, source, visible):
    """Multi-head attention of one entry, number by number: query (q,dim), source (k,·), visible(i, j)."""
    maps = (heads.query_map, query), (heads.key_map, source), (heads.value_map, source)
    queries, keys, values = (linear(x, m.weight, m.bias) for m, x in maps)
    width = queries.shape[1] // heads.num_heads
    found = []
    for i, mine in enumerate(queries):
        parts = []
        for h in range(heads.num_heads):
            part = slice(h * width, (h + 1) * width)
            seen = [j for j in range(len(keys)) if visible(i, j)]
            scores = [torch.exp(mine[part] @ keys[j, part] / math.sqrt(width)) for j in seen]
            mixed = sum((e * values[j, part] for e, j in zip(scores, seen, strict=True)), torch.zeros(width).double())
            parts.append(mixed / sum(scores) if seen else mixed)
        found.append(torch.cat(parts))
    mixed = torch.stack(found) if found else query
    return linear(mixed, heads.output_map.weight, heads.output_map.bias)


def in_steps(layer, query, source=None, sizes=(1, 2, 1, 1), again=True, **options):
    """The outputs of the layer for consecutive parts. `again`: pass the source with every call."""
    state, found, start = layer.initial_state(len(query)), [], 0
    for size in sizes:
        part = query[:, start : start + size]
        given = source if again or start == 0 else None
        out, state = layer(part, given, state=state, **options)
        found, start = [*found, out], start + size
    assert start == query.shape[1]
    return torch.cat(found, 1), state


@pytest.mark.parametrize("window", [None, 3])
def test_key_value_memory_reads_itself_and_what_came_before(window):
    layer, x = made("key-value-memory", window=window), rows(B, K, DIM)
    for entry in range(B):
        expected = attended(layer, x[entry], x[entry], lambda i, j: j <= i and (window is None or i - j < window))
        torch.testing.assert_close(layer(x)[entry], expected, **EXACT)


@pytest.mark.parametrize("window", [None, 3])
def test_a_source_precedes_the_first_query(window):
    layer, query, source = made("key-value-memory", window=window), rows(B, Q, DIM), rows(B, K, DIM, seed=2)
    whole = layer(torch.cat([source, query], 1))
    torch.testing.assert_close(layer(query, source), whole[:, K:], **EXACT)


def test_a_source_of_another_width_is_mapped_first():
    layer, query, source = made("key-value-memory", source_dim=WIDE), rows(B, Q, DIM), rows(B, K, WIDE)
    mapped = layer.source_map(source)
    for entry in range(B):
        joined = torch.cat([mapped[entry], query[entry]])
        expected = attended(layer, query[entry], joined, lambda i, j: j <= i + K)
        torch.testing.assert_close(layer(query, source)[entry], expected, **EXACT)


def test_a_pairwise_mask_applies_to_the_source():
    layer, query, source = made("key-value-memory"), rows(B, Q, DIM), rows(B, K, DIM, seed=2)
    pairs = torch.rand(B, Q, K, generator=torch.Generator().manual_seed(3)) > 0.5
    for mask in (pairs, masks.dense(pairs[:, None]) & masks.padding(HOLES)):
        seen = pairs if isinstance(mask, torch.Tensor) else pairs & HOLES[:, None]
        out = layer(query, source, mask=mask)
        for entry in range(B):
            joined = torch.cat([source[entry], query[entry]])
            visible = torch.cat([seen[entry], torch.ones(Q, Q).tril().bool()], 1)
            expected = attended(layer, query[entry], joined, lambda i, j, visible=visible: visible[i, j])
            torch.testing.assert_close(out[entry], expected, **EXACT)


def test_positional_masks_over_a_source_count_from_its_end():
    layer, query, source = made("key-value-memory"), rows(1, Q, DIM), rows(1, K, DIM, seed=2)
    out = layer(query, source, mask=masks.window(1))
    joined = torch.cat([source[0], query[0]])
    near = lambda i, j: abs(j - (i + K - Q)) <= 1 if j < K else j - K <= i  # noqa: E731
    torch.testing.assert_close(out[0], attended(layer, query[0], joined, near), **EXACT)


def test_hidden_queries_are_not_written():
    layer, query, source = made("key-value-memory"), rows(1, Q, DIM), rows(1, K, DIM, seed=2)
    real = torch.tensor([[True, False, True, False, True]])
    query = query.masked_fill(~real[..., None], torch.nan)
    out = layer(query, source, mask=masks.padding(HOLES[:1], real))
    assert out.isfinite().all()
    alone = layer(query[:, real[0]], source[:, HOLES[0]])
    torch.testing.assert_close(out[:, real[0]], alone, **EXACT)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("again", [True, False])
def test_key_value_memory_continues_from_a_source_in_steps(window, again):
    layer = made("key-value-memory", source_dim=WIDE, window=window)
    query, source = rows(B, Q, DIM), rows(B, K, WIDE)
    found, state = in_steps(layer, query, source, again=again)
    torch.testing.assert_close(found, layer(query, source), **EXACT)
    assert window is None or state.keys.shape[2] == window - 1
    mask = masks.padding(HOLES)
    source = source.masked_fill(~HOLES[..., None], torch.nan)
    if again:
        found, _ = in_steps(layer, query, source, mask=mask)
        torch.testing.assert_close(found, layer(query, source, mask=mask), **EXACT)


def test_key_value_memory_refuses_another_source_later():
    layer, query, source = made("key-value-memory"), rows(B, Q, DIM), rows(B, K, DIM)
    _, state = layer(query, source, state=layer.initial_state(B))
    with pytest.raises(ValueError, match=r"source: the state holds a source of length 7, got .* 3"):
        layer(query, source[:, :3], state=state)
    _, state = layer(query, state=layer.initial_state(B))
    with pytest.raises(regard.RegardError, match="source: the state has no source"):
        layer(query, source, state=state)
    with pytest.raises(ValueError, match=r"state: expected a batch of .* got a batch of 3"):
        layer(query[:2], state=state)


def test_weights_of_key_value_memory_cover_source_and_sequence():
    layer, query, source = made("key-value-memory"), rows(B, Q, DIM), rows(B, K, DIM)
    weights = layer.weights(query, source, mask=masks.padding(HOLES))
    assert weights.shape == (B, HEADS, Q, K + Q)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, HEADS, Q).double())
    seen = torch.cat([HOLES[:, None].expand(-1, Q, -1), torch.ones(Q, Q).tril().bool().expand(B, -1, -1)], 2)
    assert ((weights > 0) == seen[:, None]).all()


def test_query_key_memory_sees_the_whole_history():
    layer, query, source = made("query-key-memory", source_dim=WIDE), rows(B, Q, DIM), rows(B, K, WIDE)
    out = layer(query, source, mask=masks.padding(HOLES))
    for entry in range(B):
        expected = attended(layer, query[entry], source[entry], lambda i, j, e=entry: HOLES[e, j])
        torch.testing.assert_close(out[entry], expected, **EXACT)
    found, _ = in_steps(layer, query, source, mask=masks.padding(HOLES), again=True)
    torch.testing.assert_close(found, out, **EXACT)


def test_query_key_memory_without_a_source_is_its_own_history():
    x = rows(B, K, DIM)
    for options, seen in (({}, lambda i, j: True), ({"causal": True, "window": 2}, lambda i, j: 0 <= i - j < 2)):
        layer = made("query-key-memory", **options)
        torch.testing.assert_close(layer(x)[0], attended(layer, x[0], x[0], seen), **EXACT)


def layer_by_definition(layer, x, source, own, far):
    """One entry through both parts; `own` and `far` say what each of them sees."""

    def normed(around, y):
        return layer_norm(y, (DIM,), around.norm.weight, around.norm.bias)

    for part, around, seen, others in (
        (layer.memory, layer.around_memory, own, None),
        (layer.history, layer.around_history, far, source),
    ):
        read = normed(around, x) if around.before else x
        x = x + attended(part, read, read if others is None else others, seen)
        x = x if around.before else normed(around, x)
    return x


LAYERS = {
    "global": (lambda i, j: j <= i, lambda i, j: True, lambda i, j: j <= i),
    "local": (
        lambda i, j: 0 <= i - j < 3,
        lambda i, j: abs(j - (i + K - Q)) <= 1,  # the last query is aligned with the end of the source
        lambda i, j: 0 <= i - j < 3,
    ),
}


def made_layer(kind, **options):
    return made(f"{kind}-layer", **({"window": 3} if kind == "local" else {}), **options)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_equals_its_two_parts_in_sequence(kind, norm):
    own, far, alone = LAYERS[kind]
    query, source = rows(B, Q, DIM), rows(B, K, WIDE)
    layer = made_layer(kind, norm=norm, source_dim=WIDE)
    for entry in range(B):
        expected = layer_by_definition(layer, query[entry], source[entry], own, far)
        torch.testing.assert_close(layer(query, source)[entry], expected, **EXACT)
    layer = made_layer(kind, norm=norm)
    expected = layer_by_definition(layer, query[0], None, own, alone)
    torch.testing.assert_close(layer(query)[0], expected, **EXACT)


@pytest.mark.parametrize("kind", LAYERS)
def test_mask_and_query_mask_apply_to_source_and_sequence(kind):
    layer, query, source = made_layer(kind, source_dim=WIDE), rows(B, K, DIM), rows(B, K, WIDE)
    keep = HOLES.roll(1, 0)
    own = LAYERS[kind][0]
    reach = 1 if kind == "local" else K  # as many queries as source positions, so they are aligned one to one
    x, y = query.masked_fill(~keep[..., None], torch.nan), source.masked_fill(~HOLES[..., None], torch.nan)
    out = layer(x, y, mask=masks.padding(HOLES), query_mask=masks.padding(keep))
    assert out.isfinite().all()
    for e in range(B):
        expected = layer_by_definition(
            layer,
            query[e],
            source[e],
            lambda i, j, e=e: own(i, j) and keep[e, j],
            lambda i, j, e=e: abs(i - j) <= reach and HOLES[e, j],
        )
        torch.testing.assert_close(out[e, keep[e]], expected[keep[e]], **EXACT)
    same = layer(x, y, mask=masks.padding(HOLES, keep))  # queries hidden by the mask itself
    torch.testing.assert_close(same[keep], out[keep], **EXACT)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_state_of_a_layer_keeps_what_its_windows_see(kind):
    _, state = in_steps(made_layer(kind), rows(B, K, DIM), sizes=(3, 4))
    length = 2 if kind == "local" else K  # a window of three keeps two
    assert (state.memory.keys.shape[2], state.history.keys.shape[2]) == (length, length)


def test_a_local_layer_aligned_with_the_end_of_a_source_refuses_steps():
    layer = made_layer("local")
    with pytest.raises(ValueError, match="align='top-left'"):
        layer(rows(B, Q, DIM), rows(B, K, DIM), state=layer.initial_state(B))


def test_errors_of_a_layer_name_the_argument():
    with pytest.raises(ValueError, match=r"window: 4 .* 3 or 5"):
        build("local-layer", dim=DIM, window=4)
    with pytest.raises(ValueError, match="norm: expected 'pre', 'post' or 'none'"):
        build("global-layer", dim=DIM, norm="both")
    with pytest.raises(ValueError, match="window"):
        build("global-layer", dim=DIM, window=3)
    layer = made_layer("global")
    with pytest.raises(TypeError, match="state: expected the result of initial_state"):
        layer(rows(B, Q, DIM), state=layer.memory.initial_state(B))
    with pytest.raises(ValueError, match="mask"):
        layer(rows(B, Q, DIM), rows(B, K, DIM), query_mask=masks.padding(HOLES))


def test_dropout_of_a_layer_acts_on_what_its_parts_add():
    layer, x = made_layer("global", dropout=1.0), rows(B, Q, DIM)
    torch.testing.assert_close(layer.train()(x), x, rtol=0, atol=0)
    assert not torch.allclose(layer.eval()(x), x)

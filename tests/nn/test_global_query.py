"""`regard.nn.global_query` and the mechanism `global-query` against hand-computed numbers and loops."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import regard
import regard.nn
from regard import masks
from regard.errors import BadType, BadValue
from regard.nn.parts import scan
from regard.nn.parts.global_query import nothing_seen

FORMS = pytest.mark.parametrize("causal", [False, True])


def by_loops(query, key, hidden, keep=None, causal=False, activation=lambda s: s):
    """The definition, one position at a time."""
    batch, length, dim = query.shape
    keep = torch.ones(batch, length, dtype=torch.bool) if keep is None else keep
    output = []
    for b in range(batch):
        for i in range(length):
            seen = [j for j in range(length) if keep[b, j] and (j <= i or not causal)]
            if not keep[b, i]:
                output.append(torch.zeros(dim, dtype=query.dtype))
                continue
            exps = {j: math.e ** activation((query[b, j] * key[b, j]).sum()) for j in seen}
            share = exps[i] / sum(exps.values())
            mean = sum(hidden[b, j] for j in seen) / len(seen)
            output.append(share * hidden[b, i] + (1 - share) * mean)
    return torch.stack(output).view(batch, length, dim)


def drawn(*shape, count=3, dtype=torch.float64):
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for _ in range(count)]


@pytest.fixture
def short_chunks(monkeypatch):
    """Use chunks of five positions, so that short inputs have several."""
    monkeypatch.setattr(scan, "BLOCK", 5)
    monkeypatch.setitem(scan._ELEMENTS, "cpu", 1)


def test_two_positions_computed_by_hand():
    query, key = torch.tensor([[[math.log(3.0)], [0.0]]]), torch.tensor([[[1.0], [7.0]]])
    hidden = torch.tensor([[[1.0], [3.0]]])  # scores log 3 and 0: shares ¾ and ¼; the mean is 2
    assert torch.allclose(regard.nn.global_query(query, key, hidden)[0, :, 0], torch.tensor([1.25, 2.25]))
    # The first position alone is its own mean.
    causal = regard.nn.global_query(query, key, hidden, causal=True)[0, :, 0]
    assert torch.allclose(causal, torch.tensor([1.0, 2.25]))


@FORMS
@pytest.mark.parametrize("masked", [False, True])
def test_outputs_and_gradients_equal_the_definition(causal, masked, short_chunks):
    inputs = drawn(2, 23, 3)
    keep = None
    if masked:
        keep = torch.rand(2, 23) > 0.4
        keep[0, :7] = False  # a whole chunk, at the start of a sequence
    found, expected = regard.nn.global_query(*inputs, keep, causal), by_loops(*inputs, keep, causal)
    assert torch.allclose(found, expected, atol=1e-12)
    upstream = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(y, inputs, upstream) for y in (found, expected))
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, atol=1e-12)


@pytest.mark.slow
@FORMS
def test_first_and_second_derivatives_are_exact(causal, short_chunks):
    keep = torch.tensor([[False, True, True, False, True, True, True]])
    inputs = drawn(1, 7, 1)
    assert gradcheck(lambda *x: regard.nn.global_query(*x, keep, causal), inputs)
    assert gradgradcheck(lambda *x: regard.nn.global_query(*x, keep, causal), inputs)


@FORMS
def test_second_derivatives_are_exact_where_one_input_depends_on_another(causal):
    (x,) = drawn(1, 5, 3, count=1)
    found = regard.nn.global_query(x, 2 * x, x, causal=causal).sin().sum()
    plain = torch.autograd.grad(found, x, retain_graph=True)
    recorded = torch.autograd.grad(found, x, create_graph=True)
    assert torch.allclose(plain[0], recorded[0], atol=1e-12)


@FORMS
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_masked_positions_are_never_read(causal, poison, short_chunks):
    keep = torch.rand(3, 11) > 0.4
    clean, dirty = drawn(3, 11, 5), []
    for tensor in clean:
        dirty.append(tensor.detach().masked_fill(~keep[..., None], poison).requires_grad_())
    upstream = torch.randn(3, 11, 5, dtype=torch.float64)
    outputs = [regard.nn.global_query(*x, keep, causal) for x in (clean, dirty)]
    assert torch.equal(*outputs)
    assert (outputs[0][~keep] == 0).all()
    nonfinite = upstream.masked_fill(~keep[..., None], poison)
    for mine, other in zip(
        torch.autograd.grad(outputs[0], clean, upstream), torch.autograd.grad(outputs[1], dirty, nonfinite), strict=True
    ):
        assert torch.equal(mine, other)
        assert (other[~keep] == 0).all()


@FORMS
def test_visible_non_finite_positions_show(causal):
    query, key, hidden = drawn(1, 7, 3)
    with torch.no_grad():
        hidden[0, 4, 1] = math.nan
    found = regard.nn.global_query(query, key, hidden, causal=causal)[0]
    seeing = slice(4, 7) if causal else slice(0, 7)
    assert found[seeing, 1].isnan().all()
    assert found[:4].isfinite().all() == causal


@FORMS
def test_scores_of_ten_thousand_are_as_exact_as_the_formula(causal):
    scores = torch.tensor([1e4, -1e4, 1e4 - 0.5, 1e4 + 0.5, 0.0, 1e4 + 0.25, -3e3])
    query, key = scores.view(1, -1, 1), torch.ones(1, 7, 1)
    hidden = torch.randn(1, 7, 1)
    found = regard.nn.global_query(query, key, hidden, causal=causal)
    wide = scores.double().expand(7, 7)
    if causal:
        wide = wide.masked_fill(~torch.ones(7, 7, dtype=torch.bool).tril(), -math.inf)
    shares = wide.softmax(-1).diagonal()
    each = hidden.double().cumsum(1)[0, :, 0] / torch.arange(1, 8) if causal else hidden.double().mean()
    expected = shares * hidden[0, :, 0] + (1 - shares) * each
    assert torch.allclose(found[0, :, 0].double(), expected, atol=3e-7)


@FORMS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(causal, dtype):
    inputs = [(tensor * 20).to(dtype) for tensor in drawn(2, 257, 13)]  # scores far beyond what float16 holds exactly
    found = regard.nn.global_query(*inputs, causal=causal)
    expected = regard.nn.global_query(*[tensor.double() for tensor in inputs], causal=causal)
    assert found.dtype == dtype
    error = (found.double() - expected).abs().max()
    assert error <= torch.finfo(dtype).eps * expected.abs().max()


@FORMS
def test_a_million_positions_lose_no_precision(causal):
    length = 1 << 20
    hidden = torch.randn(1, length, 2) + 100
    zeros = torch.zeros_like(hidden)  # α is 1/l or 1/(i+1): the mean is all that is left at the end
    found = regard.nn.global_query(zeros, zeros, hidden, causal=causal)[0, -1].double()
    mean = hidden.double().mean(1)[0]
    assert torch.allclose(found, mean + (hidden[0, -1] - mean) / length, rtol=3e-7)


@FORMS
def test_empty_sizes_and_fully_masked_entries_give_zeros_or_nothing(causal):
    for shape in ((0, 5, 3), (2, 0, 3)):
        inputs = drawn(*shape)
        found = regard.nn.global_query(*inputs, causal=causal)
        assert found.shape == shape
        found.sum().backward()
    inputs = drawn(2, 5, 3)
    found = regard.nn.global_query(*inputs, torch.tensor([[False] * 5, [True] * 5]), causal)
    found.sum().backward()
    assert (found[0] == 0).all()
    assert all(tensor.grad.isfinite().all() and (tensor.grad[0] == 0).all() for tensor in inputs)


@FORMS
def test_strides_do_not_matter(causal):
    query, key, hidden = (tensor.detach() for tensor in drawn(3, 19, 5))
    strange = query.transpose(1, 2).contiguous().transpose(1, 2), key[:1].expand(3, -1, -1), hidden.flip(1)
    plain = [tensor.contiguous().requires_grad_() for tensor in strange]
    strange = [tensor.requires_grad_() for tensor in strange]
    ours, theirs = (regard.nn.global_query(*x, causal=causal) for x in (strange, plain))
    assert torch.allclose(ours, theirs, atol=1e-12)
    for mine, other in zip(
        torch.autograd.grad(ours.sum(), strange), torch.autograd.grad(theirs.sum(), plain), strict=True
    ):
        assert torch.allclose(mine, other, atol=1e-12)


def test_it_compiles_as_one_graph():
    def run(query, key, hidden):
        return regard.nn.global_query(query, key, hidden, causal=True)

    inputs = drawn(2, 300, 5, dtype=torch.float32)
    found, expected = torch.compile(run, fullgraph=True, backend="aot_eager")(*inputs), run(*inputs)
    assert torch.allclose(found, expected, atol=1e-6)
    ours, theirs = (torch.autograd.grad(y.square().sum(), inputs) for y in (found, expected))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


def test_the_operator_passes_torchs_opcheck(short_chunks):
    scores, rows = torch.randn(2, 11, 3, requires_grad=True), torch.randn(2, 11, 3, 5, requires_grad=True)
    nothing, keep = nothing_seen(2, 3, 5, "cpu"), torch.rand(2, 11) > 0.3
    rules = ("test_schema", "test_autograd_registration", "test_faketensor")  # the fourth is covered by the test above
    for arguments in (("gla-prefix", [scores, rows], keep, nothing), ("gla-scores", [rows, rows], None, [])):
        torch.library.opcheck(torch.ops.regard.scan.default, arguments, test_utils=rules)


def test_masks_with_a_keep_are_accepted_and_others_refused():
    inputs = drawn(2, 5, 3)
    keep = torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    expected = regard.nn.global_query(*inputs, keep)
    for mask in (masks.padding(keep), masks.lengths(torch.tensor([3, 5])), masks.full() & masks.padding(keep)):
        assert torch.equal(regard.nn.global_query(*inputs, mask), expected)
    joined = regard.nn.global_query(*inputs, masks.causal() & masks.padding(keep))
    assert torch.equal(joined, regard.nn.global_query(*inputs, keep, causal=True))
    with pytest.raises(BadValue, match="depends on the query"):
        regard.nn.global_query(*inputs, masks.window(2))
    with pytest.raises(BadType, match="True = real"):
        regard.nn.global_query(*inputs, keep.float())
    with pytest.raises(BadValue, match="one entry for each position"):
        regard.nn.global_query(*inputs, keep[:, :4])
    with pytest.raises(BadValue, match="key: expected"):
        regard.nn.global_query(inputs[0], inputs[1][:, :4], inputs[2])
    with pytest.raises(BadType, match="one dtype"):
        regard.nn.global_query(inputs[0], inputs[1].float(), inputs[2])


@FORMS
def test_an_activation_acts_on_the_score(causal):
    inputs = drawn(1, 7, 3)
    expected = by_loops(*inputs, causal=causal, activation=torch.tanh)
    for activation in ("tanh", torch.tanh):
        found = regard.nn.global_query(*inputs, causal=causal, activation=activation)
        assert torch.allclose(found, expected, atol=1e-12)
    with pytest.raises(BadValue, match="Did you mean 'tanh'"):
        regard.nn.global_query(*inputs, activation="tanhh")


# The mechanism.


@FORMS
def test_the_layer_is_the_function_in_each_head_and_has_no_parameters(causal):
    layer, x = regard.nn.build("gla", dim=12, num_heads=3, causal=causal), torch.randn(2, 7, 12)
    assert not list(layer.parameters())
    heads = [regard.nn.global_query(part, part, part, causal=causal) for part in x.split(4, -1)]
    assert torch.allclose(layer(x), torch.cat(heads, -1), atol=1e-6)
    by_weights = torch.einsum("bhqk,bkhd->bqhd", layer.weights(x), x.unflatten(-1, (3, 4)))
    assert torch.allclose(layer(x), by_weights.flatten(2), atol=1e-6)


def test_with_project_query_key_hidden_and_output_are_learned():
    layer, x = regard.nn.build("global-query", dim=6, project=True, activation="tanh"), torch.randn(2, 7, 6)
    maps = [layer.query_map, layer.key_map, layer.hidden_map]
    expected = layer.output_map(by_loops(*[each(x) for each in maps], activation=torch.tanh))
    assert torch.allclose(layer(x), expected, atol=1e-6)
    assert len(list(layer.parameters())) == 4


@FORMS
def test_with_project_query_key_only_the_score_is_learned(causal):
    layer = regard.nn.build("global-query(project=query-key)", dim=6, num_heads=2, causal=causal)
    x = torch.randn(2, 7, 6)
    parts = [each.split(3, -1) for each in (layer.query_map(x), layer.key_map(x), x)]
    expected = [by_loops(*part, causal=causal) for part in zip(*parts, strict=True)]
    assert torch.allclose(layer(x), torch.cat(expected, -1), atol=1e-6)
    assert sorted(name for name, _ in layer.named_parameters()) == ["key_map.weight", "query_map.weight"]
    with pytest.raises(BadValue, match="project: expected 'query-key', True or False, got 'keys'"):
        regard.nn.build("global-query(project=keys)", dim=6)


def test_with_project_query_key_a_source_is_scored_by_its_keys_and_mixed_as_it_is():
    layer = regard.nn.build("global-query", dim=6, project="query-key")
    x, source = torch.randn(3, 4, 6), torch.randn(3, 7, 6)
    shares = (layer.query_map(x) @ layer.key_map(source).mT).softmax(-1)
    assert torch.allclose(layer(x, source), shares @ source, atol=1e-6)
    other = regard.nn.build("global-query", dim=6, project="query-key", source_dim=5)
    assert sorted(tuple(weight.shape) for weight in other.parameters()) == [(6, 5), (6, 5), (6, 6)]


def test_with_a_source_queries_weigh_its_rows_by_dot_products():
    layer = regard.nn.build("global-query", dim=6, num_heads=2, source_dim=5)
    x, source, keep = torch.randn(3, 4, 6), torch.randn(3, 7, 5), torch.rand(3, 7) > 0.3
    assert [tuple(weight.shape) for weight in layer.parameters()] == [(6, 5)]  # one map without a bias
    mapped = (source @ layer.source_map.weight.T).unflatten(-1, (2, 3))
    scores = torch.einsum("bqhd,bkhd->bhqk", x.unflatten(-1, (2, 3)), mapped)
    shares = scores.masked_fill(~keep[:, None, None], -math.inf).softmax(-1)
    expected = torch.einsum("bhqk,bkhd->bqhd", shares, mapped).flatten(2)
    assert torch.allclose(layer(x, source, mask=masks.padding(keep)), expected, atol=1e-5)
    with pytest.raises(BadValue, match="depends on the query"):
        layer(x, source, mask=masks.window(1))
    state, outputs = layer.initial_state(3), []
    for step in range(4):
        given = source if step == 0 else None  # the state holds it and its padding
        mask = masks.padding(keep) if step == 0 else None
        output, state = layer(x[:, step : step + 1], given, mask=mask, state=state)
        outputs.append(output)
    assert torch.allclose(torch.cat(outputs, 1), expected, atol=1e-5)


def test_states_of_others_are_refused():
    layer, x = regard.nn.build("gla", dim=4, causal=True), torch.randn(2, 5, 4)
    _, state = layer(x[:, :3], state=layer.initial_state(2))
    with pytest.raises(BadValue, match="causal=True"):
        regard.nn.build("gla", dim=4)(x, state=state)
    with pytest.raises(BadValue, match="batch of 2"):
        layer(x[:1], state=state)


@FORMS
def test_dropout_acts_on_the_shares_and_only_in_training(causal):
    layer, x = regard.nn.build("gla", dim=3, dropout=1.0, causal=causal), torch.randn(1, 5, 3)
    mean = x.cumsum(1) / torch.arange(1, 6)[:, None] if causal else x.mean(1, keepdim=True).expand_as(x)
    assert torch.allclose(layer(x), mean, atol=1e-6)  # all shares are dropped: every position gets the mean
    plain = regard.nn.build("gla", dim=3, causal=causal)
    assert torch.equal(layer.eval()(x), plain(x))


def test_single_steps_in_float32_lose_nothing_even_for_scores_of_ten_thousand():
    layer, x = regard.nn.build("gla", dim=4, causal=True), torch.randn(1, 97, 4)
    x = x / x.norm(dim=-1, keepdim=True) * (100 + 0.002 * torch.randn(1, 97, 1))  # |x|² = 10⁴ ± 0.4
    state, outputs = layer.initial_state(1), []
    assert state.total.dtype == torch.float32
    for step in range(97):
        output, state = layer(x[:, step : step + 1], state=state)
        outputs.append(output)
    exact = layer(x.double())
    error, alone = (torch.cat(outputs, 1) - exact).abs().max(), (layer(x) - exact).abs().max()
    assert error <= 2 * alone + 1e-5  # as large as the error of one call, whose scores are rounded too

"""`linear` against the quadratic form through `attend`, against loops, and on extreme inputs."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import regard
import regard.nn
from regard import masks
from regard.errors import BadType, BadValue
from regard.nn.linear import FEATURE_MAPS, linear_attention
from regard.nn.parts import scan
from regard.normalizers import Normalizer

FORMS = pytest.mark.parametrize("causal", [False, True])
MAPS = {"elu": lambda x: torch.nn.functional.elu(x) + 1, "relu": torch.relu, "exp": torch.exp}


class Proportional(Normalizer):
    """Divides scores by their sum, which turns products of features into weights."""

    def __call__(self, scores, visible):
        seen = scores.masked_fill(~visible, 0)
        total = seen.sum(-1, keepdim=True)
        return seen / total.masked_fill(total == 0, 1)


def by_attend(query, key, value, keep=None, causal=False, feature_map="elu"):
    """The quadratic form, over all pairs of positions."""
    mask = masks.causal() if causal else masks.full()
    if keep is not None:
        mask = mask & masks.padding(keep)
    features = MAPS[feature_map]
    return regard.attend(
        features(query), features(key), value, score="dot", normalize=Proportional(), mask=mask, impl="reference"
    )


def drawn(queries, keys, dtype=torch.float64, d=3, v=5):
    shapes = [(2, 3, queries, d), (2, 3, keys, d), (2, 3, keys, v)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.fixture
def short_chunks(monkeypatch):
    """Use blocks of five positions and chunks of two blocks, so that short inputs have several."""
    monkeypatch.setattr(scan, "BLOCK", 5)
    monkeypatch.setattr(regard.nn.parts.linear_pieces, "BLOCK", 5)
    monkeypatch.setitem(scan._ELEMENTS, "cpu", 10 * 2 * 3 * 5)


def test_two_positions_computed_by_hand():
    query, key = torch.tensor([[[[0.0], [1.0]]]]), torch.tensor([[[[0.0], [2.0]]]])
    value = torch.tensor([[[[4.0], [8.0]]]])  # features of the keys: 1 and 3; those of a query cancel
    assert torch.allclose(linear_attention(query, key, value).flatten(), torch.tensor([7.0, 7.0]))
    assert torch.allclose(linear_attention(query, key, value, causal=True).flatten(), torch.tensor([4.0, 7.0]))


@FORMS
@pytest.mark.parametrize("feature_map", list(MAPS))
@pytest.mark.parametrize("queries, keys", [(23, 23), (7, 23), (23, 7), (1, 5)])
def test_it_equals_the_quadratic_form(causal, feature_map, queries, keys, short_chunks):
    inputs, keep = drawn(queries, keys), torch.rand(2, keys) > 0.3
    found = linear_attention(*inputs, keep=keep, causal=causal, feature_map=feature_map)
    expected = by_attend(*inputs, keep, causal, feature_map)
    assert torch.allclose(found, expected, atol=1e-12)
    upstream = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(y, inputs, upstream) for y in (found, expected))
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, atol=1e-11)


@FORMS
def test_it_equals_loops_over_the_definition(causal):
    (query, key, value), keep = drawn(4, 6), torch.rand(2, 6) > 0.3
    found = linear_attention(query, key, value, keep=keep, causal=causal)
    for b in range(2):
        for h in range(3):
            for i in range(4):
                top, bottom = torch.zeros(5), 0.0
                for j in range(6):
                    if keep[b, j] and (not causal or j <= i + 2):
                        weight = sum(MAPS["elu"](query[b, h, i, c]) * MAPS["elu"](key[b, h, j, c]) for c in range(3))
                        top, bottom = top + weight * value[b, h, j], bottom + weight
                assert torch.allclose(found[b, h, i], top / bottom if bottom else top.double())


@FORMS
def test_first_and_second_derivatives_are_exact(causal, short_chunks):
    keep = torch.tensor([[False, True, True, False, True, True, True]])
    inputs = [torch.randn(1, 1, 7, width, dtype=torch.float64, requires_grad=True) for width in (2, 2, 1)]
    assert gradcheck(lambda *x: linear_attention(*x, keep=keep, causal=causal), inputs)
    assert gradgradcheck(lambda *x: linear_attention(*x, keep=keep, causal=causal), inputs)


@FORMS
def test_visible_non_finite_positions_show_but_not_in_earlier_outputs(causal):
    query, key, value = drawn(7, 7)
    with torch.no_grad():
        value[0, 1, 4, 2] = math.nan
        key[1, 2, 4] = math.inf
    found = linear_attention(query, key, value, causal=causal)
    assert found[0, 1, 4:, 2].isnan().all()
    assert found[1, 2, 4:].isnan().all()
    assert found[..., :4, :].isfinite().all() == causal
    if causal:  # also in the gradient, and in the carry
        grad = torch.autograd.grad(found[..., :4, :].sum(), value)[0]
        assert grad.isfinite().all()


@FORMS
def test_queries_without_visible_keys_get_zeros_and_empty_sizes_work(causal):
    inputs = drawn(5, 5)
    found = linear_attention(*inputs, keep=torch.tensor([[False] * 5, [True] * 5]), causal=causal)
    found.sum().backward()
    assert (found[0] == 0).all()
    assert all(x.grad.isfinite().all() for x in inputs)
    for queries, keys in ((0, 5), (5, 0), (0, 0)):
        inputs = drawn(queries, keys)
        found = linear_attention(*inputs, causal=causal)
        assert found.shape == (2, 3, queries, 5)
        assert (found == 0).all()
        found.sum().backward()
    layer = regard.nn.build("linear", dim=6, causal=causal)
    for shape in ((0, 5, 6), (2, 0, 6)):
        assert layer(torch.randn(shape)).shape == shape
    empty = layer(torch.randn(2, 3, 6), torch.randn(2, 0, 6))
    assert torch.equal(empty, layer.output_map.bias.expand(2, 3, 6))


def test_very_negative_inputs_keep_their_precision():
    query, key, value = (torch.randn(1, 1, 7, 3) for _ in range(3))
    found = linear_attention(query - 20, key - 20, value)  # elu(x) + 1 would round to zero here
    expected = (query.double() - 20).exp() @ (key.double() - 20).exp().mT
    expected = (expected / expected.sum(-1, keepdim=True)) @ value.double()
    assert torch.allclose(found.double(), expected, atol=1e-5)


@FORMS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(causal, dtype):
    inputs = [(x.detach() * 10).to(dtype) for x in drawn(257, 257)]
    found = linear_attention(*inputs, causal=causal)
    expected = linear_attention(*[x.double() for x in inputs], causal=causal)
    assert found.dtype == dtype
    assert (found.double() - expected).abs().max() <= torch.finfo(dtype).eps * expected.abs().max()
    with torch.autocast("cpu", dtype=dtype):
        layer, x = regard.nn.build("linear", dim=6, causal=causal), torch.randn(2, 300, 6, requires_grad=True)
        layer(x).float().square().sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.slow
def test_it_compiles_as_one_graph_for_every_length():
    layer = regard.nn.build("linear", dim=6, num_heads=2, causal=True)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (7, 300):
        x = torch.randn(2, length, 6, requires_grad=True)
        found, expected = compiled(x), layer(x)
        assert torch.allclose(found, expected, atol=1e-5)
        ours, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected))
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.slow
def test_the_operator_passes_torchs_opcheck(short_chunks):
    query, key, value = (x.detach().transpose(1, 2).requires_grad_() for x in drawn(13, 13))
    sums, keep = regard.nn.linear.empty_sums(2, 3, 3, 5, "cpu"), torch.rand(2, 13) > 0.3
    rules = ("test_schema", "test_autograd_registration", "test_faketensor")  # the fourth is covered by the test above
    for piece, inputs in (("causal", [query, key, value]), ("sums", [key, value])):
        arguments = (f"linear-{piece}-elu", inputs, keep, sums)
        torch.library.opcheck(torch.ops.regard.scan.default, arguments, test_utils=rules)


def test_a_state_holds_a_source_and_can_be_continued_twice_and_reordered():
    layer = regard.nn.build("linear", dim=6, source_dim=5, num_heads=2)
    x, source, keep = torch.randn(2, 4, 6), torch.randn(2, 7, 5), torch.rand(2, 7) > 0.3
    whole = layer(x, source, mask=masks.padding(keep))
    first, state = layer(x[:, :1], source, mask=masks.padding(keep), state=layer.initial_state(2))
    rest, _ = layer(x[:, 1:], state=state)
    again, _ = layer(x[:, 1:], source, state=state)  # a source that is passed again is not summed again
    assert torch.allclose(torch.cat([first, rest], 1), whole, atol=1e-6)
    assert torch.equal(rest, again)
    swapped, _ = layer(x[:, 1:].flip(0), state=state.reorder(torch.tensor([1, 0])))
    assert torch.allclose(swapped, rest.flip(0), atol=1e-6)
    with pytest.raises(BadValue, match="new initial_state"):
        layer(x, torch.randn(2, 3, 5), state=state)
    with pytest.raises(BadValue, match="batch of 2"):
        layer(x[:1], state=state)
    with pytest.raises(BadValue, match="causal=True"):
        regard.nn.build("linear", dim=6)(x, state=regard.nn.build("linear", dim=6).initial_state(2))
    with pytest.raises(BadType, match="initial_state"):
        layer(x, source, state=regard.nn.build("causal", dim=6).initial_state(2))


def test_the_mask_causal_makes_it_causal_and_other_pairwise_masks_are_refused():
    layer, x = regard.nn.build("linear", dim=6), torch.randn(2, 7, 6)
    causal = regard.nn.build("linear", dim=6, causal=True)
    causal.load_state_dict(layer.state_dict())
    keep = torch.rand(2, 7) > 0.3
    assert torch.equal(layer(x, mask=masks.causal()), causal(x))
    joined = layer(x, mask=masks.padding(keep) & masks.causal())
    assert torch.equal(joined, causal(x, mask=masks.padding(keep)))
    with pytest.raises(BadValue, match="depends on the query"):
        layer(x, mask=masks.window(2))
    with pytest.raises(BadValue, match="Did you mean 'relu'"):
        regard.nn.build("linear", dim=6, feature_map="relv")
    assert set(FEATURE_MAPS) == set(MAPS)


def test_dropout_acts_on_the_heads_and_only_in_training():
    layer, x = regard.nn.build("linear", dim=6, dropout=1.0), torch.randn(2, 7, 6)
    assert torch.equal(layer(x), layer.output_map.bias.expand(2, 7, 6))
    layer.eval()
    plain = regard.nn.build("linear", dim=6)
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), plain(x))


def test_exp_features_are_finite_for_finite_inputs_only():
    query, key, value = (x.detach().float() for x in drawn(7, 7))
    found = linear_attention(query * 1e4, key * 1e4, value, feature_map="exp")
    assert found.isfinite().all()
    shifted = linear_attention(query + 50, key + 100, value, feature_map="exp")  # a common factor cancels
    assert torch.allclose(shifted, linear_attention(query, key, value, feature_map="exp"), atol=1e-4)
    key[1, 2, 4] = math.inf
    assert linear_attention(query, key, value, feature_map="exp")[1, 2].isnan().all()

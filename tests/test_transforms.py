"""The transforms of `torch.func` around attend: the same numbers as through the plain formula in torch."""

import math

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import regard
from regard import biases, masks, scores
from regard.normalizers import Normalizer

B, H, Q, K, D, V = 2, 3, 4, 7, 5, 2


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture
def inputs():
    """Queries, keys, values and a weight that some of the cases use."""
    torch.manual_seed(3)
    return draw(B, H, Q, D), draw(B, H, K, D), draw(B, H, K, V), draw(D)


class Tempered(Normalizer):
    temperature: torch.Tensor

    def __call__(self, scores, visible):
        return torch.softmax((scores * self.temperature).masked_fill(~visible, -math.inf), -1)


def formula(query, key, value, weight, visible=None, bias=0.0, pairs=None, sink=None):
    """Attention in three lines of torch, for every case below."""
    found = query @ key.mT / math.sqrt(D) if pairs is None else pairs(query, key, weight)
    found = found + bias
    if visible is not None:
        found = found.masked_fill(~visible, -math.inf)
    if sink is not None:
        found = torch.cat([found, sink.view(1, -1, 1, 1).expand(*found.shape[:3], 1)], -1)
    shares = torch.softmax(found, -1)[..., :K]
    return shares @ value


def additive(query, key, weight):
    return (torch.tanh(query[..., :, None, :] + key[..., None, :, :]) * weight).sum(-1)


DISTANCE = torch.arange(K) - (torch.arange(Q)[:, None] + K - Q)
LENGTHS = torch.tensor([5, 3])
REAL = (torch.arange(K) < LENGTHS[:, None])[:, None, None]
# name: (attend's keyword arguments for a weight, those of the formula)
CASES = {
    "plain": (lambda w: {}, lambda w: {}),
    "window": (lambda w: {"mask": masks.window(3)}, lambda w: {"visible": DISTANCE.abs() <= 3}),
    "lengths": (lambda w: {"mask": masks.lengths(LENGTHS)}, lambda w: {"visible": REAL}),
    "additive": (lambda w: {"score": scores.additive(w)}, lambda w: {"pairs": additive}),
    "relative": (lambda w: {"bias": biases.relative(w[None])}, lambda w: {"bias": w[DISTANCE.clamp(-2, 2) + 2]}),
    "sink": (lambda w: {"sink": w[:H]}, lambda w: {"sink": w[:H]}),
    "own normaliser": (
        lambda w: {"normalize": Tempered(w[0])},
        lambda w: {"pairs": lambda q, k, weight: q @ k.mT / math.sqrt(D) * weight[0]},
    ),
}


def loss(function):
    return lambda *arguments: function(*arguments).square().sum()


def twice(x):
    return torch.stack([x, 2 * x])


TRANSFORMS = {
    "grad": lambda f, i: grad(loss(f), (0, 1, 2, 3))(*i),
    "vjp": lambda f, i: vjp(f, *i)[1](torch.ones(B, H, Q, V, dtype=torch.float64)),
    "jacrev": lambda f, i: jacrev(lambda w: f(*i[:3], w)[0, 1, :2])(i[3]),
    "vmap": lambda f, i: vmap(f, (0, None, None, None))(twice(i[0]), *i[1:]),
    "vmap of several": lambda f, i: vmap(f, (None, 1, None, 0))(i[0], twice(i[1]).movedim(0, 1), i[2], twice(i[3])),
    "vmap of grad": lambda f, i: vmap(grad(loss(f), (0, 3)), (0, None, None, 0))(twice(i[0]), *i[1:3], twice(i[3])),
    "grad of vmap": lambda f, i: grad(lambda q: loss(vmap(f, (0, None, None, None)))(twice(q), *i[1:]))(i[0]),
    "grad of grad": lambda f, i: grad(lambda w: sum(g.square().sum() for g in grad(loss(f), (0, 1, 2, 3))(*i[:3], w)))(
        i[3]
    ),
    "grad of grad of grad": lambda f, i: grad(
        lambda v: grad(lambda w: grad(loss(f))(*i[:3], w).square().sum())(v).square().sum()
    )(i[3]),
}
FORWARD = {
    "jvp": lambda f, i: jvp(lambda q: f(q, *i[1:]), (i[0],), (i[0],)),
    "jacfwd": lambda f, i: jacfwd(lambda w: f(*i[:3], w)[0, 1])(i[3]),
    "hessian": lambda f, i: hessian(lambda w: loss(f)(*i[:3], w))(i[3]),
}


def both(name, impl):
    given, written = CASES[name]
    return (
        lambda q, k, v, w: regard.attend(q, k, v, **given(w), impl=impl),
        lambda q, k, v, w: formula(q, k, v, w, **written(w)),
    )


@pytest.mark.parametrize("impl", ["auto", "tiled", "reference"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_transform_gives_what_it_gives_for_the_plain_formula(transform, name, impl, inputs):
    found, expected = (TRANSFORMS[transform](function, inputs) for function in both(name, impl))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("transform", FORWARD)
def test_forward_transforms_run_through_auto_and_are_refused_by_tiled(transform, name, inputs):
    found, expected = (FORWARD[transform](function, inputs) for function in both(name, "auto"))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for impl in ("tiled", "sdpa"):
        with pytest.raises(regard.Unsupported, match=r"forward-mode|compute|normalise|mask|sink|bias"):
            FORWARD[transform](both(name, impl)[0], inputs)


@pytest.mark.parametrize("impl", ["auto", "tiled", "reference"])
def test_autograd_outside_of_vmap_sees_the_inputs(impl, inputs):
    query, key, value, weight = inputs
    query.requires_grad_()
    found, expected = (
        torch.autograd.grad(loss(vmap(function, (0, None, None, None)))(twice(query), key, value, weight), query)
        for function in both("window", impl)
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("impl", ["auto", "tiled", "reference"])
@pytest.mark.parametrize(
    ("make", "content"),
    [
        (masks.lengths, torch.tensor([[5, 3], [7, 0]])),
        (masks.prefix, torch.tensor([[5, 3], [7, 0]])),
        (masks.padding, torch.rand(2, B, K, generator=torch.Generator().manual_seed(1)) > 0.4),
        (masks.dense, torch.rand(2, Q, K, generator=torch.Generator().manual_seed(2)) > 0.4),
        (lambda offsets: masks.packed(offsets), torch.tensor([[0, 3, 7], [0, 6, 7]])),
    ],
    ids=["lengths", "prefix", "padding", "dense", "packed"],
)
def test_masks_may_be_mapped_over(make, content, impl, inputs):
    query, key, value, _ = inputs

    def function(one):
        return regard.attend(query, key, value, mask=make(one), impl=impl)

    torch.testing.assert_close(vmap(function)(content), torch.stack([function(one) for one in content]))


@pytest.mark.parametrize("impl", ["auto", "tiled"])
def test_the_logsumexp_is_differentiated_too(impl, inputs):
    query, key, value, _ = inputs

    def function(query):
        return regard.attend(query, key, value, return_logsumexp=True, impl=impl)[1].square().sum()

    def expected(query):
        return (query @ key.mT / math.sqrt(D)).logsumexp(-1).square().sum()

    torch.testing.assert_close(grad(function)(query), grad(expected)(query))
    second = grad(lambda q: grad(function)(q).square().sum())(query)
    torch.testing.assert_close(second, grad(lambda q: grad(expected)(q).square().sum())(query))


@pytest.mark.parametrize("impl", ["auto", "tiled", "reference"])
def test_dropout_follows_the_randomness_of_vmap(impl):
    x = torch.randn(1, 2, 19, 4).expand(3, -1, -1, -1, -1)

    def function(x):
        return regard.attend(x, x, x, dropout=0.5, impl=impl)

    same = vmap(function, randomness="same")(x)
    different = vmap(function, randomness="different")(x)
    assert torch.equal(same[0], same[1]) and not torch.equal(different[0], different[1])


def test_a_plan_made_outside_of_a_transform_is_not_used_inside():
    x = torch.randn(1, 2, 19, 4)
    for _ in range(2):
        assert regard.attend(x, x, x).shape == x.shape
        assert grad(lambda q: regard.attend(q, x, x).sum())(x).shape == x.shape
    plans = []
    grad(lambda q: (plans.append(regard.explain(q, x, x)), regard.attend(q, x, x).sum())[1])(x)
    assert plans[0].impl == "tiled" and "torch.func" in plans[0].rejected["sdpa"]
    assert regard.explain(x, x, x).impl == "sdpa"


def test_transforms_of_a_compiled_function_run_through_the_formula():
    torch._dynamo.reset()
    x = torch.randn(1, 2, 19, 4)

    def function(q):
        return regard.attend(q, x, x, mask=masks.window(3)).square().sum()

    compiled = torch.compile(lambda q: grad(function)(q), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), grad(function)(x))
    torch._dynamo.reset()


# `hard` draws and `dynamic-memory` has a GRUCell, for which torch itself has no rule under vmap.
@pytest.mark.parametrize("name", [n for n in regard.nn.names() if n not in ("hard", "dynamic-memory")])
def test_gradients_for_each_example_of_a_batch(name):
    """Differential privacy, influence functions: a vmap of grad over a layer with its weights as arguments."""
    torch.manual_seed(1)
    layer = regard.nn.build(name, dim=6, **regard.nn.entry(name).needs).double()
    weights = {key: one.detach() for key, one in layer.named_parameters()}
    x = draw(3, 5, 6)

    def error(weights, example):
        return functional_call(layer, weights, (example[None],)).square().sum()

    found = vmap(grad(error), (None, 0))(weights, x)
    for n, example in enumerate(x):
        for key, one in grad(error)(weights, example).items():
            torch.testing.assert_close(found[key][n], one, rtol=1e-8, atol=1e-9)
    if not weights:
        return
    layer(x).square().sum().backward()
    for key, one in layer.named_parameters():
        if one.grad is not None:
            torch.testing.assert_close(found[key].sum(0), one.grad, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["linear", "global-query", "ntm"])
def test_layers_with_operators_of_their_own_are_differentiated_forwards(name):
    torch.manual_seed(1)
    layer, x, tangent = regard.nn.build(name, dim=6).double(), draw(2, 5, 6), draw(2, 5, 6)
    _, found = jvp(layer, (x,), (tangent,))
    step = 1e-6
    torch.testing.assert_close(
        found, (layer(x + step * tangent) - layer(x - step * tangent)) / (2 * step), rtol=1e-6, atol=1e-8
    )
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        again = torch.autograd.forward_ad.unpack_dual(layer(dual)).tangent
    torch.testing.assert_close(again, found)

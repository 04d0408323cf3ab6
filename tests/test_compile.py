"""`torch.compile(fullgraph=True)` around attend: one graph for many lengths, forward and backward, equal to eager."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import regard
from regard import biases, masks, scores
from tests.contracts.entries import numbers

pytestmark = pytest.mark.usefixtures("fresh_tracer")
LENGTHS = [37, 41, 53, 64, 71, 89, 97, 128, 131, 151]
WEIGHT = torch.randn(8)
TABLE = torch.randn(3, 9)

# name: attend's keyword arguments at a length, built inside the compiled function
INSIDE = {
    "no mask": lambda n: {},
    "causal": lambda n: {"mask": masks.causal()},
    "window": lambda n: {"mask": masks.window(5, 0)},
    "additive": lambda n: {"score": scores.additive(WEIGHT)},
    "entmax15": lambda n: {"normalize": "entmax15", "mask": masks.causal()},
    "relative": lambda n: {"bias": biases.relative(TABLE) + biases.alibi(3)},
    "expression": lambda n: {"mask": masks.causal() & masks.dilated(3) | masks.prefix(2)},
}


def padding(n):
    return masks.padding(torch.arange(n) < numbers([[n], [n - 9]], "cpu"))


# name: a mask built outside and handed in
OUTSIDE = {
    "padding": padding,
    "lengths": lambda n: masks.lengths(torch.tensor([n, n - 5])),
    "causal": lambda n: masks.causal(),
    "window": lambda n: masks.window(5, 0),
    "expression": lambda n: masks.causal() & ~masks.dilated(3) | masks.prefix(2),
    "raw bool": lambda n: torch.rand(n, n, generator=torch.Generator().manual_seed(n)) > 0.3,
    "causal and padding": lambda n: masks.causal() & padding(n),
}


def draw(n):
    return [torch.randn(2, 3, n, 8, requires_grad=True) for _ in range(3)]


def paths(requests):
    """(name, impl) of each request with `auto`, and with `tiled` where `auto` runs something else."""
    found = []
    for name, arguments in requests.items():
        chosen = regard.explain(*draw(37), **arguments).impl
        found += [(name, impl) for impl in ("auto", "tiled") if impl == "auto" or chosen != "tiled"]
    return found


def results(call, *arguments):
    """Output and gradients of q, k, v."""
    qkv = [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]
    out = call(*arguments)
    return [out, *torch.autograd.grad(out.square().sum(), qkv)]


def assert_one_graph(function, make):
    """Nothing is compiled after the first length; dynamo itself may begin that one anew for a float."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    first = None
    for n in LENGTHS:
        arguments = make(n)
        for x, y in zip(results(compiled, *arguments), results(function, *arguments), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
        first = first or counter.frame_count
        assert counter.frame_count == first <= 2, f"compiled again at length {n}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "impl"), paths({name: make(37) for name, make in INSIDE.items()}))
def test_one_graph_serves_every_length_with_arguments_built_inside(name, impl):
    def function(query, key, value):
        return regard.attend(query, key, value, **INSIDE[name](query.shape[2]), impl=impl)

    assert_one_graph(function, draw)


@pytest.mark.parametrize(("name", "impl"), paths({name: {"mask": make(37)} for name, make in OUTSIDE.items()}))
def test_one_graph_serves_every_length_with_a_mask_from_outside(name, impl):
    def function(query, key, value, mask):
        return regard.attend(query, key, value, mask=mask, impl=impl)

    assert_one_graph(function, lambda n: [*draw(n), OUTSIDE[name](n)])


@pytest.mark.slow
def test_a_padding_mask_may_be_built_inside_from_a_tensor():
    def function(query, key, value, keep):
        return regard.attend(query, key, value, mask=masks.padding(keep) & masks.causal())

    assert_one_graph(function, lambda n: [*draw(n), torch.arange(n) < numbers([[n], [n - 9]], "cpu")])


@pytest.mark.slow
def test_one_graph_serves_different_lengths_of_queries_and_keys():
    def function(query, key, value):
        return regard.attend(query, key, value, mask=masks.causal())

    def make(n):
        query, key, value = draw(n)
        return [query[:, :, : n // 2].detach().requires_grad_(), key, value]

    assert_one_graph(function, make)


@pytest.mark.slow
def test_gradients_reach_weights_and_biases_through_a_compiled_call():
    weight, table = torch.randn(8, requires_grad=True), torch.randn(3, 9, requires_grad=True)

    def function(query, key, value):
        return regard.attend(query, key, value, score=scores.additive(weight), bias=biases.relative(table))

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    qkv = draw(37)
    found = torch.autograd.grad(compiled(*qkv).square().sum(), [weight, table])
    for grad, expected in zip(found, torch.autograd.grad(function(*qkv).square().sum(), [weight, table]), strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_logsumexp_compiles_too():
    def function(query, key, value):
        out, lse = regard.attend(query, key, value, mask=masks.causal(), return_logsumexp=True)
        return out + lse[..., None]

    assert_one_graph(function, draw)


def test_dropout_compiles_and_differs_from_call_to_call():
    def function(query, key, value):
        return regard.attend(query, key, value, dropout=0.5)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    qkv = draw(37)
    torch.manual_seed(1)
    first, second = compiled(*qkv), compiled(*qkv)
    torch.manual_seed(1)
    assert torch.equal(first, compiled(*qkv))
    assert not torch.equal(first, second)


def test_a_mistake_inside_a_compiled_function_keeps_its_text():
    compiled = torch.compile(lambda q: regard.attend(q, q, q, dropout=2.0), backend="aot_eager")
    with pytest.raises(Exception, match="dropout"):
        compiled(torch.randn(2, 3, 37, 8))


# name: attend's keyword arguments for a number that is handed in
NUMBERS = {
    "scale": lambda x, number: {"scale": number},
    "scale of a capped score": lambda x, number: {"scale": number, "score": scores.softcap(3.0)},
    "dropout": lambda x, number: {"dropout": number},
    "strength": lambda x, number: {"score": scores.cosine(number)},
    "sigma": lambda x, number: {"bias": biases.gaussian(x[..., 0].detach(), number)},
}


@pytest.mark.parametrize(("name", "impl"), [*[(name, "auto") for name in NUMBERS], ("scale", "reference")])
def test_a_number_that_changes_from_call_to_call_becomes_symbolic_and_still_compiles(name, impl):
    def function(x, number):
        return regard.attend(x, x, x, **NUMBERS[name](x, number), impl=impl)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")  # dynamic from the second number on
    x = torch.randn(1, 2, 19, 5, requires_grad=True)
    for number in (0.25, 0.5, 0.7):
        found = []
        for call in (compiled, function):
            torch.manual_seed(7)
            found.append(results(call, x, number))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

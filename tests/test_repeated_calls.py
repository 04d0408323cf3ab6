"""Calls that repeat go straight to a kept function: the same bits, errors and guards, and who must not go there."""

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard import masks
from regard.dispatch import repeated_calls

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def empty_table():
    repeated_calls.KNOWN.clear()
    yield
    repeated_calls.KNOWN.clear()


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype)


def rows(queries=1, keys=23, heads=4, groups=2, dtype=torch.float32):
    return [drawn(2, h, n, 8, dtype=dtype) for h, n in ((heads, queries), (groups, keys), (groups, keys))]


@contextmanager
def watched():
    """The calls that kept functions answer while this lasts."""
    answered = []

    def watch(run):
        def watching(*given):
            found = run(*given)
            if found is not None:
                answered.append(found)
            return found

        return watching

    before = dict(repeated_calls.KNOWN)
    repeated_calls.KNOWN.update({key: watch(run) for key, run in before.items()})
    yield answered
    repeated_calls.KNOWN.update(before)


@contextmanager
def the_usual_way():
    """No call is found again."""
    signature = repeated_calls.signature
    repeated_calls.signature = lambda *given: None
    try:
        yield
    finally:
        repeated_calls.signature = signature


def lengths(*numbers):
    return masks.lengths(torch.tensor(numbers))


REPEATED = {
    "plain": ((1, 23), {}),
    "several queries": ((5, 23), {}),
    "named": ((1, 23), {"impl": "sdpa", "dropout": 0.0, "mask": None}),
    "scale": ((1, 23), {"scale": 0.3}),
    "another dot product": ((1, 23), {"score": "dot"}),
    "full": ((3, 23), {"mask": masks.full()}),
    "causal, one query": ((1, 23), {"mask": masks.causal()}),
    "causal": ((23, 23), {"mask": masks.causal()}),
    "lengths": ((1, 23), {"mask": lengths(23, 9)}),
    "padding": ((3, 23), {"mask": masks.padding(torch.arange(23).expand(2, -1) % 3 > 0)}),
}


@pytest.mark.parametrize("name", REPEATED)
@torch.no_grad()
def test_the_second_call_goes_straight_to_the_kept_function_and_gives_the_same_bits(name):
    (queries, keys), options = REPEATED[name]
    first, second = rows(queries, keys), rows(queries, keys)
    regard.attend(*first, **options)
    with the_usual_way():
        expected = regard.attend(*second, **options)
    with watched() as answered:
        found = regard.attend(*second, **options)
    assert answered and found is answered[0]
    assert torch.equal(found, expected)
    true = regard.attend(*[x.double() for x in second], **{**options, "impl": "reference"})
    torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_growing_cache_is_one_signature_from_sixteen_keys_on():
    for mask in (None, masks.causal()):
        repeated_calls.KNOWN.clear()
        for keys in range(17, 60, 7):
            with watched() as answered:
                found = regard.attend(*(given := rows(keys=keys)), mask=mask)
            assert bool(answered) == (keys > 17)
            true = regard.attend(*given, impl="reference")
            torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-5)
        for keys in (15, 1, 0):  # rows too short for torch's kernel have a signature of their own
            with watched() as answered:
                found = regard.attend(*(given := rows(keys=keys)), mask=mask)
            assert bool(answered) == (keys == 1 and mask is None)
            torch.testing.assert_close(found, regard.attend(*given, impl="reference"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", [masks.causal(offset=20), masks.causal(align="top-left"), masks.window(4)], ids=repr)
@torch.no_grad()
def test_a_mask_that_counts_keys_is_not_taken_for_the_last_one(mask):
    for keys in (23, 21, 40):
        for _ in range(2):
            found = regard.attend(*(given := rows(keys=keys)), mask=mask)
            true = regard.attend(*given, mask=mask, impl="reference")
            torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-5)


class Late(masks.Mask):
    """A user's mask over keys: all but the first `skip`, of which there must be so many."""

    skip: int
    by_key = True

    def visible(self, grid):
        return grid.column >= self.skip

    def check(self, sizes):
        if sizes[3] < self.skip:
            raise regard.errors.BadValue(f"mask: expected at least {self.skip} keys, got {sizes[3]}.")


@pytest.mark.parametrize(
    "mask", [masks.prefix(3), ~masks.prefix(1), masks.prefix(30) | masks.prefix(5), Late(19)], ids=repr
)
@torch.no_grad()
def test_a_mask_over_keys_follows_their_number(mask):
    for keys in (23, 29, 21, 40):
        for _ in range(2):
            found = regard.attend(*(given := rows(keys=keys)), mask=mask)
            true = regard.attend(*given, mask=mask.dense(1, keys), impl="reference")
            torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_users_mask_is_checked_again_where_the_number_of_keys_differs():
    regard.attend(*rows(keys=23), mask=Late(19))
    for _ in range(2):
        with pytest.raises(regard.RegardError, match="at least 19 keys, got 17"):
            regard.attend(*rows(keys=17), mask=Late(19))


@torch.no_grad()
def test_each_call_reads_the_lengths_it_is_given():
    given = rows()
    for mask in (lengths(23, 9), lengths(5, 1), lengths(0, 23)):
        found = regard.attend(*given, mask=mask)
        torch.testing.assert_close(found, regard.attend(*given, mask=mask, impl="reference"), rtol=1e-5, atol=1e-5)
    mask.key_lengths.fill_(3)
    assert torch.equal(regard.attend(*given, mask=mask), regard.attend(*given, mask=lengths(3, 3)))


WRONG = {
    "a value less": lambda q, k, v: ((q, k, v[:, :, :-1]), {}),
    "narrower keys": lambda q, k, v: ((q, k[..., :5], v), {}),
    "narrower keys and values": lambda q, k, v: ((q, k[..., :5], v[..., :5]), {}),
    "another batch": lambda q, k, v: ((q, k[:1], v[:1]), {}),
    "heads that do not divide": lambda q, k, v: ((q[:, :3], k, v), {}),
    "a dtype": lambda q, k, v: ((q, k.double(), v), {}),
    "an integer": lambda q, k, v: ((q, k, v.long()), {}),
    "a device": lambda q, k, v: ((q, k.to("meta"), v), {}),
    "an axis less": lambda q, k, v: ((q, k[0], v[0]), {}),
    "an axis more": lambda q, k, v: ((q, k[None], v[None]), {}),
    "no tensor": lambda q, k, v: ((q, k.tolist(), v), {}),
    "dropout False": lambda q, k, v: ((q, k, v), {"dropout": False}),
    "dropout 2": lambda q, k, v: ((q, k, v), {"dropout": 2.0}),
    "dropout below zero": lambda q, k, v: ((q, k, v), {"dropout": -0.5}),
    "dropout nan": lambda q, k, v: ((q, k, v), {"dropout": NAN}),
    "dropout of a masked call": lambda q, k, v: ((q, k, v), {"dropout": NAN, "mask": lengths(23, 9)}),
    "scale True": lambda q, k, v: ((q, k, v), {"scale": True}),
    "scale nan": lambda q, k, v: ((q, k, v), {"scale": NAN}),
    "unknown option": lambda q, k, v: ((q, k, v), {"causal": None}),
    "unknown score": lambda q, k, v: ((q, k, v), {"score": "dots"}),
    "unknown impl": lambda q, k, v: ((q, k, v), {"impl": "fast"}),
    "lengths of another batch": lambda q, k, v: ((q, k, v), {"mask": lengths(1, 2, 3)}),
    "padding of other keys": lambda q, k, v: ((q, k, v), {"mask": masks.padding(torch.ones(2, 22) > 0)}),
    "a mask elsewhere": lambda q, k, v: ((q, k, v), {"mask": lengths(23, 9).to("meta")}),
}


@pytest.mark.parametrize("name", WRONG)
@torch.no_grad()
def test_a_wrong_call_is_refused_as_ever_after_right_ones(name):
    given, messages = rows(), []
    for _ in range(3):
        wrong, options = WRONG[name](*given)
        with pytest.raises((regard.RegardError, TypeError)) as caught:
            regard.attend(*wrong, **options)
        messages.append(str(caught.value))
        for right in ({}, {"dropout": 0.0}, {"scale": 1.0}, {"mask": lengths(23, 9)}, {"impl": "sdpa"}):
            regard.attend(*given, **right)
            regard.attend(*given, **right)
    assert len(set(messages)) == 1


class Tagged(torch.Tensor):
    """A subclass that only carries a name."""


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Listening(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def under(context, call, *given):
    with context:
        return call(*given)


def dual(call, query, key, value):
    with torch.autograd.forward_ad.dual_level():
        return call(torch.autograd.forward_ad.make_dual(query, query), key, value)


LEAVING = {
    "autocast": lambda call, *x: under(torch.autocast("cpu", dtype=torch.bfloat16), call, *x),
    "a dispatch mode": lambda call, *x: under(Watching(), call, *x),
    "a function mode": lambda call, *x: under(Listening(), call, *x),
    "a default device": lambda call, *x: under(torch.device("cpu"), call, *x),
    "forward mode": dual,
    "vmap": lambda call, *x: torch.func.vmap(call)(*[part[None] for part in x])[0],
    "func.grad": lambda call, *x: torch.func.grad(lambda q: call(q, *x[1:]).sum())(x[0]),
    "jit.trace": lambda call, *x: torch.jit.trace(call, x, check_trace=False)(*x),
    "export": lambda call, *x: torch.export.export(Calling(call), tuple(x), strict=False).module()(*x),
    "a subclass": lambda call, *x: call(*[part.as_subclass(Tagged) for part in x]),
    "one subclass": lambda call, q, k, v: call(q, k, v.as_subclass(Tagged)),
    "a parameter": lambda call, q, k, v: call(torch.nn.Parameter(q), k, v),
}


class Calling(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, query, key, value):
        return self.call(query, key, value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LEAVING)
def test_surroundings_that_a_signature_does_not_describe_take_the_usual_way(name):
    given = rows()
    regard.attend(*given)
    with the_usual_way():
        expected = LEAVING[name](regard.attend, *given)
    with watched() as answered:
        found = LEAVING[name](regard.attend, *given)
        assert not answered
        regard.attend(*given)
        assert answered  # afterwards, and in between
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.slow
def test_a_compiled_function_does_not_look_into_the_table():
    given = rows()
    expected = regard.attend(*given)
    with watched() as answered:
        compiled = torch.compile(regard.attend, fullgraph=True, backend="eager")
        found = compiled(*given)
        repeated_calls.KNOWN.clear()
        with torch.compiler.set_stance("fail_on_recompile"):
            compiled(*given)
        assert not answered
    torch.testing.assert_close(found, expected)


def test_gradients_are_those_of_the_usual_way_and_a_second_derivative_is_refused_each_time():
    given = [x.requires_grad_() for x in rows(queries=23)]
    with torch.no_grad():
        regard.attend(*given)
        assert not regard.attend(*given).requires_grad
    for mask in (None, lengths(23, 9), masks.causal()):
        with the_usual_way():
            output = regard.attend(*given, mask=mask)
            expected = torch.autograd.grad(output.square().sum(), given)
        for _ in range(3):
            output = regard.attend(*given, mask=mask)
            found = torch.autograd.grad(output.square().sum(), given, retain_graph=True)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            with pytest.raises(regard.Unsupported, match="second derivative"):
                torch.autograd.grad(output.square().sum(), given, create_graph=True)
    with torch.inference_mode():
        assert regard.attend(*given).is_inference()


def test_few_keys_have_second_derivatives_each_time():
    query, key, value = (x.requires_grad_() for x in rows(queries=3, keys=5))
    for _ in range(2):
        (first,) = torch.autograd.grad(regard.attend(query, key, value).square().sum(), query, create_graph=True)
        assert torch.autograd.grad(first.sum(), key)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_infinite_scores_give_nan_in_a_repeated_call(dtype):
    query, key, value = rows(queries=23, dtype=dtype)
    for mask in (None, lengths(23, 9), masks.causal()):
        regard.attend(query, key, value, mask=mask)
        broken = query.clone()
        broken[0, 1, 2] = INF
        key[..., 0] = -1
        found = regard.attend(broken, key, value, mask=mask)
        assert found[0, 1, 2].isnan().all() and found[1].isfinite().all() and found[0, 1, :2].isfinite().all()


@torch.no_grad()
def test_nothing_of_a_call_is_kept():
    given, mask = rows(), lengths(23, 9)
    for options in ({}, {"mask": mask}):
        regard.attend(*given, **options)
        regard.attend(*given, **options)
    assert len(repeated_calls.KNOWN) == 2
    kept = [weakref.ref(thing) for thing in (*given, mask)]
    del given, mask, options
    gc.collect()
    assert [ref() for ref in kept] == [None] * 4


@torch.no_grad()
def test_torchs_switches_are_respected_on_a_cpu(monkeypatch):
    given = rows(queries=3)
    for _ in range(2):
        regard.attend(*given)
    with sdpa_kernel(SDPBackend.MATH):
        inside = regard.attend(*given)
        assert torch.equal(inside, torch.nn.functional.scaled_dot_product_attention(*given, enable_gqa=True))


def test_an_observer_sees_repeated_calls():
    class Attending(torch.nn.Module):
        def forward(self, query, key, value):
            return regard.attend(query, key, value)

    module, given = Attending(), rows(queries=3)
    expected = [module(*given) for _ in range(2)][1]
    with regard.observe(module) as seen:
        found = module(*given)
    assert torch.equal(found, expected)
    torch.testing.assert_close(seen["Attending"].weights(), regard.weights(*given[:2]))


@torch.no_grad()
def test_the_table_stays_small(monkeypatch):
    monkeypatch.setattr(repeated_calls, "_MOST_KNOWN", 5)
    for queries in range(1, 20):
        given = rows(queries)
        torch.testing.assert_close(regard.attend(*given), regard.attend(*given, impl="reference"), rtol=1e-5, atol=1e-5)
        assert len(repeated_calls.KNOWN) <= 5

"""Training calls that repeat: kept launches give the bits of the usual way, whatever changes between calls."""

import gc
import weakref

import pytest
import torch

import regard
from regard import masks, scores
from regard.dispatch import repeated_calls
from regard.implementations.triton.dot import decode_calls
from regard.implementations.triton.launch import blocks, launching, pieces
from tests.test_batched_gradients import in_turn
from tests.test_repeated_calls import the_usual_way

from .conftest import DEVICE, GPU
from .repeating import OPTIONS, B, Before, D, H, N, counted, drawn, empty_table, same, step, turned, upstream  # noqa: F401 - a fixture
from .test_pieces import SIZE, many_processors  # noqa: F401 - a fixture


@pytest.mark.parametrize("name", OPTIONS)
def test_a_repeated_training_call_gives_the_bits_of_the_usual_way_and_the_formula(name, by_address, monkeypatch):
    rows, options = drawn(), OPTIONS[name]()
    wide = [one.detach().double().requires_grad_() for one in rows]
    output = regard.attend(*wide, impl="reference", **options)
    true = [output, *torch.autograd.grad(output, wide, upstream().double())]
    with counted(monkeypatch) as answered:
        found = [step(rows, **options) for _ in range(3)]
        assert answered == [True, True]  # the first call made the launches
    for one in found[1:]:
        same(one, found[0])
    for one, other in zip(found[2], true, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-4, atol=2e-5)
    assert GPU or not by_address or len(by_address) % 4 == 0


@pytest.mark.parametrize("name", OPTIONS)
@torch.no_grad()
def test_a_repeated_call_without_gradient_gives_the_bits_of_the_usual_way(name, by_address, monkeypatch):
    rows, options = drawn(), OPTIONS[name]()
    with the_usual_way():
        expected = regard.attend(*rows, impl="triton", **options)
    with counted(monkeypatch) as answered:
        for _ in range(2):
            assert torch.equal(regard.attend(*rows, impl="triton", **options), expected)
        other = drawn(seed=3)
        with torch.inference_mode():
            for _ in range(2):
                assert torch.equal(regard.attend(*rows, impl="triton", **options), expected)
        found = regard.attend(*other, impl="triton", **options)
        assert answered == [True, True, True] and not found.is_inference()
    with the_usual_way():
        assert torch.equal(found, regard.attend(*other, impl="triton", **options))


def test_what_needs_a_gradient_may_change_from_call_to_call(by_address):
    mask = masks.window(7, 0)
    with the_usual_way():
        expected = step(drawn(), mask=mask)
    for _ in range(2):
        for which in ((0,), (1,), (2,), (1, 2), (0, 2), (0, 1, 2)):
            rows = drawn(trains=False)
            for index in which:
                rows[index].requires_grad_()
            found = step(rows, mask=mask)
            same(found, [expected[0], *[expected[1 + index] for index in which]])
        with torch.no_grad():
            assert not regard.attend(*drawn(), mask=mask, impl="triton").requires_grad
        assert not regard.attend(*drawn(trains=False), mask=mask, impl="triton").requires_grad


class Checked(Before):
    """The same, which looks at its tensor in every call."""

    def check_contents(self, sizes):
        if int(self.last) > sizes[3]:
            raise regard.errors.BadValue("mask: too far.")


def test_a_mask_whose_tensor_was_changed_is_prepared_and_checked_again(by_address):
    mask = Checked(torch.tensor(5, device=DEVICE))
    for last in (5, 11, 5):
        mask.last.fill_(last)
        rows = drawn()
        output = regard.attend(*rows, mask=mask, impl="reference")
        expected = [output, *torch.autograd.grad(output, rows, upstream())]
        for _ in range(2):  # the first makes launches, the second repeats them
            for one, other in zip(step(rows, mask=mask), expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    mask.last.fill_(N + 1)
    with pytest.raises(regard.errors.BadValue, match="too far"):
        regard.attend(*drawn(), mask=mask, impl="triton")


def test_another_mask_of_the_same_form_is_not_taken_for_the_last_one(by_address):
    made = [masks.lengths(torch.tensor(one, device=DEVICE)) for one in ([N, 11], [5, N], [N, 11])]
    with the_usual_way():
        expected = [step(drawn(), mask=mask) for mask in made]
    for _ in range(2):
        for mask, other in zip(made, expected, strict=True):
            same(step(drawn(), mask=mask), other)
    for window in (3, 5, 3):
        found = regard.attend(*drawn(), mask=masks.window(window, 0), impl="triton")
        true = regard.attend(*drawn(), mask=masks.window(window, 0), impl="reference")
        torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-5)
    for keys in (N, N + 6, N):  # no mask: only the number of keys tells these calls apart
        rows = drawn(keys=keys)
        found, true = (regard.attend(*rows, impl=impl) for impl in ("triton", "reference"))
        torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-5)


class Tagged(torch.Tensor):
    """A subclass that only carries a name."""


def test_surroundings_that_a_signature_does_not_describe_take_the_usual_way(monkeypatch):
    rows, mask = drawn(), masks.window(7, 0)
    expected = step(rows, mask=mask)

    def attend(*given):
        return regard.attend(*given, mask=mask, impl="triton")

    def refused(*given):
        with pytest.raises(regard.Unsupported):
            attend(*given)
        return given[0] * 1

    with counted(monkeypatch) as answered:
        attend(*rows)
        tagged = attend(*[one.as_subclass(Tagged) for one in rows])
        attend(torch.nn.Parameter(rows[0].detach()), *rows[1:])
        torch.func.vmap(refused)(*[one[None] for one in rows])
        torch.func.grad(lambda q: refused(q, *rows[1:]).sum())(rows[0].detach())
        assert not answered
        attend(*rows)
        assert answered == [True]
    assert torch.equal(tagged.as_subclass(torch.Tensor), expected[0])


BATCHED = {
    "dot": {"mask": masks.window(9, 2)},
    "additive": {"score": scores.additive(torch.linspace(-1, 1, D, device=DEVICE))},
    "sigmoid": {"normalize": "sigmoid", "mask": masks.causal()},
    "entmax15": {"normalize": "entmax15"},
}


@pytest.mark.parametrize("name", BATCHED)
def test_several_gradients_at_once_are_those_of_a_pass_for_each(name):
    for _ in range(3):  # a repeated call runs by a function of its own
        rows = drawn()
        output = regard.attend(*rows, impl="triton", **BATCHED[name])
        grads = torch.randn(3, *output.shape, device=DEVICE)
        found = torch.autograd.grad(output, rows, grads, is_grads_batched=True, retain_graph=True)
        for one, other in zip(found, in_turn(output, rows, grads), strict=True):
            assert torch.equal(one, other)


def test_what_torch_func_leaves_behind_has_no_address():
    left, rows = [], drawn(trains=False)
    torch.func.vmap(lambda one: left.append(one) or one * 2)(rows[0][None])
    torch.func.grad(lambda one: left.append(one) or one.sum())(rows[0])
    torch.func.jvp(lambda one: left.append(one) or one * 2, (rows[0],), (rows[0],))
    torch.func.functionalize(lambda one: left.append(one) or one * 2)(rows[0])
    assert len(left) == 4 and launching.aligned_rows(*rows) == tuple(one.data_ptr() for one in rows)
    for one in left:
        assert launching.aligned_rows(one, *rows[1:]) is None
        assert launching.aligned_rows(*rows[:2], one) is None
    assert launching.aligned_rows(torch._efficientzerotensor((B, H, N, D)), *rows[1:]) is None


def test_a_second_derivative_of_a_repeated_call(by_address):
    rows, found = drawn(queries=5, keys=5), []
    for impl in ("reference", "triton", "triton", "triton"):
        output = regard.attend(*rows, mask=masks.causal(), impl=impl)
        (slope,) = torch.autograd.grad(output.square().sum(), rows[0], create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), rows[1])[0])
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=1e-4, atol=1e-5)


def test_nothing_of_a_call_is_kept(by_address):
    mask = masks.lengths(torch.tensor([N, 11], device=DEVICE))
    rows = drawn()
    for _ in range(3):
        found = step(rows, mask=mask)
    prepared = blocks.prepare(mask, None, (B, H, N, N), rows[0].device)
    kept = [weakref.ref(thing) for thing in (*rows, mask, *found, prepared)]
    del rows, mask, found, prepared
    gc.collect()
    assert [ref() for ref in kept] == [None] * len(kept)


@torch.no_grad()
def test_tables_of_masks_are_not_kept_by_calls(monkeypatch):
    """A training with texts of any length has a call for each; tables on the device are those of few."""
    monkeypatch.setattr(blocks, "_BY_SPEC", {})
    made, prepare = [], blocks._prepare

    def watching(*given):
        found = prepare(*given)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(blocks, "_prepare", watching)
    for length in (17, 19, 23):
        rows = drawn(queries=length, keys=length, trains=False)
        for _ in range(2):
            regard.attend(*rows, mask=masks.prefix(3), impl="triton")
    gc.collect()
    assert [one() is not None for one in made] == [True] * 3 and len(repeated_calls.KNOWN) == 3
    blocks._BY_SPEC.clear()
    gc.collect()
    assert [one() for one in made] == [None] * 3
    expected = regard.attend(*rows, mask=masks.prefix(3), impl="reference")
    for _ in range(3):
        found = regard.attend(*rows, mask=masks.prefix(3), impl="triton")
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_launches_are_found_after_the_tables_of_masks_were_dropped(by_address, monkeypatch):
    mask = masks.window(7, 0)
    with counted(monkeypatch) as answered:
        expected = step(drawn(), mask=mask)
        same(step(drawn(), mask=mask), expected)
        blocks._BY_SPEC.clear()
        for _ in range(3):  # another layout, whose launches are made with new tables
            other = step(turned(drawn()), mask=mask)
        assert answered == [True, False, True, True]
    for one, two in zip(other, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_long_walks_in_pieces_are_launched_by_address(many_processors, by_address, monkeypatch):  # noqa: F811
    length = 9 * SIZE + 5
    mask, rows = masks.window(3, 0) | masks.global_tokens([0, 3]), drawn(queries=length, keys=length)
    with counted(monkeypatch) as answered:
        first, *others = [step(rows, upstream(queries=length), mask=mask) for _ in range(3)]
        assert answered == [True, True]
    for one in others:
        same(one, first)
    prepared = blocks.prepare(mask, None, (B, H, length, length), rows[0].device)
    (known,) = prepared.layouts.values()
    assert isinstance(known.forward, pieces.CutLaunch)


@pytest.mark.parametrize("keys", [53, 307])
@torch.no_grad()
def test_decoding_by_address_gives_the_bits_of_the_usual_way(keys, by_address):
    rows = drawn(queries=1, keys=keys, trains=False)
    lengths = masks.lengths(torch.tensor([keys, 7], device=DEVICE))
    for options in ({}, {"mask": lengths}):
        with the_usual_way():
            expected = regard.attend(*rows, impl="triton", **options)
        repeated_calls.KNOWN.clear()
        for _ in range(3):
            assert torch.equal(regard.attend(*rows, impl="triton", **options), expected)
        (run,) = repeated_calls.KNOWN.values()
        assert isinstance(run.__self__, decode_calls.DecodeCalls)

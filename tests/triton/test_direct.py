"""Training calls that repeat: kept launches give the bits of the usual way, whatever changes between calls."""

import ctypes
import gc
import weakref
from contextlib import contextmanager

import pytest
import torch

import regard
from regard import biases, masks, scores
from regard.core import repeated_calls
from regard.implementations.triton import blocks, decode_calls, direct, launching, pieces

from .conftest import DEVICE, GPU
from .test_pieces import SIZE, many_processors  # noqa: F401 - a fixture

B, H, G, N, D = 2, 2, 1, 19, 16
NUMBERS = {torch.float32: ctypes.c_float, torch.int64: ctypes.c_int64, torch.int32: ctypes.c_int32}


@pytest.fixture(autouse=True)
def empty_table():
    repeated_calls.KNOWN.clear()
    yield
    repeated_calls.KNOWN.clear()


def placed(address, shape, strides, dtype):
    """The tensor at an address."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (NUMBERS[dtype] * count).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


@pytest.fixture(params=[False, True], ids=["by tensors", "by address"])
def by_address(request, monkeypatch):
    """Launches are ready after the first, as on a GPU; the interpreter then gets the tensors at the addresses.

    Yields the streams on which something was launched by address.
    """
    streams = []
    if GPU or not request.param:
        yield streams
        return
    call = launching.Launch.__call__

    def first(self, *tensors):
        self.forms = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
        self.ready = False
        call(self, *tensors)
        self.ready = True

    def at(self, stream, given):
        streams.append(stream)
        call_ready(self, *[placed(one, *form) for one, form in zip(given, self.forms, strict=True)])

    def call_ready(self, *tensors):
        self.ready = False
        call(self, *tensors)
        self.ready = True

    monkeypatch.setattr(launching.Launch, "__call__", first)
    monkeypatch.setattr(launching.Launch, "at", at)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    forget()
    yield streams
    forget()
    assert set(streams) <= {7}


def forget():
    """Drop launches that were made otherwise."""
    blocks._BY_SPEC.clear()
    blocks._OF_MASKS.clear()


def drawn(seed=0, queries=N, keys=N, heads=H, groups=G, trains=True):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((heads, queries), (groups, keys), (groups, keys))
    made = [torch.randn(B, h, n, D, generator=generator).to(DEVICE) for h, n in shapes]
    return [one.requires_grad_(trains) for one in made]


def upstream(seed=9, queries=N):
    return torch.randn(B, H, queries, D, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def ids():
    return (torch.arange(N, device=DEVICE)[None] // 7).expand(B, -1)


OPTIONS = {
    "none": lambda: {},
    "window": lambda: {"mask": masks.window(7, 0)},
    "global": lambda: {"mask": masks.window(5, 5) | masks.global_tokens([0, 11])},
    "documents": lambda: {"mask": masks.causal() & masks.documents(ids())},
    "padding": lambda: {"mask": masks.lengths(torch.tensor([N, 11], device=DEVICE))},
    "prefix": lambda: {"mask": masks.prefix(5), "scale": 1},
    "alibi": lambda: {"mask": masks.causal(), "bias": biases.alibi(H)},
    "softcap": lambda: {"mask": masks.causal(), "score": scores.softcap(3.0), "return_logsumexp": False},
}


def step(rows, grad=None, wanted=None, **options):
    """The output and the gradients."""
    output = regard.attend(*rows, impl="triton", **options)
    wanted = [one for one in rows if one.requires_grad] if wanted is None else wanted
    return [output, *torch.autograd.grad(output, wanted, upstream() if grad is None else grad)]


@contextmanager
def the_usual_way():
    """No call is found again."""
    signature = repeated_calls.signature
    repeated_calls.signature = lambda *given: None
    try:
        yield
    finally:
        repeated_calls.signature = signature


@contextmanager
def counted(monkeypatch):
    """Which calls took the short way: True, or False for those that it gave back."""
    answered, run = [], direct.DirectCall.run

    def watching(self, *given):
        found = run(self, *given)
        answered.append(found is not None)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(direct.DirectCall, "run", watching)
        repeated_calls.KNOWN.clear()
        yield answered


def same(found, expected):
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_repeated_training_call_gives_the_bits_of_the_usual_way_and_the_formula(
    name, by_address, monkeypatch
):
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


def turned(rows):
    return [one.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for one in rows]


def shifted(rows):
    made = []
    for one in rows:
        memory = torch.empty(one.numel() + 1, device=DEVICE)[1:].view(one.shape)
        made.append(memory.copy_(one.detach()).requires_grad_())
    return made


def in_columns(rows):
    return [one.detach().mT.contiguous().mT.requires_grad_() for one in rows]


@pytest.mark.parametrize("layout", [turned, shifted, in_columns], ids=lambda one: one.__name__)
def test_rows_that_lie_otherwise_in_memory_give_the_same_numbers(layout, by_address):
    mask = masks.window(7, 0)
    with the_usual_way():
        expected = [step(one, mask=mask) for one in (drawn(), layout(drawn()))]
    for _ in range(3):
        same(step(drawn(), mask=mask), expected[0])
        same(step(layout(drawn()), mask=mask), expected[1])


def test_gradients_that_lie_otherwise_in_memory_give_the_same_numbers(by_address):
    mask, grad = masks.window(7, 0), upstream()
    spread = torch.ones(1, 1, 1, 1, device=DEVICE).expand(grad.shape)
    odd = torch.empty(grad.numel() + 1, device=DEVICE)[1:].view(grad.shape).copy_(grad)
    grads = [grad, grad.transpose(1, 2).contiguous().transpose(1, 2), odd, spread]
    with the_usual_way():
        expected = [step(drawn(), one, mask=mask) for one in grads]
    for _ in range(3):
        for one, other in zip(grads, expected, strict=True):
            same(step(drawn(), one, mask=mask), other)
    output = regard.attend(*(rows := drawn()), mask=mask, impl="triton")
    assert torch.autograd.grad(output.detach().requires_grad_().sum(), rows, allow_unused=True) == (None,) * 3


@pytest.mark.parametrize("move", ["elsewhere", "another layout at the same address"])
def test_hooks_may_move_what_is_saved(move, by_address):
    """Memory that was free again may hold the same rows in another order by the time of the backward pass."""
    mask = masks.window(7, 0)
    with the_usual_way():
        expected = step(turned(drawn()), mask=mask)

    def pack(tensor):
        return tensor.detach().clone(), tensor.detach().as_strided((tensor.numel(),), (1,))

    def unpack(packed):
        tensor, memory = packed
        if move == "elsewhere":
            return tensor
        return memory.copy_(tensor.contiguous().flatten()).view(tensor.shape)

    for _ in range(3):
        rows = turned(drawn())
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            output = regard.attend(*rows, mask=mask, impl="triton")
        expected_output = output.detach().clone()
        found = torch.autograd.grad(output, rows, upstream())
        for one, other in zip([expected_output, *found], expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_launches_are_not_taken_for_saved_tensors_of_another_dtype_or_alignment():
    rows, mask = drawn(), masks.window(7, 0)
    for _ in range(2):
        step(rows, mask=mask)
    (run,) = repeated_calls.KNOWN.values()
    call = run.__self__
    assert call.known(call.prepared, *[one.clone() for one in rows]) is not None
    assert call.known(call.prepared, rows[0], *[one.double() for one in rows[1:]]) is None
    assert call.known(call.prepared, *shifted(rows)) is None
    assert call.known(call.prepared, *turned(rows)) is None


def test_a_checkpointed_call_gives_the_same_bits(by_address):
    mask = masks.window(7, 0)
    with the_usual_way():
        expected = step(drawn(), mask=mask)

    def attend(*rows):
        return regard.attend(*rows, mask=mask, impl="triton")

    for reentrant in (False, False, True):
        rows = drawn()
        output = torch.utils.checkpoint.checkpoint(attend, *rows, use_reentrant=reentrant)
        output.backward(upstream())
        same([output, *[one.grad for one in rows]], expected)


def test_an_input_changed_in_place_before_the_backward_pass_is_detected(by_address):
    for _ in range(3):
        rows = [one * 1 for one in drawn()]
        output = regard.attend(*rows, mask=masks.window(7, 0), impl="triton")
        rows[1].mul_(2)
        with pytest.raises(RuntimeError, match="inplace"):
            output.sum().backward()


class Before(masks.Mask):
    """A mask that a user might write, and that has not copied its tensor."""

    last: torch.Tensor

    def visible(self, grid):
        return grid.column < self.last

    def ends(self, sizes, device):
        return torch.zeros(1, 1, sizes[2], device=device), self.last.expand(1, 1, sizes[2])

    def check_contents(self, sizes):
        if int(self.last) > sizes[3]:
            raise regard.errors.BadValue("mask: too far.")


def test_a_mask_whose_tensor_was_changed_is_prepared_and_checked_again(by_address):
    mask = Before(torch.tensor(5, device=DEVICE))
    for last in (5, 5, 11, 11, 5):
        mask.last.fill_(last)
        rows = drawn()
        found = step(rows, mask=mask)
        output = regard.attend(*rows, mask=mask, impl="reference")
        for one, other in zip(found, [output, *torch.autograd.grad(output, rows, upstream())], strict=True):
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

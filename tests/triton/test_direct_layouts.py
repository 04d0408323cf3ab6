"""Training calls that repeat with rows, gradients and saved tensors that lie elsewhere in memory."""

import pytest
import torch

import regard
from regard import masks
from regard.dispatch import repeated_calls
from tests.test_repeated_calls import the_usual_way

from .conftest import DEVICE
from .repeating import drawn, empty_table, same, step, turned, upstream  # noqa: F401 - a fixture


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


def aside(tensor):
    """The same numbers at an address that is not a multiple of 16."""
    memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=DEVICE)[1:]
    return memory.view(tensor.shape).copy_(tensor)


HELD = {
    "heads inside": lambda one: one.transpose(1, 2).contiguous().transpose(1, 2),
    "columns inside": lambda one: one.mT.contiguous().mT,
    "aside": aside,
}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("repeated", [True, False])
def test_hooks_may_bring_back_output_and_log_sum_exp_in_another_layout(held, repeated, by_address):
    """After calls for which they did not, so that launches for the usual layout are known."""
    mask, rows, changes = masks.window(7, 0), drawn(), False
    expected = step(rows, mask=mask)[1:]
    given = {one.data_ptr() for one in rows}

    def unpack(tensor):
        return HELD[held](tensor) if changes and tensor.data_ptr() not in given else tensor

    for changes in (False, False, True, False, True):  # noqa: B007 - read by the hook
        if not repeated:
            repeated_calls.KNOWN.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            output = regard.attend(*rows, mask=mask, impl="triton")
        for one, other in zip(torch.autograd.grad(output, rows, upstream()), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_launches_are_not_taken_for_saved_tensors_of_another_dtype_or_alignment():
    rows, mask = drawn(), masks.window(7, 0)
    for _ in range(2):
        output = step(rows, mask=mask)[0].detach()
    (run,) = repeated_calls.KNOWN.values()
    call, sums = run.__self__, torch.zeros(output.shape[:3], device=DEVICE)

    def known(*saved):
        return call.known(call.prepared(), saved)

    assert known(output, sums, *[one.clone() for one in rows]) is not None
    assert known(output, sums, rows[0], *[one.double() for one in rows[1:]]) is None
    assert known(output, sums, *shifted(rows)) is None
    assert known(output, sums, *turned(rows)) is None
    assert known(output.double(), sums, *rows) is None
    assert known(output, aside(sums), *rows) is None
    assert known(output, sums.mT.contiguous().mT, *rows) is None
    assert known(*[one.detach() for one in turned([output])], sums, *rows) is None


def test_a_recorded_backward_pass_does_not_feel_autocast(by_address):
    """Its products are those of the formula, in float32, whichever way the call ran."""
    rows, found = drawn(), []
    for _ in range(3):
        output = regard.attend(*rows, mask=masks.window(7, 0), impl="triton")
        with torch.autocast(DEVICE, torch.bfloat16):
            found.append(torch.autograd.grad(output, rows, upstream(), create_graph=True))
    expected = regard.attend(*rows, mask=masks.window(7, 0), impl="reference")
    true = torch.autograd.grad(expected, rows, upstream())
    for grads in found:
        for one, other in zip(grads, true, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


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

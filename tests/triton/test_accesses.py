"""The interpreter's checks of addresses and of order find what they are for."""

import pytest
import torch
import triton
import triton.language as tl

from tests.triton.conftest import GPU

if GPU:
    pytest.skip("the interpreter's", allow_module_level=True)

from tests.triton.accesses import OutOfBounds
from tests.triton.races import Race


def caught_in(kernel, grid, *arguments, **constants):
    """What an access was refused for, beneath the interpreter's own errors."""
    with pytest.raises(Exception) as caught:
        kernel[grid](*arguments, **constants)
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    return next(one for one in chain if isinstance(one, (OutOfBounds, Race)))


@triton.jit
def copied(X, Y, shift, COUNT: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(Y + at, tl.load(X + shift + at, mask=at < COUNT, other=0.0), mask=at < COUNT)


def test_an_access_inside_of_the_tensors_is_none_of_our_business():
    x, y = torch.arange(7.0), torch.zeros(7)
    copied[(1,)](x, y, 0, COUNT=7, SIZE=8)
    assert torch.equal(x, y)


@pytest.mark.parametrize("shift", [1, -1])
def test_an_access_outside_of_the_tensors_is_an_error(shift):
    found = caught_in(copied, (1,), torch.arange(7.0), torch.zeros(7), shift, COUNT=7, SIZE=8)
    assert isinstance(found, OutOfBounds) and "1 of 7" in str(found)


@triton.jit
def reversed_by_way_of_memory(X, Y, BARRIER: tl.constexpr, SIZE: tl.constexpr):
    """Every thread but the middle one loads what another has stored."""
    at = tl.arange(0, SIZE)
    tl.store(Y + at, tl.load(X + at))
    if BARRIER:
        tl.debug_barrier()
    found = tl.load(Y + SIZE - 1 - at)
    if BARRIER:
        tl.debug_barrier()
    tl.store(Y + at, found)


def test_a_barrier_orders_the_threads_of_a_program():
    x, y = torch.arange(256.0), torch.zeros(256)
    reversed_by_way_of_memory[(1,)](x, y, BARRIER=True, SIZE=256)
    assert torch.equal(y, x.flip(0))
    found = caught_in(reversed_by_way_of_memory, (1,), x, y, BARRIER=False, SIZE=256)
    assert isinstance(found, Race) and "loads, without a barrier, what it has stored" in str(found)


@triton.jit
def shifted_in_place(X, shift, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(X + at, tl.load(X + shift + at) + 1.0)


@pytest.mark.parametrize(("shift", "size", "is_race"), [(0, 256, False), (1, 256, True), (0, 1, True)])
def test_a_tile_is_stored_back_by_the_threads_that_have_loaded_it(shift, size, is_race):
    """Unless it is so small that several threads load each number, of which one may store before another loads."""
    x = torch.arange(257.0)
    if is_race:
        found = caught_in(shifted_in_place, (1,), x, shift, SIZE=size)
        assert isinstance(found, Race) and "stores, without a barrier, what it has loaded" in str(found)
        return
    shifted_in_place[(1,)](x, shift, SIZE=size)
    assert torch.equal(x[:256], torch.arange(256.0) + 1)


@triton.jit
def stored_by_all(X, Y, OFFSET: tl.constexpr, LOADS: tl.constexpr, VALUE: tl.constexpr):
    """Each program stores one number; number 0 of Y, too, by all of them."""
    program = tl.program_id(0)
    value = tl.load(X + program + OFFSET) if LOADS else tl.full([], 3.0, tl.float32)
    tl.store(X + program, value)
    tl.store(Y, program.to(tl.float32) if VALUE is None else tl.full([], VALUE, tl.float32))


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"OFFSET": -1, "LOADS": True, "VALUE": 5.0}, "loads what another program stores"),
        ({"OFFSET": 1, "LOADS": True, "VALUE": 5.0}, "stores what another program loads"),
        ({"OFFSET": 0, "LOADS": False, "VALUE": None}, "stores what another program stores"),
        ({"OFFSET": 0, "LOADS": False, "VALUE": 5.0}, None),
    ],
)
def test_programs_have_no_order(constants, message):
    """Programs that store the same need none."""
    x, y = torch.arange(8.0), torch.zeros(1)
    given = x[1:], y  # so that the offset −1 is inside of the memory
    if message is None:
        stored_by_all[(5,)](*given, **constants)
        assert y.item() == 5.0 and torch.equal(x[1:6], torch.full((5,), 3.0))
        return
    found = caught_in(stored_by_all, (5,), *given, **constants)
    assert isinstance(found, Race) and message in str(found)


@triton.jit
def scattered(Y, VALUES, SIZE: tl.constexpr, AT_ONCE: tl.constexpr):
    at = tl.arange(0, SIZE)
    if AT_ONCE:
        tl.store(Y + at // 2, tl.load(VALUES + at))
    else:
        tl.store(Y + at, tl.load(VALUES + at))
        tl.store(Y + at, tl.load(VALUES + at) + 1.0)


def test_a_number_is_stored_once_between_barriers():
    values = torch.arange(8.0)
    found = caught_in(scattered, (1,), torch.zeros(8), values, SIZE=8, AT_ONCE=True)
    assert isinstance(found, Race) and "several values" in str(found)
    found = caught_in(scattered, (1,), torch.zeros(8), values, SIZE=8, AT_ONCE=False)
    assert isinstance(found, Race) and "twice" in str(found)
    y = torch.zeros(8)
    scattered[(1,)](y, values // 2, SIZE=8, AT_ONCE=True)
    assert torch.equal(y, torch.tensor([0.0, 1, 2, 3, 0, 0, 0, 0]))

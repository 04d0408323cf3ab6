"""The interpreter's check of addresses finds what it is for."""

import pytest
import torch
import triton
import triton.language as tl

from tests.triton.conftest import GPU

if GPU:
    pytest.skip("the interpreter's", allow_module_level=True)

from tests.triton.bounds import OutOfBounds


@triton.jit
def copied(X, Y, shift, COUNT: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(Y + at, tl.load(X + shift + at, mask=at < COUNT, other=0.0), mask=at < COUNT)


@pytest.mark.parametrize(("shift", "found"), [(0, "inside"), (1, "after"), (-1, "before")])
def test_an_access_outside_of_the_tensors_is_an_error(shift, found):
    x, y = torch.arange(7.0), torch.zeros(7)
    if found == "inside":
        copied[(1,)](x, y, shift, COUNT=7, SIZE=8)
        assert torch.equal(x, y)
        return
    with pytest.raises(Exception) as caught:
        copied[(1,)](x, y, shift, COUNT=7, SIZE=8)
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert any(isinstance(one, OutOfBounds) and "1 of 7" in str(one) for one in chain), chain

"""The interpreter without waste computes what Triton's own does, and refuses what it refuses."""

import pytest
import torch
import triton
import triton.language as tl

from tests.triton.conftest import GPU

if GPU:
    pytest.skip("the interpreter's", allow_module_level=True)

import regard
from regard import masks
from tests.triton.interpreting import leave_out_waste


@triton.jit
def mixed(X, Y, Z, COUNT: tl.constexpr, SIZE: tl.constexpr, WIDENS: tl.constexpr):
    at = tl.arange(0, SIZE)
    here = at < COUNT
    halves = tl.load(X + at, mask=here, other=0.0)
    if WIDENS:  # Triton 3.6's interpreter has no numbers in bfloat16
        halves = halves.to(tl.float32)
    square = (halves * 3 + at)[:, None] * (halves / 7)[None, :]
    tl.store(Y + at, tl.sum(square, 1) + at // 3, mask=here)
    tl.store(Z + at, (at + COUNT) % 5 == tl.max(at, 0) % 5, mask=here)


def answers(dtype):
    x, y, z = torch.randn(13).to(dtype), torch.zeros(13), torch.zeros(13, dtype=torch.bool)
    mixed[(1,)](x, y, z, COUNT=13, SIZE=16, WIDENS=dtype == torch.bfloat16)
    rows = [torch.randn(1, 2, 11, 16, requires_grad=True) for _ in range(3)]
    output = regard.attend(*rows, mask=masks.window(5, 0), impl="triton")
    return [y, z, output, *torch.autograd.grad(output.square().sum(), rows)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_the_bits_are_those_of_tritons_own_interpreter(dtype, fast_and_strict_interpreter):
    torch.manual_seed(1)
    found = answers(dtype)
    assert found[1].any() and not found[1].all()
    fast_and_strict_interpreter.undo()
    try:
        torch.manual_seed(1)
        own = answers(dtype)
    finally:
        leave_out_waste(fast_and_strict_interpreter)
    assert all(torch.equal(one, other) for one, other in zip(found, own, strict=True))


def test_blocks_that_triton_refuses_are_refused_after_one_that_it_takes():
    block = tl.core.block_type
    one, other = block(tl.float32, [4, 8]), block(tl.float32, [tl.constexpr(4), 8])
    assert one == other and one != block(tl.float32, [8, 4]) and one != block(tl.int32, [4, 8])
    assert one.numel == 32 and one.scalar is tl.float32
    for shape, error in [([4, 7], ValueError), ([4, 8.0], TypeError), ([], TypeError)]:
        for _ in range(2):
            with pytest.raises(error):
                block(tl.float32, shape)

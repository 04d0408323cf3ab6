"""bfloat16 in the interpreter, as `bfloat16_computed` makes it, beside torch's."""

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.triton.conftest import GPU

if GPU:
    pytest.skip("the interpreter's", allow_module_level=True)

from tests.triton.bfloat16 import bfloat16_computed
from tests.triton.instructions import KNOWN, instructions_known

BF16 = torch.bfloat16
SPECIAL = [0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 3.3e38, -3.4e38, 1e-39, 2.0**-133, -(2.0**-134)]
SPECIAL += [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, 1.99999, 255.5, 257.0]  # ties, carries


@pytest.fixture(autouse=True)
def computed():
    with bfloat16_computed(), instructions_known():
        yield


def numbers(count=64, spread=6.0):
    """float32 numbers of many sizes, with special ones among them."""
    generator = torch.Generator().manual_seed(3)
    found = torch.randn(count, generator=generator) * torch.exp2(torch.randn(count, generator=generator) * spread)
    found[: len(SPECIAL)] = torch.tensor(SPECIAL)
    return found


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    finite = ~expected.isnan()
    assert torch.equal(found[finite].signbit(), expected[finite].signbit())


@triton.jit
def _cast(X, Y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(Y + at, tl.load(X + at).to(Y.dtype.element_ty))


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.int32, BF16])
@pytest.mark.parametrize("target", [torch.float32, torch.float16, BF16])
def test_casts_round_to_the_nearest(source, target):
    x = numbers().nan_to_num(0, 0, 0).clamp(-1e6, 1e6).to(source) if source == torch.int32 else numbers().to(source)
    y = torch.empty(64, dtype=target)
    _cast[(1,)](x, y, N=64)
    same(y, x.to(target))


@triton.jit
def _arithmetic(X, Y, SUM, DIFFERENCE, PRODUCT, QUOTIENT, HIGHER, LOWER, LESS, NEGATIVE, SIZE, CHOSEN, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(X + at), tl.load(Y + at)
    tl.store(SUM + at, x + y)
    tl.store(DIFFERENCE + at, x - y)
    tl.store(PRODUCT + at, x * y)
    tl.store(QUOTIENT + at, x / y)
    tl.store(HIGHER + at, tl.maximum(x, y))
    tl.store(LOWER + at, tl.minimum(x, y))
    tl.store(LESS + at, (x < y).to(tl.bfloat16))
    tl.store(NEGATIVE + at, -x)
    tl.store(SIZE + at, tl.abs(x))
    tl.store(CHOSEN + at, tl.where(x == x, x, 1.5))


def test_arithmetic_is_torchs():
    x, y = numbers().to(BF16), numbers().flip(0).to(BF16)
    found = [torch.empty(64, dtype=BF16) for _ in range(10)]
    found[3] = torch.empty(64)  # a quotient is computed and left in float32
    _arithmetic[(1,)](x, y, *found, N=64)
    expected = [
        x + y,
        x - y,
        x * y,
        x.float() / y.float(),
        torch.fmax(x, y),
        torch.fmin(x, y),
        (x < y).to(BF16),
        -x,
        x.abs(),
        torch.where(x == x, x, 1.5),
    ]
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if place in (4, 5, 7):  # the sign of a zero is open, and Triton subtracts from zero
            mine, theirs = mine + 0, theirs + 0
        same(mine, theirs)


@triton.jit
def _products(X, Y, OUT, TRANSPOSED, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr):
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    x, y = tl.load(X + m[:, None] * K + k[None, :]), tl.load(Y + k[:, None] * N + n[None, :])
    found = tl.dot(x, y, input_precision=PRECISION)
    tl.store(OUT + m[:, None] * N + n[None, :], found)
    again = tl.dot(tl.trans(y), tl.trans(x), tl.full([N, M], 1.0, tl.float32), input_precision=PRECISION)
    tl.store(TRANSPOSED + n[:, None] * M + m[None, :], again)


@pytest.mark.parametrize(("dtype", "precision", "error"), [(BF16, "tf32", 1e-6), (torch.float32, "bf16x6", 1e-6)])
def test_products_are_as_exact_as_float32(dtype, precision, error):
    torch.manual_seed(5)
    x, y = torch.randn(16, 64).to(dtype), torch.randn(64, 32).to(dtype)
    out, transposed = torch.empty(16, 32), torch.empty(32, 16)
    _products[(1,)](x, y, out, transposed, M=16, K=64, N=32, PRECISION=precision)
    exact = x.double() @ y.double()
    scale = (x.double().abs() @ y.double().abs()).max()
    assert (out - exact).abs().max() <= error * scale
    assert (transposed - exact.T - 1).abs().max() <= error * scale


def test_products_in_six_parts_keep_infinities():
    x, y = torch.ones(16, 16), torch.ones(16, 16)
    x[0, 0], x[1, 1] = torch.inf, torch.nan
    out, transposed = torch.empty(16, 16), torch.empty(16, 16)
    _products[(1,)](x, y, out, transposed, M=16, K=16, N=16, PRECISION="bf16x6")
    same(out, x @ y)


@triton.jit
def _reduce(X, SUMS, HIGHEST, ALL, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(X + m[:, None] * N + n[None, :])
    tl.store(SUMS + m, tl.sum(x, 1))
    tl.store(HIGHEST + n, tl.max(x, 0).to(tl.bfloat16))
    tl.store(ALL, tl.sum(tl.sum(x.to(tl.float32), 1), 0))


def test_reductions_compute_with_numbers_not_with_bits():
    torch.manual_seed(7)
    x = torch.randn(8, 16).to(BF16)
    sums, highest, everything = torch.empty(8, dtype=BF16), torch.empty(16, dtype=BF16), torch.empty(1)
    _reduce[(1,)](x, sums, highest, everything, M=8, N=16)
    exact = x.double().sum(1)
    assert (sums - exact).abs().max() <= 4 * 2**-8 * x.double().abs().sum(1).max()  # four rounded additions
    assert not torch.equal(sums, exact.to(BF16))
    same(highest, x.amax(0))
    torch.testing.assert_close(everything[0], x.float().sum())


@triton.jit
def _described(X, Y, OUT, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    found = X.load([2, 0])
    tl.store(OUT + m[:, None] * N + n[None, :], found.to(tl.float32))
    Y.store([2, 0], found * 2)


def test_descriptors_load_and_store_rows_and_pad_with_zeros():
    x = (torch.arange(5 * 16).view(5, 16) / 7).to(BF16)
    y, out = torch.full((5, 16), -1.0, dtype=BF16), torch.empty(4, 16)
    _described[(1,)](TensorDescriptor.from_tensor(x, [4, 16]), TensorDescriptor.from_tensor(y, [4, 16]), out, M=4, N=16)
    same(out, torch.cat([x[2:].float(), torch.zeros(1, 16)]))
    same(y, torch.cat([torch.full((2, 16), -1.0, dtype=BF16), x[2:] * 2]))


@triton.jit
def _instruction(X, Y, TEXT: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    found = tl.inline_asm_elementwise(TEXT, "=f,f", [tl.load(X + at)], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(Y + at, found)


EXACT = {"rcp": torch.reciprocal, "ex2": torch.exp2, "tanh": torch.tanh, "set": lambda x: (x > 0).to(x)}
ERRORS = {"rcp": 2**-22, "ex2": 2**-21, "tanh": 2**-10.9, "set": 0}


@pytest.mark.parametrize("text", KNOWN)
def test_instructions_are_near_the_functions(text):
    x, y, name = numbers(), torch.empty(64), text.split(".")[0]
    _instruction[(1,)](x, y, TEXT=text, N=64)
    given = torch.where((x.abs() < 2**-126) & ("ftz" in text), 0 * x, x)
    expected = EXACT[name](given.double()).float()
    torch.testing.assert_close(y, expected, rtol=ERRORS[name], atol=2**-126, equal_nan=True)
    assert name == "set" or not torch.equal(y, expected)


def test_an_unknown_instruction_is_an_error():
    with pytest.raises(Exception, match=r"sqrt\.approx"):
        _instruction[(1,)](torch.ones(16), torch.empty(16), TEXT="sqrt.approx.f32 $0, $1;", N=16)

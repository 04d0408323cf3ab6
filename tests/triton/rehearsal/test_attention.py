"""Attention with an H200's blocks, in its dtypes: outputs and gradients under promise 7, and hidden rows."""

import math

import pytest
import torch

import regard
from regard import masks
from regard.implementations.triton.launch import block_sizes, blocks
from tests.contracts.entries import Sizes
from tests.contracts.harness import Case
from tests.triton.conftest import DEVICE
from tests.triton.rehearsal.cases import BATCH, BF16, DTYPES, HALF, NARROW, SINGLE, SQUARE, UNEVEN, WIDE, held
from tests.triton.repeating import forget

CASES = {
    "none": Case(dtype=BF16, sizes=NARROW),
    "causal": Case(mask="causal", dtype=BF16, sizes=SQUARE),
    "causal, wide": Case(mask="causal", dtype=BF16, sizes=WIDE),
    "narrow window": Case(mask="narrow window", dtype=BF16, sizes=NARROW),
    "wide window, wide": Case(mask="wide window", dtype=BF16, sizes=WIDE),
    "wide window, float16": Case(mask="wide window", dtype=HALF, sizes=NARROW),
    "alibi": Case(mask="causal", bias="alibi", dtype=BF16, sizes=NARROW),
    "alibi, wide, float16": Case(mask="narrow window", bias="alibi", dtype=HALF, sizes=WIDE),
    "softcap": Case(score="softcap", mask="causal", dtype=BF16, sizes=NARROW),
    "softcap, relative": Case(score="softcap", bias="relative", mask="causal", dtype=HALF, sizes=UNEVEN),
    "prefix": Case(mask="long prefix", dtype=BF16, sizes=NARROW),
    "documents": Case(mask="long documents", dtype=BF16, sizes=SQUARE),
    "global tokens": Case(mask="global tokens", dtype=BF16, sizes=SQUARE),
    "global tokens, sink": Case(mask="window and global", sink=True, dtype=HALF, sizes=WIDE),
    "lengths": Case(mask="long lengths", dtype=BF16, sizes=BATCH),
    "padding": Case(mask="padding of both", dtype=BF16, sizes=BATCH),
    "dense": Case(mask="dense b h q k", dtype=BF16, sizes=BATCH),
    "gaussian": Case(bias="gaussian", mask="causal", dtype=BF16, sizes=UNEVEN),
    "dense bias": Case(bias="dense b h q k", dtype=BF16, sizes=WIDE),
    "t5": Case(bias="t5", dtype=BF16, sizes=NARROW),
    "negative scale": Case(scale=-0.2, mask="causal", dtype=BF16, sizes=NARROW),
    "float32": Case(mask="causal", dtype=SINGLE, sizes=NARROW),
    "float32, wide": Case(mask="global tokens", dtype=SINGLE, sizes=Sizes(b=1, h=1, g=1, q=131, k=131, d=128, v=128)),
    "float32, wide, rows of one key": Case(
        mask="long lengths", dtype=SINGLE, sizes=Sizes(b=3, h=2, g=1, q=131, k=131, d=128, v=128)
    ),
    "uneven": Case(mask="narrow window", dtype=BF16, sizes=UNEVEN),
}


def test_the_kernels_are_those_of_an_h200():
    assert block_sizes.forward_shape(BF16, 64).block_q == block_sizes.forward_shape(BF16, 64).block_k == 64
    assert block_sizes.precision(SINGLE) == "bf16x6"


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name):
    held(CASES[name])


REACHES = (
    "none",
    "causal",
    "narrow window",
    "wide window",
    "long prefix",
    "documents",
    "global tokens",
    "long lengths",
    "padding of both",
    "nested",
    "raw b h q k",
)
PARTS = [("scaled_dot", mask, "none") for mask in REACHES]
PARTS += [
    (score, mask, bias)
    for score in ("scaled_dot", "softcap")
    for mask in ("causal", "global tokens")
    for bias in ("alibi", "relative", "dense b h q k")
]


MANY = [(*parts, dtype, width) for parts in PARTS for dtype in (BF16, HALF, SINGLE) for width in (64, 128, 256, 37)]


@pytest.mark.nightly
@pytest.mark.parametrize(("score", "mask", "bias", "dtype", "width"), MANY)
def test_every_pair_of_parts(score, mask, bias, dtype, width):
    sizes = Sizes(b=3, h=2, g=1, q=131, k=131, d=width, v=width)
    held(Case(score=score, mask=mask, bias=bias, dtype=dtype, sizes=sizes))


ENDS = {"lengths": [65, 131, 3], "documents": [65, 131, 3], "prefix": [70, 70, 70]}


def hiding(name, length):
    ends = ENDS[name]
    if name == "lengths":
        return masks.lengths(torch.tensor(ends, device=DEVICE))
    if name == "prefix":
        return masks.prefix(70)
    ids = [[j // 40 if j < end else -1 for j in range(length)] for end in ends]
    return masks.causal() & masks.documents(torch.tensor(ids, device=DEVICE))


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize(
    ("poison", "dtype"), [(math.nan, BF16), pytest.param(math.inf, HALF, marks=pytest.mark.nightly)]
)
def test_what_is_hidden_is_never_read(name, poison, dtype):
    torch.manual_seed(3)
    length, width = 131, 64
    rows = [torch.randn(3, heads, length, width).to(DEVICE, dtype) for heads in (2, 1, 1)]
    upstream, found = torch.randn(3, 2, length, width).to(DEVICE, dtype), []
    for poisoned in (False, True):
        leaves = [one.clone().requires_grad_() for one in rows]
        if poisoned:
            with torch.no_grad():
                for n, end in enumerate(ENDS[name]):
                    leaves[1][n, :, end:], leaves[2][n, :, end:] = poison, poison
        out = regard.attend(*leaves, mask=hiding(name, length), impl="triton")
        found.append([out, *torch.autograd.grad(out, leaves, upstream)])
    for clean, dirty in zip(*found, strict=True):
        assert dirty.isfinite().all() and torch.equal(clean, dirty)


@DTYPES
def test_long_walks_are_cut_and_joined(dtype, monkeypatch):
    """Two global tokens among 2179: their walks are cut into pieces. Against dense attention in float64."""
    length, width, index = 2179, 64, [0, 1111]
    cut, own = [], blocks.cut_long
    forget()
    monkeypatch.setattr(blocks, "cut_long", lambda *given: cut.append(own(*given)) or cut[-1])
    torch.manual_seed(5)
    rows = [torch.randn(1, 1, length, width).to(DEVICE, dtype).requires_grad_() for _ in range(3)]
    upstream = torch.randn(1, 1, length, width).to(DEVICE, dtype)
    mask = masks.window(9) | masks.global_tokens(index)
    out = regard.attend(*rows, mask=mask, impl="triton")
    found = [out, *torch.autograd.grad(out, rows, upstream)]
    assert any(one is not None and one.splits for one in cut)
    place = torch.arange(length)
    special = torch.isin(place, torch.tensor(index))
    seen = ((place[:, None] - place).abs() <= 9) | special | special[:, None]

    def formula(kind):
        leaves = [one.detach().cpu().to(kind).requires_grad_() for one in rows]
        scores = (leaves[0] @ leaves[1].mT / width**0.5).masked_fill(~seen, -math.inf)
        out = scores.softmax(-1) @ leaves[2]
        return [out, *torch.autograd.grad(out, leaves, upstream.cpu().to(kind))]

    for place, (mine, exact, plain) in enumerate(zip(found, formula(torch.float64), formula(dtype), strict=True)):
        allowed = (3 if place else 2) * (plain - exact).abs().max() + 4 * torch.finfo(dtype).eps * exact.abs().max()
        assert (mine.cpu().double() - exact).abs().max() <= allowed

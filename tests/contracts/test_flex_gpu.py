"""`flex` on a GPU: forward and backward, by the same kernels for many lengths."""

from dataclasses import replace

import pytest
import torch

import regard
from regard import biases, masks
from tests.contracts.entries import BIASES, FEW_QUERIES, MANY_QUERIES, MASKS, SCORES, SELF, Sizes
from tests.contracts.harness import Case, check
from tests.contracts.test_flex import SHORTER, compiled, draw

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

GPU = Sizes(b=3, h=4, g=2, q=131, k=257, d=24, v=40)
# The gradient through a row that sees one key is zero, of which fused kernels leave rounding (a test of its own below).
ONE_KEY = ("window itself", "lengths")
GPU_MASKS = {name: Case(mask=name, sizes=GPU) for name in MASKS if not MASKS[name].square and name not in ONE_KEY}
GPU_MASKS |= {name: Case(mask=name, sizes=replace(GPU, q=257)) for name in MASKS if MASKS[name].square}
GPU_BIASES = {name: Case(bias=name, sizes=GPU, mask="causal") for name in BIASES}
GPU_SCORES = {
    name: Case(score=name, sizes=GPU) for name in SCORES if "dot" in name or name.startswith(("soft", "gen", "cos"))
}
GPU_SIZES = {
    str(sizes): Case(mask="causal", sizes=sizes)
    for sizes in (
        SELF,
        FEW_QUERIES,
        MANY_QUERIES,
        SHORTER,
        Sizes(q=1, k=300),
        Sizes(h=6, g=2, q=1, k=40),
        Sizes(q=512, k=512),
    )
}
GPU_DTYPES = {
    f"{dtype} {mask}": Case(mask=mask, dtype=dtype, sizes=GPU)
    for dtype in (torch.bfloat16, torch.float16)
    for mask in ("none", "causal", "lengths of both")
}
GPU_WIDE = {
    f"{dtype} {width} {bias}": Case(bias=bias, mask="causal", dtype=dtype, sizes=Sizes(q=257, k=257, d=width, v=width))
    for dtype, width in ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float32, 128), (torch.float16, 256))
    for bias in ("alibi", "relative", "dense b h q k")
}
GPU_WIDE["dense mask"] = Case(mask="raw b h q k", dtype=torch.bfloat16, sizes=Sizes(q=257, k=257, d=64, v=64))
GPU_CASES = {**GPU_WIDE, **GPU_MASKS, **GPU_BIASES, **GPU_SCORES, **GPU_SIZES, **GPU_DTYPES}


@pytest.mark.parametrize("name", GPU_CASES)
def test_forward_and_backward(name):
    check(GPU_CASES[name], "flex", "cuda", with_lse=False, bias_gradient=False)


def test_one_kernel_serves_many_lengths():
    before = None
    for turn, n in enumerate([137, 200, 256, 257, 300, 385, 512, 700]):
        for q, k in ((n, n), (n, n + 30), (n + 30, n)):
            query, key, value = [x.cuda().requires_grad_() for x in draw(2 + turn % 3, q, k)]
            for call in ({}, {"mask": masks.window(turn + 5, 2), "scale": 0.1 + turn}):
                out = regard.attend(query, key, value, **call, impl="flex")
                out.square().sum().backward()
                before = compiled() if before is None else before
                expected = regard.attend(query, key, value, **call, impl="reference")
                torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    assert compiled() == before


def test_hidden_things_reach_no_gradient():
    for mask in (
        masks.lengths(torch.tensor([11, 40]), torch.tensor([19, 30])),
        masks.causal() & masks.padding(torch.rand(2, 40) > 0.3, torch.rand(2, 30) > 0.3),
    ):
        seen = mask.dense(30, 40, batch=2)
        rows = draw(2, 30, 40)
        poisoned = [x.clone() for x in rows]
        poisoned[0][~seen.any(3).expand(2, 4, 30)] = torch.nan
        for x in poisoned[1:]:
            x[~seen.any(2).expand(2, 2, 40)] = torch.nan
        results = []
        for given, impl in ((rows, "reference"), (poisoned, "flex")):
            given = [x.cuda().requires_grad_() for x in given]
            out = regard.attend(*given, mask=mask.to("cuda"), impl=impl)
            results.append([out, *torch.autograd.grad(out.square().sum(), given)])
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_what_is_not_finite_stays_visible():
    for k in (3, 16, 17, 130, 256):
        for where in range(3):
            rows = [x.cuda() for x in draw(2, k, k)]
            rows[where][0, 0, k // 2, 3] = torch.nan
            for mask in (None, masks.causal()):
                lost = ~regard.attend(*rows, mask=mask, impl="reference").isfinite()
                found = regard.attend(*rows, mask=mask, impl="flex")
                assert not found[lost].isfinite().any()
                assert where == 2 or found[~lost].isfinite().all()


def test_rows_of_the_lowest_number_and_of_minus_infinity():
    query, key, value = [x.cuda() for x in draw(2, 30, 40)]
    bias = torch.zeros(30, 40, device="cuda")
    bias[3], bias[5] = torch.finfo(torch.float32).min, -torch.inf
    found = regard.attend(query, key, value, bias=bias, impl="flex")
    torch.testing.assert_close(found, regard.attend(query, key, value, bias=bias, impl="reference"))


@pytest.mark.parametrize("dynamic", [True, None])
def test_inside_a_compiled_function(dynamic):
    def function(query, key, value, mask, impl):
        return regard.attend(query, key, value, mask=mask & masks.causal(), bias=biases.alibi(4), impl=impl)

    torch._dynamo.reset()
    outer = torch.compile(function, fullgraph=True, dynamic=dynamic)
    for n in (200, 257, 300):
        rows = [x.cuda().requires_grad_() for x in draw(2, n, n + 9)]
        mask = masks.window(20) & masks.lengths(torch.tensor([n, 9])).to("cuda")
        results = []
        for call, impl in ((outer, "flex"), (function, "reference")):
            out = call(*rows, mask, impl)
            results.append([out, *torch.autograd.grad(out.square().sum(), rows)])
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_second_derivatives_name_the_reference():
    query, key, value = [x.cuda().requires_grad_() for x in draw(2, 30, 40)]
    out = regard.attend(query, key, value, impl="flex")
    with pytest.raises(regard.Unsupported, match="reference"):
        torch.autograd.grad(out.square().sum(), query, create_graph=True)


def test_layouts():
    rows = [x.cuda() for x in draw(2, 130, 140)]
    expected = regard.attend(*rows, impl="reference")
    for change in (
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: torch.stack([x, x], -1)[..., 0],
        lambda x: torch.cat([x, x], -1)[..., :16],
        lambda x: torch.cat([x, x], 2)[:, :, : x.shape[2]],
    ):
        given = [change(x).requires_grad_() for x in rows]
        out = regard.attend(*given, impl="flex")
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
        out.sum().backward()


def test_rows_that_see_one_key():
    for mask in (masks.window(0, 0), masks.lengths(torch.tensor([140, 1]))):
        rows = [x.cuda().requires_grad_() for x in draw(2, 130, 140)]
        results = []
        for impl in ("reference", "flex"):
            out = regard.attend(*rows, mask=mask.to("cuda"), impl=impl)
            results.append([out, *torch.autograd.grad(out.square().sum(), rows)])
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=5e-5)


def test_few_queries_of_one_sequence():
    for q, k in ((1, 1), (1, 300), (1, 700), (5, 300), (40, 40)):
        rows = [x.cuda().requires_grad_() for x in draw(1, q, k)]
        for mask in (None, masks.causal(), masks.window(9, 0)):
            results = []
            for impl in ("reference", "flex"):
                out = regard.attend(*rows, mask=mask, impl=impl)
                results.append([out, *torch.autograd.grad(out.square().sum(), rows)])
            for expected, found in zip(*results, strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

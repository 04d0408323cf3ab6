"""Sigmoid, sparsemax, entmax15 and hard under Triton: the promises of the core, by the same oracle and bounds."""

import pytest
import torch

import regard
from regard import masks
from tests.contracts.entries import Sizes
from tests.contracts.harness import Case, check
from tests.triton.conftest import DEVICE, GPU, LARGE_BLOCKS

NAMES = ("sigmoid", "sparsemax", "entmax15", "hard")
SMALL = Sizes(b=3, h=2, g=1, q=19, k=35, d=5, v=7)
MANY = Sizes(b=3, h=2, g=2, q=37, k=19, d=13, v=11)
LARGE = Sizes(b=3, h=4, g=2, q=131, k=257, d=40, v=37)
CASES = {
    "no mask": Case(sizes=SMALL),
    "causal, more queries than keys": Case(mask="causal", sizes=MANY),
    "window and global": Case(mask="window and global", sizes=SMALL),
    "lengths of both": Case(mask="lengths of both", sizes=SMALL),
    "raw b h q k": Case(mask="raw b h q k", sizes=SMALL),
    "capped": Case(score="softcap", mask="window both", sizes=SMALL),
    "general": Case(score="general per head", mask="causal", sizes=SMALL),
    "bias": Case(bias="alibi", mask="causal", sizes=SMALL),
    "scaled": Case(scale=-0.7, mask="nested", sizes=SMALL),
}
# Widths that the copy engine reads; a GPU's float32 backward kernels take one width.
WIDE = Sizes(b=3, h=2, g=1, q=19, k=35, d=16, v=16 if LARGE_BLOCKS else 32)
CASES |= {
    "copied in bulk": Case(mask="causal", sizes=WIDE),
    "copied in bulk, lengths": Case(mask="lengths of both", sizes=WIDE),
}
# Backward kernels mask once or twice, by the width and by who reads rows.
CASES |= {
    "67 wide": Case(mask="causal", sizes=Sizes(b=1, h=2, g=1, q=19, k=35, d=67, v=67)),
    "128 wide, in bulk, capped": Case(
        score="softcap", mask="causal", sizes=Sizes(b=1, h=1, g=1, q=19, k=35, d=128, v=128)
    ),
    "256 wide, in bulk": Case(mask="window both", sizes=Sizes(b=1, h=1, g=1, q=19, k=35, d=256, v=256)),
}
if GPU:
    CASES |= {
        f"large {mask} {dtype}": Case(mask=mask, dtype=dtype, sizes=LARGE)
        for mask in ("none", "causal", "nested")
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    }


@pytest.mark.parametrize("normalize", NAMES)
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name, normalize):
    case = CASES[name]
    given = {field: getattr(case, field) for field in ("score", "mask", "bias", "dtype", "sizes", "scale")}
    check(Case(**given, normalize=normalize), "triton", DEVICE, with_lse=False, bias_gradient=False)


def drawn(*shape, grad=True, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE).requires_grad_(grad)


@pytest.mark.parametrize("normalize", NAMES)
def test_rows_that_see_nothing_are_zeros_and_pass_no_gradient(normalize):
    mask = masks.lengths(torch.tensor([0, 21], device=DEVICE), torch.tensor([19, 4], device=DEVICE))
    query, key, value = drawn(2, 2, 19, 5), drawn(2, 1, 35, 5), drawn(2, 1, 35, 7)
    with torch.no_grad():  # hidden rows, which must not be read
        query[1, :, 4:], key[1, :, 21:], value[0] = torch.nan, torch.inf, torch.nan
    out = regard.attend(query, key, value, mask=mask, normalize=normalize, impl="triton")
    assert (out[0] == 0).all() and (out[1, :, 4:] == 0).all() and (out[1, :, :4] != 0).any()
    out.sum().backward()
    for rows in (query, key, value):
        assert rows.grad.isfinite().all() and (rows.grad[0] == 0).all()
    assert (value.grad[1, :, :21] != 0).any()


@pytest.mark.parametrize("normalize", ["sigmoid", "sparsemax", "entmax15"])
@pytest.mark.parametrize("width", [5, 16, 67, 128])
def test_what_a_row_of_nan_does_not_see_gets_no_gradient_from_it(normalize, width):
    """Row 20 has a NaN upstream. Hidden from it are keys of its own block of 16, and of a later one."""
    query, key, value = (drawn(1, 1, 35, width) for _ in range(3))
    given = torch.ones(1, 1, 35, width, device=DEVICE)
    given[0, 0, 20, 3] = torch.nan
    out = regard.attend(query, key, value, mask=masks.causal(), normalize=normalize, impl="triton")
    of_queries, of_keys = torch.autograd.grad(out, [query, key], given)
    assert of_queries[0, 0, 20].isnan().all()
    assert of_queries[0, 0, :20].isfinite().all() and of_queries[0, 0, 21:].isfinite().all()
    assert of_keys[0, 0, 21:].isfinite().all() and of_keys[0, 0, 20].isnan().any()


@pytest.mark.parametrize("normalize", ["sigmoid", "sparsemax", "entmax15"])
@pytest.mark.parametrize("width", [5, 16, 67, 128])
def test_a_row_that_does_not_see_a_value_of_nan_gets_no_gradient_from_it(normalize, width):
    query, key, value = (drawn(1, 1, 35, width) for _ in range(3))
    with torch.no_grad():
        value[0, 0, 20, 3] = torch.nan
    out = regard.attend(query, key, value, mask=masks.causal(), normalize=normalize, impl="triton")
    (of_queries,) = torch.autograd.grad(out, [query], torch.ones_like(out))
    assert of_queries[0, 0, :20].isfinite().all() and of_queries[0, 0, 20:].isnan().any()


@pytest.mark.parametrize("normalize", NAMES)
@pytest.mark.parametrize("place", ["query", "key", "value"])
def test_a_visible_nan_stays_visible(normalize, place):
    query, key, value = (drawn(1, 1, 18, 5, grad=False), drawn(1, 1, 35, 5, grad=False), drawn(1, 1, 35, 7, grad=False))
    {"query": query, "key": key, "value": value}[place][0, 0, 3] = torch.nan
    out = regard.attend(query, key, value, normalize=normalize, impl="triton")
    shown = out[:, :, 3:4] if place == "query" else out
    assert shown.isnan().all()
    if place == "query":
        assert out[:, :, 4:].isfinite().all()


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_hard_takes_the_lowest_of_equal_keys_in_whatever_order_blocks_are_visited(order):
    query, key = torch.ones(1, 1, 17, 4, device=DEVICE), torch.zeros(1, 1, 67, 4, device=DEVICE)
    key[:, :, [5, 23, 40, 41]] = 1.0
    value = torch.arange(67.0, device=DEVICE).view(1, 1, 67, 1).expand(-1, -1, -1, 4).contiguous()
    mask = masks.global_tokens([40, 3]) | masks.window(20 if order == "rising" else 30)
    out = regard.attend(query, key, value, mask=mask, normalize="hard", impl="triton")
    expected = regard.attend(query, key, value, mask=mask, normalize="hard", impl="reference")
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


REFUSED = {
    "a sink": {"sink": torch.zeros(2)},
    "dropout": {"dropout": 0.5},
    "a log-sum-exp": {"return_logsumexp": True},
    "a learned bias": {"bias": regard.biases.relative(torch.zeros(2, 5).requires_grad_())},
    "additive": {"score": regard.scores.additive(torch.ones(5))},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_kernels_lack_is_refused(what):
    query, key, value = drawn(2, 2, 19, 5), drawn(2, 1, 35, 5), drawn(2, 1, 35, 7)
    options = {name: part.to(DEVICE) if hasattr(part, "to") else part for name, part in REFUSED[what].items()}
    with pytest.raises(regard.Unsupported, match=what):
        regard.attend(query, key, value, normalize="entmax15", impl="triton", **options)


@pytest.mark.parametrize("normalize", NAMES)
def test_auto_takes_the_widths_that_were_checked_on_a_gpu(normalize):
    rows = drawn(2, 2, 19, 5), drawn(2, 1, 35, 5), drawn(2, 1, 35, 7)
    plan = regard.explain(*rows, normalize=normalize)
    assert plan.impl == ("triton" if GPU else "tiled")
    assert "checked on a GPU" not in plan.rejected.get("triton", "")
    assert regard.explain(*rows, normalize=normalize, impl="triton").impl == "triton"


@pytest.mark.parametrize("normalize", ("sparsemax", "entmax15"))
def test_auto_leaves_wider_rows_to_tiled(normalize):
    rows = drawn(2, 2, 19, 71), drawn(2, 1, 35, 71), drawn(2, 1, 35, 71 if LARGE_BLOCKS else 7)
    plan = regard.explain(*rows, normalize=normalize)
    assert plan.impl == "tiled"
    assert "widths up to 64" in plan.rejected["triton"]
    assert regard.explain(*rows, normalize=normalize, impl="triton").impl == "triton"


@pytest.mark.parametrize("normalize", NAMES)
def test_second_derivatives_are_those_of_the_reference(normalize):
    rows = [drawn(1, 2, 5, 5), drawn(1, 1, 7, 5), drawn(1, 1, 7, 3)]
    found = []
    for impl in ("triton", "reference"):
        out = regard.attend(*rows, normalize=normalize, impl=impl)
        first = torch.autograd.grad(out.sin().sum(), rows, create_graph=True)
        found.append(torch.autograd.grad(sum(part.square().sum() for part in first), rows))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)

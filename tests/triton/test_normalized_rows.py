"""The search for a threshold in few walks, and the sigmoid without a division: unusual rows, NaN, bits, block sizes."""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import regard
from regard import masks
from regard.implementations.triton.launch import block_sizes
from regard.implementations.triton.normalized import forward as normalized
from regard.implementations.triton.normalized import rows as normalized_rows
from tests.contracts.entries import Sizes
from tests.contracts.harness import Case, check
from tests.triton.conftest import DEVICE, GPU

POWERS = {"sparsemax": 1, "entmax15": 2}
KEYS = 211  # a prime: the last block of keys is not full


def rows_of_scores(count=KEYS):
    """Rows by name: those that end a search at once, and those that make it long."""
    generator = torch.Generator().manual_seed(7)
    drawn = torch.randn(9, count, generator=generator)
    steps = torch.arange(float(count))
    outlier_last, outlier_first, tied = drawn[0].clone(), drawn[1].clone(), drawn[2].clone()
    outlier_last[-1], outlier_first[0] = 50.0, 4.0
    tied[[3, 50, 51, 200]] = 3.5
    return {
        "normal": drawn[3],
        "wide": drawn[4] * 10,
        "narrow": drawn[5] * 0.05,
        "equal": torch.full((count,), 2.5),
        "ties": tied,
        "clusters": drawn[6].round(),
        "dominating last": outlier_last,
        "dominating first": outlier_first,
        "huge": drawn[7] * 1e6,
        "huge and negative": drawn[7] * 1e6 - 1e8,
        "rising": drawn[8].sort().values,
        "falling": drawn[8].sort(descending=True).values,
        "new largest in every block": steps * 0.11,
        "geometric": -(0.9**steps),
        "some hidden by infinity": drawn[3].where(steps % 3 == 0, -torch.inf),
        "at the edge": torch.where(steps == 77, 0.0, -2.0),
        "near the edge": torch.where(steps == 77, 0.0, -0.999),
        "logarithmic": torch.log1p(steps) * 0.3,
        "falling towards the edge": -(1 - 0.8**steps),
        "far from zero": 1e4 + steps * 1e-2,
    }


def threshold_weights(scores, normalize):
    """Weights in float64 by bisection, which shares nothing with the kernel."""
    power = POWERS[normalize]
    placed = (scores.double() - scores.double().max()) / power
    low, high = -1.0, 0.0
    for _ in range(200):
        middle = (low + high) / 2
        enough = ((placed - middle).clamp(min=0) ** power).sum() > 1
        low, high = (middle, high) if enough else (low, middle)
    return (placed - (low + high) / 2).clamp(min=0) ** power


def attend_to_scores(scores, normalize):
    """The weights that the kernels give to rows of scores, which a bias brings in."""
    count, keys = scores.shape
    query, key = torch.zeros(1, 1, count, 4, device=DEVICE), torch.zeros(1, 1, keys, 4, device=DEVICE)
    value, bias = torch.eye(keys, device=DEVICE)[None, None], scores[None, None].to(DEVICE)
    return regard.attend(query, key, value, bias=bias, normalize=normalize, impl="triton")[0, 0].cpu()


@pytest.mark.parametrize("normalize", POWERS)
def test_weights_of_unusual_rows(normalize):
    rows = rows_of_scores()
    found = attend_to_scores(torch.stack(list(rows.values())), normalize)
    for weights, (name, scores) in zip(found, rows.items(), strict=True):
        exact = threshold_weights(scores, normalize)
        assert (weights >= 0).all() and ((weights > 0) <= (exact > -1)).all(), name
        assert abs(weights.double().sum() - 1) < 1e-5, name
        # As exact as float32 can be: scores of a million are known to a few hundredths, but stay apart.
        assert (weights.double() - exact).abs().max() < 3e-6, name


@pytest.mark.parametrize("normalize", POWERS)
def test_many_keys_just_below_or_above_the_threshold(normalize):
    """A step that looks small passes many keys."""
    generator = torch.Generator().manual_seed(11)
    scores = 1e-4 * torch.randn(32, 199, generator=generator) - torch.linspace(0.02, 2, 32)[:, None]
    scores[:, [7, 70, 170]] = torch.rand(32, 3, generator=generator) * 0.3
    found = attend_to_scores(scores, normalize)
    for weights, row in zip(found, scores, strict=True):
        assert (weights.double() - threshold_weights(row, normalize)).abs().max() < 3e-6


@pytest.mark.parametrize(("normalize", "walks"), [("entmax15", 3), ("sparsemax", 4)])
def test_few_walks_are_enough_for_normal_scores(normalize, walks, monkeypatch):
    """Besides the first: with more walks forbidden, weights are as exact."""
    monkeypatch.setattr(normalized_rows, "MOST_WALKS", walks)
    scores = torch.randn(32, 251, generator=torch.Generator().manual_seed(walks))
    found = attend_to_scores(scores, normalize)
    for weights, row in zip(found, scores, strict=True):
        assert (weights.double() - threshold_weights(row, normalize)).abs().max() < 3e-6


def test_one_walk_is_not_enough(monkeypatch):
    """The test above can fail."""
    monkeypatch.setattr(normalized_rows, "MOST_WALKS", 1)
    scores = torch.randn(32, 241, generator=torch.Generator().manual_seed(1))
    found = attend_to_scores(scores, "entmax15")
    errors = [(w.double() - threshold_weights(s, "entmax15")).abs().max() for w, s in zip(found, scores, strict=True)]
    assert 3e-6 < max(errors) < 0.05  # what the first walk estimates is near already


@pytest.mark.parametrize("normalize", ["sigmoid", "sparsemax", "entmax15", "hard"])
def test_equal_bits_twice(normalize):
    generator = torch.Generator().manual_seed(3)
    found = []
    rows = [torch.randn(1, 2, n, 16, generator=generator).to(DEVICE) for n in (19, 37, 37)]
    for _ in range(2):
        given = [part.clone().requires_grad_() for part in rows]
        out = regard.attend(*given, mask=masks.causal(), normalize=normalize, impl="triton")
        grads = torch.autograd.grad(out, given, torch.ones_like(out), allow_unused=True, materialize_grads=True)
        found.append([out, *grads])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("normalize", ["sigmoid", "sparsemax", "entmax15"])
def test_an_infinite_query_makes_its_own_row_nan(normalize):
    """In output and gradients, and hidden keys and values stay out of it."""
    generator = torch.Generator().manual_seed(4)
    query, key, value = (torch.randn(1, 1, 37, 16, generator=generator).to(DEVICE) for _ in range(3))
    query[0, 0, 20, 3] = torch.inf
    given = [part.requires_grad_() for part in (query, key, value)]
    out = regard.attend(*given, mask=masks.causal(), normalize=normalize, impl="triton")
    grads = torch.autograd.grad(out.sum(), given)
    others = [row for row in range(37) if row != 20]
    assert out[0, 0, 20].isnan().all() and out[0, 0, others].isfinite().all()
    assert grads[0][0, 0, 20].isnan().all() and grads[0][0, 0, others].isfinite().all()
    for grad in grads[1:]:
        assert grad[0, 0, :21].isnan().any(-1).all()
    # 0 · inf is NaN in the products of a tile: one column of the keys' gradient.
    assert grads[1][0, 0, 21:, 4:].isfinite().all() and grads[2][0, 0, 21:].isfinite().all()


@pytest.mark.parametrize("normalize", ["sparsemax", "entmax15"])
def test_an_infinite_score_makes_its_own_row_nan(normalize):
    rows = rows_of_scores()
    scores = torch.stack([rows["normal"], rows["normal"], rows["wide"]])
    scores[1, 40] = torch.inf
    found = attend_to_scores(scores, normalize)
    assert found[1].isnan().all() and found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("normalize", ["sigmoid", "sparsemax", "entmax15"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(normalize, dtype):
    case = Case(mask="causal", normalize=normalize, dtype=dtype, sizes=Sizes(b=3, h=2, g=1, q=19, k=35, d=16, v=16))
    check(case, "triton", DEVICE, with_lse=False, bias_gradient=False)


@triton.jit
def _sigmoid(SCORES, WEIGHTS, REST, COUNT: tl.constexpr):
    at = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    weights, rest = normalized.sigmoid(tl.load(SCORES + at), True)
    tl.store(WEIGHTS + at, weights)
    tl.store(REST + at, rest)


def test_sigmoid_without_division_is_exact_to_its_own_size():
    count = 4096
    scores = torch.linspace(-120, 70, 4 * count - 8)  # to base 2
    special = torch.tensor([-torch.inf, torch.inf, torch.nan, 0.0, -1e30, 1e30, 128.0, -200.0])
    given = torch.cat([scores, special]).to(DEVICE)
    weights, rest = torch.empty_like(given), torch.empty_like(given)
    _sigmoid[(4,)](given, weights, rest, COUNT=count)
    exact = scores.double().numpy() * math.log(2)
    for found, sign in ((weights, 1), (rest, -1)):
        true = 1 / (1 + np.exp(-sign * exact))
        off = np.abs(found[:-8].double().cpu().numpy() / true - 1).max()
        assert off < 2**-16.5  # to which 2^score contributes on a GPU
    expected = torch.tensor([0.0, 1.0, torch.nan, 0.5, 0.0, 1.0, 1.0, 0.0])
    torch.testing.assert_close(weights[-8:].cpu(), expected, rtol=2**-16.5, atol=1e-38, equal_nan=True)
    assert weights[-8] == 0 and rest[-8].item() == pytest.approx(1, rel=2**-16.5)


@pytest.mark.skipif(GPU, reason="a look at tables")
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_that_read_numbers_of_rows_have_no_longer_blocks_than_those_that_write_them(width, dtype, monkeypatch):
    monkeypatch.setattr(block_sizes, "SMALL", False)
    written = min(block_sizes.rows_shape(dtype, width).block_q, block_sizes.forward_shape(dtype, width).block_q)
    between = block_sizes.queries_shape(dtype, width).block_q
    for name in ("sigmoid", "sparsemax"):
        read = block_sizes.keys_shape(dtype, width, name).block_q
        assert read <= between <= written and written % between == 0 and between % read == 0
    assert 128 % max(block_sizes.rows_shape(dtype, width).block_q, block_sizes.forward_shape(dtype, width).block_q) == 0

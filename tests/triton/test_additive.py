"""The kernels for additive scores against the reference in float64: every piece, every range, what is hidden, strips.

`conftest.py` says where they run.
"""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from regard import biases, masks, normalizers, scores
from regard.formula.request import Request
from regard.implementations import reference
from regard.implementations.triton.additive import backward as additive_backward
from regard.implementations.triton.additive import forward as additive
from regard.implementations.triton.additive import strips as additive_strips
from regard.implementations.triton.dot.launches import Backward
from regard.implementations.triton.launch.blocks import prepare
from regard.implementations.triton.launch.kernel_work import KernelWork
from tests.contracts.harness import assert_within
from tests.contracts.orders import ORIGINAL, draw_order
from tests.triton.conftest import DEVICE, LARGE_BLOCKS

B, H, G, Q, K, D, V = 1, 1, 1, 19, 25, 3, 5  # two by two tiles of the interpreter
FEW = (1, 2, 1, 7, 11, 3, 5)  # one tile
NAMES = ("output", "logsumexp", "query", "key", "value", "weight", "sink", "bias")


def request(magnitude=1.0, shape=(B, H, G, Q, K, D, V), dtype=torch.float32, shared_weight=False, **pieces):
    b, h, g, q, k, d, v = shape

    def drawn(*sizes, by=1.0):
        return (torch.randn(*sizes) * by).to(DEVICE, dtype)

    score = scores.additive(drawn(d) if shared_weight else drawn(h, d))
    given = {"mask": None, "bias": None, "dropout": 0.0, "sink": None} | pieces
    return Request(
        drawn(b, h, q, d, by=magnitude),
        drawn(b, g, k, d, by=magnitude),
        drawn(b, g, k, v),
        score,
        given["mask"],
        given["bias"],
        normalizers.Softmax(),
        0.7,
        given["dropout"],
        given["sink"],
        True,
    )


def upstream(asked):
    shape = (*asked.query.shape[:3], asked.value.shape[3])
    return torch.randn(shape).to(asked.query), torch.randn(shape[:3]).to(DEVICE)


def by_kernels(asked, grads, seed=None, keep=True):
    prepared = prepare(asked.mask, asked.bias, asked.sizes, asked.query.device)
    work = KernelWork(
        asked.query, asked.key, asked.value, asked.sink, seed, asked.score, prepared, asked.scale, asked.dropout
    )
    output, logsumexp, kept = additive.run_forward(work)
    backward = Backward(work, grads[0], output, logsumexp, grads[1])
    found = additive_backward.run_backward(backward, asked.bias, kept=kept if keep else None)
    sink = [] if asked.sink is None else [backward.sink()]
    return [output, logsumexp, found.query, found.key, found.value, found.weight, *sink, *found.bias]


def by_formula(asked, grads, dtype, seed=None, order=ORIGINAL):
    """The formula in a dtype, with the widths d and v in an order; results in the original one."""

    def leaf(tensor, letters=""):
        return order.apply(tensor.detach(), letters).to(dtype).requires_grad_()

    bias = None if asked.bias is None else asked.bias.with_tensors([leaf(tensor) for tensor in asked.bias.tensors])
    score = asked.score.with_tensors([leaf(asked.score.weight, "d")])
    asked = replace(
        asked,
        query=leaf(asked.query, "d"),
        key=leaf(asked.key, "d"),
        value=leaf(asked.value, "v"),
        score=score,
        bias=bias,
        sink=None if asked.sink is None else leaf(asked.sink),
    )
    output, logsumexp = reference.compute(asked, seed)
    inputs = [asked.query, asked.key, asked.value, score.weight]
    inputs += ([] if asked.sink is None else [asked.sink]) + ([] if bias is None else list(bias.tensors))
    outer = [order.apply(grads[0], "v").to(output.dtype), grads[1].to(logsumexp.dtype)]
    found = [output.detach(), logsumexp.detach(), *torch.autograd.grad([output, logsumexp], inputs, outer)]
    letters = ["v", "", "d", "d", "v", "d", *[""] * (len(found) - 6)]
    return [order.undo(part, axes) for part, axes in zip(found, letters, strict=True)]


def names(asked):
    return [name for name in NAMES if name != "sink" or asked.sink is not None]


def check(asked, seed=None):
    """Promise 7: at most twice the error of the plain formula, three times for gradients, and four roundings."""
    grads = upstream(asked)
    return hold(by_kernels(asked, grads, seed), asked, grads, seed)


def hold(found, asked, grads, seed):
    """Hold what kernels gave to that promise."""
    exact = by_formula(asked, grads, torch.float64, seed)
    sizes = SimpleNamespace(d=asked.query.shape[3], v=asked.value.shape[3])

    @cache
    def plain(number):
        order = draw_order(sizes, number, "dv") if number else ORIGINAL
        found = by_formula(asked, grads, asked.query.dtype, seed, order)
        return [part.to(asked.query.dtype) for part in found]

    for place, name in enumerate(names(asked)[: len(found)]):
        mine, true = found[place], exact[place].cpu()
        assert mine.shape == true.shape, name
        factor = 2 if name in ("output", "logsumexp") else 3
        assert_within(mine, true, lambda number, place=place: plain(number)[place], factor, name)
    return found


def keep(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(5)) < 0.6


MASKS = {
    "nothing hidden": lambda: None,
    "causal": masks.causal,
    "lengths": lambda: masks.lengths(torch.tensor([21]), torch.tensor([17])),
    "padding and window": lambda: masks.padding(keep(B, K)) & masks.window(9),
    "documents or global": lambda: (
        masks.documents(torch.arange(Q) // 7, torch.arange(K) // 8) | masks.global_tokens([3])
    ),
    "any pairs": lambda: masks.dense(keep(B, H, Q, K)),
}


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_gives_the_formula(name):
    mask = MASKS[name]()
    check(request(mask=None if mask is None else mask.to(DEVICE)))


@pytest.mark.parametrize("magnitude", [0.01, 0.3, 5.0, 30.0])
def test_every_range_is_as_exact_as_the_plain_formula(magnitude):
    check(request(magnitude, (1, 1, 1, 13, 32, 18, 16)))


def test_small_and_large_rows_may_meet():
    asked = request(0.1, (1, 1, 1, 20, 25, 4, 2))
    asked.query[:, :, 16:] *= 300
    asked.key[:, :, :7] *= 100
    check(asked)


def test_a_sink_takes_its_share():
    check(request(shape=(2, 2, 1, 7, 11, 3, 5), sink=torch.tensor([0.5, -1.0], device=DEVICE), mask=masks.window(3)))


def test_dropout_drops_the_weights_the_reference_drops():
    seed = torch.tensor([123456789012345], device=DEVICE)
    check(request(shape=FEW, dropout=0.3), seed)


BIASES = {
    "relative": lambda: biases.relative(torch.randn(2, 7)),
    "gaussian": lambda: biases.gaussian(torch.rand(1, 2, 7) * 11, 3.0),
    "dense": lambda: biases.dense(torch.randn(2, 7, 11)),
}


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_is_added_and_receives_its_gradient(name):
    check(request(shape=FEW, bias=BIASES[name]().to(DEVICE), mask=masks.causal()))


@pytest.mark.parametrize("pairs", [1, additive_strips.BLOCK**2 * 4])
def test_strips_and_splits_change_nothing(pairs, monkeypatch):
    monkeypatch.setattr(additive_strips, "PAIRS", pairs)
    monkeypatch.setattr(additive_strips, "LONGEST", 1)
    check(request(shape=(1, 2, 1, 17, 18, 3, 2), shared_weight=True))


@pytest.mark.parametrize("pairs", [1, 700, 3000, 9000, 10**6])
@pytest.mark.parametrize(("batch", "heads", "group", "blocks"), [(3, 6, 2, 2), (1, 1, 1, 9), (5, 4, 4, 1)])
def test_strips_cover_every_row_once(batch, heads, group, blocks, pairs, monkeypatch):
    monkeypatch.setattr(additive_strips, "PAIRS", pairs)
    seen = torch.zeros(batch * heads, blocks)
    for strip in additive_strips.strips(batch, heads, group, blocks, 48):
        heads_here = slice(strip.first_head, strip.first_head + strip.heads)
        seen[heads_here, strip.first_block : strip.first_block + strip.blocks] += 1
        whole_entries = strip.heads % heads == 0 and strip.first_head % heads == 0
        assert whole_entries or strip.first_head // heads == (strip.first_head + strip.heads - 1) // heads
        assert strip.heads == 1 or (strip.heads % group == 0 and strip.first_head % group == 0)
        assert strip.heads * strip.blocks * additive_strips.BLOCK * 48 <= max(pairs, additive_strips.BLOCK * 48)
    assert bool((seen == 1).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    check(request(dtype=dtype, shape=(1, 1, 1, 5, 20, 7, 5)))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1, 1, 1), (1, 1, 1, 2, 17, 17, 33)])
def test_odd_sizes(shape):
    check(request(0.3, shape=shape))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_hidden_is_never_read(value):
    keys, queries = keep(1, 11), torch.arange(7).expand(1, 7) != 4
    asked = request(shape=FEW, mask=masks.padding(keys, queries).to(DEVICE))
    grads = upstream(asked)
    clean = by_kernels(asked, grads)
    poisoned = replace(asked, query=asked.query.clone(), key=asked.key.clone(), value=asked.value.clone())
    poisoned.query[:, :, 4] = value
    for rows in (poisoned.key, poisoned.value):
        rows.masked_fill_(~keys.to(DEVICE)[:, None, :, None], value)
    for name, mine, before in zip(NAMES, by_kernels(poisoned, grads), clean, strict=False):
        if name == "logsumexp":
            assert bool((mine[:, :, 4] == -torch.inf).all())
        assert torch.allclose(mine, before, rtol=1e-5, atol=1e-5), name


def test_a_visible_nan_shows():
    asked = request(shape=(2, 1, 1, 7, 19, 3, 5), mask=masks.causal())
    asked.key[0, 0, 15] = torch.nan  # seen by the queries from 15 − (19 − 7) = 3 on
    found = by_kernels(asked, upstream(asked))
    rows = torch.arange(7, device=DEVICE) >= 3
    assert bool(found[0][0, :, rows].isnan().all()) and bool(found[0][0, :, ~rows].isfinite().all())
    assert bool(found[0][1].isfinite().all()) and bool(found[2][0, :, ~rows].isfinite().all())
    assert bool(found[2][0, :, rows].isnan().all()) and bool(found[3][1].isfinite().all())


def test_an_infinite_key_is_just_the_end_of_the_tanh():
    asked = request(shape=(1, 1, 1, 5, 20, 4, 3))
    far = replace(asked, key=asked.key.clone())
    asked.key[0, 0, 3, 1], far.key[0, 0, 3, 1] = 50.0, torch.inf
    grads = upstream(asked)
    for mine, other in zip(by_kernels(far, grads), by_kernels(asked, grads), strict=True):
        assert torch.equal(mine, other)


def test_a_row_without_keys_is_zero_and_has_no_gradient():
    asked = request(shape=(2, 1, 1, 5, 20, 4, 3), mask=masks.lengths(torch.tensor([0, 9])).to(DEVICE))
    found = check(asked)
    assert not found[0][0].any() and not found[2][0].any() and not found[3][0].any()


def test_equal_inputs_give_equal_bits():
    asked = request(shape=(1, 1, 1, 5, 20, 4, 3)) if DEVICE == "cpu" else request()
    grads = upstream(asked)
    first = by_kernels(asked, grads)
    for _ in range(50 if DEVICE == "cuda" else 1):
        assert all(map(torch.equal, first, by_kernels(asked, grads)))


def test_strided_inputs_are_fine():
    asked = request(shape=(1, 1, 1, 8, 10, 6, 4))
    spread = torch.stack([asked.key, asked.key * 0], -1)[..., 0]
    turned = replace(asked, query=asked.query.mT.contiguous().mT, key=spread)
    assert turned.query.stride(3) != 1 and turned.key.stride(3) != 1
    grads = upstream(asked)
    flat = (grads[0][..., :1, :].expand_as(grads[0]), grads[1])
    for mine, other in zip(by_kernels(turned, flat), by_kernels(asked, flat), strict=True):
        assert torch.equal(mine, other)


def test_scores_are_kept_where_they_are_smaller_than_the_inputs():
    shape = (3, 2, 1, 16, 31, 47, 53) if not LARGE_BLOCKS else (3, 2, 1, 64, 127, 211, 197)
    asked = request(mask=masks.causal(), shape=shape)
    prepared = prepare(asked.mask, asked.bias, asked.sizes, asked.query.device)
    work = KernelWork(asked.query, asked.key, asked.value, None, None, asked.score, prepared, asked.scale, 0.0)
    output, logsumexp, kept = additive.run_forward(work)
    assert kept is not None and kept.numel() * 4 < sum(
        rows.numel() * 4 for rows in (asked.query, asked.key, asked.value)
    )
    grads = upstream(asked)
    anew = by_kernels(asked, grads, keep=False)
    before = kept.clone()
    for _ in range(2):  # a graph may be retained
        found = additive_backward.run_backward(Backward(work, grads[0], output, logsumexp, grads[1]), kept=kept)
        parts = (output, logsumexp, found.query, found.key, found.value, found.weight)
        assert all(map(torch.equal, parts, anew))
    assert torch.equal(kept.nan_to_num(), before.nan_to_num())


def test_scores_larger_than_the_inputs_are_not_kept():
    asked = request(shape=(1, 1, 1, 70, 150, 4, 3))
    prepared = prepare(None, None, asked.sizes, asked.query.device)
    work = KernelWork(asked.query, asked.key, asked.value, None, None, asked.score, prepared, 0.7, 0.0)
    assert additive.run_forward(work)[2] is None

"""The kernels for additive attention over few keys against the reference in float64, and when they are used."""

from dataclasses import replace

import pytest
import torch

import regard
from regard import biases, masks, scores
from regard.implementations.triton.additive import short as short_additive
from regard.implementations.triton.launch.blocks import prepare
from regard.implementations.triton.launch.kernel_work import KernelWork
from tests.triton.conftest import DEVICE, HALVED
from tests.triton.test_additive import NAMES, hold, keep, request, upstream

SHAPE = (3, 4, 2, 5, 11, 13, 7)  # b, h, g, q, k, d, v: prime where they may be


def work_of(asked, seed=None):
    prepared = prepare(asked.mask, asked.bias, asked.sizes, asked.query.device)
    rest = (asked.sink, seed, asked.score, prepared, asked.scale, asked.dropout)
    rows = [one if HALVED else one.float() for one in (asked.query, asked.key, asked.value)]
    return KernelWork(*rows, *rest)


def by_kernels(asked, grad, seed=None):
    work = work_of(asked, seed)
    assert not short_additive.refusal(work)
    return [*short_additive.run_forward(work), *short_additive.run_backward(work, grad.to(work.query.dtype))]


def check(asked, seed=None):
    grad = upstream(asked)[0]
    return hold(by_kernels(asked, grad, seed), asked, (grad, torch.zeros(grad.shape[:3], device=DEVICE)), seed)


MASKS = {
    "nothing hidden": lambda: None,
    "causal": masks.causal,
    "padding": lambda: masks.padding(keep(3, 11)),
    "lengths of both": lambda: masks.lengths(torch.tensor([11, 0, 6]), torch.tensor([5, 2, 3])),
    "window or global": lambda: masks.window(3) | masks.global_tokens([3]),
    "any pairs": lambda: masks.dense(keep(3, 4, 5, 11)),
}


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_gives_the_formula(name):
    mask = MASKS[name]()
    check(request(shape=SHAPE, mask=None if mask is None else mask.to(DEVICE)))


@pytest.mark.parametrize("magnitude", [0.01, 0.3, 5.0, 30.0])
def test_every_range_is_as_exact_as_the_plain_formula(magnitude):
    check(request(magnitude, (2, 1, 1, 3, 8, 32, 16)))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1, 1, 1), (2, 1, 1, 1, 8, 128, 128), (1, 3, 1, 7, 17, 5, 33)])
def test_other_sizes(shape):
    check(request(shape=shape, shared_weight=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    check(request(dtype=dtype, shape=(2, 1, 1, 3, 11, 7, 5)))


def test_dropout_drops_the_weights_the_reference_drops():
    check(request(shape=SHAPE, dropout=0.3), torch.tensor([123456789012345], device=DEVICE))


@pytest.mark.parametrize("made", [lambda: biases.alibi(4), lambda: biases.dense(torch.randn(4, 5, 11))])
def test_a_bias_is_added(made):
    check(request(shape=SHAPE, bias=made().to(DEVICE), mask=masks.causal()))


def test_many_queries_share_a_program(monkeypatch):
    monkeypatch.setattr(short_additive, "_PROGRAMS", 7)
    check(request(shape=SHAPE))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_hidden_is_never_read(value):
    keys, queries = keep(3, 11), torch.arange(5).expand(3, 5) != 4
    asked = request(shape=SHAPE, mask=masks.padding(keys, queries).to(DEVICE))
    grad = upstream(asked)[0]
    clean = by_kernels(asked, grad)
    poisoned = replace(asked, query=asked.query.clone(), key=asked.key.clone(), value=asked.value.clone())
    poisoned.query[:, :, 4] = grad[:, :, 4] = value
    for rows in (poisoned.key, poisoned.value):
        rows.masked_fill_(~keys.to(DEVICE)[:, None, :, None], value)
    for name, mine, before in zip(NAMES[:6], by_kernels(poisoned, grad), clean, strict=True):
        assert torch.equal(mine, before), name


def test_a_visible_nan_shows():
    asked = request(shape=(2, 1, 1, 7, 19, 3, 5), mask=masks.causal())
    asked.key[0, 0, 15] = torch.nan  # seen by the queries from 15 − (19 − 7) = 3 on
    found = by_kernels(asked, upstream(asked)[0])
    rows = torch.arange(7, device=DEVICE) >= 3
    for place in (0, 2):
        assert bool(found[place][0, :, rows].isnan().all()) and bool(found[place][0, :, ~rows].isfinite().all())
    assert bool(found[0][1].isfinite().all()) and bool(found[3][1].isfinite().all())


def test_a_row_without_keys_is_zero_and_has_no_gradient():
    asked = request(shape=(2, 1, 1, 5, 7, 4, 3), mask=masks.lengths(torch.tensor([0, 3])).to(DEVICE))
    found = check(asked)
    assert all(not found[place][0].any() for place in (0, 2, 3, 4))
    assert bool((found[1][0] == -torch.inf).all())


def test_equal_inputs_give_equal_bits():
    asked = request(shape=SHAPE)
    grad = upstream(asked)[0]
    first = by_kernels(asked, grad)
    for _ in range(50 if DEVICE == "cuda" else 1):
        assert all(map(torch.equal, first, by_kernels(asked, grad)))


def test_strided_inputs_are_fine():
    asked = request(shape=SHAPE)
    turned = replace(asked, query=asked.query.transpose(1, 2).contiguous().transpose(1, 2))
    grad = upstream(asked)[0]
    flat = grad[..., :1].expand_as(grad)
    for mine, other in zip(by_kernels(turned, flat), by_kernels(asked, flat.contiguous()), strict=True):
        assert torch.equal(mine, other)


def launched(monkeypatch, call):
    """The names of the short kernels that a call launches, and its result."""
    names, launch = [], short_additive.launch

    def noted(kernel, *rest, **named):
        names.append(kernel.__name__)
        launch(kernel, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(short_additive, "launch", noted)
        return names, call()


def attended(asked, logsumexp=False):
    rows = [one.detach().clone().requires_grad_() for one in (asked.query, asked.key, asked.value)]
    weight = asked.score.weight.detach().clone().requires_grad_()
    bias = None
    if asked.bias is not None:
        bias = asked.bias.with_tensors([one.detach().clone().requires_grad_() for one in asked.bias.tensors])
    found = regard.attend(
        *rows,
        score=scores.additive(weight),
        mask=asked.mask,
        bias=bias,
        sink=asked.sink,
        impl="triton",
        return_logsumexp=True,
    )
    total = found[0].square().sum() + (found[1].sum() if logsumexp else 0.0)
    return [found[0], *torch.autograd.grad(total, [*rows, weight, *(() if bias is None else bias.tensors)])]


BOTH = ["short_additive_forward", "short_additive_backward"]


@pytest.mark.parametrize(
    ("pieces", "logsumexp", "expected"),
    [
        ({}, False, BOTH),
        ({"mask": masks.causal()}, False, BOTH),
        ({}, True, BOTH[:1]),
        ({"sink": torch.zeros(4)}, False, []),
        ({"bias": biases.dense(torch.ones(4, 5, 11))}, False, BOTH[:1]),
    ],
)
def test_attend_takes_the_short_way_where_it_can(pieces, logsumexp, expected, monkeypatch):
    """And the other kernels, which run where it cannot, give the same."""
    moved = {name: one.to(DEVICE) if hasattr(one, "to") else one for name, one in pieces.items()}
    asked = request(shape=SHAPE, **moved)
    names, found = launched(monkeypatch, lambda: attended(asked, logsumexp))
    assert names == expected
    monkeypatch.setattr(short_additive, "enabled", False)
    names, others = launched(monkeypatch, lambda: attended(asked, logsumexp))
    assert not names
    for mine, other in zip(found, others, strict=True):
        assert torch.allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_the_operator_takes_it_too(monkeypatch):
    """As `torch.compile` would call it."""
    asked = request(shape=SHAPE)
    direct = attended(asked)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    names, found = launched(monkeypatch, lambda: attended(asked))
    assert names == BOTH and all(map(torch.equal, found, direct))


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((1, 1, 1, 1, 65, 128, 8), "up to 8192 fit"),
        ((1, 1, 1, 1, 8, 8, 1030), "up to 8192 fit"),
        ((1, 1, 1, 33, 64, 128, 8), "too many pairs"),
        ((65, 1, 1, 32, 64, 128, 8), "too many pairs"),
    ],
)
def test_more_work_is_refused(shape, why, monkeypatch):
    b, h, g, q, k, d, v = shape
    empty = [torch.empty(*sizes, device="meta") for sizes in ((b, h, q, d), (b, g, k, d), (b, g, k, v))]
    prepared = prepare(None, None, (b, h, q, k), torch.device("cpu"))
    work = KernelWork(*empty, None, None, scores.additive(torch.empty(d)), prepared, 1.0, 0.0)
    assert why in short_additive.refusal(work)


def test_second_derivatives_come_from_the_reference():
    asked = request(shape=(1, 1, 1, 2, 3, 4, 2))
    rows = [one.requires_grad_() for one in (asked.query, asked.key, asked.value)]

    def twice(impl):
        output = regard.attend(*rows, score=asked.score, impl=impl)
        first = torch.autograd.grad(output.square().sum(), rows, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), rows)

    for mine, true in zip(twice("triton"), twice("reference"), strict=True):
        assert torch.allclose(mine, true, rtol=1e-4, atol=1e-5)

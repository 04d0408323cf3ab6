"""`weights` by kernels: chosen rows and heads, against the formula."""

import math

import pytest
import torch

import regard
from regard import biases, masks, scores
from regard.dispatch.attention import selection
from regard.formula import request
from regard.formula.call import Call
from regard.implementations.triton.dot import weights as kernels
from tests.contracts.user_masks import Runs
from tests.triton.conftest import DEVICE


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(DEVICE, dtype)


def reduced(query, key, **options):
    return request.build(Call(query, key, key, **options)).widened().reduced()


def fused(query, key, rows=None, heads=None, **options):
    asked = reduced(query, key, **options)
    assert kernels.runs(asked)
    rows = selection("rows", rows, query.shape[2], query.device)
    return kernels.run(asked, rows, selection("heads", heads, query.shape[1], query.device), query.dtype)


def formula(query, key, rows=None, heads=None, **options):
    """A gradient keeps `weights` to the formula on every device."""
    return regard.weights(query.detach().requires_grad_(), key, rows=rows, heads=heads, **options).detach()


CHOICES = {
    "all": (None, None),
    "a row": ([7], None),
    "rows of a head": ([-1, 3, 3], [2]),
    "slices": (slice(5, 23), slice(1, 3)),
    "steps": (slice(None, None, 5), slice(None, None, 2)),
    "none": ([], [0]),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_rows_and_heads_are_those_of_the_whole(choice):
    rows, heads = CHOICES[choice]
    query, key = drawn(1, 4, 37, 8), drawn(1, 2, 131, 8)
    options = {"mask": masks.causal(), "sink": drawn(4), "bias": biases.alibi(4)}
    found = fused(query, key, rows, heads, **options)
    torch.testing.assert_close(found, formula(query, key, rows, heads, **options), rtol=1e-5, atol=1e-7)


MASKS = {
    "window": masks.window(9, 2),
    "prefix": masks.causal() | masks.prefix(5),
    "nested": (masks.blocks(16) & ~masks.dilated(3)) | masks.global_tokens([0, 30]),
    "by head and entry": Runs(17),
    "padding": masks.padding(torch.arange(71) % 5 < torch.tensor([[0], [3]])),  # the first entry sees nothing
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_and_capped_scores(name):
    query, key, mask = drawn(2, 2, 71, 24), drawn(2, 2, 71, 24), MASKS[name].to(DEVICE)
    options = {"mask": mask, "score": scores.softcap(2.0), "scale": -0.4}
    found = fused(query, key, [0, 20, 70], **options)
    torch.testing.assert_close(found, formula(query, key, [0, 20, 70], **options), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(dtype):
    query, key = drawn(1, 2, 20, 24, dtype=dtype), drawn(1, 1, 75, 24, dtype=dtype)
    found = fused(query, key, slice(3, 9))
    assert found.dtype == dtype
    torch.testing.assert_close(found, formula(query, key, slice(3, 9)), rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.slow
def test_hidden_poison_stays_out_and_seen_poison_shows():
    query, key = drawn(2, 3, 5, 8), drawn(2, 3, 71, 8)
    mask = masks.lengths(torch.tensor([40, 71], device=DEVICE))
    clean = fused(query, key, mask=mask)
    key[0, :, 40:] = math.nan
    assert torch.equal(fused(query, key, mask=mask), clean)
    key[1, 2, 70] = math.nan
    found = fused(query, key, mask=mask)
    assert found[1, 2].isnan().all()
    assert torch.equal(found[1, :2], clean[1, :2])
    query[0, 1, 3] = math.inf
    row = fused(query, key, mask=mask)[0, 1, 3]
    assert row[:40].isnan().all()
    assert (row[40:] == 0).all()


def test_the_operator_is_registered_as_torch_wants_it():
    query, key = drawn(1, 2, 20, 8), drawn(1, 1, 30, 8)
    tensors, spec = kernels.pack(reduced(query, key, mask=masks.causal()))
    rows = torch.tensor([3, 5], device=DEVICE)
    arguments = (query, key, None, rows, 0, 2, None, 1, 1, tensors, spec, 0.3, torch.float32)
    torch.library.opcheck(torch.ops.regard.rows.default, arguments)

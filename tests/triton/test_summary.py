"""`summarize` by kernels: the same definition as strip by strip, with more keys than lanes, ties, NaN and masks."""

import math

import pytest
import torch

from regard import biases, masks, scores
from regard.dispatch.summary import Summary, summarize_strips
from regard.formula import request
from regard.formula.call import Call
from regard.implementations.triton.summary import op as kernels
from tests.contracts.harness import Case
from tests.test_weights_summary import CASES as WRITTEN
from tests.test_weights_summary import ask, close, exact
from tests.triton.conftest import DEVICE, GPU

CASES = {name: case for name, case in WRITTEN.items() if case.normalize == "softmax" and case.score != "additive"}
CASES |= {
    "capped, nested": Case(score="softcap", mask="nested"),
    "cosine": Case(score="cosine per query", mask="window and global"),
    "padding of both": Case(mask="padding of both", bias="relative", sink=True),
}


def reduced(query, key, **options):
    return request.build(Call(query, key, key, **options)).widened().reduced()


def fused(query, key, top=8, **options):
    asked = reduced(query, key, **options)
    assert kernels.runs(asked, top)
    return Summary(*kernels.run(asked, top))


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(DEVICE, dtype)


def parts(summary):
    return {name: getattr(summary, name) for name in Summary.__dataclass_fields__}


def same(found, expected):
    """Equal keys, and numbers but for rounding."""
    for name, part in parts(found).items():
        other = getattr(expected, name)
        if name == "top_keys":
            assert torch.equal(part, other)
        else:
            torch.testing.assert_close(part, other, rtol=1e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_a_summary_equals_its_definition(name):
    query, key, arguments = ask(CASES[name], DEVICE)
    arguments.pop("normalize", None)
    summary = fused(query, key, top=3, **arguments)
    weights, lse, alive = exact(CASES[name])
    total = weights.sum(-1, keepdim=True)
    p = weights / torch.where(total > 0, total, 1.0)
    close(summary.entropy, -(p * torch.where(p > 0, p, 1.0).log()).sum(-1))
    close(summary.received, weights.sum(2) / alive.any(-1).sum(-1)[..., None].clamp(min=1))
    close(summary.logsumexp, lse)
    ordered, order = torch.sort(weights.masked_fill(~alive, -1), stable=True, dim=-1, descending=True)
    close(summary.top_weights, ordered[..., :3].clamp(min=0))
    clear = ordered[..., :3] > 1e-6
    assert torch.equal(summary.top_keys.cpu()[clear], order[..., :3][clear])
    assert (summary.top_keys.cpu()[ordered[..., :3] < 0] == -1).all()


MASKS = {
    "none": None,
    "causal": masks.causal(),
    "window": masks.window(9, 2),
    "documents and global tokens": masks.documents((torch.arange(70) // 23)[None]) | masks.global_tokens([0, 65]),
    "far apart": masks.dilated(32),  # all keys of a row in one lane
}


@pytest.mark.parametrize("name", MASKS)
def test_several_blocks_of_queries_and_keys(name):
    mask = MASKS[name]
    mask = mask if mask is None else mask.to(DEVICE)
    query, key = drawn(1, 2, 70, 16), drawn(1, 1, 70, 16)
    bias = biases.alibi(2) if name == "window" else None
    options = {"mask": mask, "bias": bias, "sink": drawn(2)}
    same(fused(query, key, top=3, **options), summarize_strips(reduced(query, key, **options), 3))


@pytest.mark.parametrize("mask", [None, masks.window(71, 3), masks.dilated(5)])
def test_several_launches_along_the_columns(mask, monkeypatch):
    """Of more queries than one launch takes, whose programs collect the flagged ones of several parts each."""
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "_STRETCH", 128)
    length = 197 if DEVICE == "cpu" else 2 * kernels._STRETCH + 197
    query, key = drawn(1, 2, length, 16), drawn(1, 1, 101, 16)
    options = {"mask": mask}
    same(fused(query, key, top=3, **options), summarize_strips(reduced(query, key, **options), 3))


@pytest.mark.parametrize("top", [0, 1, 32])
def test_any_count_of_strongest_keys(top):
    query, key = drawn(1, 1, 40, 16), drawn(1, 1, 101, 16)
    found = fused(query, key, top=top, mask=masks.causal())
    same(found, summarize_strips(reduced(query, key, mask=masks.causal()), top))
    assert not kernels.runs(reduced(query, key), 33)


def test_ties_go_to_the_lowest_key_however_many_there_are():
    query, key = torch.zeros(1, 1, 3, 4, device=DEVICE), torch.zeros(1, 1, 300, 4, device=DEVICE)
    mask = torch.ones(3, 300, dtype=torch.bool, device=DEVICE)
    mask[1, 2] = False
    mask[2, :] = False
    mask[2, 298:] = True
    summary = fused(query, key, top=4, mask=mask)
    assert summary.top_keys[0, 0].tolist() == [[0, 1, 2, 3], [0, 1, 3, 4], [298, 299, -1, -1]]
    torch.testing.assert_close(summary.top_weights[0, 0, 2].cpu(), torch.tensor([0.5, 0.5, 0, 0]))
    torch.testing.assert_close(summary.entropy[0, 0].cpu(), torch.tensor([300.0, 299.0, 2.0]).log())


def test_one_key_may_take_all_the_weight():
    query = torch.full((1, 1, 33, 1), 500.0, device=DEVICE)
    key = torch.arange(80.0, device=DEVICE).roll(33).view(1, 1, 80, 1)  # the largest is number 32
    summary = fused(query, key, top=4)
    assert (summary.top_keys == torch.tensor([32, 0, 1, 2], device=DEVICE)).all()
    assert (summary.top_weights == torch.tensor([1.0, 0, 0, 0], device=DEVICE)).all()
    # On a GPU score · unit − peak is one fused operation, which keeps what the peak was rounded by.
    assert (summary.entropy.abs() <= 1e-6).all()
    assert (summary.received[0, 0] == torch.eye(80, device=DEVICE)[32]).all()


def test_what_is_hidden_is_never_read():
    query, key = drawn(2, 1, 37, 8), drawn(2, 1, 71, 8)
    mask = masks.lengths(torch.tensor([40, 71], device=DEVICE), torch.tensor([37, 20], device=DEVICE))
    clean = fused(query, key, mask=mask)
    key[0, :, 40:] = math.nan
    query[1, :, 20:] = math.inf
    for name, part in parts(fused(query, key, mask=mask)).items():
        assert torch.equal(part, getattr(clean, name)), name


def test_a_nan_that_is_attended_shows_in_its_row_alone():
    query, key = drawn(2, 1, 37, 8), drawn(2, 1, 71, 8)
    query[1, 0, 30] = math.nan
    summary = fused(query, key, mask=masks.causal(), top=3)
    for part in (summary.entropy, summary.logsumexp):
        assert part[1, 0, 30].isnan()
        assert part.isnan().sum() == 1
    assert summary.top_weights[1, 0, 30].isnan().all()
    assert summary.top_keys[1, 0, 30].tolist() == [0, 1, 2]
    assert summary.received[1, 0, :65].isnan().all()
    assert summary.received.isnan().sum() == 65


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_scored_in_float32(dtype):
    query, key = drawn(1, 2, 40, 24, dtype=dtype), drawn(1, 1, 75, 24, dtype=dtype)
    asked = reduced(query, key, score=scores.softcap(3.0))
    found = fused(query, key, score=scores.softcap(3.0))
    assert found.entropy.dtype == torch.float32
    same(found, summarize_strips(asked, 8))


def test_the_same_bits_every_time():
    query, key = drawn(1, 1, 70, 16), drawn(1, 1, 70, 16)
    first = parts(fused(query, key, mask=masks.causal()))
    for _ in range(50 if GPU else 1):
        again = parts(fused(query, key, mask=masks.causal()))
        assert all(torch.equal(again[name], first[name]) for name in first)


@pytest.mark.parametrize("empty", [(0, 2, 5, 7), (2, 2, 0, 7), (2, 2, 5, 0)])
def test_nothing_to_summarise(empty):
    b, h, q, k = empty
    found = fused(drawn(b, h, q, 8), drawn(b, h, k, 8), top=2)
    assert found.received.shape == (b, h, k)
    assert (found.top_keys == -1).all()
    assert (found.logsumexp == -math.inf).all()


def test_the_operator_is_registered_as_torch_wants_it():
    query, key = drawn(1, 2, 20, 8), drawn(1, 1, 30, 8)
    tensors, spec = kernels.pack(reduced(query, key, mask=masks.causal()))
    torch.library.opcheck(torch.ops.regard.summary.default, (query, key, None, tensors, spec, 0.3, 2))


@pytest.mark.skipif(not GPU, reason="long rows take a GPU")
def test_long_rows_in_linear_memory():
    query, key = drawn(1, 2, 4096, 64, dtype=torch.bfloat16), drawn(1, 2, 8192, 64, dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = fused(query, key)
    assert torch.cuda.max_memory_allocated() - before < 64 << 20
    same(found, summarize_strips(reduced(query, key), 8))

"""`weights` and `summarize`: what was attended to, exact, in part or in summary."""

import math

import pytest
import torch

import regard
from regard import masks
from tests import oracle
from tests.contracts import entries
from tests.contracts.entries import FEW_QUERIES, MANY_QUERIES, SELF
from tests.contracts.harness import Case, predicate_mask, request

CASES = {
    "plain": Case(),
    "causal with empty rows": Case(mask="causal", sizes=MANY_QUERIES),
    "sparsemax additive": Case(normalize="sparsemax", score="additive per head", mask="lengths", sizes=FEW_QUERIES),
    "entmax15 with a sink": Case(normalize="entmax15", sink=True, bias="alibi", mask="window both"),
    "softmax with a sink": Case(sink=True, bias="relative", mask="raw b h q k", sizes=FEW_QUERIES),
    "sigmoid": Case(normalize="sigmoid", score="cosine per query", mask="padding of both"),
    "hard": Case(normalize="hard", score="shaw", mask="nested", sizes=MANY_QUERIES),
    "gaussian": Case(bias="gaussian", scale=0.3, sizes=FEW_QUERIES),
    "minus infinity": Case(bias="some minus infinity", mask="blocks"),
    "a user's runs": Case(mask="a user's runs by head and entry", sizes=FEW_QUERIES),
    "a user's windows": Case(mask="a user's windows by head"),
    "a user's own": Case(normalize="a user's own", mask="documents"),
}


def exact(case):
    """Weights, logsumexp and scores of the oracle, (b,h,q,k), in float64."""
    _, _, found = request(case, "cpu", gradients=False)
    found = {name: x.double() for name, x in found.items()}
    part = {
        kind: {n.removeprefix(kind + " "): x for n, x in found.items() if n.startswith(kind + " ")}
        for kind in ("score", "bias")
    }
    seen = predicate_mask(case.mask, case.sizes)
    bias = entries.BIASES[case.bias].formula(part["bias"], case.sizes)
    _, lse, weights, scores = oracle.attend(
        found["query"],
        found["key"],
        found["value"],
        score=entries.SCORES[case.score].formula,
        tensors=part["score"],
        seen=seen,
        bias=None if bias is None else bias.double(),
        normalizer=case.normalizer[1],
        scale=case.scale,
        sink=found.get("sink"),
    )
    return weights, lse, seen & (scores > -math.inf)


def ask(case, device):
    qkv, arguments, _ = request(case, device, gradients=False)
    return qkv[0], qkv[1], arguments


def close(found, expected):
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_weights_equal_their_definition(name, device):
    query, key, arguments = ask(CASES[name], device)
    found = regard.weights(query, key, **arguments)
    assert found.dtype == query.dtype
    close(found, exact(CASES[name])[0])


ROWS = {
    "list": [3, 0, 10],
    "negative": [-1, 2, -4],
    "repeated": [5, 5],
    "tuple": (1, 7),
    "range": range(2, 9, 3),
    "slice": slice(2, 9),
    "slice from the end": slice(-3, None),
    "slice with a step": slice(None, None, 4),
    "tensor": torch.tensor([8, 1]),
    "negative tensor": torch.tensor([-2, 1, 0]),
    "empty": [],
    "none": None,
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["causal with empty rows", "softmax with a sink", "gaussian", "hard", "sigmoid"])
def test_rows_are_those_of_the_whole(name, rows, device):
    """A row keeps its own position, bias and mask when asked for alone."""
    query, key, arguments = ask(CASES[name], device)
    rows = ROWS[rows]
    found = regard.weights(query, key, **arguments, rows=rows)
    index = slice(None) if rows is None else list(rows) if isinstance(rows, (tuple, range)) else rows
    close(found, exact(CASES[name])[0][:, :, index])


@pytest.mark.parametrize("heads", [[2], [-1, 0], (3, 1), slice(1, 3), torch.tensor([1]), range(2), [], None], ids=str)
def test_heads_are_those_of_the_whole(heads, device):
    for name in ("softmax with a sink", "sparsemax additive", "entmax15 with a sink"):
        query, key, arguments = ask(CASES[name], device)
        index = slice(None) if heads is None else list(heads) if isinstance(heads, (tuple, range)) else heads
        found = regard.weights(query, key, **arguments, rows=[1, -1], heads=heads)
        close(found, exact(CASES[name])[0][:, index][:, :, [1, -1]])


def test_tensors_of_indexes_may_live_on_the_device(device):
    query, key, arguments = ask(CASES["plain"], device)
    found = regard.weights(query, key, **arguments, rows=torch.tensor([4, -1], device=device))
    close(found, exact(CASES["plain"])[0][:, :, [4, -1]])


def test_weights_are_differentiable(device):
    case = CASES["softmax with a sink"]
    qkv, arguments, found = request(case, device)
    weights = regard.weights(qkv[0], qkv[1], **arguments, rows=[2, -1], heads=[0, 3])
    pull = torch.randn_like(weights)
    leaves = [found[n] for n in ("query", "key", "bias table", "sink")]
    grads = torch.autograd.grad(weights, leaves, pull)
    whole = regard.weights(qkv[0], qkv[1], **arguments)[:, [0, 3]][:, :, [2, -1]]
    for grad, expected in zip(grads, torch.autograd.grad(whole, leaves, pull), strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-6)
        assert (grad != 0).any()


@pytest.mark.parametrize("top", [1, 3, 8, 40])
@pytest.mark.parametrize("name", CASES)
def test_a_summary_equals_its_definition(name, top, device):
    case = CASES[name]
    query, key, arguments = ask(case, device)
    summary = regard.summarize(query, key, **arguments, top=top)
    weights, lse, alive = exact(case)
    s = case.sizes
    total = weights.sum(-1, keepdim=True)
    p = weights / torch.where(total > 0, total, 1.0)
    entropy = -(p * torch.where(p > 0, p, 1.0).log()).sum(-1)
    close(summary.entropy, entropy)
    occupied = alive.any(-1)
    assert (summary.entropy.cpu()[~occupied] == 0).all()
    count = occupied.sum(-1)[..., None].clamp(min=1)
    close(summary.received, weights.sum(2) / count)
    close(summary.logsumexp, lse)
    assert summary.top_weights.shape == summary.top_keys.shape == (s.b, s.h, s.q, top)
    assert summary.top_keys.dtype == torch.int64
    ordered, order = torch.sort(weights, stable=True, dim=-1, descending=True)
    padded = torch.zeros(s.b, s.h, s.q, top, dtype=torch.float64)
    keys = torch.full((s.b, s.h, s.q, top), -1)
    n = min(top, s.k)
    padded[..., :n], keys[..., :n] = ordered[..., :n], order[..., :n]
    close(summary.top_weights, padded)
    found = summary.top_keys.cpu()
    assert torch.equal(found[padded > 1e-6], keys[padded > 1e-6])
    visible = alive.gather(-1, found.clamp(min=0)) & (found >= 0)
    assert (visible | (found == -1)).all(), "a hidden key is never among the top"
    hidden_rest = torch.arange(top) >= alive.sum(-1, keepdim=True)
    assert (found[hidden_rest] == -1).all()
    assert (summary.top_weights.cpu()[hidden_rest] == 0).all()


def test_ties_in_the_top_go_to_the_lowest_index(device):
    query, key = torch.zeros(1, 1, 3, 4, device=device), torch.zeros(1, 1, 1000, 4, device=device)
    mask = torch.ones(3, 1000, dtype=torch.bool, device=device)
    mask[1, 2] = False
    mask[2, :] = False
    mask[2, 998:] = True
    summary = regard.summarize(query, key, mask=mask, top=4)
    assert summary.top_keys[0, 0].tolist() == [[0, 1, 2, 3], [0, 1, 3, 4], [998, 999, -1, -1]]
    torch.testing.assert_close(summary.top_weights[0, 0, 2].cpu(), torch.tensor([0.5, 0.5, 0, 0]))
    torch.testing.assert_close(
        summary.entropy[0, 0].cpu(), torch.tensor([1000.0, 999.0, 2.0]).log(), rtol=1e-4, atol=1e-4
    )


def test_entropy_is_between_zero_and_the_logarithm_of_what_is_visible(device):
    query, key = torch.randn(2, 3, 17, 4, device=device) * 30, torch.randn(2, 3, 19, 4, device=device)
    entropy = regard.summarize(query, key, mask=masks.causal()).entropy
    bound = torch.arange(3.0, 20.0, device=device).log()
    assert (entropy >= 0).all()
    assert (entropy <= bound + 1e-5).all()


def test_a_summary_without_any_visible_key_is_empty(device):
    query, key = torch.randn(2, 3, 7, 4, device=device), torch.randn(2, 3, 11, 4, device=device)
    summary = regard.summarize(query, key, mask=~masks.full(), top=2)
    assert (summary.entropy == 0).all()
    assert (summary.received == 0).all()
    assert (summary.top_weights == 0).all()
    assert (summary.top_keys == -1).all()
    assert (summary.logsumexp == -math.inf).all()


def test_three_dimensional_inputs_drop_the_head_axis(device):
    query, key = torch.randn(2, 7, 4, device=device), torch.randn(2, 11, 4, device=device)
    wide = regard.weights(query[:, None], key[:, None])
    torch.testing.assert_close(regard.weights(query, key), wide[:, 0])
    torch.testing.assert_close(regard.weights(query, key, rows=[1, -1]), wide[:, 0, [1, -1]])
    summary = regard.summarize(query, key, top=3)
    assert summary.entropy.shape == summary.logsumexp.shape == (2, 7)
    assert summary.received.shape == (2, 11)
    assert summary.top_weights.shape == summary.top_keys.shape == (2, 7, 3)


def test_a_summary_holds_no_gradient_and_leaves_none_behind(device):
    query, key = (torch.randn(2, 3, n, 4, device=device, requires_grad=True) for n in (7, 11))
    summary = regard.summarize(query, key)
    for field in ("entropy", "received", "top_weights", "top_keys", "logsumexp"):
        assert not getattr(summary, field).requires_grad
    assert summary.top_keys.shape == (2, 3, 7, 8)


def test_hidden_poison_reaches_neither_weights_nor_summaries(device):
    query, key = torch.randn(2, 3, 7, 4, device=device), torch.randn(2, 3, 11, 4, device=device)
    mask = masks.lengths(torch.tensor([4, 11], device=device), torch.tensor([7, 3], device=device))
    clean = regard.weights(query, key, mask=mask), regard.summarize(query, key, mask=mask)
    key[0, :, 4:] = math.nan
    query[1, :, 3:] = math.inf
    dirty = regard.weights(query, key, mask=mask), regard.summarize(query, key, mask=mask)
    assert torch.equal(clean[0], dirty[0])
    for field in ("entropy", "received", "top_weights", "top_keys", "logsumexp"):
        assert torch.equal(getattr(clean[1], field), getattr(dirty[1], field)), field


def test_a_nan_that_is_attended_shows_in_weights_and_summaries(device):
    query, key = torch.randn(2, 3, 7, 4, device=device), torch.randn(2, 3, 17, 4, device=device)
    query[1, 2, 3] = math.nan
    assert regard.weights(query, key)[1, 2, 3].isnan().all()
    summary = regard.summarize(query, key)
    assert summary.entropy[1, 2, 3].isnan()
    assert summary.logsumexp[1, 2, 3].isnan()
    assert summary.entropy.isnan().sum() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_weights_and_summaries_take_every_dtype(dtype, device):
    query, key = (torch.randn(2, 3, n, 4, device=device).to(dtype) for n in (7, 17))
    expected = oracle.attend(query.double().cpu(), key.double().cpu(), key.double().cpu())
    tolerance = 4 * torch.finfo(dtype).eps
    weights = regard.weights(query, key)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights.double().cpu(), expected[2], rtol=tolerance, atol=tolerance)
    lse = regard.summarize(query, key).logsumexp
    torch.testing.assert_close(lse.double().cpu(), expected[1], rtol=tolerance, atol=tolerance)


def test_sizes_of_these_cases_are_the_contracts_sizes():
    assert {case.sizes for case in CASES.values()} == {SELF, FEW_QUERIES, MANY_QUERIES}

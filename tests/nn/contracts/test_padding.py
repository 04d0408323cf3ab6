"""A padded batch equals its sequences one by one, in outputs and in the gradients of the parameters."""

import pytest
import torch

from regard import masks
from tests.nn.contracts.layers import (
    ALL,
    FROM_THE_LEFT,
    PLAIN,
    QUERIES_ARE_KEYS,
    USED,
    USES,
    B,
    Case,
    K,
    Q,
    answer,
    assert_same,
    named,
    weight_of,
)

# Queries and source are shortened equally, so that k − q, and with it the alignment, is the same as in the batch.
CUT = [0, 2, 3]
by_use = pytest.mark.parametrize("cross", USES, ids=named)


def real(length, side):
    """(b,length): False where padding is."""
    position = torch.arange(length)
    cut = torch.tensor(CUT)[:, None]
    return position < length - cut if side == "right" else position >= cut


def forms(side):
    """The padding in every form that a mask argument may have."""
    keep = real(K, side)
    found = [masks.padding(keep), keep[:, None, :]]
    if side == "right":
        found.append(masks.lengths(K - torch.tensor(CUT)))
    return found


def one_by_one(layer, inputs, side):
    """Run each sequence alone: outputs joined, gradients summed, gradients of inputs put in place."""
    total = {}
    for entry in range(B):
        short = [x[entry : entry + 1, real(x.shape[1], side)[entry]] for x in inputs]
        leaves = [x.detach().clone().requires_grad_() for x in short]
        out = layer(*leaves)
        rows = real(inputs[0].shape[1], side)
        loss = (out[0] * weight_of(inputs[0].shape)[entry, rows[entry]]).sum()
        names = dict(layer.named_parameters())
        grads = torch.autograd.grad(loss, [*leaves, *names.values()], allow_unused=True)
        found = {"output": out[0].detach()}
        for i, (x, grad) in enumerate(zip(inputs, grads, strict=False)):
            placed = torch.zeros_like(x)
            if grad is not None:
                placed[entry, real(x.shape[1], side)[entry]] = grad[0]
            found[f"input {i}"] = placed
        for (name, x), grad in zip(names.items(), grads[len(inputs) :], strict=True):
            found[name] = torch.zeros_like(x) if grad is None else grad
        for name, x in found.items():
            if name not in total:
                total[name] = x
            else:
                total[name] = torch.cat([total[name], x]) if name == "output" else total[name] + x
    return total


def assert_padding_changes_nothing(case, cross, side):
    layer, inputs = case.build(cross), case.inputs(cross)
    expected = one_by_one(layer, inputs, side)
    for mask in forms(side):
        # The contents of padding are arbitrary.
        filled = [torch.where(real(x.shape[1], side)[..., None], x, 9.0) for x in inputs]
        assert_same(answer(layer, filled, mask, real(inputs[0].shape[1], side)), expected)


@pytest.mark.parametrize(("case", "cross"), USED, ids=named)
def test_padding_on_the_right_changes_nothing(case, cross):
    assert_padding_changes_nothing(case, cross, "right")


# Luong's centres count from the first position of the source, including padding, so they are left out.
FROM_THE_RIGHT = [case for case, cross in USED if not cross and case.name not in FROM_THE_LEFT]


@pytest.mark.parametrize("case", FROM_THE_RIGHT, ids=str)
def test_padding_on_the_left_changes_nothing(case):
    assert_padding_changes_nothing(case, False, "left")


# Where queries are keys as well, a mask over the source does not hide padding among the queries: see below.
@pytest.mark.parametrize("case", [case for case in PLAIN if case.name not in QUERIES_ARE_KEYS | FROM_THE_LEFT], ids=str)
def test_padding_of_queries_and_source_on_the_left_changes_nothing(case):
    assert_padding_changes_nothing(case, True, "left")


@pytest.mark.parametrize("name", sorted(QUERIES_ARE_KEYS))
def test_where_queries_are_keys_their_padding_has_its_own_mask(name):
    case = Case(name)
    layer, inputs = case.build(cross=True), case.inputs(cross=True)
    expected = one_by_one(layer, inputs, "left")["output"]
    keep_query, keep = real(Q, "left"), real(K, "left")
    filled = [torch.where(real(x.shape[1], "left")[..., None], x, 9.0) for x in inputs]
    if name == "key-value-memory":
        out = layer(*filled, mask=masks.padding(keep, keep_query))
    else:
        out = layer(*filled, mask=masks.padding(keep), query_mask=masks.padding(keep_query))
    torch.testing.assert_close(out[keep_query], expected, rtol=1e-9, atol=1e-9)


# Alignment with a source counts padding (promise 5), so these are left out.
@pytest.mark.parametrize("case", [case for case in ALL if not case.by_position], ids=str)
def test_padding_of_the_source_alone_changes_nothing(case):
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    keep = real(K, "right")
    expected = torch.cat([layer(query[i : i + 1], source[i : i + 1, keep[i]]) for i in range(B)])
    for mask in forms("right"):
        torch.testing.assert_close(layer(query, source, mask=mask), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", PLAIN, ids=str)
@by_use
def test_a_batch_equals_its_entries_one_by_one(case, cross):
    layer, inputs = case.build(cross), case.inputs(cross)
    expected = torch.cat([layer(*[x[i : i + 1] for x in inputs]) for i in range(B)])
    torch.testing.assert_close(layer(*inputs), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_the_longest_column_may_be_padding_in_every_entry(case):
    """The output keeps its length, and the column changes nothing."""
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    # The query at this column is not padding and may be a key (key-value memory), so it is finite.
    longer = [torch.cat([x, torch.full_like(x[:, :1], pad)], 1) for x, pad in ((query, 9.0), (source, torch.nan))]
    mask = masks.padding(torch.arange(K + 1).expand(B, -1) < K)
    out = layer(*longer, mask=mask)
    assert out.shape[1] == Q + 1
    torch.testing.assert_close(out[:, :Q], layer(query, source), rtol=1e-9, atol=1e-9)

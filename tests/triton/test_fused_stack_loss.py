"""A stack of layers with its loss, and rows of tokens, in one operator: beside the operators that it joins."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from regard.formula.dropout import draw_seed
from regard_fast.fused_rows import head_op, layers, stack_loss_op, stack_op
from regard_fast.fused_rows import kernels as row_kernels
from regard_fast.fused_rows.tokens import EmbeddedTokens
from regard_fast.takers.embeddings import token_rows
from regard_workbench import models
from regard_workbench.models.parts.stack import Stack
from tests.triton.conftest import HALVED
from tests.triton.test_fused_head import LANGUAGE, OPTIONS, B, D, N, batch_for, given
from tests.triton.test_fused_rows import DEVICE, TOLERANCE, WIDE, Counted, kernels

assert kernels  # a fixture


def stack_and_head(dropout):
    """The arguments of a stack as one operator, and a head behind it."""
    torch.manual_seed(6)
    stack = Stack(D, 2, "causal", num_heads=2, causal=True, hidden=96, dropout=dropout).to(DEVICE, WIDE)
    _, targets, keep, weights = given(67, kept=0.7)
    x = torch.randn(B, N, D, dtype=WIDE, device=DEVICE, requires_grad=True)
    rows, drops, own, options = layers.whole(stack.layers, x)
    assert rows is x and drops == (dropout > 0)
    seed = draw_seed(x.device) if drops else None
    return x, seed, targets, keep, own, [one.to(WIDE).requires_grad_() for one in weights], options


def test_a_stack_with_its_loss_is_the_two_operators_with_weights_in_one_launch(monkeypatch, kernels):
    x, seed, targets, keep, own, weights, options = stack_and_head(0.3)
    counted = Counted(row_kernels.weight_gradients)
    monkeypatch.setattr(row_kernels, "weight_gradients", counted)
    whole = stack_loss_op.run(x, seed, targets, keep, own, weights, options, OPTIONS)
    mine = torch.autograd.grad(3 * whole[0], [x, *own, *weights])
    assert counted.count == 1
    apart = head_op.run(stack_op.run(x, seed, own, options), targets, keep, weights, OPTIONS)
    theirs = torch.autograd.grad(3 * apart[0], [x, *own, *weights])
    assert counted.count == 3 and torch.equal(whole[0], apart[0]) and torch.equal(whole[1], apart[1])
    # The bias of keys gets no gradient but rounding, in half precision that of the others.
    least = 1e-2 if not HALVED else max(float(other.norm()) for other in theirs) / 10
    for one, other in zip(mine, theirs, strict=True):
        size = other.norm().clamp(min=least)
        assert one.shape == other.shape and (one - other).norm() <= TOLERANCE * size
    again = stack_loss_op.run(x, seed, targets, keep, own, weights, options, OPTIONS)
    for one, other in zip(mine, torch.autograd.grad(3 * again[0], [x, *own, *weights]), strict=True):
        assert torch.equal(one, other)


def rows_of(tokens, seed, own, options):
    """The rows of tokens as the first kernel of a stack makes them."""
    made = tokens.like()
    stack_op.rows_ahead(made, seed, own, options, tokens)
    return made


@pytest.mark.parametrize(("waves", "rate", "count"), [(True, 0.3, 37), (False, 0.0, 71), (True, 0.1, 131)])
def test_rows_of_tokens_and_the_gradient_of_their_table_are_those_of_an_embedding(kernels, waves, rate, count):
    _, seed, targets, keep, own, weights, options = stack_and_head(0.3)
    table = torch.randn(count, D, dtype=WIDE, device=DEVICE, requires_grad=True)
    ids = torch.randint(0, count, (B, N), device=DEVICE)
    ids[0] = 5  # one token often, others never
    tokens = EmbeddedTokens(ids, table, 1.7, rate, waves)
    x = tokens.plain(seed, table)
    made = rows_of(tokens, seed, own, options)
    assert (made - x).norm() <= TOLERANCE * x.norm()
    if rate:
        assert 0.1 < (x == 0).double().mean() < 0.5
        assert torch.equal(made == 0, x == 0)
    elif not waves:
        torch.testing.assert_close(x, nn.functional.embedding(ids, table) * 1.7)
    ends = [table, *own, *weights]

    def graded(rows):
        total, _, mean = stack_loss_op.run(rows, seed, targets, keep, own, weights, options, OPTIONS)
        return total, mean, *torch.autograd.grad(3 * mean, ends)

    found = graded(tokens)
    for one, other in zip(found, graded(x), strict=True):
        size = other.norm().clamp(min=1e-2)  # the bias of keys gets no gradient
        assert one.shape == other.shape and (one - other).norm() <= TOLERANCE * size
    torch.use_deterministic_algorithms(True)  # which also fills new memory with NaN: nothing unwritten is read
    try:
        again = graded(tokens)
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(found, again, strict=True):
        assert torch.equal(one, other)
    assert not found[2][torch.bincount(ids.flatten(), minlength=count) == 0].any()


def test_a_token_that_is_in_no_table_is_not_a_number(kernels):
    table = torch.randn(37, D, dtype=WIDE, device=DEVICE)
    ids = torch.tensor([[3, 37, -1]], device=DEVICE)
    _, _, _, _, own, _, options = stack_and_head(0.0)
    found = rows_of(EmbeddedTokens(ids, table, 1.0, 0.0, False), None, own, options)
    assert found[0, 0].equal(table[3]) and found[0, 1:].isnan().all()


@pytest.mark.parametrize("tokens", [False, True])
def test_a_second_derivative_of_a_stack_with_its_loss_is_that_of_the_two_operators(kernels, tokens):
    if HALVED:
        pytest.skip("products in bfloat16 have no second derivative to compare")
    x, seed, targets, keep, own, weights, options = stack_and_head(0.3)

    def second(total):
        (first,) = torch.autograd.grad(total.square(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, own[0], own[-1], weights[0], weights[2]])

    read = x
    if tokens:
        x = torch.randn(11, D, dtype=WIDE, requires_grad=True)
        read = EmbeddedTokens(torch.tensor([[1, 3, 1, 4, 1, 5, 9]] * B), x, 1.7, 0.2, True)
    mine = second(stack_loss_op.run(read, seed, targets, keep, own, weights, options, OPTIONS)[0])
    rows = read.plain(seed, x) if tokens else x
    theirs = second(head_op.run(stack_op.run(rows, seed, own, options), targets, keep, weights, OPTIONS)[0])
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


EMBEDDINGS = {
    "learned positions": {"positions": "learned"},
    "word dropout": {"word_dropout": 0.1},
    "a norm": {"embedding_norm": "layer"},
    "segments": {"segments": 2},
    "dropout of all": {"dropout": 1.0},
}


@pytest.mark.parametrize("case", EMBEDDINGS)
def test_only_embeddings_that_the_kernels_know_are_made_by_them(kernels, case):
    batch = batch_for("decoder")
    known = models.build("decoder", LANGUAGE, layers=1, dim=D, num_heads=2).embedding
    assert token_rows(known, batch.inputs) is not None and token_rows(known, batch.inputs.int()) is None
    other = models.build("decoder", LANGUAGE, layers=1, dim=D, num_heads=2, **EMBEDDINGS[case]).embedding
    assert token_rows(other, batch.inputs) is None
    known.dropout.register_forward_hook(print)
    assert token_rows(known, batch.inputs) is None

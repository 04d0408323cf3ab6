"""Calls that run without a request: the same numbers, guards and errors as with one."""

import pytest
import torch

import regard
from regard import masks

NAN = float("nan")


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype)


def twice(*rows, **options):
    """A call whose signature is new may take another way than the next one of the same signature."""
    return [regard.attend(*rows, **options) for _ in range(2)]


@pytest.mark.parametrize("keys", [1, 7, 15, 16, 23])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@torch.no_grad()
def test_few_keys_give_the_formula_the_first_and_the_second_time(keys, dtype):
    rows = [drawn(2, 4, 3, 8, dtype=dtype), drawn(2, 2, keys, 8, dtype=dtype), drawn(2, 2, keys, 8, dtype=dtype)]
    true = regard.attend(*[part.double() for part in rows], impl="reference")
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for found in twice(*rows):
        torch.testing.assert_close(found.double(), true, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_few_keys_keep_a_nan_and_an_infinity():
    for poison in (NAN, float("inf")):
        query, key, value = drawn(1, 1, 3, 8), drawn(1, 1, 5, 8), drawn(1, 1, 5, 8)
        regard.attend(query, key, value)  # makes the signature known
        query[0, 0, 1, 2] = poison
        found = regard.attend(query, key, value)[0, 0]
        assert found[1].isnan().all()
        assert found[[0, 2]].isfinite().all()


def test_few_keys_have_second_derivatives():
    query, key, value = (drawn(1, 1, n, 8).requires_grad_() for n in (3, 5, 5))
    for _ in range(2):
        (first,) = torch.autograd.grad(regard.attend(query, key, value).square().sum(), query, create_graph=True)
        assert torch.autograd.grad(first.sum(), key)[0].isfinite().all()


@torch.no_grad()
def test_a_known_signature_does_not_let_wrong_sizes_through():
    query, key, value = drawn(1, 1, 3, 8), drawn(1, 1, 5, 8), drawn(1, 1, 5, 8)
    regard.attend(query, key, value)
    with pytest.raises(regard.RegardError, match="value"):
        regard.attend(query, key, value[:, :, :4])
    empty = regard.attend(query, key[:, :, :0], value[:, :, :0])
    assert torch.equal(empty, torch.zeros(1, 1, 3, 8))


@pytest.mark.parametrize("kind", ["padding", "lengths", "both"])
def test_padding_gives_the_formula_with_gradients_the_first_and_the_second_time(kind):
    query, key, value = (drawn(3, 4, 19, 8).requires_grad_() for _ in range(3))
    keep = torch.ones(3, 19, dtype=torch.bool)
    keep[1, 5:], keep[2, ::2] = False, False
    padding, lengths = masks.padding(keep), masks.lengths(torch.tensor([19, 11, 7]))
    mask = {"padding": padding, "lengths": lengths, "both": padding & lengths}[kind]
    true = regard.attend(query, key, value, mask=mask, impl="reference")
    wanted = [true, *torch.autograd.grad(true.square().sum(), (query, key, value))]
    for found in twice(query, key, value, mask=mask):
        grads = torch.autograd.grad(found.square().sum(), (query, key, value))
        for one, other in zip([found, *grads], wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("poison", [NAN, float("inf"), 1e30])
@torch.no_grad()
def test_padding_hides_what_is_behind_it_the_second_time_too(poison):
    query, key, value = drawn(1, 2, 5, 8), drawn(1, 2, 19, 8), drawn(1, 2, 19, 8)
    keep = torch.arange(19)[None] < 13
    wanted = regard.attend(query, key, value, mask=masks.padding(keep))
    key[:, :, 13:], value[:, :, 13:] = poison, poison
    for found in twice(query, key, value, mask=masks.padding(keep)):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_padding_of_a_known_signature_keeps_a_nan_query():
    rows = [drawn(1, 2, 17, 8) for _ in range(3)]
    twice(*rows, mask=masks.lengths(torch.tensor([12])))
    query = rows[0].clone()
    query[0, 1, 3, 0] = NAN
    for found in twice(query, *rows[1:], mask=masks.lengths(torch.tensor([12]))):
        assert found[0, 1, 3].isnan().all()
        assert found[0, 0].isfinite().all()


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("dropout", [-0.5, NAN, 1.5, False])
def test_an_impossible_dropout_is_refused_after_a_valid_call_of_the_same_form(dropout, hidden):
    query, key, value = (torch.randn(2, 3, length, 16) for length in (37, 41, 41))
    options = {"mask": masks.lengths(torch.tensor([23, 41]))} if hidden else {"impl": "sdpa"}
    regard.attend(query, key, value, dropout=0.0, **options)
    with pytest.raises(regard.RegardError, match="dropout"):
        regard.attend(query, key, value, dropout=dropout, **options)


def test_plain_calls_without_a_request_equal_the_formula_whatever_their_layout():
    base = [torch.randn(2, length, 3, 16) for length in (37, 41, 41)]
    rows = [part.transpose(1, 2) for part in base]
    for given in (rows, [part.contiguous() for part in rows], [part.mT.contiguous().mT for part in rows]):
        for _ in range(2):
            found = regard.attend(*given, impl="sdpa")
            torch.testing.assert_close(found, (given[0] @ given[1].mT / 4).softmax(-1) @ given[2])


@pytest.mark.parametrize("queries, keys", [(23, 23), (17, 23), (23, 17), (1, 23), (7, 7)])
@pytest.mark.parametrize(
    "mask", [masks.causal(), masks.causal(offset=0), masks.causal(offset=3), masks.causal(align="top-left")]
)
@torch.no_grad()
def test_causal_calls_give_the_formula_the_first_and_the_second_time(queries, keys, mask):
    rows = [drawn(2, 4, queries, 8), drawn(2, 2, keys, 8), drawn(2, 2, keys, 8)]
    true = regard.attend(*[part.double() for part in rows], mask=mask, impl="reference")
    for found in twice(*rows, mask=mask):
        torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=1e-5)


def test_causal_calls_of_a_known_signature_keep_guards_and_errors():
    query, key, value = (drawn(1, 2, 23, 8).requires_grad_() for _ in range(3))
    for _ in range(2):
        output = regard.attend(query, key, value, mask=masks.causal())
        with pytest.raises(regard.Unsupported, match="second derivative"):
            torch.autograd.grad(output.square().sum(), query, create_graph=True)
    with torch.no_grad():
        query[0, 0, 4, 2] = float("inf")  # torch's kernel would return zeros where all scores are −inf
        key[0, 0, :, 2] = -1.0
        found = regard.attend(query, key, value, mask=masks.causal())[0, 0]
        assert found[4].isnan().all() and found[:4].isfinite().all() and found[5:].isfinite().all()

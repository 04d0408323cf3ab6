"""The whole numbers in masks: of narrow dtypes, huge, falling, beyond the keys."""

import pytest
import torch

import regard
from regard import masks

N = 300  # more than eight bits hold
NARROW = [torch.uint8, torch.int8, torch.int16, torch.int32]


def few(dtype):
    return torch.tensor([100, 3], dtype=dtype)


MADE = {
    "lengths": lambda t: masks.lengths(t),
    "lengths of both": lambda t: masks.lengths(t, t),
    "causal and lengths": lambda t: masks.causal() & masks.lengths(t),
    "prefix": lambda t: masks.causal() | masks.prefix(t),
    "causal offset": lambda t: masks.causal(offset=t),
    "window offset": lambda t: masks.window(5, offset=t),
    "documents": lambda t: masks.documents(t.repeat_interleave(N // 2)),
    "packed": lambda t: masks.packed(t.flip(0)),
}


@pytest.mark.parametrize("impl", ["auto", "tiled", "reference"])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", MADE)
def test_whole_numbers_of_a_narrow_dtype_mean_the_same(name, dtype, impl):
    torch.manual_seed(1)
    x = torch.randn(2, 1, N, 3)
    wide, narrow = MADE[name](few(torch.int64)), MADE[name](few(dtype))
    assert torch.equal(narrow.dense(N, N, batch=2), wide.dense(N, N, batch=2))
    assert torch.equal(narrow.classify(N, N, 16, 16, batch=2), wide.classify(N, N, 16, 16, batch=2))
    found, expected = (regard.attend(x, x, x, mask=mask, impl=impl) for mask in (narrow, wide))
    torch.testing.assert_close(found, expected)


ALL, OWN = lambda q, k: k >= 0, lambda q, k: k == q
HUGE = {
    "causal": (lambda n: masks.causal(offset=n), ALL),
    "causal backwards": (lambda n: masks.causal(offset=-n), lambda q, k: k < 0),
    "causal of a batch": (lambda n: masks.causal(offset=torch.tensor([min(n, 2**63 - 1)])), ALL),
    "causal of a batch backwards": (
        lambda n: masks.causal(offset=torch.tensor([max(-n, -(2**63))])),
        lambda q, k: k < 0,
    ),
    "window": (lambda n: masks.window(n), ALL),
    "window behind": (lambda n: masks.window(n, 0), lambda q, k: k <= q),
    "window ahead": (lambda n: masks.window(0, n), lambda q, k: k >= q),
    "prefix": (lambda n: masks.prefix(n), ALL),
    "blocks": (lambda n: masks.blocks(n), ALL),
    "dilated": (lambda n: masks.dilated(n), OWN),
    "global tokens": (lambda n: masks.global_tokens([2, n]), lambda q, k: (q == 2) | (k == 2)),
}


@pytest.mark.parametrize("number", [2**40, 2**62, 2**63 - 1, 2**63, 2**64, 2**70], ids=hex)
@pytest.mark.parametrize("name", HUGE)
def test_a_huge_number_means_what_it_says(name, number):
    make, rule = HUGE[name]
    mask, n = make(number), 7
    expected = rule(torch.arange(n)[:, None], torch.arange(n)).expand(n, n)
    assert torch.equal(mask.dense(n, n)[0, 0], expected)
    grades = mask.classify(n, n, 2, 3)[0, 0]
    for row, part in enumerate(expected.split(2)):
        for column, block in enumerate(part.split(3, 1)):
            if grades[row, column] != masks.PARTIAL:
                assert block.all() if grades[row, column] == masks.FULL else not block.any()
    x = torch.randn(1, 1, n, 3)
    for impl in ("auto", "tiled", "reference"):
        found = regard.attend(x, x, x, mask=mask, impl=impl)
        torch.testing.assert_close(found, regard.attend(x, x, x, mask=expected, impl="reference"))
    assert eval(repr(mask), {"masks": masks}) == mask if not mask.tensors else True


@pytest.mark.parametrize("scale", [10**400, -(10**400)], ids=["positive", "negative"])
def test_a_scale_beyond_every_float_is_refused(scale):
    x = torch.randn(1, 1, 7, 3)
    with pytest.raises(regard.RegardError, match="scale: expected a finite number"):
        regard.attend(x, x, x, scale=scale)


@pytest.mark.parametrize("offsets", [[0, 9, 3, 20], [5, 0], [-2, 5], [0, 3, 2]], ids=str)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_packed_offsets_that_fall_are_refused_when_the_mask_is_made(offsets, as_tensor):
    with pytest.raises(ValueError, match="offsets: expected rising whole numbers") as caught:
        masks.packed(torch.tensor(offsets) if as_tensor else offsets)
    assert isinstance(caught.value, regard.RegardError)
    assert str(offsets[0]) in str(caught.value) and "cumulative lengths" in str(caught.value)


@pytest.mark.parametrize("join", [lambda m: m, lambda m: masks.causal() & m, lambda m: ~m | masks.prefix(2)])
@pytest.mark.parametrize("impl", ["auto", "tiled", "reference"])
def test_packed_offsets_beyond_the_keys_are_refused_in_every_call(join, impl):
    """The plan of a good call of the same structure is remembered; the contents are still looked at."""
    x = torch.randn(1, 2, 20, 3)
    good, wrong = join(masks.packed([0, 5, 20])), join(masks.packed([0, 5, 30]))
    for _ in range(2):
        assert regard.attend(x, x, x, mask=good, impl=impl).shape == x.shape
        with pytest.raises(ValueError, match="end at 30 but there are 20 keys"):
            regard.attend(x, x, x, mask=wrong, impl=impl)
    for call in (wrong.dense, lambda q, k: wrong.classify(q, k, 4, 4)):
        with pytest.raises(ValueError, match="end at 30 but there are 20 keys"):
            call(20, 20)


@pytest.mark.parametrize("wrong", [True, "0.5", torch.tensor(0.5), None])
def test_a_dropout_that_is_no_number_is_refused_in_every_call(wrong):
    x = torch.randn(1, 2, 20, 3)
    for good in (0.5, 1.0):
        regard.attend(x, x, x, dropout=good)
    with pytest.raises(regard.RegardError, match="dropout"):
        regard.attend(x, x, x, dropout=wrong)

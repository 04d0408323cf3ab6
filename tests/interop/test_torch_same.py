"""`regard.interop.torch.MultiheadAttention` gives what torch's layer gives: outputs, weights, every gradient."""

import itertools

import pytest
import torch
from torch import nn

from regard.interop.torch import MultiheadAttention
from tests.interop.torch_layers import assert_same, call_and_differentiate, pair, rows

DOUBLE = {"dtype": torch.float64}
BATCH, HEADS = 5, 3
LENGTHS = [(3, 7), (19, 23)]  # shorter and longer than what torch's fused kernels take
LAYERS = {
    "plain": {},
    "without-bias": {"bias": False},
    "learned-key": {"add_bias_kv": True},
    "zero-key": {"add_zero_attn": True},
    "both-keys": {"add_bias_kv": True, "add_zero_attn": True},
    "other-widths": {"kdim": 13, "vdim": 11},
}


def hidden(*shape, seed):
    """True for about a third of the entries, never for the first of a row."""
    found = rows(*shape, seed=seed) > 0.5
    found[..., 0] = False
    return found


def masks(queries, keys, batch=BATCH):
    """Masks by name, none of which hides every key of a query."""
    padding, pairs = hidden(batch, keys, seed=1), hidden(queries, keys, seed=2)
    by_head = hidden(batch * HEADS, queries, keys, seed=3)
    numbers = rows(queries, keys, seed=4, dtype=torch.float64)
    later = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    minus_inf = torch.zeros(batch, keys, dtype=torch.float64).masked_fill(padding, -torch.inf)
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "padding-as-numbers": {"key_padding_mask": minus_inf},
        "numbers-by-key": {"key_padding_mask": minus_inf + rows(batch, keys, seed=5)},
        "pairs": {"attn_mask": pairs},
        "pairs-by-head": {"attn_mask": by_head},
        "numbers": {"attn_mask": numbers},
        "padding-and-pairs": {"key_padding_mask": padding, "attn_mask": pairs},
        "padding-and-numbers": {"key_padding_mask": minus_inf, "attn_mask": numbers},
        "causal": {"attn_mask": later, "is_causal": True},
        "causal-and-padding": {"attn_mask": later, "is_causal": True, "key_padding_mask": padding},
    }


def inputs_for(layer, queries, keys, batch_first):
    """Queries, keys and values of three tensors."""
    made = []
    for seed, (length, width) in enumerate([(queries, layer.embed_dim), (keys, layer.kdim), (keys, layer.vdim)]):
        shape = (BATCH, length, width) if batch_first else (length, BATCH, width)
        made.append(rows(*shape, seed=20 + seed, dtype=torch.float64))
    return made


@pytest.mark.parametrize("options", LAYERS.values(), ids=list(LAYERS))
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "length-first"])
def test_cross_attention_equals_torch_under_every_mask(options, batch_first):
    theirs, ours = pair(batch_first=batch_first, **options, **DOUBLE)
    for queries, keys in LENGTHS:
        given = inputs_for(ours, queries, keys, batch_first)
        for name, found in masks(queries, keys).items():
            for need_weights in (True, False):
                # torch hides the added key from most queries here: see test_torch_differences.py
                if name == "causal" and not need_weights and ("add_bias_kv" in options or "add_zero_attn" in options):
                    continue
                extra = {**found, "need_weights": need_weights, "average_attn_weights": batch_first}
                assert_same(
                    call_and_differentiate(ours, given, **extra), call_and_differentiate(theirs, given, **extra)
                )


@pytest.mark.parametrize("heads", [1, 2, 3], ids=lambda heads: f"{heads}-heads")
@pytest.mark.parametrize("length", [7, 19])
def test_self_attention_equals_torch_in_training_and_in_evaluation(heads, length):
    theirs, ours = pair(6 * heads, heads, batch_first=True, **DOUBLE)
    given = rows(BATCH, length, 6 * heads, seed=30, dtype=torch.float64)
    for found, need_weights in itertools.product(masks(length, length).values(), (True, False)):
        if found.get("attn_mask", given).shape[0] == BATCH * HEADS:
            continue  # made for three heads
        extra = {**found, "need_weights": need_weights}
        assert_same(
            call_and_differentiate(ours.train(), [given] * 3, **extra),
            call_and_differentiate(theirs.train(), [given] * 3, **extra),
        )
        with torch.no_grad():
            mine, other = (layer.eval()(given, given, given, **extra) for layer in (ours, theirs))
        assert_same([mine[0]], [other[0]])
        if need_weights:
            assert_same([mine[1]], [other[1]])


@pytest.mark.parametrize("average", [True, False], ids=["mean", "each-head"])
@pytest.mark.parametrize("options", [{}, {"kdim": 13, "vdim": 11}, {"add_bias_kv": True}], ids=str)
def test_a_single_sequence_without_a_batch_axis_equals_torch(options, average):
    theirs, ours = pair(**options, **DOUBLE)
    for queries, keys in LENGTHS:
        widths = ((queries, 15), (keys, ours.kdim), (keys, ours.vdim))
        given = [rows(*shape, seed=40 + i, dtype=torch.float64) for i, shape in enumerate(widths)]
        padding, pairs = hidden(keys, seed=1), hidden(HEADS, queries, keys, seed=3)
        for extra in ({}, {"key_padding_mask": padding}, {"attn_mask": pairs}, {"attn_mask": pairs[0]}):
            extra = {**extra, "average_attn_weights": average}
            assert_same(call_and_differentiate(ours, given, **extra), call_and_differentiate(theirs, given, **extra))


def test_encoder_decoder_attention_with_one_source_equals_torch():
    theirs, ours = pair(batch_first=True, **DOUBLE)
    queries, source = rows(2, 5, 15, dtype=torch.float64), rows(2, 17, 15, seed=1, dtype=torch.float64)
    for need_weights in (True, False):
        given = (queries, source, source)
        assert_same(
            call_and_differentiate(ours, given, need_weights=need_weights),
            call_and_differentiate(theirs, given, need_weights=need_weights),
        )


def test_a_mask_of_numbers_receives_the_gradient_that_torch_gives_it():
    theirs, ours = pair(batch_first=True, **DOUBLE)
    given, found = rows(2, 17, 15, dtype=torch.float64), []
    for layer in (ours, theirs):
        numbers = rows(17, 17, seed=1, dtype=torch.float64).requires_grad_()
        by_key = rows(2, 17, seed=2, dtype=torch.float64).requires_grad_()
        output, _ = layer(given, given, given, attn_mask=numbers, key_padding_mask=by_key, need_weights=False)
        found.append(torch.autograd.grad(output.square().sum(), (numbers, by_key)))
    assert_same(*found)


@pytest.mark.parametrize("options", [*LAYERS.values(), {"batch_first": True, "dropout": 0.1}], ids=str)
def test_constructor_parameters_and_state_are_those_of_torch(options):
    theirs, ours = pair(**options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert_same(list(ours.state_dict().values()), list(theirs.state_dict().values()), 0)
    assert repr(ours) == repr(theirs)
    assert {n for n in vars(theirs) if not n.startswith("__")} == {n for n in vars(ours) if not n.startswith("__")}
    assert isinstance(ours, nn.MultiheadAttention)
    ours.load_state_dict(theirs.state_dict())


def test_initial_weights_are_those_of_torch_from_the_same_seed():
    for options in ({}, {"kdim": 3, "add_bias_kv": True}):
        made = []
        for kind in (nn.MultiheadAttention, MultiheadAttention):
            torch.manual_seed(7)
            made.append(list(kind(14, 7, **options).parameters()))
        assert_same(*made, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_results_have_the_dtype_of_the_inputs_in_every_precision(dtype):
    theirs, ours = pair(batch_first=True, dtype=dtype)
    given = rows(2, 19, 15, dtype=dtype)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}[dtype]
    for extra in ({}, {"need_weights": False}, {"key_padding_mask": hidden(2, 19, seed=1)}):
        mine, other = (
            [part for part in layer(given, given, given, **extra) if part is not None] for layer in (ours, theirs)
        )
        assert_same(mine, other, tolerance)


def test_autocast_gives_the_dtype_and_the_numbers_of_torch():
    theirs, ours = pair(batch_first=True)
    given = rows(2, 19, 15)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for extra in (
            {},
            {"need_weights": False},
            {"key_padding_mask": hidden(2, 19, seed=1)},
            {"attn_mask": rows(19, 19, seed=2), "need_weights": False},
        ):
            mine, other = (layer(given, given, given, **extra)[0] for layer in (ours, theirs))
            assert_same([mine], [other], 1e-2)


def test_empty_batches_and_empty_sequences_give_empty_results():
    _, ours = pair(14, 2, batch_first=True)
    for shape in ((0, 5, 14), (2, 0, 14), (0, 17, 14)):
        for training in (True, False):
            given = torch.zeros(shape)
            with torch.no_grad():
                output, weights = ours.train(training)(given, given, given)
            assert output.shape == shape and weights.shape == (shape[0], shape[1], shape[1])
    queries, nothing = torch.zeros(2, 3, 14), torch.zeros(2, 0, 14)
    for need_weights in (True, False):
        output, _ = ours(queries, nothing, nothing, need_weights=need_weights)
        torch.testing.assert_close(output, ours.out_proj.bias.expand(2, 3, 14))


def test_inputs_that_are_not_contiguous_give_the_same_and_stay_as_they_are():
    theirs, ours = pair(batch_first=True, **DOUBLE)
    wide = rows(19, 2, 30, dtype=torch.float64)
    given = wide.transpose(0, 1)[..., ::2]
    before = wide.clone()
    assert_same(call_and_differentiate(ours, [given] * 3), call_and_differentiate(theirs, [given] * 3))
    assert torch.equal(wide, before)

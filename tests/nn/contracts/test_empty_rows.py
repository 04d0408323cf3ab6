"""A query without visible keys gets the output for zeros as attended values, with finite gradients."""

import pytest
import torch

from regard import masks
from tests.nn.contracts.layers import (
    ALL,
    HOLES,
    KEEP_ONLY,
    PLAIN,
    USED,
    B,
    Case,
    K,
    Q,
    answer,
    assert_same,
    everything,
    named,
)

NOTHING = torch.zeros(B, K, dtype=torch.bool)


@pytest.mark.parametrize(("case", "cross"), USED, ids=named)
def test_hiding_everything_gives_finite_rows_and_gradients(case, cross):
    layer, inputs = case.build(cross), case.inputs(cross)
    one = HOLES.clone()
    one[1] = False
    # In self-attention the hidden positions are queries too, and this loss includes their rows, so they are finite.
    poisons = (0.5, torch.nan) if cross else (0.5,)
    for keep in (NOTHING, one):
        for poison in poisons:
            given = [*inputs[:-1], inputs[-1].masked_fill(~keep[..., None], poison)]
            for mask in (masks.padding(keep), keep[:, None, :]):
                for part, x in answer(layer, given, mask).items():
                    assert x.isfinite().all(), part


@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_fully_hidden_source_equals_an_empty_one(case):
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    hidden = answer(layer, [query, source], masks.padding(NOTHING))
    nothing = answer(layer, [query, source[:, :0]])
    assert (hidden["input 1"] == 0).all()
    assert_same(hidden | {"input 1": nothing["input 1"]}, nothing)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_an_empty_entry_does_not_change_the_others(case):
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    keep = HOLES.clone()
    keep[1] = False
    out = layer(query, source, mask=masks.padding(keep))
    expected = layer(query, source, mask=masks.padding(HOLES))
    torch.testing.assert_close(out[[0, 2]], expected[[0, 2]], rtol=1e-9, atol=1e-9)
    nothing = layer(query[1:2], source[1:2, :0])
    torch.testing.assert_close(out[1:2], nothing, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", [case for case in PLAIN if case.name not in KEEP_ONLY | {"linear"}], ids=str)
def test_a_row_that_a_pairwise_mask_empties_equals_that_of_an_empty_source(case):
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    pairs = torch.rand(B, Q, K, generator=torch.Generator().manual_seed(3)) > 0.3
    pairs[:, 2] = False
    found = answer(layer, [query, source], pairs)
    assert all(x.isfinite().all() for x in found.values())
    nothing = layer(query, source[:, :0])
    rows = found["output"].unflatten(0, (B, Q))
    torch.testing.assert_close(rows[:, 2], nothing[:, 2], rtol=1e-9, atol=1e-9)


# Projections without a bias map zeros to zeros, so the row is exactly zero.
PROJECTED = [Case("multihead", {"bias": False}), Case("global", {"bias": False}), Case("causal", {"bias": False})]


@pytest.mark.parametrize("case", PROJECTED, ids=str)
def test_without_biases_an_empty_row_is_zero(case):
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    assert (layer(query, source, mask=masks.padding(NOTHING)) == 0).all()
    (rows,) = case.inputs()
    assert (case.build()(rows, mask=masks.padding(NOTHING)) == 0).all()


# Their values are the rows of the source (Luong; Bahdanau), so a source of zeros gives attended values of zeros.
RAW = [case for case in PLAIN if case.name in ("dot", "general", "concat", "additive", "local-m", "local-p")]


@pytest.mark.parametrize("case", RAW, ids=str)
def test_where_values_are_the_source_an_empty_row_is_that_of_a_source_of_zeros(case):
    layer, (query, source) = case.build(), (case.inputs()[0], case.inputs(seed=2)[0])
    found = layer(query, source, mask=masks.padding(NOTHING))
    torch.testing.assert_close(found, layer(query, torch.zeros_like(source)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_parameters_learn_from_the_entries_that_see_something(case):
    """The gradient of a batch with an empty entry is the sum of the gradients of both parts."""
    layer, inputs = case.build(cross=True), case.inputs(cross=True)
    keep = HOLES.clone()
    keep[1] = False
    whole = answer(layer, inputs, masks.padding(keep))
    first, empty = everything(inputs[0].shape), everything(inputs[0].shape)
    first[1], empty[[0, 2]] = False, False
    parts = [answer(layer, inputs, masks.padding(keep), rows) for rows in (first, empty)]
    summed = {part: parts[0][part] + parts[1][part] for part in whole if part != "output"}
    assert_same({part: x for part, x in whole.items() if part != "output"}, summed)

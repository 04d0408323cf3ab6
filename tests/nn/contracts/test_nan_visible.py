"""Visible non-finite values show: rows that see one are non-finite, and no other row is."""

import pytest
import torch

from regard import masks
from tests.nn.contracts.layers import CAUSAL, PLAIN, QUERIES_ARE_KEYS, USED, B, named

# Short enough for every window of the cases to reach every position.
LENGTH = 3


@pytest.mark.parametrize(("case", "cross"), [pair for pair in USED if not pair[0].causal], ids=named)
def test_every_row_that_sees_a_non_finite_position_is_non_finite(case, cross):
    layer, inputs = case.build(cross), case.inputs(cross, q=LENGTH, k=LENGTH)
    for mask in (None, masks.padding(torch.ones(B, LENGTH, dtype=torch.bool))):
        clean = layer(*inputs, mask=mask)
        for poison in (torch.nan, torch.inf):
            nonfinite = [x.clone() for x in inputs]
            nonfinite[-1][1, 1] = poison
            out = layer(*nonfinite, mask=mask)
            assert not out[1].isfinite().all(-1).any(), "each row of that entry saw it"
            torch.testing.assert_close(out[[0, 2]], clean[[0, 2]], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CAUSAL, ids=str)
def test_causal_rows_after_a_non_finite_position_are_non_finite(case):
    layer, (rows,) = case.build(), case.inputs(k=LENGTH)
    clean = layer(rows)
    rows[1, 1] = torch.nan
    out = layer(rows)
    assert not out[1, 1:].isfinite().all(-1).any()
    torch.testing.assert_close(out[[0, 2]], clean[[0, 2]], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_a_non_finite_query_makes_its_own_row_non_finite(case):
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    for mask in (None, masks.padding(torch.ones(B, 7, dtype=torch.bool))):
        clean = layer(query, source, mask=mask)
        nonfinite = query.clone()
        nonfinite[1, 2] = torch.nan
        out = layer(nonfinite, source, mask=mask)
        assert not out[1, 2].isfinite().all()
        torch.testing.assert_close(out[[0, 2]], clean[[0, 2]], rtol=1e-9, atol=1e-9)
        if case.name not in QUERIES_ARE_KEYS:  # elsewhere it is also a key that other rows see
            untouched = [0, 1, 3, 4]
            torch.testing.assert_close(out[1, untouched], clean[1, untouched], rtol=1e-9, atol=1e-9)

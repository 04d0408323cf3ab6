"""What is not finite and is seen stays visible: the row that saw it is not finite, and no other row is touched."""

import pytest
import torch

from regard import masks
from tests.nn.contracts.layers import (
    CAUSAL,
    PLAIN,
    QUERIES_ARE_KEYS,
    USED,
    B,
    named,
)

# So short that every window of the small examples reaches every position.
LENGTH = 3


@pytest.mark.parametrize(("case", "cross"), [pair for pair in USED if not pair[0].causal], ids=named)
def test_every_row_that_sees_a_spoilt_position_shows_it(case, cross):
    layer, inputs = case.build(cross), case.inputs(cross, q=LENGTH, k=LENGTH)
    for mask in (None, masks.padding(torch.ones(B, LENGTH, dtype=torch.bool))):
        clean = layer(*inputs, mask=mask)
        for poison in (torch.nan, torch.inf):
            spoilt = [x.clone() for x in inputs]
            spoilt[-1][1, 1] = poison
            out = layer(*spoilt, mask=mask)
            assert not out[1].isfinite().all(-1).any(), "each row of that entry saw it"
            torch.testing.assert_close(out[[0, 2]], clean[[0, 2]], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CAUSAL, ids=str)
def test_causal_rows_show_what_was_spoilt_before_them(case):
    layer, (rows,) = case.build(), case.inputs(k=LENGTH)
    clean = layer(rows)
    rows[1, 1] = torch.nan
    out = layer(rows)
    assert not out[1, 1:].isfinite().all(-1).any()
    torch.testing.assert_close(out[[0, 2]], clean[[0, 2]], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_a_spoilt_query_spoils_its_own_row(case):
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    for mask in (None, masks.padding(torch.ones(B, 7, dtype=torch.bool))):
        clean = layer(query, source, mask=mask)
        spoilt = query.clone()
        spoilt[1, 2] = torch.nan
        out = layer(spoilt, source, mask=mask)
        assert not out[1, 2].isfinite().all()
        torch.testing.assert_close(out[[0, 2]], clean[[0, 2]], rtol=1e-9, atol=1e-9)
        if case.name not in QUERIES_ARE_KEYS:  # a key that others see, and NaN in it is theirs too
            untouched = [0, 1, 3, 4]
            torch.testing.assert_close(out[1, untouched], clean[1, untouched], rtol=1e-9, atol=1e-9)

"""Any row Hypothesis can think of: every normaliser equals its definition."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import normalizers
from tests import oracle

NAMES = ["softmax", "sigmoid", "sparsemax", "entmax15", "hard"]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_every_normalizer_equals_its_definition_on_any_row(name, data):
    n = data.draw(st.integers(1, 13))
    numbers = st.floats(-20, 20, allow_subnormal=False)
    scores = torch.tensor(data.draw(st.lists(numbers, min_size=n, max_size=n)), dtype=torch.float64)[None]
    seen = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))[None]
    found = getattr(normalizers, name)()(scores, seen)
    torch.testing.assert_close(found, oracle.EXACT[name](scores, seen), rtol=1e-7, atol=1e-9)
    assert (found[~seen] == 0).all()
    assert (found >= 0).all()

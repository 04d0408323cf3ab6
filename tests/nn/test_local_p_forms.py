"""`local-p` under autocast and compiled."""

import pytest
import torch

from regard import masks
from regard.nn import build
from tests.nn.test_local_luong import DIM, B, K, Q, close, made, rows


def test_centres_are_exact_positions_under_autocast():
    layer, query, source = build("local-p", dim=8, window=3), torch.randn(1, 3, 8), torch.randn(1, 4001, 8)
    exact = layer.centers(layer.prepare(query, source, None, None))
    with torch.autocast("cpu", torch.bfloat16):
        found = layer.centers(layer.prepare(query, source, None, None))
    assert torch.equal(found, exact)  # bfloat16 would round to multiples of 8 or 16


@pytest.mark.slow
def test_local_p_compiles_to_one_graph():
    layer, query, source = made("local-p", num_heads=2, window=3), rows(B, Q, DIM), rows(B, K, DIM, seed=1)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    for mask in (None, masks.causal() & masks.lengths(torch.tensor([7, 4]))):
        close(compiled(query, source, mask=mask), layer(query, source, mask=mask))

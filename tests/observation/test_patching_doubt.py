"""Patching where two runs do not differ as the question assumes: no shares are given, and the reason is."""

import pytest
import torch

import regard


def observed(model, *given):
    with regard.observe(model) as seen, torch.no_grad():
        model(*given)
    return seen


class Table(torch.nn.Module):
    """Logits by the last token, as they stand in a table, beside one attention that adds nothing."""

    def __init__(self, rows):
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(torch.tensor(rows))

    def forward(self, ids):
        rows = self.table(ids)[:, None]
        return rows[:, 0] + 0 * torch.nn.functional.scaled_dot_product_attention(rows, rows, rows)[:, 0]


@pytest.mark.parametrize(
    ("rows", "options", "doubt"),
    [
        ([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0]], {}, ""),
        ([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0]], {"into": "clean"}, ""),
        ([[2.0, 1.0, 0.0], [1.9, 1.0, 0.0]], {}, "same answer"),
        ([[2.0, 1.0, 0.0], [1.9, 1.0, 0.0]], {"measure": "loss"}, "same answer"),
        ([[2.0, 1.0, 0.0], [1.9, 1.0, 0.0]], {"answer": 0}, ""),  # the user's own question
        ([[2.0, 1.0, 0.0], [2.1, 1.0, 0.0]], {"answer": 0}, "wrong sign"),
        ([[2.0, 1.0, 0.0], [2.1, 1.0, 0.0]], {"answer": 0, "measure": "loss"}, "wrong sign"),
        ([[2.0, 1.0, 0.0], [1.9, 1.0, 0.0]], {"answer": 0, "measure": "loss"}, ""),
        ([[2.0, 1.0, 0.0], [1.985, 1.0, 0.0]], {"answer": 0}, "too small"),
        ([[2.0, 1.0, 0.0], [1.985, 1.0, 0.0]], {"measure": lambda logits: logits[0, -1, 0]}, ""),
        ([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]], {"measure": lambda logits: logits[0, -1, 0]}, "too small"),
    ],
)
def test_a_difference_that_is_none_is_not_shared_out(rows, options, doubt):
    """Logits in a table: which answers agree, and how far the measures are apart, is read off it."""
    model = Table(rows).eval()
    clean, corrupted = torch.tensor([[1, 0]]), torch.tensor([[0, 1]])
    found = observed(model, clean).patch(clean, corrupted, at="attention", **options)
    assert (doubt in found.doubt) if doubt else not found.doubt
    assert bool(found.recovered.isfinite().all()) == (not doubt)
    assert (found.best(1)[0]["recovered"] is None) == bool(doubt)
    assert ("recovered" in repr(found)) == (not doubt) and found.doubt in repr(found)
    assert found.to_json()["doubt"] == found.doubt and found.plot().axes

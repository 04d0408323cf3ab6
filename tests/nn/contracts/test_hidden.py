"""Hidden positions are never read: their contents, NaN and inf included, reach no output and no gradient."""

import pytest
import torch

from regard import masks
from tests.nn.contracts.layers import (
    HIDING,
    HOLES,
    KEEP_ONLY,
    PLAIN,
    USED,
    USES,
    B,
    Q,
    answer,
    assert_same,
    everything,
    named,
)

POISONS = {"other numbers": 4.0, "nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf}
by_use = pytest.mark.parametrize("cross", USES, ids=named)


def poisoned(rows, keep, poison):
    """Replace the rows that are not kept, by a mixture of numbers or by the poison."""
    other = torch.randn(rows.shape, dtype=rows.dtype) * poison if poison == 4.0 else torch.full_like(rows, poison)
    return torch.where(keep[..., None], rows, other)


def assert_unread(case, cross, hiding, poisons):
    mask, keep = HIDING[hiding]
    layer, inputs = case.build(cross), case.inputs(cross)
    # A hidden position of self-attention is still a query and gets a row, but no other row may depend on it.
    rows = everything(inputs[0].shape) if cross else keep
    clean = answer(layer, inputs, mask, rows)
    hidden = f"input {len(inputs) - 1}"
    assert (clean[hidden][~keep] == 0).all(), "no gradient reaches what is hidden"
    for name in poisons:
        dirty = answer(layer, [*inputs[:-1], poisoned(inputs[-1], keep, POISONS[name])], mask, rows)
        assert_same(dirty, clean)
        assert (dirty[hidden][~keep] == 0).all(), "no gradient reaches what is hidden"


@pytest.mark.parametrize(("case", "cross"), USED, ids=named)
def test_hidden_positions_change_neither_outputs_nor_gradients(case, cross):
    assert_unread(case, cross, "padding", POISONS)


@pytest.mark.parametrize("case", PLAIN, ids=str)
@by_use
def test_every_way_to_hide_a_position_hides_it(case, cross):
    for hiding in HIDING:
        if hiding != "padding":
            assert_unread(case, cross, hiding, ["other numbers", "nan"])


@pytest.mark.parametrize("case", PLAIN, ids=str)
@by_use
def test_one_poisoned_feature_is_as_hidden_as_a_poisoned_row(case, cross):
    mask, keep = HIDING["padding"]
    layer, inputs = case.build(cross), case.inputs(cross)
    rows = everything(inputs[0].shape) if cross else keep
    clean = answer(layer, inputs, mask, rows)
    for poison in (torch.nan, torch.inf):
        inputs[-1][..., 1] = inputs[-1][..., 1].masked_fill(~keep, poison)
        assert_same(answer(layer, inputs, mask, rows), clean)


@pytest.mark.parametrize("case", PLAIN, ids=str)
@by_use
def test_hidden_positions_are_not_read_in_training_either(case, cross):
    """The same seed draws the same dropout, whatever the padding contains."""
    mask, keep = HIDING["padding"]
    layer, inputs = case.build(cross, dropout=0.3).train(), case.inputs(cross)
    rows = everything(inputs[0].shape) if cross else keep
    torch.manual_seed(5)
    clean = answer(layer, inputs, mask, rows)
    torch.manual_seed(5)
    assert_same(answer(layer, [*inputs[:-1], poisoned(inputs[-1], keep, torch.nan)], mask, rows), clean)


# A mask with `query_keep` depends on the query, which mechanisms that summarise their source refuse.
ASK_PAIR_BY_PAIR = [case for case in PLAIN if case.name not in KEEP_ONLY | {"linear"}]


@pytest.mark.parametrize("case", ASK_PAIR_BY_PAIR, ids=str)
def test_a_hidden_query_is_not_read(case):
    keep_query = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 1, 1, 1, 0]], dtype=torch.bool)
    mask = masks.padding(HOLES, keep_query)
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    clean = answer(layer, [query, source], mask, keep_query)
    for poison in POISONS.values():
        assert_same(answer(layer, [poisoned(query, keep_query, poison), source], mask, keep_query), clean)


@pytest.mark.parametrize("case", ASK_PAIR_BY_PAIR, ids=str)
def test_a_pairwise_mask_hides_a_position_from_single_queries(case):
    """(q,k), (b,q,k) and (b,h,q,k): a change of what query 2 may not see does not change its row."""
    pairs = torch.rand(B, Q, 7, generator=torch.Generator().manual_seed(3)) > 0.4
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    for mask, seen in (
        (pairs[0], pairs[:1].expand(B, -1, -1)),
        (pairs, pairs),
        (pairs[:, None], pairs),
        (masks.dense(pairs[:, None]), pairs),
    ):
        clean = layer(query, source, mask=mask)
        changed = layer(query, torch.where(seen[:, 2, :, None], source, torch.randn_like(source)), mask=mask)
        torch.testing.assert_close(changed[:, 2], clean[:, 2], rtol=1e-9, atol=1e-9)
        assert not torch.allclose(changed, clean), "other queries see what changed"

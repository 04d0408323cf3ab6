"""Any expression of masks means what its parts mean: dense, in blocks, and in attention."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import masks
from regard.masks import EMPTY, FULL, PARTIAL
from tests.masks.strategies import EXACT, LEAVES, OF_KEYS, expressions, grids


def assert_dense(drawn, g):
    dense = drawn.mask.dense(g.q, g.k, batch=g.b, heads=g.h)
    assert dense.dtype == torch.bool
    assert dense.dim() == 4
    assert dense.shape[0] in (1, g.b)
    assert dense.shape[1] in (1, g.h)
    assert torch.equal(dense.expand(g.b, g.h, g.q, g.k), drawn.truth)


@pytest.mark.parametrize("leaf", LEAVES)
@given(data=st.data())
def test_every_leaf_is_its_predicate(leaf, data):
    g = data.draw(grids())
    assert_dense(LEAVES[leaf](data.draw, g), g)


@given(data=st.data())
@settings(max_examples=150)
def test_every_expression_is_its_parts_joined(data):
    g = data.draw(grids())
    assert_dense(data.draw(expressions(g)), g)


def assert_blocks(drawn, g, block_q, block_k, exactly):
    kinds = drawn.mask.classify(g.q, g.k, block_q, block_k, batch=g.b, heads=g.h)
    rows, columns = -(-g.q // block_q), -(-g.k // block_k)
    assert kinds.dtype == torch.int8
    assert kinds.shape[0] in (1, g.b)
    assert kinds.shape[1] in (1, g.h)
    assert kinds.shape[2:] == (rows, columns)
    kinds = kinds.expand(g.b, g.h, rows, columns)
    for y in range(rows):
        for x in range(columns):
            part = drawn.truth[:, :, y * block_q : (y + 1) * block_q, x * block_k : (x + 1) * block_k].flatten(2)
            none, every, kind = ~part.any(-1), part.all(-1), kinds[:, :, y, x]
            assert none[kind == EMPTY].all(), (y, x, "said EMPTY, but a pair is visible")
            assert every[kind == FULL].all(), (y, x, "said FULL, but a pair is hidden")
            assert torch.isin(kind, torch.tensor([EMPTY, PARTIAL, FULL])).all()
            if exactly:
                assert ((kind == EMPTY) == none).all(), (y, x, "should be EMPTY")
                assert ((kind == FULL) == every).all(), (y, x, "should be FULL")


@pytest.mark.parametrize("leaf", EXACT)
@pytest.mark.parametrize("negated", [False, True])
@given(data=st.data(), block_q=st.integers(1, 8), block_k=st.integers(1, 8))
def test_blocks_of_a_leaf_without_tensors_are_exact(leaf, negated, data, block_q, block_k):
    g = data.draw(grids())
    drawn = EXACT[leaf](data.draw, g)
    if negated:
        drawn = type(drawn)(~drawn.mask, ~drawn.truth, drawn.exact)
    assert_blocks(drawn, g, block_q, block_k, exactly=drawn.exact)


@given(data=st.data(), block_q=st.integers(1, 8), block_k=st.integers(1, 8))
@settings(max_examples=250)
def test_blocks_of_any_expression_are_sound(data, block_q, block_k):
    g = data.draw(grids())
    assert_blocks(data.draw(expressions(g)), g, block_q, block_k, exactly=False)


@given(data=st.data())
@settings(max_examples=80)
def test_a_mask_of_keys_has_a_keep(data):
    g = data.draw(grids(smallest=1))
    drawn = data.draw(expressions(g, depth=2, among=tuple(OF_KEYS)))
    if drawn.of_keys:
        keep = drawn.mask.keep(g.k, batch=g.b)
        assert keep.dtype == torch.bool
        assert keep.shape[0] in (1, g.b)
        assert torch.equal(keep.expand(g.b, g.k), drawn.truth[:, 0, 0])
    else:
        with pytest.raises(regard.RegardError, match=r"(?i)quer"):
            drawn.mask.keep(g.k, batch=g.b)


@given(data=st.data(), impl=st.sampled_from(["reference", "tiled", "auto"]))
@settings(max_examples=120)
def test_attention_under_any_expression_equals_its_dense_truth(data, impl):
    g = data.draw(grids(largest=11))
    drawn = data.draw(expressions(g))
    generator = torch.Generator().manual_seed(1)
    query, key, value = (
        torch.randn(g.b, g.h, n, m, generator=generator, dtype=torch.float64) for n, m in ((g.q, 3), (g.k, 3), (g.k, 5))
    )
    found = regard.attend(query, key, value, mask=drawn.mask, impl=impl)
    expected = regard.attend(query, key, value, mask=drawn.truth, impl="reference")
    torch.testing.assert_close(found, expected)


@given(data=st.data())
def test_de_morgan_holds_on_what_is_visible(data):
    g = data.draw(grids())
    a, b = data.draw(expressions(g, depth=1)), data.draw(expressions(g, depth=1))

    def dense(mask):
        return mask.dense(g.q, g.k, batch=g.b, heads=g.h).expand(g.b, g.h, g.q, g.k)

    assert torch.equal(dense(~(a.mask & b.mask)), dense(~a.mask | ~b.mask))
    assert torch.equal(dense(~~a.mask), dense(a.mask))
    assert torch.equal(dense(a.mask & masks.full()), dense(a.mask))

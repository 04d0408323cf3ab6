"""In steps a mask hides the same as in one call, whether its parts are sized for the step or for all keys."""

import pytest
import torch

from regard import masks
from tests.nn.contracts.layers import CAUSAL, HOLES, KEEP_ONLY, LENGTHS, PRESETS, K
from tests.nn.contracts.stepping import OVER_A_SOURCE

DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 2, 2, -1, -1], [3, 3, 3, 3, 0, 0, 1]])
SPLITS = ((3, 1, 2, 1), (1,) * K, (4, 0, 3))

# name: (the mask of one call, the mask of the call over positions a … b). Some parts are sized for the call alone.
PAIRWISE = {
    "window & padding": (
        masks.window(1, 0) & masks.padding(HOLES),
        lambda a, b: masks.window(1, 0) & masks.padding(HOLES[:, a:b]),
    ),
    "window from the top left": (
        masks.window(2, 0, align="top-left") & masks.padding(HOLES),
        lambda a, b: masks.window(2, 0, align="top-left") & masks.padding(HOLES[:, a:b]),
    ),
    "documents": (masks.documents(DOCUMENTS), lambda a, b: masks.documents(DOCUMENTS[:, a:b])),
    "documents with keys of the call": (
        masks.documents(DOCUMENTS),
        lambda a, b: masks.documents(DOCUMENTS[:, a:b], DOCUMENTS[:, a:b]),
    ),
    "documents with all keys": (
        masks.documents(DOCUMENTS),
        lambda a, b: masks.documents(DOCUMENTS[:, a:b], DOCUMENTS[:, :b]),
    ),
    "documents | first": (
        (masks.documents(DOCUMENTS) | masks.global_tokens([0])) & masks.padding(HOLES),
        lambda a, b: (masks.documents(DOCUMENTS[:, a:b]) | masks.global_tokens([0])) & masks.padding(HOLES[:, a:b]),
    ),
    "documents & other documents": (
        masks.documents(DOCUMENTS) & masks.documents(DOCUMENTS.flip(0)),
        lambda a, b: masks.documents(DOCUMENTS[:, a:b]) & masks.documents(DOCUMENTS.flip(0)[:, a:b]),
    ),
    "blocks & not padded": (
        masks.blocks(3) & ~masks.padding(~HOLES),
        lambda a, b: masks.blocks(3) & ~masks.padding(~HOLES[:, a:b]),
    ),
    "lengths of queries": (masks.lengths(LENGTHS, LENGTHS), lambda a, b: masks.lengths(LENGTHS, LENGTHS)),
}
BY_KEY = {
    "lengths & padding": (
        masks.lengths(LENGTHS) & masks.padding(HOLES),
        lambda a, b: masks.lengths(LENGTHS) & masks.padding(HOLES[:, a:b]),
    ),
    "padding | prefix": (
        masks.padding(HOLES) | masks.prefix(2),
        lambda a, b: masks.padding(HOLES[:, a:b]) | masks.prefix(2),
    ),
    "not padded": (~masks.padding(~HOLES), lambda a, b: ~masks.padding(~HOLES[:, a:b])),
}


def takes_pairs(case):
    return case.name not in KEEP_ONLY | {"linear"}


def real_rows(name):
    """Outputs of padded positions are not compared."""
    if "documents" in name:
        rows = DOCUMENTS >= 0
        return rows & (DOCUMENTS.flip(0) >= 0) if "other" in name else rows & (HOLES if "first" in name else True)
    if "lengths" in name:
        return (torch.arange(K) < LENGTHS[:, None]) & (HOLES if "padding" in name else True)
    return HOLES | (torch.arange(K) < 2) if "prefix" in name else HOLES


def assert_steps_equal_one_call(layer, rows, whole, of_call, real):
    expected = layer(rows, mask=whole)
    for splits in SPLITS:
        state, found, start = layer.initial_state(3), [], 0
        with torch.no_grad():
            for size in splits:
                mask = of_call(start, start + size)
                out, state = layer(rows[:, start : start + size], mask=mask, state=state)
                found.append(out)
                start += size
        torch.testing.assert_close(torch.cat(found, 1)[real], expected[real], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("case", [case for case in PRESETS if takes_pairs(case)], ids=str)
def test_a_pairwise_mask_hides_the_same_in_steps(case, name):
    layer, (rows,) = case.build(), case.inputs()
    assert_steps_equal_one_call(layer, rows, *PAIRWISE[name], real_rows(name))


@pytest.mark.parametrize("name", BY_KEY)
@pytest.mark.parametrize("case", PRESETS, ids=str)
def test_a_mask_over_keys_hides_the_same_in_steps(case, name):
    layer, (rows,) = case.build(), case.inputs()
    assert_steps_equal_one_call(layer, rows, *BY_KEY[name], real_rows(name))


@pytest.mark.parametrize("case", [case for case in CAUSAL if case.name == "local"], ids=str)
def test_a_sliding_cache_keeps_the_document_ids_of_its_keys(case):
    layer, (rows,) = case.build(window=3), case.inputs()
    assert_steps_equal_one_call(layer, rows, *PAIRWISE["documents"], real_rows("documents"))
    _, state = layer(rows, mask=masks.documents(DOCUMENTS), state=layer.initial_state(3))
    assert [one.shape for one in state.ids] == [(3, 2)]


CAUSAL_LAYER = next(case for case in PRESETS if case.name == "causal")


def test_reordering_a_state_reorders_its_document_ids():
    layer, (rows,) = CAUSAL_LAYER.build(), CAUSAL_LAYER.inputs()
    order = torch.tensor([2, 0, 0, 1])
    expected = layer(rows[order], mask=masks.documents(DOCUMENTS[order]))[:, 5:]
    _, state = layer(rows[:, :5], mask=masks.documents(DOCUMENTS[:, :5]), state=layer.initial_state(3))
    found, _ = layer(rows[order, 5:], mask=masks.documents(DOCUMENTS[order, 5:]), state=state.reorder(order))
    real = DOCUMENTS[order, 5:] >= 0
    torch.testing.assert_close(found[real], expected[real], rtol=1e-9, atol=1e-9)


def test_a_mask_that_does_not_cover_earlier_keys_is_refused():
    layer, (rows,) = CAUSAL_LAYER.build(), CAUSAL_LAYER.inputs()
    _, state = layer(rows[:, :4], state=layer.initial_state(3))
    rest = rows[:, 4:]
    with pytest.raises(ValueError, match=r"ids of the 4 earlier positions are unknown.*key_ids"):
        layer(rest, mask=masks.documents(DOCUMENTS[:, 4:]), state=state)
    with pytest.raises(ValueError, match="all 7 keys"):
        layer(rest, mask=masks.causal() | masks.padding(HOLES[:, 4:]), state=state)
    with pytest.raises(ValueError, match="all 7 keys"):
        layer(rest, mask=masks.dense(torch.ones(3, 3, dtype=torch.bool)), state=state)
    _, two = layer(
        rows[:, :4],
        mask=masks.documents(DOCUMENTS[:, :4]) & masks.documents(DOCUMENTS[:, :4]),
        state=layer.initial_state(3),
    )
    with pytest.raises(ValueError, match="key_ids"):  # ambiguous: earlier calls had two document masks
        layer(rest, mask=masks.documents(DOCUMENTS[:, 4:]), state=two)


OVER = [case for case in OVER_A_SOURCE if takes_pairs(case)]


@pytest.mark.parametrize("case", OVER, ids=str)
def test_masks_over_a_source_count_the_queries_of_earlier_steps(case):
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    queries = torch.tensor([5, 2, 4])
    for mask in (masks.window(2, align="top-left"), masks.causal(align="top-left"), masks.lengths(LENGTHS, queries)):
        expected = layer(query, source, mask=mask)
        real = torch.arange(5) < (queries if "lengths" in repr(mask) else torch.full((3,), 5))[:, None]
        state, found = layer.initial_state(3), []
        for t in range(5):
            out, state = layer(query[:, t : t + 1], source, mask=mask, state=state)
            found.append(out)
        torch.testing.assert_close(torch.cat(found, 1)[real], expected[real], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "mask", [masks.causal(), masks.window(2), masks.blocks(2), masks.dilated(2), masks.global_tokens([1])], ids=repr
)
@pytest.mark.parametrize("name", ["multihead", "key-value-memory", "global-layer"])
def test_masks_aligned_with_a_sources_end_are_refused_in_steps(name, mask):
    case = next(case for case in OVER if case.name == name)
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    layer(query, source, mask=mask)
    with pytest.raises(ValueError, match=r"mask: .*source's end"):
        layer(query[:, :1], source, mask=mask, state=layer.initial_state(3))

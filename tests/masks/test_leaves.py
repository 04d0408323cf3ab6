"""Each mask in small tables a reader can check by eye, and what its arguments may be."""

import pytest
import torch

import regard
from regard import masks


def table(mask, q, k, n=0, **sizes):
    return ["".join(str(int(x)) for x in row) for row in mask.dense(q, k, **sizes)[n, 0]]


def test_full_shows_everything():
    assert table(masks.full(), 2, 3) == ["111", "111"]
    assert table(~masks.full(), 2, 3) == ["000", "000"]


def test_lengths_show_the_first_keys_to_the_first_queries():
    mask = masks.lengths(torch.tensor([2, 3]), torch.tensor([1, 2]))
    assert table(mask, 2, 3, n=0, batch=2) == ["110", "000"]
    assert table(mask, 2, 3, n=1, batch=2) == ["111", "111"]


def test_padding_keeps_where_true():
    keep = torch.tensor([[True, False, True], [False, True, True]])
    assert table(masks.padding(keep), 2, 3, n=1, batch=2) == ["011", "011"]
    queries = torch.tensor([[True, False], [True, True]])
    assert table(masks.padding(keep, queries), 2, 3, n=0, batch=2) == ["101", "000"]


def test_documents_see_their_own_and_negative_ids_see_nothing():
    assert table(masks.documents(torch.tensor([[0, 0, 1, -1]])), 4, 4) == ["1100", "1100", "0010", "0000"]
    across = masks.documents(torch.tensor([[1, -1, 0]]), torch.tensor([[0, 1, 1, -1]]))
    assert table(across, 3, 4) == ["0110", "0000", "1000"]


def test_documents_without_key_ids_need_as_many_keys_as_queries():
    mask = masks.documents(torch.tensor([[0, 0, 1]]))
    with pytest.raises(regard.RegardError, match="key_ids") as caught:
        mask.dense(3, 4)
    assert isinstance(caught.value, ValueError)


def test_packed_cuts_documents_at_cumulative_lengths():
    assert table(masks.packed(torch.tensor([0, 2, 3])), 3, 3) == ["110", "110", "001"]


def test_packed_may_hold_empty_documents():
    assert table(masks.packed(torch.tensor([0, 2, 2, 3])), 3, 3) == ["110", "110", "001"]


def test_prefix_shows_the_first_keys():
    assert table(masks.prefix(2), 2, 3) == ["110", "110"]
    assert table(masks.causal() | masks.prefix(2), 3, 3) == ["110", "110", "111"]
    assert table(masks.prefix(torch.tensor([0, 1])), 2, 3, n=1, batch=2) == ["100", "100"]


def test_global_tokens_join_with_or():
    assert table(masks.global_tokens([1]), 3, 3) == ["010", "111", "010"]
    assert table(masks.window(0, 0) | masks.global_tokens([0]), 3, 3) == ["111", "110", "101"]


def test_leading_axes_are_one_unless_a_leaf_depends_on_them():
    assert masks.causal().dense(3, 4, batch=5, heads=7).shape == (1, 1, 3, 4)
    assert masks.lengths(torch.tensor([1, 2])).dense(3, 4, batch=2, heads=7).shape == (2, 1, 3, 4)
    assert (masks.causal() & masks.prefix(2)).dense(3, 4, batch=5).shape == (1, 1, 3, 4)
    per_head = masks.dense(torch.ones(7, 3, 4, dtype=torch.bool))
    assert per_head.dense(3, 4, batch=2, heads=7).shape == (1, 7, 3, 4)
    assert (per_head & masks.lengths(torch.tensor([1, 2]))).dense(3, 4, batch=2, heads=7).shape == (2, 7, 3, 4)
    assert masks.causal(offset=torch.tensor([0, 1])).dense(3, 4, batch=2).shape == (2, 1, 3, 4)


def test_dense_lives_on_the_device_asked_for(device):
    assert masks.causal().dense(2, 3, device=device).device.type == device
    assert masks.lengths(torch.tensor([2])).dense(2, 3, device=device).device.type == device


def test_a_mask_that_depends_on_the_query_has_no_keep():
    keep = torch.ones(2, 3, dtype=torch.bool)
    for mask in (
        masks.causal(),
        masks.window(2),
        masks.blocks(2),
        masks.dilated(2),
        masks.documents(torch.tensor([[0, 1, 1]])),
        masks.packed(torch.tensor([0, 1, 3])),
        masks.global_tokens([0]),
        masks.padding(keep, keep),
        masks.lengths(torch.tensor([2, 3]), torch.tensor([1, 3])),
        masks.full() & masks.causal(),
        masks.prefix(2) | masks.causal(),
        ~masks.causal(),
    ):
        with pytest.raises(regard.RegardError, match=r"(?i)quer"):
            mask.keep(3, batch=2)


def test_keep_of_masks_of_keys():
    assert masks.full().keep(3).tolist() == [[True] * 3]
    assert masks.prefix(2).keep(3).tolist() == [[True, True, False]]
    assert (~masks.prefix(2)).keep(3).tolist() == [[False, False, True]]
    lengths = masks.lengths(torch.tensor([1, 3]))
    assert lengths.keep(3, batch=2).tolist() == [[True, False, False], [True, True, True]]
    assert (lengths & masks.prefix(2)).keep(3, batch=2).tolist() == [[True, False, False], [True, True, False]]


def test_raw_tensors_become_dense_masks():
    seen = torch.rand(3, 4) > 0.5
    assert torch.equal(masks.dense(seen).dense(3, 4)[0, 0], seen)
    assert masks.dense(seen) == masks.dense(seen.clone())


def test_blocks_of_a_long_mask_are_found_without_an_array_of_all_pairs():
    """2^20 × 2^20 pairs would be a terabyte."""
    n, block = 2**20, 2**12
    for mask in (
        masks.causal() & masks.window(5000, 0),
        masks.documents((torch.arange(n) // 10000)[None]) & masks.causal(),
        masks.lengths(torch.tensor([n // 2])) | masks.prefix(7),
        ~masks.blocks(8192) & masks.dilated(3),
        masks.packed(torch.arange(0, n + 1, 2**15)),
        masks.global_tokens([0, 77]) | masks.window(100),
    ):
        kinds = mask.classify(n, n, block, block)
        assert kinds.shape == (1, 1, n // block, n // block)
        assert (kinds == masks.EMPTY).any()


def test_documents_and_packed_find_empty_and_full_blocks():
    """Without them the work would be quadratic: sound is not enough for the masks that are used most."""
    for mask in (masks.packed(torch.tensor([0, 64, 128])), masks.documents((torch.arange(128) // 64)[None])):
        kinds = mask.classify(128, 128, 32, 32)[0, 0]
        expected = torch.full((4, 4), masks.EMPTY, dtype=torch.int8)
        expected[:2, :2] = expected[2:, 2:] = masks.FULL
        assert torch.equal(kinds, expected)
    kinds = masks.lengths(torch.tensor([40])).classify(64, 96, 32, 32)[0, 0]
    assert kinds.tolist() == [[masks.FULL, masks.PARTIAL, masks.EMPTY]] * 2


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: masks.window(-1), "before"),
        (lambda: masks.window(1, -2), "after"),
        (lambda: masks.window(1.5), "before"),
        (lambda: masks.causal(align="middle"), "align"),
        (lambda: masks.causal(offset=1.5), "offset"),
        (lambda: masks.causal(offset=torch.zeros(2, 2, dtype=torch.long)), "offset"),
        (lambda: masks.blocks(0), "size"),
        (lambda: masks.dilated(0), "step"),
        (lambda: masks.prefix(-1), "n"),
        (lambda: masks.lengths(torch.tensor([1.5])), "key_lengths"),
        (lambda: masks.lengths(torch.tensor([[1, 2]])), "key_lengths"),
        (lambda: masks.padding(torch.ones(2, 3)), "keep"),
        (lambda: masks.padding(torch.ones(3, dtype=torch.bool)), "keep"),
        (lambda: masks.documents(torch.ones(2, 3)), "query_ids"),
        (lambda: masks.packed(torch.tensor([1.0, 2.0])), "offsets"),
        (lambda: masks.packed(torch.tensor([[0, 2]])), "offsets"),
        (lambda: masks.dense(torch.ones(2, 3)), "bool"),
    ],
)
def test_arguments_that_make_no_mask_are_refused_by_name(make, word):
    with pytest.raises(regard.RegardError, match=word) as caught:
        make()
    assert isinstance(caught.value, (ValueError, TypeError))


@pytest.mark.parametrize("other", [3, None, torch.ones(3, 3, dtype=torch.bool), "causal"])
def test_masks_join_with_masks_alone(other):
    for join in (lambda a, b: a & b, lambda a, b: a | b):
        with pytest.raises(TypeError):
            join(masks.causal(), other)


def test_masks_that_look_at_distances_alone_say_so():
    """Along a diagonal such a mask must be constant: shifting query and key together changes nothing."""
    found = {
        masks.causal(): True,
        masks.window(2, 1): True,
        masks.causal(offset=3) & masks.dilated(2): True,
        ~masks.window(1) | masks.full(): True,
        masks.window(2, offset=torch.tensor([0, 1])): False,
        masks.prefix(3): False,
        masks.blocks(3) & masks.causal(): False,
        masks.global_tokens([1]) | masks.causal(): False,
    }
    for mask, by_distance in found.items():
        assert mask.by_distance is by_distance, mask
        seen = mask.dense(9, 9, batch=2)
        constant = all(len({*seen.diagonal(d, -2, -1)[0, 0].tolist()}) == 1 for d in range(-8, 9))
        assert constant or not by_distance, mask

"""Masks that transformers describes by functions become masks of the algebra, pair by pair the same."""

import copy
import inspect
import types

import pytest
import torch

from regard import masks
from regard.interop.huggingface.mask_functions import Extent, Factories, joined
from regard.interop.huggingface.masking import mask_function
from regard.interop.huggingface.structured_mask import StructuredMask

library = pytest.importorskip("transformers.masking_utils")

IDS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2], [0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3, 4, 4]])
GROUPS = torch.tensor([[-1, 0, 0, 0, -1, -1, 1, 1, -1, -1, -1, 2, 2], [-1] * 13])
REAL = torch.tensor([[False] * 3 + [True] * 10, [True] * 11 + [False] * 2])
FUNCTIONS = {
    "causal": lambda: library.causal_mask_function,
    "both_ways": lambda: library.bidirectional_mask_function,
    "sliding": lambda: library.sliding_window_causal_mask_function(5),
    "no_window": lambda: library.sliding_window_causal_mask_function(0),
    "sliding_both_ways": lambda: library.sliding_window_bidirectional_mask_function(3),
    "chunked": lambda: library.chunked_causal_mask_function(4, torch.tensor([3, 0])),
    "packed": lambda: library.and_masks(library.causal_mask_function, library.packed_sequence_mask_function(IDS)),
    "blocks": lambda: library.or_masks(library.causal_mask_function, library.blockwise_overlay(GROUPS)),
    "own_overlay": lambda: library.and_masks(library.causal_mask_function, lambda b, h, q, k: (q - k) % 3 != 1),
}
# queries, keys, position of the first query, of the first key: a whole text, a step, a piece, a window of a cache,
# a static cache
EXTENTS = [(13, 13, 0, 0), (1, 13, 12, 0), (4, 11, 7, 0), (3, 6, 10, 7), (5, 13, 2, 0)]


def queries_at(first, count):
    """Where queries stand, as the installed version of transformers says it."""
    if "cache_position" in inspect.signature(library.sdpa_mask).parameters:  # transformers 4
        return {"cache_position": torch.arange(first, first + count)}
    return {"q_length": count, "q_offset": first}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("extent", EXTENTS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_mask_is_that_of_the_library(name, extent, padded):
    queries, keys, first_query, first_key = extent
    given = {
        "batch_size": 2,
        "kv_length": keys,
        "kv_offset": first_key,
        **queries_at(first_query, queries),
        "mask_function": FUNCTIONS[name](),
        "attention_mask": REAL if padded or name == "chunked" else None,
        "allow_is_causal_skip": True,
        "device": "cpu",
    }
    found = mask_function(library)(**given)
    expected = library.eager_mask(**given)
    assert isinstance(found, StructuredMask)
    assert found.shape == expected.shape
    assert found.covers(queries, keys)
    assert torch.equal(found + 0, expected)
    assert ("dense" in found.structure.spec) is (name == "own_overlay")


@pytest.mark.parametrize("name", ["causal", "chunked", "packed"])
def test_of_more_rows_than_the_batch_has_the_first_are_read(name):
    """MusicGen passes a mask with a row for each codebook of each example."""
    given = {
        "batch_size": 1,
        "kv_length": 13,
        **queries_at(0, 13),
        "mask_function": FUNCTIONS[name](),
        "attention_mask": REAL,
        "allow_is_causal_skip": True,
        "device": "cpu",
    }
    found = mask_function(library)(**given)
    assert found.shape == (1, 1, 13, 13) and found.covers(13, 13)
    assert torch.equal(found + 0, library.eager_mask(**given))


def test_every_factory_of_the_installed_version_is_understood():
    assert Factories(library).known == {
        "causal_mask_function",
        "bidirectional_mask_function",
        "sliding_window_overlay",
        "sliding_window_bidirectional_overlay",
        "chunked_overlay",
        "blockwise_overlay",
        "packed_sequence_mask_function",
        "padding_mask_function",
    }


def test_a_factory_that_changed_its_meaning_is_evaluated_instead():
    changed = types.ModuleType("changed_masking_utils")
    source = "def sliding_window_overlay(sliding_window):\n    def inner_mask(b, h, q, k):\n"
    source += "        return k >= q - sliding_window\n    return inner_mask\n"
    exec(source, vars(changed))
    factories = Factories(changed)
    assert factories.known == set()
    evaluated = torch.rand(1, 1, 3, 3) < 0.5
    found = factories.read(changed.sliding_window_overlay(2), Extent(1, 3, 3, 0, 0), lambda function: evaluated)
    assert torch.equal(found.dense(3, 3), evaluated)


def test_windows_and_causal_masks_of_one_alignment_become_one_window():
    assert joined([masks.causal(), masks.window(4, 7)]) == masks.window(4, 0)
    assert joined([masks.window(4, 3), masks.full(), masks.window(2, 9)]) == masks.window(2, 3)
    assert joined([masks.causal(offset=2), masks.window(4, 7, offset=2)]) == masks.window(4, 0, offset=2)
    assert joined([masks.causal(), masks.causal()]) == masks.causal()
    assert joined([masks.full()]) == joined([]) == masks.full()
    apart = joined([masks.causal(), masks.window(4, 7, offset=2)])
    assert torch.equal(apart.dense(5, 9), masks.causal().dense(5, 9) & masks.window(4, 7, offset=2).dense(5, 9))


def structured(mask=None, queries=5, keys=7):
    return StructuredMask(mask or masks.causal(), 2, queries, keys, "cpu")


def dense_causal():
    """What eager attention adds to scores."""
    return torch.where(masks.causal().dense(5, 7), 0.0, torch.finfo(torch.float32).min).repeat(2, 1, 1, 1)


def test_a_structured_mask_answers_operations_as_its_dense_tensor_does():
    mask, dense, some = structured(), dense_causal(), torch.eye(5, 7).bool()
    assert (mask.shape, mask.dtype, mask.ndim) == ((2, 1, 5, 7), torch.float32, 4)
    assert torch.equal(mask == 0, dense == 0)
    assert torch.equal(torch.ones(2, 3, 5, 7) + mask, torch.ones(2, 3, 5, 7) + dense)
    assert torch.equal(torch.cat([mask, mask], -1), torch.cat([dense, dense], -1))
    assert torch.equal(mask.masked_fill(some, -1.0), dense.masked_fill(some, -1.0))
    assert mask.structure == masks.causal()  # reading changes nothing
    assert mask.contiguous() is mask
    assert mask.detach().structure == masks.causal()
    assert copy.deepcopy(mask).structure == masks.causal()
    assert mask.to("meta").structure == masks.causal()
    assert torch.equal(mask.to(torch.float64), dense.to(torch.float64))
    assert "masks.causal()" in repr(mask)
    assert torch.equal(mask[:, :, 1:3, :4], dense[:, :, 1:3, :4])  # a view, which may be written to
    assert mask.structure is None
    assert torch.equal(mask + 0, dense)


@pytest.mark.parametrize(
    "write",
    [
        lambda mask: mask.masked_fill_(torch.ones(5, 7, dtype=torch.bool), -3.0),
        lambda mask: mask.__setitem__((0, 0, 2), -3.0),
        lambda mask: mask[:, :, 1].fill_(-3.0),
        lambda mask: mask.add_(1.0),
    ],
    ids=["masked_fill_", "index", "view", "add_"],
)
def test_a_structured_mask_that_is_written_to_holds_what_was_written(write):
    mask, dense = structured(), dense_causal()
    write(mask)
    write(dense)
    assert not mask.covers(5, 7)
    assert mask.structure is None
    assert torch.equal(mask + 0, dense)
    assert torch.equal(copy.deepcopy(mask) + 0, dense)


def test_a_mask_that_hides_nothing_is_none_where_the_model_takes_that():
    given = {"batch_size": 2, "kv_length": 7, **queries_at(0, 7), "mask_function": library.bidirectional_mask_function}
    make = mask_function(library)
    assert make(**given, allow_is_bidirectional_skip=True) is None
    assert make(**given, allow_is_bidirectional_skip=True, attention_mask=torch.ones(2, 7, dtype=torch.bool)) is None
    assert make(**given, allow_is_bidirectional_skip=True, attention_mask=REAL[:, :7]) is not None
    assert make(**given).structure == masks.full()
    causal = given | {"mask_function": library.causal_mask_function, "allow_is_causal_skip": True}
    assert make(**causal).structure == masks.causal()


def test_a_structured_mask_takes_no_memory_of_its_size():
    mask = StructuredMask(masks.causal(), 1, 1 << 20, 1 << 20, "cpu")  # a tensor would take a terabyte
    assert mask.covers(1 << 20, 1 << 20)

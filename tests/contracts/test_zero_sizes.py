"""Promise 4: no queries, no keys, no batch, no heads: empty or zero results, no crash."""

import math

import pytest
import torch

import regard
from tests.contracts import entries
from tests.contracts.entries import Sizes
from tests.contracts.harness import EVERYTHING, Case, by_regard

EMPTY = {
    "no queries": Sizes(q=0, k=17),
    "no keys": Sizes(q=11, k=0),
    "neither": Sizes(q=0, k=0),
    "no batch": Sizes(b=0),
}
TENSOR_FREE = [
    "none",
    "full",
    "causal",
    "causal top-left",
    "causal offset",
    "window both",
    "window before",
    "window itself",
    "prefix",
    "blocks",
    "dilated",
    "not causal",
    "raw k",
    "raw q k",
    "raw h q k",
    "raw b 1 1 k",
    "raw b h q k",
    "dense q k",
]
PER_SAMPLE = ["lengths", "padding", "padding of both", "documents across"]


def assert_nothing(found, sizes):
    if sizes.k == 0:
        assert (found["out"] == 0).all()
        assert (found["logsumexp"] == -math.inf).all()
    for name, x in found.items():
        assert name == "logsumexp" or (x == 0).all(), name


PIECES = {f"score {name}": {"score": name} for name in entries.SCORES}
PIECES |= {f"bias {name}": {"bias": name} for name in entries.BIASES}
PIECES |= {f"mask {name}": {"mask": name} for name in TENSOR_FREE}
PIECES |= {
    f"{name} with a sink": {"normalize": name, "sink": True}
    for name in (*entries.NORMALIZERS, *entries.CUSTOM_NORMALIZERS)
}


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("empty", EMPTY)
def test_every_piece_takes_empty_tensors(piece, empty, impl, device):
    assert_nothing(by_regard(Case(sizes=EMPTY[empty], **PIECES[piece]), impl, device), EMPTY[empty])


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("empty", ["no queries", "no keys", "neither"])
@pytest.mark.parametrize("mask", PER_SAMPLE)
def test_masks_with_tensors_take_empty_lengths(mask, empty, impl, device):
    sizes = EMPTY[empty]
    zero_keys = sizes.k == 0 and mask == "lengths"  # the entry counts back from k
    if zero_keys:
        qkv = [torch.randn(3, 2, n, 5, device=device) for n in (sizes.q, 0, 0)]
        lengths = regard.masks.lengths(torch.zeros(3, dtype=torch.long, device=device))
        assert (regard.attend(*qkv, mask=lengths, impl=impl) == 0).all()
    else:
        assert_nothing(by_regard(Case(mask=mask, sizes=sizes), impl, device), sizes)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_no_heads_give_an_empty_result(impl, device):
    query, key, value = (torch.randn(3, 0, n, m, device=device) for n, m in ((11, 5), (17, 5), (17, 7)))
    assert regard.attend(query, key, value, impl=impl).shape == (3, 0, 11, 7)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_a_value_without_columns_gives_an_output_without_columns(impl, device):
    query, key, value = (torch.randn(3, 2, n, m, device=device) for n, m in ((11, 5), (17, 5), (17, 0)))
    assert regard.attend(query, key, value, impl=impl).shape == (3, 2, 11, 0)


@pytest.mark.parametrize("empty", EMPTY)
def test_sdpa_takes_empty_tensors_or_refuses(empty, device):
    try:
        found = by_regard(Case(sizes=EMPTY[empty]), "sdpa", device, with_lse=False)
    except regard.Unsupported as refusal:
        assert "sdpa" in str(refusal)
        return
    for name, x in found.items():
        assert (x == 0).all(), name


@pytest.mark.parametrize("empty", EMPTY)
def test_weights_and_summaries_of_empty_tensors_have_their_shapes(empty, device):
    s = EMPTY[empty]
    query, key = (torch.randn(s.b, s.h, s.q, s.d, device=device), torch.randn(s.b, s.g, s.k, s.d, device=device))
    assert regard.weights(query, key).shape == (s.b, s.h, s.q, s.k)
    summary = regard.summarize(query, key, top=3)
    assert summary.entropy.shape == (s.b, s.h, s.q)
    assert (summary.entropy == 0).all()
    assert summary.received.shape == (s.b, s.h, s.k)
    assert (summary.received == 0).all()
    assert summary.top_weights.shape == summary.top_keys.shape == (s.b, s.h, s.q, 3)
    assert (summary.top_weights == 0).all()
    assert (summary.top_keys == -1).all()
    assert (summary.logsumexp == -math.inf).all()

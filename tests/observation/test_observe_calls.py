"""A user's own use of scaled_dot_product_attention and flex_attention, in every form of the call."""

import math

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

import regard
from tests import oracle
from tests.contracts.user_masks import Runs
from tests.observation import peers
from tests.observation.peers import BAR, largest

pytestmark = [pytest.mark.filterwarnings(text) for text in peers.FLEX_WARNINGS]


class Own(nn.Module):
    """A user's module that calls the given attention function."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, query, key, value):
        return self.attention(query, key, value)


def drawn(heads=6, shared=6, queries=7, keys=11):
    return torch.randn(2, heads, queries, 5), torch.randn(2, shared, keys, 5), torch.randn(2, shared, keys, 3)


def formula(query, key, scale=None, add=0.0, hide=None):
    """softmax(q·k·scale + add), written out."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query.double() @ key.double().transpose(-1, -2) * (scale or 1 / math.sqrt(query.shape[-1])) + add
    if hide is not None:
        scores = scores.masked_fill(hide, -math.inf)
    return scores.softmax(-1)


def watched(function, *given):
    model = Own(function)
    before = model(*given)
    with regard.observe(model) as seen:
        out = model(*given)
    assert torch.equal(out, before)
    assert len(seen) == 1, seen.names()
    return seen[seen.names()[0]]


KEEP = torch.ones(7, 11, dtype=torch.bool).tril(4)
FORMS = {
    "plain": ({}, {}),
    "scale": ({"scale": 0.3}, {"scale": 0.3}),
    "bool mask": ({"attn_mask": KEEP}, {"hide": ~KEEP}),
    "float mask": ({"attn_mask": KEEP.float() * 1.7}, {"add": KEEP.double() * 1.7}),
    "causal": ({"is_causal": True}, {"hide": torch.ones(7, 11, dtype=torch.bool).triu(1)}),
}


@pytest.mark.parametrize("form", FORMS)
def test_scaled_dot_product_attention(form):
    options, meaning = FORMS[form]
    query, key, value = drawn()
    site = watched(lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, **options), query, key, value)
    assert site.kind == "scaled_dot_product_attention"
    assert largest(site.weights(), formula(query, key, **meaning).float()) <= BAR


def test_a_mask_that_differs_by_head_and_entry():
    query, key, value = drawn(shared=3)
    site = watched(lambda q, k, v: regard.attend(q, k, v, mask=Runs(4)), query, key, value)
    expected = formula(query, key, hide=~oracle.visible(Runs(4).sees, 2, 6, 7, 11))
    expected = expected.nan_to_num().float()  # the last heads see none of 11 keys
    assert largest(site.weights(), expected) <= BAR
    assert largest(site.weights(rows=[1, 5], heads=[1, 3]), expected[:, [1, 3]][:, :, [1, 5]]) <= BAR


def test_arguments_by_position():
    query, key, value = drawn()
    site = watched(lambda q, k, v: imported_by_name(q, k, v, KEEP, 0.0, False), query, key, value)
    assert largest(site.weights(), formula(query, key, hide=~KEEP).float()) <= BAR


def test_grouped_heads():
    query, key, value = drawn(shared=2)
    site = watched(lambda q, k, v: imported_by_name(q, k, v, enable_gqa=True), query, key, value)
    assert site.shape() == (2, 6, 7, 11)
    assert largest(site.weights(), formula(query, key).float()) <= BAR


def test_three_dimensional_inputs_are_one_head_or_one_batch():
    query, key, value = (x[0] for x in drawn())
    site = watched(lambda q, k, v: imported_by_name(q, k, v), query, key, value)
    expected = formula(query[None], key[None])[0].float()
    assert largest(site.weights().reshape(expected.shape), expected) <= BAR


def test_a_row_that_sees_nothing_shows_zeros():
    query, key, value = drawn()
    keep = KEEP.clone()
    keep[3] = False
    model = Own(lambda q, k, v: imported_by_name(q, k, v, keep))
    with regard.observe(model) as seen:
        model(query, key, value)
    shown = seen[seen.names()[0]].weights()
    assert not shown[:, :, 3].any()
    rest = [0, 1, 2, 4, 5, 6]
    assert largest(shown[:, :, rest], formula(query, key, hide=~keep)[:, :, rest].float()) <= BAR


def test_two_calls_inside_one_module_are_two_sites():
    query, key, value = drawn()

    def twice(q, k, v):
        return imported_by_name(q, k, v) + imported_by_name(q, k, v, scale=0.1)

    model = Own(twice)
    with regard.observe(model) as seen:
        model(query, key, value)
    first, second = seen.names()
    assert second == f"{first}#2"
    assert largest(seen[second].weights(), formula(query, key, scale=0.1).float()) <= BAR


def flexed(**options):
    return lambda q, k, v: flex_attention(q, k, v, **options)


def closer(score, b, h, q, k):
    return score - 0.3 * (q - k).abs() * (h + 1)


def behind(b, h, q, k):
    return q >= k - 4


def test_flex_attention_plain_scaled_and_grouped():
    query, key, value = drawn(shared=2)
    site = watched(flexed(scale=0.4, enable_gqa=True), query, key, value)
    assert site.kind == "flex_attention"
    assert largest(site.weights(), formula(query, key, scale=0.4).float()) <= BAR


def test_flex_attention_with_a_score_function():
    query, key, value = drawn()
    distance = (torch.arange(7)[:, None] - torch.arange(11)).abs() * torch.arange(1, 7)[:, None, None]
    site = watched(flexed(score_mod=closer), query, key, value)
    assert largest(site.weights(), formula(query, key, add=-0.3 * distance).float()) <= BAR


def test_flex_attention_with_a_block_mask():
    query, key, value = drawn()
    blocks = create_block_mask(behind, B=None, H=None, Q_LEN=7, KV_LEN=11, device="cpu")
    site = watched(flexed(block_mask=blocks), query, key, value)
    assert largest(site.weights(), formula(query, key, hide=~KEEP).float()) <= BAR
    part = formula(query, key, hide=~KEEP)[:, [4]][:, :, [5, 2]]
    assert largest(site.weights(rows=[5, 2], heads=[4]), part.float()) <= BAR


def test_flex_attention_that_returns_its_logsumexp():
    query, key, value = drawn()
    model = Own(lambda q, k, v: flex_attention(q, k, v, score_mod=closer, return_aux=AuxRequest(lse=True)))
    before = model(query, key, value)
    with regard.observe(model) as seen:
        out = model(query, key, value)
    assert torch.equal(out[0], before[0]) and torch.equal(out[1].lse, before[1].lse)
    assert torch.allclose(seen[seen.names()[0]].summary().logsumexp, before[1].lse, atol=1e-5)


def masked_model():
    class Masked(nn.Module):
        def forward(self, q, mask):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    return Masked()


@pytest.mark.parametrize("batch", [(2, 1), (2, 3), (1, 3), (1, 1), ()])
@pytest.mark.parametrize("heads", [1, 7])
def test_more_than_four_axes_take_the_masks_torch_takes(batch, heads):
    model, q = masked_model(), torch.randn(2, 3, 7, 5, 4)
    mask = (torch.rand(*batch, heads, 5, 5) < 0.7) | torch.eye(5).bool()
    with regard.observe(model) as seen:
        out = model(q, mask)
    expected = (q @ q.mT / 2).masked_fill(~mask, -torch.inf).softmax(-1)
    torch.testing.assert_close(seen["Masked"].weights(), expected.flatten(0, 1))
    torch.testing.assert_close(out, expected @ q)


@pytest.mark.parametrize("axes", [2, 3])
def test_silencing_the_only_head_leaves_nothing(axes):
    model, q = masked_model(), torch.randn(3, 5, 4)[(0,) * (3 - axes)]
    with regard.observe(model) as seen:
        before = model(q, None)
    assert before.abs().sum() > 0
    change = seen.ablate({"Masked": [0]}, loss=lambda out: out.abs().sum())
    assert change.after == 0


@pytest.mark.parametrize("low", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -300.0, torch.inf, torch.nan])
def test_columns_are_those_of_the_weights_in_rows_that_see_nothing(low):
    torch.manual_seed(2)
    model, q = masked_model(), torch.randn(1, 2, 5, 8)
    mask = torch.zeros(2, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), low if low < 0 else -torch.inf)
    mask[0, 0], mask[1, 3] = low, low
    with regard.observe(model) as seen:
        out = model(q, mask)
    site = seen["Masked"]
    weights = site.weights()
    torch.testing.assert_close(weights @ q, out, equal_nan=True)
    for keys in ([0, 1, 2, 3, 4], [3, 1], slice(1, 3), None):
        expected = weights if keys is None else weights[..., keys]
        torch.testing.assert_close(site.columns_of(keys), expected, equal_nan=True)
    torch.testing.assert_close(site.columns_of([4], heads=[1]), weights[:, 1:, :, 4:], equal_nan=True)
    if low == low and low != torch.inf:
        seeing = (weights.sum(-1) > 0).sum(-1, keepdim=True)
        torch.testing.assert_close(site.summary().received, weights.sum(2) / seeing)

"""Attributions of inputs and faithfulness of maps, against numbers worked out by hand."""

import itertools
import json

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.errors import RegardError
from tests.observation import peers

WORDS, WIDTH, LENGTH = 17, 6, 7


class Additive(nn.Module):
    """An answer that is a sum over positions, beside one attention whose output counts for nothing."""

    def __init__(self, power=1):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, 3, bias=False)
        self.power = power

    def forward(self, ids):
        rows = self.embedding(ids)
        mixed = torch.nn.functional.scaled_dot_product_attention(rows[:, None], rows[:, None], rows[:, None])
        return self.head(rows**self.power).sum(1) + 0 * mixed.sum((1, 2, 3))[:, None]


def observed(model, *given, **named):
    with regard.observe(model) as seen, torch.no_grad():
        model(*given, **named)
    return seen


def additive(power=1):
    torch.manual_seed(5)
    return Additive(power).double().eval(), torch.randint(0, WORDS, (2, LENGTH))


@torch.no_grad()
@pytest.mark.parametrize("power", [1, 2, 3])
def test_integrated_gradients_of_a_polynomial_are_its_terms(power):
    model, ids = additive(power)
    found = observed(model, ids).attributions(answer=2, baseline="zero", example=1)
    rows = model.embedding(ids[1])
    terms = (rows**power) @ model.head.weight[2]
    assert torch.allclose(found.scores["integrated gradients"], terms, rtol=1e-9)
    assert torch.allclose(found.scores["gradient × input"], power * terms, rtol=1e-9)
    assert abs(found.gap) < 1e-12 and found.value == pytest.approx(terms.sum().item())
    assert found.agreement()["integrated gradients", "gradient × input"] == pytest.approx(
        1, abs=0.02
    )  # repeated tokens tie


@torch.no_grad()
def test_the_baseline_may_be_zero_the_mean_a_token_or_rows():
    model, ids = additive(2)
    seen, rows = observed(model, ids), model.embedding(ids[:1])
    for given, start in [
        ("mean", rows.mean(1, keepdim=True)),
        (3, model.embedding.weight[3]),
        (rows.flip(1), rows.flip(1)),
    ]:
        found = seen.attributions(answer=0, baseline=given)
        expected = ((rows**2 - start**2) @ model.head.weight[0])[0]
        assert torch.allclose(found.scores["integrated gradients"], expected, rtol=1e-9)
    with pytest.raises(RegardError, match="baseline"):
        seen.attributions(baseline="nothing")
    with pytest.raises(RegardError, match="baseline"):
        seen.attributions(baseline=WORDS)


def test_rank_correlation_is_that_of_scipy_with_ties():
    from scipy.stats import spearmanr

    from regard.observation.causes.attributions import rank_correlation

    one = torch.tensor([0.5, -2.0, 0.1, 0.1, 3.0, -0.5, 0.0])
    two = torch.tensor([1.0, 1.0, 0.0, -4.0, 2.5, 0.3, 0.2])
    assert rank_correlation(one, two) == pytest.approx(spearmanr(one.abs(), two.abs()).statistic)
    assert np.isnan(rank_correlation(one, torch.ones(7)))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_tokens_of_language_models_are_attributed_with_a_small_gap(kind):
    pytest.importorskip("transformers")
    model, ids = peers.small(kind), peers.ids(LENGTH, 1)
    found = observed(model, ids).attributions(answer=4, other=9, position=3, tokens=[f"t{at}" for at in range(LENGTH)])
    assert set(found.scores) == {"integrated gradients", "gradient × input", "attention", "rollout"}
    assert found.relative_gap < 0.02 and "completeness gap" in repr(found)
    for name, scores in found.scores.items():
        assert scores.shape == (LENGTH,) and float(scores[4:].abs().max()) < 1e-6, name  # nothing comes from later
    table = model.get_input_embeddings().weight.detach()
    rows = table[ids].clone().requires_grad_()
    logits = model(inputs_embeds=rows).logits[0, 3]
    (slope,) = torch.autograd.grad(logits[4] - logits[9], rows)
    assert peers.largest(found.scores["gradient × input"], (slope * rows)[0].sum(-1).detach()) < 1e-5
    assert json.dumps(found.to_json(), allow_nan=False) and found.plot().axes


def test_pixels_are_attributed_and_compared_on_the_grid_of_patches():
    model = peers.small_of_timm()
    picture = torch.randn(1, 3, 20, 20)
    seen = observed(model, picture)
    found = seen.attributions(answer=2)
    assert found.grid == (4, 4) and found.pixels.shape == (20, 20) and found.relative_gap < 0.02
    patches = found.pixels.reshape(4, 5, 4, 5).sum((1, 3)).flatten()
    assert torch.allclose(found.scores["integrated gradients"], patches, atol=1e-9)
    expected = seen["blocks.1.attn"].weights()[0].mean(0)[0, 1:].double()
    assert torch.allclose(found.scores["attention"], expected, atol=1e-6)
    assert found.plot().axes and seen.faithfulness(draws=5).plot().axes


@torch.no_grad()
def test_faithfulness_is_the_change_when_marked_inputs_are_removed_or_kept_alone():
    model, ids = additive()
    seen, rows = observed(model, ids), model.embedding(ids[0])
    terms = rows @ model.head.weight[1]
    given = torch.tensor([0.0, 5.0, 1.0, 0.5, 4.0, 0.2, 3.0])
    found = seen.faithfulness(
        scores={"given": given}, measure="logit", answer=1, baseline="zero", shares=[1 / 7, 3 / 7], draws=9
    )
    (mine,) = [one for one in found.maps if one.name == "given"]
    full = (terms[1] + terms[[1, 4, 6]].sum()) / 2
    alone = (terms.sum() - terms[1] + terms.sum() - terms[[1, 4, 6]].sum()) / 2
    assert mine.comprehensiveness.value == pytest.approx(full.item(), rel=1e-9)
    assert mine.sufficiency.value == pytest.approx(alone.item(), rel=1e-9)


@torch.no_grad()
def test_random_maps_are_as_good_as_the_mean_over_all_choices_and_the_right_map_beats_them():
    model, ids = additive()
    seen = observed(model, ids)
    terms = model.embedding(ids[0]) @ model.head.weight[1]
    found = seen.faithfulness(
        scores={"right": terms.clamp(min=0), "wrong": (-terms).clamp(min=0)},
        measure="logit",
        answer=1,
        baseline="zero",
        shares=[2 / 7],
        draws=400,
    )
    right, wrong = (next(one for one in found.maps if one.name == name) for name in ("right", "wrong"))
    every = torch.tensor([terms[list(pair)].sum().item() for pair in itertools.combinations(range(LENGTH), 2)])
    error = every.std().item() / 400**0.5
    assert right.comprehensiveness.random == pytest.approx(every.mean().item(), abs=5 * error)
    assert right.comprehensiveness.value == pytest.approx(every.max().item(), rel=1e-6)
    assert right.comprehensiveness.p <= 0.1 < 0.9 <= wrong.comprehensiveness.p
    assert right.comprehensiveness.low <= right.comprehensiveness.random <= right.comprehensiveness.high
    assert not wrong.matters and wrong.comprehensiveness.difference[0] < 0


@torch.no_grad()
def test_a_map_matters_by_the_larger_p_after_holms_correction():
    """Shares of two of seven inputs: every random map is one of 21 pairs, so each p can be counted."""
    model, ids = additive()
    seen = observed(model, ids)
    terms = model.embedding(ids[0]) @ model.head.weight[1]
    options = {"measure": "logit", "answer": 1, "baseline": "zero", "shares": [2 / 7]}
    ranks = {f"shift {by}": terms.roll(by) - terms.min() for by in range(5)}
    found = seen.faithfulness(scores=ranks | {"right": terms - terms.min()}, draws=999, **options)
    count = len(found.maps)
    assert count == 7 and found.maps[0].name == "Additive"  # the site's map is judged with the others
    pairs = {pair: terms[list(pair)].sum().item() for pair in itertools.combinations(range(LENGTH), 2)}
    for name, scores in ranks.items():
        (mine,) = [one for one in found.maps if one.name == name]
        marked = tuple(sorted(scores.topk(2).indices.tolist()))
        as_good = sum(value >= pairs[marked] - 1e-12 for value in pairs.values()) / len(pairs)
        assert mine.comprehensiveness.p == pytest.approx(as_good, abs=0.06)
        assert mine.p <= max(mine.comprehensiveness.p, mine.sufficiency.p)  # both must be as good at once
    ordered = sorted(found.maps, key=lambda one: one.p)
    highest = 0.0
    for rank, one in enumerate(ordered):  # Holm: the smallest p times the number of maps, the next times one less, …
        highest = max(highest, min(1.0, (count - rank) * one.p))
        assert one.p_holm == pytest.approx(highest) and one.matters == (highest <= 0.05)
    assert "not shown to matter (p = " in repr(found) and found.to_json()["maps"][0]["p_holm"] is not None
    alone = seen.faithfulness(sites=[], scores={"right": terms - terms.min()}, draws=999, **options).maps[0]
    assert alone.p_holm == alone.p == pytest.approx(1 / 21, abs=0.03)


def test_the_p_of_a_map_counts_the_maps_that_are_as_good_in_both():
    """Counted in loops: the rank of each map, itself included, by either number; the worse rank decides."""
    from regard.observation.causes.faithfulness import _p_of_both

    drawn = torch.Generator().manual_seed(3)
    for values in ([0.9, -0.7], [0.2, 0.1], [0.9, 0.9], [0.5, 0.0]):
        random = torch.rand(2, 37, generator=drawn, dtype=torch.float64).mul(20).round() / 20  # with ties
        pool = [tuple(values), *zip(*random.tolist(), strict=True)]
        worse = [
            max(sum(other[0] >= one[0] for other in pool), sum(other[1] <= one[1] for other in pool)) for one in pool
        ]
        expected = sum(rank <= worse[0] for rank in worse) / len(pool)
        assert _p_of_both(torch.tensor(values, dtype=torch.float64), random) == pytest.approx(expected)


def test_many_maps_are_compared_with_as_many_random_ones_as_their_correction_needs():
    model, ids = additive()
    seen = observed(model, ids)
    scores = {str(number): torch.arange(LENGTH).roll(number) for number in range(12)}
    assert seen.faithfulness(shares=[0.2]).draws == 200
    assert seen.faithfulness(shares=[0.2], scores=scores).draws == 260  # 13 maps: 13 / 261 is below 0.05


def test_every_head_of_a_model_is_judged_and_the_seed_decides():
    pytest.importorskip("transformers")
    model, ids = peers.small("gpt2"), peers.ids(LENGTH, 2)
    seen = observed(model, ids)
    found = seen.faithfulness(heads=True, draws=20, answer=3, example=1, keep=[0, -1])
    assert [(one.name, one.head) for one in found.maps][:3] == [("transformer.h.0.attn", head) for head in range(3)]
    assert found.to_json() == seen.faithfulness(heads=True, draws=20, answer=3, example=1, keep=[0, -1]).to_json()
    assert json.dumps(found.to_json(), allow_nan=False) and "comprehensiveness" in repr(found)
    assert found.plot().axes and found.plot(most=2).axes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shares": [1.5]}, "shares"),
        ({"shares": []}, "shares"),
        ({"draws": 1}, "draws"),
        ({"keep": [9]}, "keep"),
        ({"keep": range(LENGTH)}, "shares"),
        ({"scores": {"mine": torch.zeros(3)}}, "mine"),
        ({"sites": ["Additiv"]}, "Did you mean"),
        ({"baseline": "noise"}, "baseline"),
    ],
)
def test_wrong_arguments_of_faithfulness_are_refused(options, words):
    model, ids = additive()
    with pytest.raises(RegardError, match=words):
        observed(model, ids).faithfulness(**options)

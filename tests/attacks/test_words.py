"""Word substitution against an exhaustive search over all replacements, and its limits."""

import itertools

import pytest
import torch

from regard_workbench.attacks.words import changed_words, replaceable, substitute
from tests.attacks.toy import WORDS, ids, sentiment, texts

TEXTS = ("the good film", "a fine plot", "good good fine film the", "bad", "the a poor film")
LABELS = [1, 1, 1, 0, 0]


def attacked(limit, nearest=7, cosine=-1.0, allowed=None, written=TEXTS, labels=LABELS):
    target, lexicon = sentiment(*written, labels=labels)
    every = replaceable(lexicon, target.inputs, target.batch.keep)
    limits = torch.full((len(written),), limit) if isinstance(limit, int) else torch.tensor(limit)
    found = substitute(target, lexicon, every if allowed is None else allowed, limits, nearest=nearest, cosine=cosine)
    return target, lexicon, found


@pytest.mark.parametrize("limit", [0, 1, 2, 3, [3, 0, 2, 1, 1]])
def test_no_more_words_are_changed_than_the_limit_and_padding_never(limit):
    target, _, found = attacked(limit)
    changed = changed_words(target.inputs, found)
    limits = torch.tensor(limit) if isinstance(limit, list) else torch.full((5,), limit)
    assert bool((changed.sum(1) <= limits).all())
    assert not changed[~target.batch.keep].any()
    if limit == 0:
        assert torch.equal(found, target.inputs)


@pytest.mark.parametrize("limit", [1, 2])
def test_for_a_sum_of_words_the_greedy_attack_fools_whatever_any_replacement_fools(limit):
    target, _, found = attacked(limit)
    fooled = ~target.right(found)
    for row, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True)):
        words = text.split()
        possible = False
        for places in itertools.combinations(range(len(words)), min(limit, len(words))):
            for others in itertools.product(WORDS, repeat=len(places)):
                tried = list(words)
                for place, other in zip(places, others, strict=True):
                    tried[place] = other
                inputs, _ = ids(" ".join(tried))
                one, _ = sentiment(text, labels=[label])
                possible |= not bool(one.right(inputs))
        assert bool(fooled[row]) == possible, text


def test_only_words_within_the_cosine_are_put_in_the_place_of_others():
    target, lexicon, found = attacked(1, cosine=0.9)
    unit = torch.nn.functional.normalize(lexicon.vectors, dim=1)
    before, after = lexicon.find(target.inputs), lexicon.find(found)
    changed = changed_words(target.inputs, found)
    assert changed.any()
    assert bool(((unit[before[changed]] * unit[after[changed]]).sum(1) >= 0.9).all())
    assert "the fine film" in texts(found, target.batch.keep)  # the loss rises, the class stays
    assert torch.equal(attacked(1, cosine=1.0)[2], target.inputs)


def test_only_the_nearest_words_are_tried():
    _, lexicon, _ = attacked(1)
    numbers = torch.arange(len(WORDS))
    found, near = lexicon.nearest(numbers, 2, 0.95)
    cosines = torch.nn.functional.cosine_similarity(lexicon.vectors[:, None], lexicon.vectors[None], dim=-1)
    for number in range(len(WORDS)):
        order = sorted((n for n in range(len(WORDS)) if n != number), key=lambda n: -float(cosines[number, n]))
        assert found[number].tolist() == order[:2]
        assert near[number].tolist() == [float(cosines[number, other]) >= 0.95 for other in order[:2]]


def test_words_are_changed_only_where_it_is_allowed():
    target, _, _ = attacked(1)
    allowed = torch.zeros_like(target.inputs, dtype=torch.bool)
    allowed[:, 0] = True
    _, _, found = attacked(3, allowed=allowed)
    changed = changed_words(target.inputs, found)
    assert not changed[:, 1:].any() and changed[:, 0].any()


def test_a_text_is_left_as_soon_as_it_is_wrong():
    target, _, found = attacked(3, written=("good film",), labels=[1])
    assert int(changed_words(target.inputs, found).sum()) == 1
    wrong, _, same = attacked(3, written=("good film",), labels=[0])
    assert torch.equal(same, wrong.inputs)


def test_the_gradient_of_the_vectors_is_that_of_the_loss():
    target, _ = sentiment("the good film", "bad", labels=[1, 0])
    odds = target.model(target.batch).softmax(1)
    wrong = torch.stack([odds[0, 0], odds[1, 1]])
    # loss = −log softmax of (−s, s): its derivative by s is ∓2 times the probability of the other class.
    expected = torch.zeros(2, 3, 2)
    expected[0, :, 0], expected[1, 0, 0] = -2 * wrong[0], 2 * wrong[1]
    assert torch.allclose(target.vector_slope(target.inputs), expected, atol=1e-6)

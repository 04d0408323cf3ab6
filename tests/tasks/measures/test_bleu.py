"""BLEU from counts of n-grams: several references against sacrebleu itself, and lower orders worked out by hand."""

import math
import random

import pytest
import sacrebleu

from regard.errors import BadValue
from regard_workbench.tasks.measures.bleu import Bleu

WORDS = ["a", "dog", "cat", "runs", "on", "the", "green", "grass", "with", "two", "red", "balls"]


def sentence(draw, least=3, most=11):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))


def added(parts):
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def test_several_references_added_up_over_batches_are_sacrebleu_on_the_whole():
    draw = random.Random(3)
    references = [[sentence(draw) for _ in range(5)] for _ in range(13)]
    texts = [" ".join([*draw.choice(refs).split()[:-1], draw.choice(WORDS)]) for refs in references]
    bleu = Bleu("none")
    parts = [bleu.counts(texts[at : at + 4], references[at : at + 4]) for at in range(0, 13, 4)]
    streams = [list(one) for one in zip(*references, strict=True)]
    whole = sacrebleu.corpus_bleu(texts, streams, tokenize="none", force=True)
    assert 1 < whole.score < 99
    assert bleu.score(added(parts)) == pytest.approx(whole.score)
    for longest in (1, 2, 3):
        own = sacrebleu.BLEU(tokenize="none", force=True, max_ngram_order=longest)
        expected = own.corpus_score(texts, streams).score
        assert bleu.score(added(parts), longest) == pytest.approx(expected)


def test_images_may_have_different_numbers_of_references():
    bleu = Bleu("none")
    counts = bleu.counts(["a cat", "a dog runs"], [["the cat", "a cat", "one cat here"], ["a dog runs"]])
    assert counts["right 1"] == 5 and counts["right 2"] == 3 and counts["reference"] == 5


def test_the_orders_are_those_of_the_formula_by_hand():
    # "a b c d" against "a b x d" and "c d e": 1-grams a b d c (clipped by the best reference) = 4 of 4, 2-grams "a b",
    # "c d" = 2 of 3; both references are as near in length as can be: 4.
    bleu = Bleu("none")
    counts = bleu.counts(["a b c d"], [["a b x d", "c d e"]])
    assert bleu.score(counts, 1) == pytest.approx(100.0)
    assert bleu.score(counts, 2) == pytest.approx(100 * math.sqrt(2 / 3))


def test_one_reference_each_is_as_before_and_other_orders_are_refused():
    bleu = Bleu()
    one = bleu.counts(["a cat sat on it"], ["the cat sat on it"])
    assert one == bleu.counts(["a cat sat on it"], [["the cat sat on it"]])
    assert bleu.score(one) == pytest.approx(sacrebleu.corpus_bleu(["a cat sat on it"], [["the cat sat on it"]]).score)
    with pytest.raises(BadValue, match="longest: expected 1 to 4, got 5"):
        bleu.score(one, 5)

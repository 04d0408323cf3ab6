"""Word alignments from weights, and their error rate: worked by hand, and on the gold alignments of the Hansards."""

import itertools
import os
from pathlib import Path

import pytest
import torch

from regard.errors import BadValue
from regard.observation.analysis.alignment import align, links, symmetrize, word_of, word_weights
from regard_workbench.tasks.formats.gold import Gold, quality, read_gold, read_links
from tests.observation.maps import Map

SHARED = Path(os.environ.get("REGARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
HANSARDS = SHARED / "data" / "alignment"


@pytest.mark.skipif(not HANSARDS.is_dir(), reason="no shared data here; REGARD_SHARED names its folder")
def test_the_error_rate_of_a_published_aligner_is_what_its_authors_print():
    gold = read_gold(HANSARDS / "enfr.gold")
    assert len(gold) == 447
    assert sum(len(one.sure) for one in gold) == 4038
    assert sum(len(one.possible - one.sure) for one in gold) == 13400
    found = quality(read_links(HANSARDS / "enfr.awesome-align.out"), gold)
    assert f"{100 * found.error_rate:.1f}" == "4.1"
    assert found.precision > 0.95 and found.recall > 0.95


def test_the_error_rate_of_two_sentences_worked_by_hand():
    gold = [Gold({(0, 0), (1, 2)}, {(0, 0), (1, 2), (1, 1)}), Gold({(0, 1)}, {(0, 1), (1, 0)})]
    found = [{(0, 0), (1, 1), (2, 2)}, {(1, 0)}]
    # |A| = 4, |S| = 3; of A one link is sure, three are possible.
    made = quality(found, gold)
    assert made.error_rate == pytest.approx(1 - (1 + 3) / (4 + 3))
    assert (made.precision, made.recall) == (pytest.approx(3 / 4), pytest.approx(1 / 3))
    perfect = quality([one.sure for one in gold], gold)
    assert (perfect.error_rate, perfect.precision, perfect.recall) == (0, 1, 1)
    with pytest.raises(BadValue, match="each of the 2 sentence pairs"):
        quality(found[:1], gold)


def test_gold_files_are_read_and_errors_in_them_are_named(tmp_path):
    file = tmp_path / "gold"
    file.write_text("1-1 2p3 3-2\n\n4p1\n")
    assert read_gold(file) == [
        Gold({(0, 0), (2, 1)}, {(0, 0), (2, 1), (1, 2)}),
        Gold(set(), set()),
        Gold(set(), {(3, 0)}),
    ]
    assert read_links(file, first=1)[0] == {(0, 0), (2, 1), (1, 2)}
    for wrong in ("1-1 0-2", "1:2", "1-", "-1-2"):
        file.write_text(f"1-1\n{wrong}\n")
        with pytest.raises(BadValue, match="gold:2: expected links"):
            read_gold(file)


def test_links_of_a_small_map_by_each_rule():
    # Rows: three target words; columns: three source words.
    table = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
    by_target = {(0, 0), (0, 1), (2, 2)}
    by_source = {(0, 0), (1, 1), (2, 2)}
    assert links(table) == by_target
    assert links(table, how="source") == by_source
    assert links(table, how="threshold", threshold=0.3) == {(0, 0), (0, 1), (1, 1), (2, 2)}
    assert links(table, how="intersection") == {(0, 0), (2, 2)}
    assert links(table, how="union") == by_target | by_source
    assert links(table, table.T.contiguous(), how="intersection") == {(0, 0), (2, 2)}
    assert links(torch.zeros(2, 3), how="union") == set()
    with pytest.raises(BadValue, match="Did you mean 'grow-diag'"):
        links(table, how="grow-dig")
    with pytest.raises(BadValue, match="back: expected 3 source × 2 target words"):
        links(table[:2], table)


def test_growing_worked_by_hand():
    first = {(0, 0), (1, 1), (4, 4), (5, 2)}
    second = {(0, 0), (1, 0), (4, 5), (2, 3)}
    assert symmetrize(first, second, "intersection") == {(0, 0)}
    # (1,0): source 1 is new → added. (1,1): target 1 is new → added. Nothing else touches: (4,4) is away.
    grown = {(0, 0), (1, 0), (1, 1)}
    assert symmetrize(first, second, "grow-diag") == grown
    # final: (4,4) and (5,2) of the first have new words; of the second (2,3) has, and (4,5): target 5 is new.
    assert symmetrize(first, second, "grow-diag-final") == grown | {(4, 4), (5, 2), (2, 3), (4, 5)}
    # final-and: both words must be new, and 4 is not when (4,5) comes.
    assert symmetrize(first, second, "grow-diag-final-and") == grown | {(4, 4), (5, 2), (2, 3)}


def test_every_symmetrization_lies_between_intersection_and_union():
    for _ in range(20):
        first = {tuple(pair) for pair in torch.randint(0, 7, (11, 2)).tolist()}
        second = {tuple(pair) for pair in torch.randint(0, 7, (11, 2)).tolist()}
        least, most = symmetrize(first, second, "intersection"), symmetrize(first, second, "union")
        chain = ["grow-diag", "grow-diag-final-and"]
        found = [least, *(symmetrize(first, second, how) for how in chain), most]
        assert all(a <= b for a, b in itertools.pairwise(found))
        assert found[1] <= symmetrize(first, second, "grow-diag-final") <= most


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["[CLS]", "un", "##break", "##able", "!", "[SEP]"], [None, 0, 0, 0, 1, None]),
        (["▁the", "▁house", "s", "</s>"], [0, 1, 1, None]),
        (["The", "Ġhous", "es", "Ġ<", "<|endoftext|>"], [0, 1, 1, 2, None]),
        (["hou@@", "se", "is", "<pad>"], [0, 0, 1, None]),
        (["plain", "words", None, "##", "a@@"], [0, 1, None, 2, 3]),
        ([], []),
    ],
)
def test_pieces_become_words(pieces, words):
    assert word_of(pieces) == words


def test_pieces_of_a_map_become_words_before_links_are_read():
    site = Map(torch.rand(2, 3, 5, 7).softmax(-1), name="cross")
    source = ["▁a", "▁hou", "se", "▁in", "▁win", "ter", "</s>"]  # a house in winter
    target = ["<s>", "ein", "##e", "haus", "."]  # eine haus .
    mean = site.given[0][1].mean(0).double()
    expected = torch.stack(
        [
            torch.stack([row[:1].sum(), row[1:3].sum(), row[3:4].sum(), row[4:6].sum()])  # </s> is not a word
            for row in (mean[1:3].mean(0), mean[3], mean[4])
        ]
    )
    assert torch.allclose(word_weights(mean, word_of(target), word_of(source)), expected)
    assert align(site, source, target, batch=1) == links(expected)
    assert align(site, source, target, batch=1, how="union") == links(expected, how="union")
    alone = word_weights(site.given[0][1, 2], word_of(target), word_of(source))
    assert align(site, source, target, batch=1, heads=[2]) == links(alone)
    back = Map(torch.rand(2, 3, 7, 5).softmax(-1))
    other = word_weights(back.given[0][1].mean(0), word_of(source), word_of(target))
    assert align(site, source, target, batch=1, back=back, how="intersection") == links(expected, other, "intersection")
    assert align(site, batch=1) == {(int(column), row) for row, column in enumerate(site.given[0][1].mean(0).argmax(1))}
    steps = Map(*site.given[0].split(1, 2))  # the same map as decoding steps
    assert align(steps, source, target, batch=1, call=None) == links(expected)
    with pytest.raises(BadValue, match="source: expected one piece for each of the 7 positions, got 2"):
        align(site, ["a", "b"], target)

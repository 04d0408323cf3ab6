"""Vocabularies: round trips, unknown pieces, special ids that no text can produce, JSON state."""

import functools
import json

import pytest

from regard.errors import BadValue
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.vocabulary import BLANK, END, PADDING, SPECIAL, START, UNKNOWN

HOSTILE = [
    "plain words and more words",
    "nul \x00 inside",
    "emoji 👩‍👩‍👧‍👦 and 🏳️‍🌈",
    "שלום עולם",
    "مرحبا \u202eabc\u202c",
    "tab\tand\u2028separator\x85",
    "e\u0301 combining",
    "<pad> <unk> </s> <s> <mask>",
    " leading and trailing ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "a" * 20_011,
]


@functools.cache
def of_hostile_text(level):
    return vocabulary.build(level, HOSTILE, 500 if level == "bpe" else None)


def test_characters_are_ids_in_order():
    known = vocabulary.build("character", ["cab", "bad"])
    assert known.entries == ["a", "b", "c", "d"]
    assert known.encode("dab") == [8, 5, 6]
    assert known.encode("dzb") == [8, UNKNOWN, 6]
    assert known.decode([8, 5, 6, END, 5]) == "dab"
    assert known.decode([START, 8, PADDING, BLANK, UNKNOWN]) == "d\ufffd"
    assert known.pieces([8, UNKNOWN, END]) == ["d", "<unk>", "</s>"]


def test_words_stand_between_white_space_and_lines_end():
    known = vocabulary.build("word", ["the cat sat\nthe end\n"])
    assert known.entries == ["\n", "the", "cat", "end", "sat"]  # by count, then by alphabet
    ids = known.encode("the  cat\n\nthe dog")
    assert ids == [6, 7, 5, 5, 6, UNKNOWN]
    assert known.decode(ids) == "the cat\n\nthe <unk>"


def test_a_written_unk_is_unknown_and_other_special_names_are_words():
    known = vocabulary.build("word", ["<unk> a <pad> </s>"])
    assert known.encode("<unk>") == [UNKNOWN]
    assert min(known.encode("<pad> </s>")) >= len(SPECIAL)
    assert known.decode(known.encode("a <pad> </s>")) == "a <pad> </s>"


@pytest.mark.parametrize("level", ["character", "bpe"])
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_any_text_comes_back_as_it_was(level, text):
    known = of_hostile_text(level)
    ids = known.encode(text)
    assert known.decode(ids) == text
    assert not set(ids) & set(range(len(SPECIAL))), "no text produces a special id"
    assert len(known.pieces(ids)) == len(ids)


def test_byte_pairs_know_text_they_never_saw():
    known = vocabulary.build("bpe", ["only ascii here"] * 5, 270)
    for text in HOSTILE:
        assert known.decode(known.encode(text)) == text


def test_halves_of_characters_are_replaced_everywhere():
    for level in vocabulary.LEVELS:
        known = vocabulary.build(level, ["ab \ud800 cd"], 300)
        assert known.decode(known.encode("\udfff")) == "\ufffd" or level != "bpe"
        json.dumps(known.state()).encode("utf-8")
    assert vocabulary.whole_characters("\ud83d\ude00") == "😀"


@pytest.mark.parametrize("level", vocabulary.LEVELS)
def test_the_state_is_json_and_restores_the_same_vocabulary(level):
    known = vocabulary.build(level, HOSTILE, 400)
    again = vocabulary.restored(json.loads(json.dumps(known.state())))
    assert len(again) == len(known) and again.level == level
    for text in [*HOSTILE, "unseen Ω text"]:
        assert again.encode(text) == known.encode(text)


def test_size_keeps_the_most_frequent_and_min_count_the_frequent():
    text = "a a a b b c c d e"
    assert vocabulary.build("word", [text], size=8).entries == ["a", "b", "c"]
    assert vocabulary.build("word", [text], min_count=2).entries == ["a", "b", "c"]
    assert len(vocabulary.build("bpe", [text * 50], size=265)) <= 265


def test_impossible_sizes_and_levels_are_refused():
    with pytest.raises(BadValue, match=r"vocabulary_size.*at least 261.*got 100"):
        vocabulary.build("bpe", ["a"], size=100)
    with pytest.raises(BadValue, match="vocabulary_size"):
        vocabulary.build("word", ["a"], size=5)
    with pytest.raises(BadValue, match=r"level.*'chars'.*character"):
        vocabulary.build("chars", ["a"])

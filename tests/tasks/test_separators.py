"""What separates words is part of a file's form: spaces, tabs and ends of lines. Other white space belongs to words."""

import json

import pytest

from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.tasks.formats.babi import read_questions
from regard_workbench.tasks.formats.caption_files import read_captions
from regard_workbench.tasks.formats.conll import read_sentences
from regard_workbench.tasks.formats.exchanges import read_turns
from regard_workbench.tasks.formats.gold import read_gold
from regard_workbench.tasks.formats.graph_files import read_edge_list
from regard_workbench.tasks.formats.history_files import read_histories, read_titles
from regard_workbench.tasks.formats.question_files import read_questions as read_image_questions
from regard_workbench.tasks.formats.reading import read_lines
from regard_workbench.tasks.formats.tables import find_columns, labelled, read_table
from regard_workbench.tasks.measures.distinct import distinct
from regard_workbench.tasks.measures.yardsticks import TfIdf
from regard_workbench.tasks.sound import recordings
from regard_workbench.tasks.text.split_words import split_words, trimmed
from regard_workbench.tasks.text.vocabulary import build
from regard_workbench.tasks.time_series.file import read_series

SIGNS = ["\u00a0", "\u0085", "\u2028", "\u3000", "\x1c"]  # what `str.split` also takes for white space
each_sign = pytest.mark.parametrize("sign", SIGNS, ids=[f"U+{ord(sign):04X}" for sign in SIGNS])


def kept(folder, name, text):
    path = folder / name
    path.write_bytes(text.encode())
    return path


@each_sign
def test_words_stand_between_spaces_tabs_and_ends_of_lines(sign):
    assert split_words(f" a{sign}b \t{sign}\r\nc\x0bd\x0ce ") == [f"a{sign}b", sign, "c", "d", "e"]
    assert trimmed(f" \t{sign}a{sign}\n") == f"{sign}a{sign}"
    words = build("word", [f"a {sign} b{sign}c\nd"])
    ids = words.encode(f"b{sign}c {sign}\na")
    assert words.pieces(ids) == [f"b{sign}c", sign, "\n", "a"] and words.decode(ids) == f"b{sign}c {sign}\na"


@each_sign
def test_links_point_at_the_words_that_were_counted(tmp_path, sign):
    """The second word of each source is the sign alone, as in public Japanese gold alignments."""
    kept(tmp_path, "x.src-tgt", f"a {sign} b ||| c d{sign}d e\n" * 7)
    kept(tmp_path, "x.gold", "1-1 2-2 3p3\n" * 7)
    task = tasks.build("align", data=str(tmp_path))
    for example in task.examples("train"):
        assert task.fitted.source_vocabulary.pieces(example.source) == ["a", sign, "b"]
        assert task.fitted.target_vocabulary.pieces(example.target[:-1]) == ["c", f"d{sign}d", "e"]
        assert example.gold.sure == {(0, 0), (1, 1)} and example.gold.possible == {(0, 0), (1, 1), (2, 2)}
    assert task.fitted.max_source == 3
    kept(tmp_path, "x.gold", "1-1 4-2\n" * 7)
    with pytest.raises(BadValue, match="links word 4 to word 2, but the pair has 3 and 3 words"):
        tasks.build("align", data=str(tmp_path)).examples("train")
    with pytest.raises(BadValue, match="expected links such as"):
        read_gold(kept(tmp_path, "y.gold", f"1-1{sign}2-2\n"))


@each_sign
@pytest.mark.parametrize("apart", [" ", "\t"])
def test_columns_of_tags_keep_their_words(tmp_path, sign, apart):
    text = f"{sign}{apart}O\na{sign}b{apart}B-x\n\nc{apart}O\n"
    found = read_sentences({"train": kept(tmp_path, "train.conll", text)})["train"]
    assert [one.words for one in found] == [(sign, f"a{sign}b"), ("c",)]
    task = tasks.build("tag")
    assert task.parse({"text": f"a {sign} b{sign}c"}).words == ("a", sign, f"b{sign}c")


@each_sign
@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_cells_of_tables_keep_their_texts(tmp_path, sign, name):
    texts = [f"{sign}a{sign}", "b"]
    lines = {
        "a.tsv": "".join(f"{text}\t{n}{sign}x \n" for n, text in enumerate(texts)),
        "a.csv": "".join(f'"{text}",{n}{sign}x \n' for n, text in enumerate(texts)),
        "a.jsonl": "".join(json.dumps({"text": text, "label": f"{n}{sign}x"}) + "\n" for n, text in enumerate(texts)),
    }
    table = read_table(kept(tmp_path, name, lines[name]), "utf-8", None, None)
    rows = list(labelled(table, find_columns(table, None if name == "a.jsonl" else 1, None)))
    assert [(row.text, row.label) for row in rows] == [(texts[0], f"0{sign}x"), ("b", f"1{sign}x")]


@each_sign
def test_lines_of_pairs_and_texts_keep_theirs(tmp_path, sign):
    text = f"{sign}a {sign} b{sign}\n"
    for side in ("en", "de"):
        kept(tmp_path, f"x.{side}", "".join(f"{n} {text}" for n in range(31)))
    task = tasks.build("translate(level=word)", data=f"{tmp_path}/x.en,{tmp_path}/x.de")
    pieces = {tuple(task.input_pieces(one)[1:]) for one in task.examples("train")}
    assert pieces == {(f"{sign}a", sign, f"b{sign}")}
    language = tasks.build("language(level=word, context=5)", data=str(kept(tmp_path, "book.txt", text * 31)))
    assert language.fitted.vocabulary.pieces(language.tokens("train")[:4]) == [f"{sign}a", sign, f"b{sign}", "\n"]
    captions = read_captions(kept(tmp_path, "c.txt", f"{sign}x.png#0\t{text}"), "utf-8", "latin-1")
    assert captions == {f"{sign}x.png": (f"{sign}a {sign} b{sign}",)}


@each_sign
def test_names_of_items_nodes_and_columns_are_kept(tmp_path, sign):
    found = read_histories(kept(tmp_path, "h.txt", f"u{sign}1 i{sign}\nu{sign}1 {sign}\n"), "utf-8", "latin-1")
    assert found == {f"u{sign}1": [(f"i{sign}", 1), (sign, 2)]}
    titles = read_titles(kept(tmp_path, "h.titles.tsv", f"i{sign}\t{sign}A title\n"))
    assert titles == {f"i{sign}": f"{sign}A title"}
    nodes = "".join(f"n{sign}{n} 1 x{sign}{n % 2}\n" for n in range(23))
    edges = f"n{sign}0 n{sign}1\n"
    graph = read_edge_list(kept(tmp_path, "a.cites", edges), kept(tmp_path, "a.content", nodes), 0, "refuse")
    assert graph.names[:2] == [f"n{sign}0", f"n{sign}1"] and graph.classes == [f"x{sign}0", f"x{sign}1"]
    series = kept(tmp_path, "s.csv", f"time,a{sign}b,{sign}\n" + "".join(f"{n},1.5,{n}\n" for n in range(5)))
    assert read_series(series, "utf-8", None, "fill", "latin-1").names == (f"a{sign}b", sign)


@each_sign
def test_transcripts_and_answers_are_kept(tmp_path, sign):
    recordings_listed = recordings._listed([f"a{sign}.wav\tone {sign} two{sign} "], tmp_path / "list.tsv")
    assert [(one.name, one.transcript) for one in recordings_listed] == [(f"a{sign}.wav", f"one {sign} two{sign}")]
    story = kept(tmp_path, "qa1_train.txt", f"1 Mary went home.\n2 Where is Mary?\thome{sign}\t1\n")
    assert [one.answer for one in read_questions(story)] == [f"home{sign}"]
    asked = [json.dumps({"image": f"a{n}.png", "question": "what", "answer": f"{sign}red"}) for n in range(5)]
    parts = read_image_questions([kept(tmp_path, "q.jsonl", "\n".join(asked))], "utf-8", "latin-1", 0)
    assert {one.answer for part in parts.values() for one in part} == {f"{sign}red"}


def test_natural_text_is_cut_by_its_letters_whatever_stands_between(tmp_path):
    """Dialogues and stories have no columns that count words: letters, digits and punctuation are told apart there."""
    for sign in SIGNS:
        (one,) = read_turns(kept(tmp_path, "t.tsv", f"hi{sign}there,you\tyes{sign}!\n"), "utf-8", False)
        assert one.context == ("hi there , you",) and one.reply == "yes !"


@each_sign
def test_measures_count_the_same_words(sign):
    texts = [f"a{sign}b a{sign}b {sign}"]
    assert set(TfIdf(texts).weights) == {f"a{sign}b", sign}
    distinct_words = distinct(1, lambda answered: texts)
    assert distinct_words.text(distinct_words.value(distinct_words.of(None))) == distinct_words.text(2 / 3)


def test_a_line_ends_at_lf_cr_lf_or_cr_alone(tmp_path):
    others = "\u0085b\u2028c\u2029d\x0be\x0cf\x1cg\x1dh\x1ei"
    assert read_lines(kept(tmp_path, "a.txt", f"a{others}\nb\r\nc\rd\r\n\re")) == [f"a{others}", "b", "c", "d", "", "e"]
    kept(tmp_path, "x.src-tgt", "a b ||| c d\r" * 5)
    kept(tmp_path, "x.gold", "1-1\r" * 5)
    assert len(tasks.build("align", data=str(tmp_path)).examples("train")) == 5
    text = f"a{others} b\n" * 40
    pieces = tasks.build("language(level=bpe, context=5, vocabulary_size=300)", data=str(kept(tmp_path, "b.txt", text)))
    assert pieces.fitted.vocabulary.decode(pieces.tokens("train").tolist()) in text

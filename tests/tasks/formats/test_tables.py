"""Tables: three formats, headers and columns found or given, mistakes with file and line."""

import csv
import gzip
import json

import pytest

from regard.errors import BadValue
from regard_workbench.tasks.formats.tables import find_columns, labelled, read_table


def rows(path, text=None, label=None):
    table = read_table(path, "utf-8", text, label)
    return [(row.line, row.text, row.label) for row in labelled(table, find_columns(table, text, label))]


def kept(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_sst2_lines_are_text_tab_label_without_header(tmp_path):
    path = kept(tmp_path, "a.tsv", 'a "quoted , film\t1\n\nno good\t0\nfine\t1\n')
    assert rows(path) == [(1, 'a "quoted , film', "1"), (3, "no good", "0"), (4, "fine", "1")]


def test_the_column_with_fewer_entries_is_the_label(tmp_path):
    assert rows(kept(tmp_path, "a.tsv", "pos\tone\nneg\ttwo\npos\tthree\n"))[0] == (1, "one", "pos")
    assert rows(kept(tmp_path, "b.tsv", "one\tpos\ntwo\tneg\n"))[0] == (1, "one", "pos"), "a tie: the second"


def test_headers_are_found_by_usual_names_in_any_order(tmp_path):
    path = kept(tmp_path, "a.csv", 'id,Label,Sentence\n7,pos,"one, and ""two"""\n8,neg,three\n')
    assert rows(path) == [(2, 'one, and "two"', "pos"), (3, "three", "neg")]


def test_columns_are_given_by_name_or_by_number_from_one(tmp_path):
    path = kept(tmp_path, "a.tsv", "what\tsays\tn\nx\tone\t1\ny\ttwo\t2\n")
    assert rows(path, "says", "what") == [(2, "one", "x"), (3, "two", "y")]
    assert rows(kept(tmp_path, "b.tsv", "x\tone\t1\ny\ttwo\t2\n"), 2, "1") == [(1, "one", "x"), (2, "two", "y")]
    assert rows(kept(tmp_path, "c.tsv", "x\tone\ny\ttwo\n"), text=2) == [(1, "one", "x"), (2, "two", "y")]


def test_cells_of_csv_may_span_lines(tmp_path):
    path = kept(tmp_path, "a.csv", 'text,label\n"one\ntwo",a\nthree,b\n')
    assert rows(path) == [(2, "one\ntwo", "a"), (4, "three", "b")]


def test_json_lines_are_read_with_any_kind_of_label(tmp_path):
    lines = [{"text": "one", "label": 1}, {"label": 0, "text": "two", "more": None}, {"text": "t", "label": True}]
    path = kept(tmp_path, "a.jsonl.gz", gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    assert rows(path) == [(1, "one", "1"), (2, "two", "0"), (3, "t", "true")]


def test_hostile_cells_are_kept(tmp_path):
    text = "nul\x00 \u202e 👩‍👩‍👧‍👦 " + "x" * 200_003
    before = csv.field_size_limit()
    assert rows(kept(tmp_path, "a.csv", f"text,label\r\n{text},a\r\n"))[0][1] == text
    assert csv.field_size_limit() == before
    assert rows(kept(tmp_path, "a.tsv", f"\ufeff{text}\ta\nu\ta\n"))[0][1] == text
    assert rows(kept(tmp_path, "a.jsonl", json.dumps({"text": text, "label": "a"})))[0][1] == text


DEEP = "[" * 100_000
WRONG = [
    ("a.tsv", "one\t1\ntwo\n", ":2: expected 2 columns as in line 1, got 1: 'two'"),
    ("a.tsv", "one\t1\ntwo\tx\t2\n", ":2: expected 2 columns as in line 1, got 3"),
    ("a.tsv", "one\t1\n\t2\n", ":2: the text is empty"),
    ("a.tsv", "one\t1\ntwo\t \n", ":2: the label is empty"),
    ("a.tsv", "text\tlabel\n", ":1: a header, but no line after it"),
    ("a.tsv", "one\ntwo\n", ": cannot tell which column"),
    ("a.tsv", "a\tb\tc\n", ": cannot tell which column .* Columns: 3, without names"),
    ("a.csv", 'text,label\n"one,1\ntwo,2\n', ":3: not valid CSV"),
    ("a.csv", 'text,label\n"one"x,1\n', ":2: not valid CSV"),
    ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"\n', ":2: not valid JSON"),
    ("a.jsonl", '{"text": "a", "label": 1}\n[1]\n', ":2: expected a JSON object"),
    ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', ":2: the label is missing"),
    ("a.jsonl", '{"text": ["a"], "label": 1}\n', ":1: the text is missing"),
    ("a.jsonl", '{"text": "a", "label": 1}\n' + DEEP + "\n", ":2: not valid JSON"),
    ("a.jsonl", '{"a": 1' + "0" * 5000 + "}\n", ":1: not valid JSON"),
    ("a.doc", "x", ": expected a file that ends in"),
    ("a.tsv", "", ": is empty"),
]


@pytest.mark.parametrize(("name", "content", "message"), WRONG, ids=range(len(WRONG)))
def test_mistakes_are_named_with_file_and_line(tmp_path, name, content, message):
    path = kept(tmp_path, name, content)
    with pytest.raises(BadValue, match=message) as caught:
        rows(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 500


def test_columns_that_do_not_exist_are_refused(tmp_path):
    path = kept(tmp_path, "a.csv", "text,label\na,1\n")
    with pytest.raises(BadValue, match=r"text_column: .*a\.csv has no column 'words'.*give a number"):
        rows(path, text="words")
    with pytest.raises(BadValue, match="label_column: expected a number from 1 to 2"):
        rows(path, label=3)
    with pytest.raises(BadValue, match="label_column: expected another column than text_column"):
        rows(path, text=1, label=1)

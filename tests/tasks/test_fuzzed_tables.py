"""Any bytes in the place of a table or a text: rows, or one error that says where; never another exception."""

import gzip

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard.errors import RegardError
from regard_workbench.tasks.formats.reading import read_lines
from regard_workbench.tasks.formats.tables import ENDINGS, find_columns, labelled, read_table

PIECES = st.sampled_from(
    [
        "text",
        "label",
        ",",
        "\t",
        '"',
        '""',
        "\n",
        "\r\n",
        "\r",
        "a",
        "é",
        "\0",
        "\x1a",
        "\ufeff",
        "{",
        "}",
        "[",
        "]",
        ":",
        '"text"',
        '"label"',
        "1",
        "1e999",
        "NaN",
        "null",
        "true",
        "-",
        " ",
        "\u2028",
        "\\",
        "\\ud800",
        "'",
        ";",
        "9" * 5000,
    ]
)
CONTENTS = st.lists(PIECES, max_size=40).map(lambda parts: "".join(parts).encode()) | st.binary(max_size=80)
COLUMNS = st.none() | st.integers(-1, 4) | st.sampled_from(["text", "label", "nope", ""])


def read_or_refused(path, content, packed, text, label):
    path.write_bytes(gzip.compress(content) if packed else content)
    try:
        table = read_table(path, "utf-8", text, label)
        rows = list(labelled(table, find_columns(table, text, label)))
    except RegardError as refusal:
        assert str(refusal) and all(letter.isprintable() or letter == "\n" for letter in str(refusal))
        return
    assert rows and all(row.text.strip() and row.label for row in rows)


@settings(max_examples=150, deadline=None)
@given(ending=st.sampled_from(ENDINGS), content=CONTENTS, packed=st.booleans(), text=COLUMNS, label=COLUMNS)
@example(ending=".csv", content=b",", packed=False, text=None, label=None)  # no cell at all: an IndexError once
@example(ending=".csv", content=b'a,b\n"c', packed=False, text=None, label=None)
@example(ending=".jsonl", content=b"[" * 100_000, packed=False, text=None, label=None)
@example(ending=".jsonl", content=b'{"text": "a", "label": ' + b"9" * 5000 + b"}", packed=False, text=None, label=None)
def test_any_bytes_are_a_table_or_refused(tmp_path_factory, ending, content, packed, text, label):
    read_or_refused(tmp_path_factory.getbasetemp() / f"table{ending}", content, packed, text, label)


@pytest.mark.nightly
@settings(max_examples=20_000, deadline=None)
@given(ending=st.sampled_from(ENDINGS), content=CONTENTS, packed=st.booleans(), text=COLUMNS, label=COLUMNS)
def test_many_bytes_are_a_table_or_refused(tmp_path_factory, ending, content, packed, text, label):
    read_or_refused(tmp_path_factory.getbasetemp() / f"many{ending}", content, packed, text, label)


@settings(max_examples=100, deadline=None)
@given(
    content=st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"\x1f\x8b" + rest),
    encoding=st.sampled_from(["utf-8", "latin-1", "utf-16", "cp1252", "utf-7", "idna", "no-such", "zlib", ""]),
)
def test_any_bytes_are_lines_or_refused(tmp_path_factory, content, encoding):
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes(content)
    try:
        assert read_lines(path, encoding)
    except RegardError as refusal:
        assert str(refusal)

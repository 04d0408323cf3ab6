"""Reading files: what is wrong is said with file, line and byte; hostile text is text."""

import gzip
import re
from pathlib import Path

import pytest

from regard.errors import BadType, BadValue
from regard_workbench.tasks.formats.reading import paths_of, read_lines, read_text
from regard_workbench.tasks.formats.splits import complete, divided, files_by_split, listed


def kept(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_end_at_newlines_alone(tmp_path):
    path = kept(tmp_path, "a.txt", "one\u2028still\x0bone\x85 \r\ntwo\n\nfour without end")
    assert read_lines(path) == ["one\u2028still\x0bone\x85 ", "two", "", "four without end"]
    assert len(read_lines(kept(tmp_path, "b.txt", "x\n" * 7))) == 7


def test_a_byte_order_mark_is_dropped_and_crlf_becomes_lf(tmp_path):
    assert read_text(kept(tmp_path, "a.txt", b"\xef\xbb\xbfhi\r\nthere\r\n")) == "hi\nthere\n"
    assert read_text(kept(tmp_path, "b.txt", "hi\n".encode("utf-16")), "utf-16") == "hi\n"


def test_gzip_is_found_by_content(tmp_path):
    assert read_lines(kept(tmp_path, "a.gz", gzip.compress(b"one\ntwo\n"))) == ["one", "two"]
    assert read_lines(kept(tmp_path, "named-otherwise", gzip.compress(b"one"))) == ["one"]


def test_hostile_text_is_read_as_it_stands(tmp_path):
    text = "nul \x00 here\n\u202eright to left\n👩‍👩‍👧‍👦\n" + "long" * 300_007 + "\n"
    assert "\n".join(read_lines(kept(tmp_path, "a.txt", text))) + "\n" == text


@pytest.mark.parametrize("packed", [False, True])
def test_bytes_that_are_not_utf8_are_named_by_file_line_and_byte(tmp_path, packed):
    raw = "first\nsecönd\n".encode() + b"ab\xffcd\n"
    path = kept(tmp_path, "a.txt", gzip.compress(raw) if packed else raw)
    with pytest.raises(BadValue) as caught:
        read_lines(path)
    text = str(caught.value)
    assert text.startswith(f"{path}:3: byte 3 of the line (0xff, byte {raw.index(0xFF) + 1} of the file)")
    assert "not utf-8" in text and "latin-1" in text
    assert read_lines(path, "latin-1")[2] == "abÿcd"


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \t\n", b"\xef\xbb\xbf"])
def test_a_file_without_text_is_said_to_be_empty(tmp_path, content):
    path = kept(tmp_path, "a.txt", content)
    with pytest.raises(BadValue, match=f"^{re.escape(str(path))}: is empty"):
        read_lines(path)


def test_missing_files_folders_and_broken_archives_are_named(tmp_path):
    kept(tmp_path, "train.txt", "x")
    with pytest.raises(BadValue, match=r"there is no file .*trian\.txt'.*train\.txt"):
        read_lines(tmp_path / "trian.txt")
    with pytest.raises(BadValue, match="is a folder"):
        read_lines(tmp_path)
    with pytest.raises(BadValue, match="cannot be read"):
        read_lines(Path("nul\x00byte"))
    with pytest.raises(BadValue, match=r"x\.gz: is not a gzip file"):
        read_lines(kept(tmp_path, "x.gz", "<html>not found</html>"))
    with pytest.raises(BadValue, match=r"y\.gz: cannot be unpacked.*complete"):
        read_lines(kept(tmp_path, "y.gz", gzip.compress(b"abc" * 5000)[:-9]))


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("regard_workbench.tasks.formats.budget.MOST_UNPACKED", 2**20)
    bomb = kept(tmp_path, "bomb.gz", gzip.compress(b"0" * (2**20 + 1)))
    with pytest.raises(BadValue, match=r"bomb\.gz unpacks to more"):
        read_lines(bomb)


@pytest.mark.parametrize("encoding", ["klingon", "hex", "rot13", "", "a\x00b"])
def test_encodings_that_do_not_exist_are_refused(tmp_path, encoding):
    with pytest.raises(BadValue, match=r"^encoding: there is no text encoding"):
        read_lines(kept(tmp_path, "a.txt", "x"), encoding)


def test_data_is_a_path_or_several_joined_by_commas(tmp_path):
    odd = kept(tmp_path, "with,comma.txt", "x")
    assert paths_of(str(odd)) == [odd]
    assert paths_of(f"{tmp_path}/a.en, {tmp_path}/a.de") == [tmp_path / "a.en", tmp_path / "a.de"]
    assert paths_of([odd, "b"]) == [odd, Path("b")]
    with pytest.raises(BadValue, match="data"):
        paths_of("")
    for strange in ([3], 3, None):
        with pytest.raises(BadType, match="data: expected a path or several"):
            paths_of(strange)


def test_files_are_told_apart_by_their_names(tmp_path):
    for name in ("train.en.gz", "val.en", "test_2016.en", "test_2017.en", "README", ".hidden", "trainer.en"):
        kept(tmp_path, name, "x")
    found = files_by_split(listed(tmp_path))
    assert {split: path.name for split, path in found.items()} == {
        "train": "train.en.gz",
        "validation": "val.en",
        "test": "test_2016.en",
    }


def test_missing_splits_are_taken_from_training_without_overlap():
    texts = [f"t{n % 61}" for n in range(127)]
    parts = complete({"train": list(range(127))}, texts, seed=3, data="a.txt")
    sets = {split: {texts[n] for n in part} for split, part in parts.items()}
    assert sorted(n for part in parts.values() for n in part) == list(range(127))
    assert [len(sets[split]) for split in ("train", "validation", "test")] == [49, 6, 6]
    assert not sets["train"] & sets["test"] and not sets["validation"] & sets["test"]
    only_test = complete({"train": [0, 1, 2], "validation": [9]}, ["a", "b", "c"], seed=0, data="a.txt")
    assert only_test["validation"] == [9] and len(only_test["test"]) == 1 and len(only_test["train"]) == 2
    with pytest.raises(BadValue, match=r"^data: a\.txt, b\.txt: 2 different examples are too few"):
        complete({"train": [0, 1, 2]}, ["a", "b", "a"], seed=0, data=["a.txt", "b.txt"])
    with pytest.raises(BadValue, match="1 different example is too few"):
        complete({"train": [0, 1, 2]}, ["a", "a", "a"], seed=0, data=None)


def test_what_is_measured_as_a_whole_is_everything_where_no_file_is_for_testing():
    parts = {"train": list(range(31)), "validation": [40, 41]}
    every = [*range(31), 40, 41]
    assert divided(parts, str, 0, None, whole=True) == {"validation": every, "test": every}
    with_test = divided({**parts, "test": [50]}, str, 0, None, whole=True)
    assert with_test == {**parts, "test": [50]}, "a file for testing stays what is measured"
    assert divided({"test": [50]}, str, 0, None) == {"test": [50]}, "without training there is nothing to take from"
    assert divided(parts, str, 3, None) == complete(parts, [str(n) for n in parts["train"]], 3, None)

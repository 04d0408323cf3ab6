"""IDX files, against bytes that were written by hand."""

import gzip

import pytest

from regard.errors import BadValue
from regard_workbench.tasks.formats.idx import read_idx

# Two pictures of 3 rows and 2 columns: magic number, three lengths, twelve numbers.
PICTURES = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 70, 80, 90, 100, 110, 255])


def test_numbers_stand_where_the_header_says():
    for content in (PICTURES, gzip.compress(PICTURES, mtime=0)):
        assert read_idx(content, "x").tolist() == [[[1, 2], [3, 4], [5, 6]], [[70, 80], [90, 100], [110, 255]]]
    assert read_idx(bytes([0, 0, 8, 1, 0, 0, 1, 4]) + bytes(260), "x").shape == (260,)  # the highest byte first


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no IDX file: it begins with nothing"),
        (b"\x89PNG", "is no IDX file: it begins with 89 50 4e 47"),
        (bytes([0, 0, 8, 9]), "is no IDX file"),
        (PICTURES[:10], "is no IDX file"),
        (PICTURES[:-1], "says that it holds 2 × 3 × 2 numbers, and holds 11"),
        (PICTURES + b"x", "and holds 13"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 0]), "expected unsigned bytes"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "and holds 0"),
        (gzip.compress(PICTURES, mtime=0)[:-9], "cannot be unpacked"),
    ],
)
def test_what_is_no_idx_file_is_refused_with_its_name(content, words):
    with pytest.raises(BadValue, match="data: train-images") as error:
        read_idx(content, "train-images")
    assert words in str(error.value)

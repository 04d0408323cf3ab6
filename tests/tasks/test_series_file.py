"""CSV files of time series: read alike with and without pyarrow; what is wrong is named with file and line."""

import gzip
import sys

import numpy as np
import pytest

from regard.errors import BadValue
from regard_workbench.tasks.time_series.file import read_series, written_time
from regard_workbench.tasks.time_series.parts import borders

HOUR = 3600.0


def kept(folder, content, name="a.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, dates=None, gaps="fill", encoding="utf-8"):
    return read_series(path, encoding, dates, gaps, "latin-1")


@pytest.fixture(params=["pyarrow", "line by line"], autouse=True)
def reader(request, monkeypatch):
    """Every test of this file runs with both readers."""
    if request.param == "pyarrow":
        pytest.importorskip("pyarrow")
    else:
        monkeypatch.setitem(sys.modules, "pyarrow", None)


def hours(count, row="{0},{0}.5"):
    return "date,a,b\n" + "".join(
        f"2016-07-{1 + n // 24:02} {n % 24:02}:00:00," + row.format(n) + "\n" for n in range(count)
    )


def test_dates_and_numbers_are_read(tmp_path):
    found = read(kept(tmp_path, hours(29)))
    assert found.names == ("a", "b") and found.step == HOUR and found.dated and not found.notes
    assert found.values.shape == (29, 2) and found.values[7].tolist() == [7, 7.5]
    assert written_time(found.times[25], True) == "2016-07-02 01:00:00"


@pytest.mark.parametrize(
    "content",
    [
        "t;a\n1;1.5\n2;2.5\n",
        "t\ta\n1\t1.5\n2\t2.5\n",
        "1,1.5\n2,2.5\n",
        '"t","a"\r\n1, 1.5\r\n\r\n2,2.5',
        "\ufefft,a\n1,1.5\n2,2.5\n",
        "\n\nt,a\n1,1.5\n2,2.5\n",
        gzip.compress(b"t,a\n1,1.5\n2,2.5\n", mtime=0),
    ],
)
def test_separators_headers_line_ends_and_gz_are_recognised(content, tmp_path):
    found = read(kept(tmp_path, content))
    assert found.values.tolist() == [[1.5], [2.5]] and found.times.tolist() == [1, 2] and not found.dated


def test_missing_values_are_nan_and_counted(tmp_path):
    found = read(kept(tmp_path, "t,a,b\n1,,3\n2,NaN,4\n3,5,null\n"))
    assert np.isnan(found.values).tolist() == [[True, False], [True, False], [False, True]]
    assert found.notes == ("3 values are missing",)


def test_rows_missing_in_time_are_put_in_without_values(tmp_path):
    lines = hours(11).splitlines()
    del lines[4], lines[4]  # hours 3 and 4
    found = read(kept(tmp_path, "\n".join(lines)))
    assert found.values.shape == (11, 2) and np.isnan(found.values[3:5]).all()
    assert found.values[5].tolist() == [5, 5.5] and np.diff(found.times).tolist() == [HOUR] * 10
    assert found.notes == ("2 rows are missing, the first before line 5",)
    joined = read(kept(tmp_path, "\n".join(lines)), gaps="join")
    assert joined.values.shape == (9, 2) and not joined.notes


def test_months_of_unequal_length_are_neighbours(tmp_path):
    content = "t,a\n" + "".join(f"2021-{month:02}-01,{month}\n" for month in range(1, 13))
    assert len(read(kept(tmp_path, content)).values) == 12


def test_other_dates_are_read_as_the_option_says(tmp_path):
    path = kept(tmp_path, "t,a\n01.07.2016 23:00,1\n02.07.2016 00:00,2\n")
    found = read(path, dates="%d.%m.%Y %H:%M")
    assert written_time(found.times[1], True) == "2016-07-02 00:00:00" and found.step == HOUR
    with pytest.raises(BadValue, match=r"a\.csv:2: expected a date.*dates=\"%d.%m.%Y %H:%M\".*01\.07"):
        read(path)


WRONG = {
    "t,a\n1,2\n2,3,4\n": r"a\.csv:3: expected 2 columns as in the first line, got 3.*Complete the line or delete it",
    "t,a,b\n1,2,3\n2,3\n": r"a\.csv:3: expected 3 columns as in the first line, got 2",
    "t,a\n1,2\n\n2,warm\n": r"a\.csv:4: column 2: expected a number, or nothing where it is missing, got 'warm'",
    "t;a\n1;2\n2;1,5\n": r"a\.csv:3: column 2.*'1,5'\. Write decimal points",
    "t,a\n1,2\n2,inf\n": r"a\.csv:3: column 2: expected a number",
    "t,a\n1,2\n2,1e999\n": r"a\.csv:3: a number is too large",
    "t,a\n1,2\n2,3\n2,4\n": r"a\.csv:4: the time '2' comes again\. Sort the file by time, and keep one row for each",
    "t,a\n1,2\n3,3\n2,4\n": r"a\.csv:4: the time '2' is before that of line 3",
    "t,a\n1,2\n2,2\nlater,3\n": r"a\.csv:4: the time is 'later', those before it are numbers",
    "t,a\n2016-07-01,1\n2016-07-32,2\n": r"a\.csv:3: expected a date such as.*got '2016-07-32'",
    "t,a\n1,2\n2,3\n3,4\n3.2,5\n4,6\n": r"a\.csv:5: the time '3\.2' comes 0\.2 after.*gaps=join",
    "t,a\n1,2\n2,3\n50,4\n": r"a\.csv: 47 rows are missing between 3.*gaps=join",
    "t,a,a\n1,2,3\n": r"a\.csv:1: expected a different name for each column",
    "t,a\n": r"a\.csv:1: a header, but no line after it",
    "t,a\n1,2\n": r"a\.csv:2: a single row\. Expected a series",
    "t\n1\n2\n": r"a\.csv:1: expected a time column and at least one of numbers",
    "t,a,b\n1,2,\n2,3,\n": r"a\.csv: column 'b' holds no number\. Leave it out with columns=",
    " \n\n": r"a\.csv: is empty",
    't,a\n1,"2\n2,3\n': r"a\.csv:3: not valid CSV",
    ",a\n,1\n,2\n": r"a\.csv:2: expected a date",
}


@pytest.mark.parametrize("content", WRONG)
def test_what_is_wrong_is_named_with_file_and_line(content, tmp_path):
    with pytest.raises(BadValue, match=WRONG[content]):
        read(kept(tmp_path, content))


def test_bytes_that_are_not_text_are_named(tmp_path):
    with pytest.raises(BadValue, match=r"a\.csv:2: byte 3 of the line.*not utf-8.*latin-1"):
        read(kept(tmp_path, b"t,a\n1,\xe9\n"))


def test_parts_are_counted_in_months_of_thirty_days_in_rows_or_in_shares():
    assert borders("12/4/4 months", 17420, HOUR) == (8640, 11520, 14400)
    assert borders("3/1/2 rows", 17, None) == (3, 4, 6)
    # As in Autoformer's loader: training and test are rounded down, validation takes the rest.
    assert borders("70/10/20 %", 1009, None) == (706, 808, 1009)


@pytest.mark.parametrize(
    ("split", "step", "words"),
    [
        ("12/4 months", HOUR, "three numbers and a unit"),
        ("12/4/4 moons", HOUR, "three numbers and a unit"),
        ("12/0/4 months", HOUR, "three parts above 0"),
        ("70/10/10 %", HOUR, r"add up to 100 %.*90 %"),
        ("12/4/4 months", None, "times of this series are numbers"),
        ("12/4/4 months", HOUR, r'asks for 20 months, and the series has 1\.4 months.*"70/10/20 %"'),
    ],
)
def test_parts_that_cannot_be_made_say_what_to_ask_for(split, step, words):
    with pytest.raises(BadValue, match=words):
        borders(split, 1009, step)

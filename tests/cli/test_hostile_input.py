"""Names and files of strangers on the command line: one line each; nothing steers a terminal, nothing hangs."""

import gzip
import os

import pytest

from regard.errors import BadValue
from regard_workbench.cli.common.terminal import said
from regard_workbench.cli.main import main
from regard_workbench.tasks.formats.reading import read_lines
from regard_workbench.training.config import from_yaml

LONG, DEEP = "x" * 5003, "a/" * 3001
NOT_UTF8 = os.fsdecode(b"caf\xe9")
STEERING = "a\x1b[31mb\nc\x07"

COMMANDS = [
    ["train", "--config", "PATH"],
    ["train", "language", "--data", "PATH", "--steps", "1"],
    ["train", "dates", "--resume", "PATH"],
    ["train", "dates", "--init-from", "PATH", "--steps", "0"],
    ["evaluate", "PATH"],
    ["predict", "PATH", "--text", "x"],
    ["view", "PATH"],
    ["cause", "PATH"],
    ["view", "PATH", "--export", "page.html"],
    ["--use", "PATH", "list"],
    ["show", "PATH"],
    ["train", "PATH"],
]


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkdir("folder")
    os.symlink("loop", "loop")
    return tmp_path


def ended(arguments, capsys):
    """Exit code and what was said on stderr."""
    try:
        code = main(arguments)
    except SystemExit as exit:
        code = exit.code
    return code, capsys.readouterr().err


@pytest.mark.parametrize("path", ["pipe", "folder", "loop", "/dev/zero", LONG, DEEP, NOT_UTF8, STEERING, "nul\0x", ""])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_path_that_is_no_file_is_answered_with_one_short_line(command, path, capsys):
    code, words = ended([path if word == "PATH" else word for word in command], capsys)
    assert code in (1, 2)
    assert words.count("\n") == 1 and len(words) < 1200 and "Traceback" not in words
    assert all(letter.isprintable() for letter in words.rstrip("\n") if not "\ud800" <= letter <= "\udfff")


@pytest.mark.parametrize("name", [STEERING, NOT_UTF8])
def test_a_name_that_steers_a_terminal_is_shown_escaped(name, capsys):
    os.mkdir(name)
    code, words = ended(["train", "dates", "--resume", name], capsys)
    assert code == 2 and words.count("\n") == 1 and "\x1b" not in words
    code, words = ended(["train", "language", "--data", "nothing.txt"], capsys)
    assert code == 2 and words.count("\n") == 1 and "\x1b" not in words


@pytest.mark.parametrize("ending", ["import sys\nsys.exit(0)", "raise SystemExit('bye')", "exit(3)", "quit()"])
def test_a_used_file_that_exits_does_not_end_the_command_as_if_it_were_done(ending, inside, capsys):
    (inside / "own.py").write_text(ending)
    code, words = ended(["--use", "own.py", "list"], capsys)
    assert code == 2 and words.count("\n") == 1 and "own.py ended the program" in words and "__main__" in words


def test_a_failing_plugin_file_is_reported_in_one_line(inside, capsys):
    (inside / "own.py").write_text("raise ValueError('\\x1b[31mred\\nand more')")
    code, words = ended(["--use", "own.py", "list"], capsys)
    assert code == 2 and words.count("\n") == 1 and "\x1b" not in words and "own.py, line 1" in words


def test_own_line_breaks_of_a_message_stay_and_typed_ones_do_not():
    assert said("two mistakes:\n  a\nb: wrong", ["a\nb"]) == "two mistakes:\n  a\\nb: wrong"
    assert said("--out: x\x1b[2J", []) == "--out: x␛[2J"
    assert said(f"{LONG} is long", [LONG]) == "x" * 200 + "… is long"
    assert said("--out: a\x07b", ["--out=a\x07b"]) == "--out: a\\x07b"


def test_a_failing_disk_is_reported_in_one_line(monkeypatch, capsys):
    from regard_workbench.cli import list as listing

    def fail(options):
        raise OSError(28, "No space left on device", "some/file")

    monkeypatch.setattr(listing, "run", fail)
    assert ended(["list"], capsys) == (1, "regard list: 'some/file': No space left on device.\n")


@pytest.mark.parametrize("reader", [read_lines, from_yaml])
@pytest.mark.parametrize(
    ("name", "words"), [("pipe", "pipe"), ("folder", "a folder"), ("/dev/zero", "a device"), ("linked", "pipe")]
)
def test_a_pipe_a_device_or_a_folder_in_the_place_of_a_file_is_refused_at_once(reader, name, words, inside):
    os.symlink("pipe", "linked")
    with pytest.raises(BadValue, match=words):
        reader(inside / name)


def test_a_small_archive_that_fills_a_machine_is_refused_by_how_much_it_shrank(inside, monkeypatch):
    monkeypatch.setattr("regard_workbench.tasks.formats.budget.SMALL", 2**20)
    (inside / "bomb.gz").write_bytes(gzip.compress(b"\0" * (7 * 2**20)))
    with pytest.raises(BadValue, match=r"bomb\.gz unpacks to more than 1 MiB"):
        read_lines(inside / "bomb.gz")
    (inside / "text.gz").write_bytes(gzip.compress(b"\n".join(str(n).encode() for n in range(300_007))))
    assert len(read_lines(inside / "text.gz")) == 300_007


def test_an_archive_is_unpacked_in_pieces(inside, monkeypatch):
    """Never asked for more than a piece: asking for the limit at once would take that much memory."""
    asked = []
    real = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda own, size=-1: (asked.append(size), real(own, size))[1])
    (inside / "text.gz").write_bytes(gzip.compress(b"line\n" * 500_009))
    assert len(read_lines(inside / "text.gz")) == 500_009
    assert len(asked) > 2 and 0 < max(asked) <= 2**20 and min(asked) > 0


@pytest.mark.parametrize("content", ["9" * 5003 + "-1", "1-" + "9" * 11, "x", "1-2 \x1b"])
def test_a_gold_file_of_odd_links_is_refused(inside, content):
    from regard_workbench.tasks.formats.gold import read_gold

    (inside / "gold.txt").write_text(f"1-1\n{content}")
    with pytest.raises(BadValue, match=r"gold\.txt:2: expected links such as"):
        read_gold(inside / "gold.txt")
    with pytest.raises(BadValue, match="pipe' cannot be read: it is a pipe"):
        read_gold(inside / "pipe")

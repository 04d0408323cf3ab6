"""Every count of what goes wrong has one command, which counts what it tried and fails where something was wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import trust

ROOT = Path(__file__).resolve().parents[2]

CASES = """
import pytest
from hypothesis import given, settings, strategies as st

@settings(max_examples=37, database=None)
@given(st.integers())
def test_drawn(number): pass

def test_looped(record_property): record_property("tried", 11)

def test_once(): pass

def test_fails(): assert False

def test_skipped(): pytest.skip("not here")
"""


def test_tests_are_counted_by_draws_and_loops(tmp_path):
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "none.ini").touch()
    words = [str(tmp_path / "test_cases.py"), "-c", str(tmp_path / "none.ini"), f"--rootdir={tmp_path}"]
    command = [sys.executable, "-m", "bench.counted", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert (found["tried"], found["wrong"], found["skipped"]) == (37 + 11 + 1 + 1, 1, 1), done.stderr
    assert found["failed"] == ["test_cases.py::test_fails"]
    assert done.returncode == 1


def test_the_table_adds_up_and_a_command_without_counts_is_wrong(monkeypatch, capsys):
    said = {
        "kills": "import json; print(json.dumps({'tried': 1234, 'wrong': 0}))",
        "ray": "import json; print(json.dumps({'tried': 7, 'wrong': {'one': 2, 'two': 3}, 'skipped': 4}))",
        "flips": "raise SystemExit(3)",
    }
    real = subprocess.run

    def run(command, **options):
        name = next(name for name in said if tuple(command[2:]) == trust.COUNTS[name].command)
        return real([sys.executable, "-c", said[name]], **options)

    monkeypatch.setattr(trust.subprocess, "run", run)
    assert trust.main(["--only", "kills,ray,flips"]) == 1
    cells = [line.split(" | ")[2:4] for line in capsys.readouterr().out.splitlines()[2:]]
    assert cells == [["1,234", "0"], ["7 (4 skipped)", "5"], ["0", "1"]]
    assert trust.main(["--only", "kills"]) == 0


def test_every_command_names_what_is_there(capsys):
    assert trust.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(trust.COUNTS)
    for count in trust.COUNTS.values():
        module, *words = count.command
        assert (ROOT / (module.replace(".", "/") + ".py")).exists()
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
    with pytest.raises(SystemExit):
        trust.main(["--only", "nothing"])

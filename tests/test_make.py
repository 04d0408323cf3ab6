"""`make test` and `make check` with stand-ins for their programs: every part runs, and one that fails is not lost."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTHON = """#!/bin/sh
case "$*" in *chromium*) exit 0;; esac
echo "ran: $*"
case "$*" in
  *browser.scheduling*) exit ${BROWSER:-0};;
  *--ignore*) exit ${CORE:-0};;
  *tests/triton/rehearsal*) exit ${REHEARSAL:-0};;
  *tests/triton*) exit ${TRITON:-0};;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def make(tmp_path):
    """Runs a target of the Makefile in a folder whose environment is there and whose python is the stand-in."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name in ("ruff", "mypy", "mkdocs"):
        program = python.with_name(name)
        program.write_text(f'#!/bin/sh\necho "ran: {name} $*"\nexit ${{{name.upper()}:-0}}\n')
        program.chmod(0o755)
    stamp = tmp_path / ".venv" / ".installed"
    stamp.touch()
    os.utime(stamp, (2e9, 2e9))  # newer than what it depends on

    def run(*arguments, **codes):
        environment = {**os.environ, **{name: str(code) for name, code in codes.items()}}
        for name in (
            "MAKEFLAGS",
            "ARGS",
            "PYTORCH",
            "TRANSFORMERS",
        ):  # this test may itself run under `make test ARGS=…`
            environment.pop(name, None)
        done = subprocess.run(["make", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)
        ran = [line for line in done.stdout.splitlines() if line.startswith("ran: ")]
        return done.returncode, ran, done.stderr

    return run


@pytest.mark.parametrize("part", ["CORE", "BROWSER", "TRITON", "REHEARSAL"])
def test_a_part_that_fails_hides_no_other(make, part):
    code, ran, errors = make("test", **{part: 1})
    assert code != 0
    assert len(ran) == 4
    assert f"tests failed in: {part.lower()}" in errors


def test_all_parts_pass(make):
    code, ran, _ = make("test")
    assert code == 0
    assert len(ran) == 4


def test_a_part_without_tests_fails_unless_arguments_choose_some(make):
    assert make("test", BROWSER=5)[0] != 0
    code, ran, _ = make("test", "ARGS=-k 'window or causal'", BROWSER=5, TRITON=5, REHEARSAL=5)
    assert code == 0
    assert all("-k window or causal" in line for line in ran)
    assert make("test", "ARGS=-k window", CORE=1)[0] != 0


def test_nightly_runs_what_is_marked_so(make):
    code, ran, _ = make("nightly")
    assert code == 0
    assert len(ran) == 3 and all("-m nightly" in line for line in ran)
    assert "tests/browser" in ran[1] and "tests/triton/rehearsal" in ran[2]


def test_nightly_runs_the_tests_of_others_whose_checkouts_it_is_given(make):
    code, ran, _ = make("nightly", "TRANSFORMERS=/some where", BROWSER=1)
    assert code != 0 and "foreign" not in ran[-1]
    code, ran, _ = make("nightly", "TRANSFORMERS=/some where", "ARGS=-k window")
    assert code == 0 and len(ran) == 4
    assert ran[-1] == "ran: -m tests.foreign --transformers /some where"
    code, ran, _ = make("foreign", "PYTORCH=/here", "TRANSFORMERS=/there", "ARGS=--models bert")
    assert ran == ["ran: -m tests.foreign --pytorch /here --transformers /there --models bert"]


def test_quick_takes_a_sample_of_every_part_but_the_browsers(make):
    code, ran, _ = make("quick")
    assert code == 0
    assert len(ran) == 2 and all("--quick" in line for line in ran)
    code, ran, errors = make("quick", CORE=1)
    assert code != 0 and len(ran) == 2
    assert "tests failed in: core" in errors


@pytest.mark.parametrize("part", ["RUFF", "MYPY", "MKDOCS"])
def test_the_checks_fail_if_one_of_them_does(make, part):
    code, ran, _ = make("check", **{part: 1})
    assert code != 0
    assert len(ran) == (1 if part == "RUFF" else 4)


def test_the_checks_are_lint_format_types_and_the_site(make):
    code, ran, _ = make("check")
    assert code == 0
    assert sorted(line.split()[1] for line in ran) == ["mkdocs", "mypy", "ruff", "ruff"]


def test_what_the_browsers_part_prints_is_shown_after_the_others(make):
    code, ran, _ = make("test", BROWSER=1)
    assert code != 0
    assert "browser.scheduling" in ran[-1]


def test_continuous_integration_checks_and_tests():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[-2:] == ["make check", "make test"]
    assert "set -euo pipefail" in lines

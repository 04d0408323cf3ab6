"""What the documents say about this repository is true: links, tests they name, generated pages, types."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("bench/*.md")])
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def named(pages):
    return [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages]


@pytest.mark.parametrize("page", named(PAGES))
def test_every_link_leads_to_a_file(page):
    targets = [found[1] for found in LINK.finditer(page.read_text(encoding="utf-8"))]
    missing = [to for to in targets if "://" not in to and not (page.parent / to).exists()]
    assert not missing


@pytest.mark.parametrize("page", named(page for page in PAGES if page.name != "CHANGELOG.md"))
def test_every_file_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    told = set(re.findall(r"`([\w/.-]+\.(?:py|js))`", text))
    files = [path for folder in ("src", "tests", "docs", "examples", "bench") for path in (ROOT / folder).rglob("*.*")]
    known = [f"/{path.relative_to(ROOT).as_posix()}" for path in [*files, *ROOT.glob("*.*")]]
    missing = [name for name in told if not any(path.endswith(f"/{name}") for path in known)]
    assert not missing


def test_the_study_has_its_pictures_and_says_what_is_unfinished():
    text = (ROOT / "docs" / "study.md").read_text()
    pictures = re.findall(r"\]\((images/[^)]+)\)", text)
    assert len(pictures) >= 7
    assert not [name for name in pictures if not (ROOT / "docs" / name).is_file()]
    for ended, asked in re.findall(r"\*\*Unfinished\*\*: (\d+) of (\d+) runs have ended", text):
        missing = f"{int(asked) - int(ended)} of {asked} runs of the study"
        assert missing in (ROOT / "docs" / "results.md").read_text()


def test_every_promise_names_the_tests_that_hold_it():
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    promises = re.split(r"^## (?=\d+\. )", text, flags=re.MULTILINE)[1:]
    assert [int(one.partition(".")[0]) for one in promises] == list(range(1, 11))
    for promise in promises:
        tests = re.findall(r"`(tests/[\w/]+\.py)`", promise)
        assert tests, promise
        assert not [test for test in tests if not (ROOT / test).exists()]


def test_a_number_of_a_promise_is_one_of_the_ten():
    sources = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    numbers = {
        int(number)
        for path in sources
        for number in re.findall(r"\bpromise (\d+)", path.read_text(encoding="utf-8"), re.IGNORECASE)
    }
    assert numbers <= set(range(1, 11))


@pytest.mark.nightly
def test_the_examples_of_the_readme_pass_strict_type_checks(tmp_path):
    pytest.importorskip("mypy")
    blocks = PYTHON_BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    brought = "from typing import Any\n\nmodel: Any\ntokenizer: Any\n"  # a reader's own, as the README says
    (tmp_path / "readme.py").write_text(brought + "\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "--config-file=",
            "--cache-dir",
            str(ROOT / ".mypy_cache" / "readme"),
            "readme.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr

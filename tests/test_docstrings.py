"""The examples in all docstrings of the package can be read, run, and give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests.registries import unchanged_registries

ROOT = Path(__file__).resolve().parents[1] / "src"
FILES = [path for path in sorted(ROOT.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in FILES]


def run_examples(test):
    """Run the examples of one docstring; how many there were."""
    said = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    outcome = doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=said.append)
    assert outcome.failed == 0, "".join(said)
    return outcome.attempted


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_and_of_everything_in_it_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with unchanged_registries():
        for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name)):
            run_examples(test)

"""Every mechanism explains itself: what it computes, a formula, its paper, empty rows, options, a running example."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import regard.nn
from regard.nn.parts.mechanism import options_of
from tests.test_docstrings import run_examples

MODULES = sorted(module.name for module in pkgutil.walk_packages(regard.nn.__path__, "regard.nn."))
by_name = pytest.mark.parametrize("name", regard.nn.names())


def docstring(name):
    """The class's own docstring; an inherited one would describe another mechanism."""
    own = vars(regard.nn.entry(name).layer).get("__doc__")
    assert own, f"{name} has no docstring of its own"
    return inspect.cleandoc(own)


def described_options(cls):
    """name: meaning, from the block after `Args:` of one class."""
    text = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    block = re.search(r"^Args:\n((?:[ ]{4}.*\n?|\n(?=[ ]{4}))+)", text, re.M)
    return dict(re.findall(r"^    (\w+): (\S.*)$", block[1], re.M)) if block else {}


@by_name
def test_the_first_line_is_a_sentence(name):
    first = docstring(name).split("\n\n")[0]
    assert first.rstrip().endswith("."), first
    assert len(first) <= 240


@by_name
def test_the_formula_is_an_indented_block_after_the_first_sentence(name):
    paragraphs = docstring(name).split("\n\n")
    blocks = [p for p in paragraphs[1:] if all(line.startswith("    ") for line in p.splitlines())]
    assert blocks, "an indented block"
    assert paragraphs.index(blocks[0]) == 1, "directly behind the first sentence"
    assert re.search(r"[=←~]", blocks[0]), "which says what equals what"


@by_name
def test_paper_empty_row_use_options_and_example_follow_in_this_order(name):
    text = docstring(name)
    marks = ("\nPaper: ", "\nEmpty row: ", "\nWhen to use: ", "\nArgs:\n", "\n>>> ")
    places = [text.find(mark) for mark in marks]
    assert -1 not in places, dict(zip(marks, places, strict=True))
    assert places == sorted(places)


@by_name
def test_the_paper_has_a_year_or_says_that_there_is_none(name):
    paper = re.search(r"\nPaper: (.*?)\n(?:Empty row|\n)", docstring(name), re.S)[1]
    assert re.search(r"\b(19|20)\d\d\b", paper) or "none" in paper


@by_name
def test_every_option_is_described_and_nothing_else(name):
    """By the mechanism itself, or by the base class to which it passes options."""
    layer = regard.nn.entry(name).layer
    inherited = {}
    for cls in reversed(layer.__mro__):
        inherited |= described_options(cls)
    known = options_of(layer)
    missing = [option for option in known if option not in inherited]
    assert not missing, f"{name} does not say what {missing} mean"
    unknown = [option for option in described_options(layer) if option not in known]
    assert not unknown, f"{name} describes {unknown}, which it does not take"
    if "__init__" in vars(layer):  # options of its own signature are described in its own docstring
        own, written = described_options(layer), inspect.signature(layer.__init__).parameters
        silent = [option for option in written if option in known and option not in own]
        assert not silent, f"{name} takes {silent} and leaves them to its parent to explain"


@by_name
def test_the_example_runs(name):
    """The example runs as `regard show` prints it, with its own imports only."""
    assert run_examples(doctest.DocTestParser().get_doctest(docstring(name), {}, name, None, 0)) >= 2


@by_name
def test_the_example_builds_the_mechanism_by_its_name(name):
    assert f'build("{name}"' in docstring(name) or f"build('{name}'" in docstring(name)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_and_everything_public_in_it_has_a_docstring(module):
    loaded = importlib.import_module(module)
    assert loaded.__doc__ and loaded.__doc__.strip(), f"{module} has no docstring"
    for name, thing in vars(loaded).items():
        public = not name.startswith("_") and getattr(thing, "__module__", None) == module
        if public and (inspect.isclass(thing) or inspect.isfunction(thing)):
            assert thing.__doc__ and thing.__doc__.strip(), f"{module}.{name} has no docstring"

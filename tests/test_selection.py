"""What `make quick` takes of the tests: one case of each function and implementation, and always the same one."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.parametrize("impl", ["auto", "tiled", "reference"])
@pytest.mark.parametrize("mask", range(7))
def test_masks(mask, impl): pass

@pytest.mark.parametrize("score", range(11))
def test_scores(score): pass

@pytest.mark.parametrize("bias", range(11))
def test_biases(bias): pass

def test_once(): pass

@pytest.mark.slow
def test_slowly(): pass

@pytest.mark.nightly
def test_at_night(): pass
"""


@pytest.fixture
def collected(pytester):
    """The names of the tests that a command would run."""
    pytester.makeconftest(Path(__file__).with_name("selection.py").read_text())
    pytester.makeini("[pytest]\nmarkers = slow\n nightly")
    pytester.makepyfile(TESTS)

    def names(*arguments):
        lines = pytester.runpytest_inprocess("--collect-only", "-q", "-p", "no:benchmark", *arguments).outlines
        return [line.partition("::")[2] for line in lines if "::" in line]

    return names


def test_everything_but_the_nightly_runs(collected):
    found = collected()
    assert len(found) == 7 * 3 + 11 + 11 + 2
    assert "test_slowly" in found and "test_at_night" not in found


@pytest.mark.slow
def test_quick_takes_one_case_of_each_function_and_implementation(collected):
    found = collected("--quick")
    assert [name.partition("[")[0] for name in found] == ["test_masks"] * 3 + [
        "test_scores",
        "test_biases",
        "test_once",
    ]
    implementations = {name.removesuffix("]").rpartition("-")[2] for name in found if "masks" in name}
    assert implementations == {"auto", "tiled", "reference"}
    assert found == collected("--quick")


def test_quick_takes_different_cases_of_different_functions(collected):
    scores, biases = [name for name in collected("--quick") if "scores" in name or "biases" in name]
    assert scores.partition("[")[2] != biases.partition("[")[2]


def test_nightly_tests_run_where_they_are_asked_for(collected):
    assert collected("-m", "nightly") == ["test_at_night"]

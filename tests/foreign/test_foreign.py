"""The harness for the tests of others: what counts as a difference, and that regard is where the original was."""

import pytest
import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from tests.foreign import __main__ as program
from tests.foreign.differences import DIFFERENCES, Difference
from tests.foreign.outcomes import Outcome, compare, read
from tests.foreign.plugins import sdpa_by_regard
from tests.foreign.running import Checkout
from tests.foreign.suites import Suite

LISTED = [Difference("pytorch/*", "A::test_random*", "not close", "another stream of random numbers")]
SHAPES = {2: (), 3: (3,), 4: (3, 4), 5: (2, 3, 4)}  # in front of (length, width)

TESTS = """
import torch
from torch.nn import functional

def test_the_formula():
    x = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    weights = torch.softmax(x @ x.mT / 7**0.5, -1)
    torch.testing.assert_close(functional.scaled_dot_product_attention(x, x, x), weights @ x)

def test_which_of_the_two_it_is():
    assert functional.scaled_dot_product_attention.__module__ != "sdpa_by_regard"
"""


def passed_and(**others):
    return {"A::test_same": Outcome("passed")} | {f"A::{name}": outcome for name, outcome in others.items()}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_only_a_listed_failure_with_the_listed_message_may_differ():
    before = passed_and(test_random_1=Outcome("passed"), test_random_2=Outcome("passed"), test_b=Outcome("passed"))
    after = passed_and(
        test_random_1=Outcome("failure", ("values are not close",)),
        test_random_2=Outcome("error", ("no such operator",)),
        test_b=Outcome("failure", ("values are not close",)),
    )
    worse, explained, better = compare("pytorch/sdpa", before, after, LISTED)
    assert set(worse) == {"A::test_random_2", "A::test_b"} and not better
    assert explained == {"A::test_random_1": LISTED[0]}
    assert "error with it: no such operator" in worse["A::test_random_2"]
    after["A::test_random_1"] = Outcome("failure", ("values are not close", "another subtest"))
    assert "A::test_random_1" in compare("pytorch/sdpa", before, after, LISTED)[0]
    worse, explained, _ = compare("transformers/bert", before, after, LISTED)
    assert len(worse) == 3 and not explained


@pytest.mark.parametrize("after", [Outcome("skipped"), None], ids=["skipped", "absent"])
def test_a_test_that_no_longer_runs_differs(after):
    before = passed_and(test_random=Outcome("passed"))
    worse, _, _ = compare("pytorch/sdpa", before, passed_and(**({"test_random": after} if after else {})), LISTED)
    assert list(worse) == ["A::test_random"]


def test_what_fails_without_regard_too_is_no_difference():
    before = passed_and(test_a=Outcome("failure", ("not close",)), test_b=Outcome("failure"), test_c=Outcome("failure"))
    after = passed_and(test_a=Outcome("error", ("otherwise",)), test_b=Outcome("passed"), test_c=Outcome("skipped"))
    assert compare("pytorch/sdpa", before, after, LISTED) == ({}, {}, ["A::test_b", "A::test_c"])


def test_every_listed_difference_has_a_message_and_a_reason():
    for entry in DIFFERENCES:
        assert entry.message and len(entry.reason.split()) > 3, entry


def test_outcomes_are_read_from_a_junit_file(tmp_path):
    file = tmp_path / "results.xml"
    file.write_text(
        '<testsuites><testsuite><testcase classname="a.b.C" name="t1"/><testcase classname="C" name="t2">'
        '<failure message="AssertionError">line 3</failure><skipped message="a subtest"/></testcase>'
        '<testcase classname="C" name="t3"><skipped message="no GPU"/></testcase></testsuite></testsuites>'
    )
    assert read(file) == {
        "C::t1": Outcome("passed"),
        "C::t2": Outcome("failure", ("AssertionError\nline 3",)),
        "C::t3": Outcome("skipped", ("no GPU\n",)),
    }


def test_a_case_of_a_parameter_has_one_name_with_and_without_regard(tmp_path):
    file = tmp_path / "results.xml"
    names = ("test_window_1_regard", "test_window_1_regard_left", "test_regards_nothing")
    file.write_text(
        "<testsuite>" + "".join(f'<testcase classname="C" name="{name}"/>' for name in names) + "</testsuite>"
    )
    assert list(read(file)) == ["C::test_window_1_sdpa", "C::test_window_1_sdpa_left", "C::test_regards_nothing"]


def test_without_a_checkout_it_says_what_it_needs(tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert program.main(out) == 2
    shown = capsys.readouterr().out
    assert "pytorch: not run. It needs PYTORCH=PATH" in shown
    assert "transformers: not run. It needs TRANSFORMERS=PATH" in shown
    assert program.main(["--pytorch", str(tmp_path), *out]) == 2
    assert f"there is no test/test_transformers.py in {tmp_path}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_suite_runs_without_regard_and_with_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PLACE", "layers")  # the run without regard is without it all the same
    (tmp_path / "test_toy.py").write_text(TESTS)
    suite = Suite("pytorch/toy", ("test_toy.py",), "formula or which", "regard_in_torch", ".")
    assert not program.passes(suite, Checkout(tmp_path, tmp_path, tmp_path), tmp_path)
    shown = capsys.readouterr().out
    assert "without regard 2 passed; with it 1 failure, 1 passed; 1 calls of regard" in shown
    assert "NOT LISTED test_toy::test_which_of_the_two_it_is" in shown


@pytest.mark.parametrize("axes", SHAPES)
@pytest.mark.parametrize("mask", ["none", "causal", "pairs", "numbers", "own", "upper-left", "lower-right"])
def test_regard_takes_the_arguments_of_torchs_function(axes, mask):
    leading = SHAPES[axes]
    query, key, value = (drawn(*leading, *size, seed=size[0]) for size in ((5, 6), (7, 6), (7, 11)))
    options = {
        "none": {},
        "causal": {"is_causal": True},
        "pairs": {"attn_mask": drawn(5, 7) > -1},
        "numbers": {"attn_mask": drawn(5, 7), "scale": 0.3},
        "own": {"attn_mask": drawn(*leading, 5, 7) > -1},
        "upper-left": {"attn_mask": causal_upper_left(5, 7)},
        "lower-right": {"attn_mask": causal_lower_right(5, 7)},
    }[mask]
    output = sdpa_by_regard.scaled_dot_product_attention(query, key, value, **options)
    torch.testing.assert_close(output, functional.scaled_dot_product_attention(query, key, value, **options))


def test_regard_takes_grouped_heads_and_broadcast_batches_of_torchs_function():
    query, key = drawn(3, 6, 5, 8), drawn(3, 2, 7, 8)
    output = sdpa_by_regard.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    expected = functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    torch.testing.assert_close(output, expected)
    query, key = drawn(2, 3, 4, 5, 8), drawn(1, 3, 4, 7, 8)
    output = sdpa_by_regard.scaled_dot_product_attention(query, key, key)
    expanded = key.expand(2, -1, -1, -1, -1)
    torch.testing.assert_close(output, functional.scaled_dot_product_attention(query, expanded, expanded))

"""Plans from Python arguments are those of the command line, and a comparison shows its table and its report."""

import dataclasses
from pathlib import Path

import pytest

from regard.errors import BadValue
from regard_workbench.comparison.limits import HEARTBEAT
from regard_workbench.comparison.plan import make_plan, read_seeds
from tests.comparison.made_up import comparison


def test_lists_and_texts_mean_the_same():
    text = make_plan({"task": "dates"}, models="seq2seq,transformer(dim=16, layers=1)", attention="global", seeds="0,7")
    listed = make_plan(
        {"task": "dates"}, models=["seq2seq", "transformer(dim=16, layers=1)"], attention=["global"], seeds=[0, 7]
    )
    assert text == listed
    assert text.models == ["seq2seq", "transformer(dim=16, layers=1)"] and text.seeds == [0, 7]


def test_what_is_not_given_has_its_default():
    plan = make_plan({})
    assert plan.settings == {"task": "digits"} and plan.seeds == [0, 1, 2]
    assert (plan.timeout, plan.heartbeat, plan.trials, plan.engine) == (None, HEARTBEAT, 0, "local")
    assert plan.out.parent == Path("runs") and plan.out.name.startswith("compare-digits-")


def test_times_are_numbers_or_texts_or_never():
    plan = make_plan({}, timeout="5 min", heartbeat=20)
    assert (plan.timeout, plan.heartbeat) == (300.0, 20.0)
    assert make_plan({}, heartbeat="never").heartbeat is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"models": []}, "models: expected names"),
        ({"models": ""}, "models: expected names"),
        ({"attention": " "}, "attention: expected names"),
        ({"seeds": 0}, "seeds: expected how many"),
        ({"seeds": [1, 1]}, "seeds: a seed appears twice"),
        ({"workers": 0}, "workers: expected at least 1, got 0"),
        ({"sweep": -1}, "sweep: expected at least 0, got -1"),
        ({"timeout": -3.0}, "timeout: expected a time"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    with pytest.raises(BadValue, match=message):
        make_plan({}, **arguments)


def test_a_list_of_one_seed_is_that_seed():
    assert read_seeds([7]) == [7] and read_seeds(2) == [0, 1]


def test_a_comparison_prints_its_table_and_shows_its_report_in_a_notebook(tmp_path):
    found = dataclasses.replace(comparison(), out=tmp_path)
    assert "static-transformer" in str(found) and "step/s" in str(found)
    assert found._repr_html_().startswith("<pre>")  # there is no report yet
    (tmp_path / "report.html").write_text('<p class="x">a & b</p>')
    shown = found._repr_html_()
    assert 'srcdoc="&lt;p class=&quot;x&quot;&gt;a &amp; b&lt;/p&gt;"' in shown and shown.startswith("<iframe ")
    assert found.rows is found.rows and found.rows[0]["model"] == "static-transformer"

"""Tables for the terminal, as CSV and as LaTeX."""

import csv
import dataclasses
import io
import re

import pytest
from rich.console import Console

from regard_workbench.comparison.columns import columns, counted, read_columns, significant, speed
from regard_workbench.comparison.job import Contestant
from regard_workbench.comparison.results import pairs, rows
from regard_workbench.comparison.table import render, render_pairs, to_csv, to_latex
from regard_workbench.tasks.measures.metrics import ACCURACY
from tests.comparison.made_up import NAMES, comparison, cost, outcome
from tests.comparison.test_results import changed

HOSTILE = "a_b%c$d#e&f{g}h~i^j\\k\"l|m<n>o--p'q`r,,s·t ü ∑ 中 \U0001f600\nu \\input{x} %"


def printed(made, width=80):
    out = Console(width=width, highlight=False, markup=False, emoji=False, file=io.StringIO())
    out.print(made)
    return [line.rstrip() for line in out.file.getvalue().split("\n")]


def bold_of(made, width=80):
    """What is set in bold, in reading order."""
    out = Console(width=width, force_terminal=True, file=io.StringIO(), highlight=False, markup=False)
    segments = [segment for line in out.render_lines(made) for segment in line]
    return [
        segment.text.strip()
        for segment in segments
        if segment.style and segment.style.bold and re.search(r"\d", segment.text)
    ]


def perplexities(means=((4.2, 4.21, 4.22), (4.5, 4.52, 4.51))):
    """Attentions of one model, on a metric where lower is better."""
    attentions = ["causal", "local(window=65)"]
    runs = [
        outcome(
            "decoder(layers=4)",
            seed,
            0.5,
            attention,
            metric="perplexity",
            higher_is_better=False,
            validation={"perplexity": value},
            test={"perplexity": value + 0.1},
        )
        for attention, values in zip(attentions, means, strict=True)
        for seed, value in enumerate(values)
    ]
    return rows(comparison(runs, [Contestant("decoder(layers=4)", one) for one in attentions], costs={}))


def test_the_users_table_as_it_is_printed():
    assert printed(render(rows(comparison())))[:6] == [
        "                               average    validation          test",
        "model                convergence speed      accuracy      accuracy",
        "──────────────────────────────────────────────────────────────────",
        "static-transformer        210.4 step/s  96.0 ± 2.5 %  97.0 ± 2.5 %",
        "dynamic-transformer        95.3 step/s  93.0 ± 2.5 %  94.0 ± 2.5 %",
        "lstm-attention            151.0 step/s  96.0 ± 2.5 %  97.0 ± 2.5 %",
    ]


def test_the_figures_of_the_documents_look_as_they_do_there():
    """The table that the user's documents quote: 4.9k step/s, 87.8 %, 86.9 % and so on."""
    quoted = ((4900, 0.878, 0.869), (10_600, 0.884, 0.881), (8000, 0.826, 0.826))
    runs = [
        outcome(name, 0, 0.9, validation={"accuracy": validation}, test={"accuracy": test})
        for name, (_, validation, test) in zip(NAMES, quoted, strict=True)
    ]
    costs = {name: cost(float(speed)) for name, (speed, _, _) in zip(NAMES, quoted, strict=True)}
    lines = printed(render(rows(comparison(runs, costs=costs, seeds=[0]))))
    assert [" ".join(line.split()[1:]) for line in lines[3:6]] == [
        "4.9k step/s 87.8 % 86.9 %",
        "10.6k step/s 88.4 % 88.1 %",
        "8.0k step/s 82.6 % 82.6 %",
    ]


def test_speed_has_one_decimal_and_thousands_from_a_thousand_on():
    values = (0.0456, 0.99, 1, 95.26, 999.94, 999.95, 1000, 1891, 10_600, 1_234_567)
    assert [speed(value) for value in values] == [
        "0.0456 step/s",
        "0.990 step/s",
        "1.0 step/s",
        "95.3 step/s",
        "999.9 step/s",
        "1.0k step/s",
        "1.0k step/s",
        "1.9k step/s",
        "10.6k step/s",
        "1,234.6k step/s",
    ]


def test_other_columns_are_shown_by_name():
    names = read_columns("parameters,memory,flops,seeds,test.loss,validation.f1")
    lines = printed(render(rows(comparison()), names))
    assert [" ".join(line.split()) for line in lines[:6]] == [
        "memory FLOPs test",
        "model parameters MiB per step seeds loss",
        "─" * len(lines[2]),
        "static-transformer 301k 31.2 1.00G 3 0.2000 ± 0.0000",
        "dynamic-transformer 402k 48.0 1.00G 3 0.2000 ± 0.0000",
        "lstm-attention 203k 22.5 1.00G 3 0.2000 ± 0.0000",
    ]
    assert "No run has the metric f1 on validation. There are: accuracy, loss." in lines


def test_columns_that_do_not_fit_continue_below_with_the_names():
    found = rows(comparison())
    text = printed(render(found, read_columns("all")), 80)
    assert [line.split()[0] for line in text if line.startswith(NAMES)] == [*NAMES] * 2
    assert max(map(len, text)) <= 80
    for column in columns(found, read_columns("all")):
        assert all(str(cell) in "\n".join(text) for cell in column.cells)


def test_models_of_different_sizes_are_pointed_to_match():
    lines = printed(render(rows(comparison())), 100)
    assert "Sizes differ: 203k to 402k parameters. Equal ones: --match parameters." in lines
    alike = {name: cost(1.0, parameters=1000 + n) for n, name in enumerate(NAMES)}
    assert "Sizes differ" not in "\n".join(printed(render(rows(comparison(costs=alike)))))


def test_a_long_name_breaks_between_its_options():
    name = "encoder(layers=12,dim=384)"
    runs = [outcome(name, seed, 0.5) for seed in range(3)]
    lines = printed(render(rows(comparison(runs, [Contestant(name)], costs={name: cost(1.0)}))), 66)
    assert lines[3].startswith("encoder(layers=12,  ") and lines[4] == "dim=384)"


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width):
    for found in (rows(comparison()), perplexities()):
        lines = printed(render(found), width)
        assert max(map(len, lines)) <= width
        text = "\n".join(lines)
        for column in columns(found):
            assert all(str(cell) in text for cell in column.cells)


def test_the_best_of_each_column_is_bold():
    # Speed, validation, test, parameters and memory; what is shown alike is best alike.
    assert bold_of(render(rows(comparison()), read_columns("speed,validation,test,parameters,memory")), 100) == [
        "210.4 step/s",
        "96.0 ± 2.5 %",
        "97.0 ± 2.5 %",
        "96.0 ± 2.5 %",
        "97.0 ± 2.5 %",
        "203k",
        "22.5",
    ]


def test_where_lower_is_better_the_lowest_is_bold():
    found = bold_of(render(perplexities()))
    assert any("4.210" in text for text in found) and not any("4.510" in text for text in found)


def test_one_row_alone_is_not_the_best_of_anything():
    given = comparison([outcome(NAMES[0], seed, 0.9) for seed in range(3)], [Contestant(NAMES[0])])
    assert bold_of(render(rows(given))) == []


def test_the_attention_is_shown_only_where_rows_share_a_model():
    text = "\n".join(printed(render(rows(comparison()))))
    assert "attention" not in text.replace("lstm-attention", "")
    lines = printed(render(perplexities()), 100)
    assert "decoder(layers=4) with" in lines[1] and lines[4].startswith("local(window=65)")
    both = [Contestant("encoder", "linear"), Contestant("encoder", "dot"), Contestant("static-transformer")]
    runs = [outcome(one.model, 0, 0.9, one.attention) for one in both]
    lines = printed(render(rows(comparison(runs, both, costs={}))), 100)
    assert "encoder · linear" in lines[3] and "static-transformer · static-memory" in lines[5]


def test_one_seed_is_shown_without_an_interval_and_says_so():
    given = comparison([outcome(name, 0, 0.9) for name in NAMES], seeds=[0])
    text = "\n".join(printed(render(rows(given))))
    assert "±" not in text and "90.0 %" in text and "One seed: no interval" in text


def test_failed_rows_show_their_reason_below_the_table():
    given = comparison()
    for place in (3, 4, 5):
        given = changed(given, place, error="MemoryError: 3 GiB", test={}, validation={})
    given = changed(given, 0, error="ValueError: odd", test={}, validation={})
    given = dataclasses.replace(given, costs={NAMES[0]: cost(10.0), NAMES[2]: cost(20.0)})
    lines = printed(render(rows(given)), 100)
    assert lines[4].split()[1:4] == ["failed", "failed", "failed"]
    assert "dynamic-transformer, seed 0, 1, 2: failed: MemoryError: 3 GiB" in lines
    assert "static-transformer, seed 0: failed: ValueError: odd" in lines
    assert "± half of the 95 % interval over 2 or 3 seeds (Student's t). Bold: best of a column." in lines


def test_a_number_that_is_none_is_a_dash_with_a_note():
    found = rows(changed(comparison(), 0, test={"accuracy": float("nan")}))
    lines = printed(render(found), 100)
    assert "–" in lines[3] and any("test accuracy is missing or not finite with seed 0" in line for line in lines)


def test_numbers_are_shown_with_as_many_digits_as_they_are_worth():
    assert [significant(value) for value in (1234.5, 151.0, 99.96, 95.26, 8.9, 0.01234, 0)] == [
        "1,234",
        "151",
        "100",
        "95.3",
        "8.90",
        "0.0123",
        "0.00",
    ]
    assert [counted(value) for value in (999, 1000, 12_345, 999_600, 4.56e9, 2e15)] == [
        "999",
        "1.00k",
        "12.3k",
        "1.00M",
        "4.56G",
        "2.00P",
    ]


# Pairs.


def test_pairs_show_difference_interval_and_both_p_values():
    found = pairs(comparison(), ACCURACY)
    lines = printed(render_pairs(found), 110)
    assert "static-transformer − dynamic-transformer" in lines[3]
    assert "+3.00" in lines[3] and "-1.97 to +7.97" in lines[3] and "0.243" in lines[3]
    assert any(line.startswith("No difference can be claimed") for line in lines)
    assert max(map(len, printed(render_pairs(found), 80))) <= 80


def test_a_table_without_pairs_says_so():
    assert printed(render_pairs([]))[0] == "No two contestants to compare."


# Files.


def test_csv_has_one_line_for_each_contestant_and_reads_back():
    given = changed(comparison(), 4, error="ValueError: a, b\nc", test={}, validation={})
    found = list(csv.DictReader(io.StringIO(to_csv(rows(given)))))
    assert [line["model"] for line in found] == list(NAMES)
    assert float(found[0]["test_accuracy_mean"]) == pytest.approx(0.97)
    assert float(found[0]["validation_loss_high"]) == pytest.approx(0.1)
    assert found[1]["seeds"] == "0 2" and found[1]["failed"] == "seed 1: ValueError: a, b\nc"
    assert found[0]["signature"] == rows(given)[0]["signature"] and found[0]["parameters"] == "301000"


def test_missing_values_of_a_row_are_empty_in_csv():
    given = comparison(costs={})
    for place in range(3):
        given = changed(given, place, error="no", test={}, validation={})
    found = list(csv.DictReader(io.StringIO(to_csv(rows(given)))))
    assert found[0]["test_accuracy_mean"] == "" and found[0]["peak_memory_mib"] == ""


def test_latex_is_a_booktabs_table():
    text = to_latex(rows(comparison()))
    assert (
        r"\caption{digits: 1,000 steps each; mean and half of the 95 \% interval over seeds 0, 1, 2. "
        r"Sizes differ: 203k to 402k parameters.}" in text
    )
    assert (
        r"static-transformer & \textbf{210.4 step/s} & \textbf{96.0} $\pm$ 2.5\,\% & \textbf{97.0} $\pm$ 2.5\,\% \\"
        in text
    )
    for word in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrrr}", r"\end{table}"):
        assert text.count(word) == 1
    assert r"decoder(layers=4) & local(window=65) & " in to_latex(perplexities())


def body(text):
    """What stands in the cells and the caption: everything but the frame."""
    inside = re.search(r"\\caption\{(.*)\}\n", text)[1]
    return [inside, *re.findall(r"^    (?!\\)(.*) \\\\$", text, flags=re.M)]


def test_a_hostile_name_stays_text_in_latex():
    found = rows(comparison())[:2]
    text = to_latex([{**row, "model": "encoder", "attention": HOSTILE, "task": HOSTILE} for row in found])
    words = "backslash|asciitilde|asciicircum|asciigrave|less|greater|bar|quotesingle|endash"
    known = rf"\\(?:[&%$#_{{}}]|text(?:{words})\{{\}}|char34\{{\}})"
    for part in body(text):
        rest = re.sub(known, "", part)
        rest = re.sub(r"\$\\(?:cdot|pm|times)\$", "", rest)
        rest = rest.replace(r"\,", "")  # between a number and its unit
        rest = re.sub(r"\\textbf\{[^{}\\]*\}|(?<=[-,])\{\}", "", rest)
        rest = rest.replace(" & ", "")
        assert not re.search(r"[\\{}$&#^_~%]", rest), rest
        assert all(ord(sign) < 256 for sign in rest)
    assert "U+4E2D" in text and "U+1F600" in text and "--p" not in text
    assert text.count("&") - text.count(r"\&") == 4 * 3  # columns of the head and of two rows

"""Rows, pairs and sentences about fairness, from comparisons whose numbers are known."""

import csv
import dataclasses
import json
import math
import statistics
import time

import pytest
from scipy import stats

from regard_workbench import models, tasks
from regard_workbench.comparison.columns import columns
from regard_workbench.comparison.fairness import fairness
from regard_workbench.comparison.job import Contestant
from regard_workbench.comparison.results import attention_of, pairs, rows
from regard_workbench.comparison.table import to_csv
from regard_workbench.models.parts.model import MODELS, Model, model
from regard_workbench.tasks.measures.metrics import ACCURACY, PERPLEXITY
from tests.comparison import made_up
from tests.comparison.made_up import NAMES, comparison, cost, outcome

PROMISED = {
    "model",
    "attention",
    "task",
    "seeds",
    "parameters",
    "steps_per_second",
    "validation",
    "test",
    "peak_memory_mib",
    "signature",
}


def changed(given, place, **changes):
    """The comparison with one of its outcomes changed."""
    runs = list(given.outcomes)
    runs[place] = dataclasses.replace(runs[place], **changes)
    return dataclasses.replace(given, outcomes=runs)


def test_a_row_holds_what_the_interface_promises():
    for row in rows(comparison()):
        assert row.keys() >= PROMISED
        assert isinstance(row["attention"], str) and row["attention"]
        assert row["seeds"] == [0, 1, 2] and all(type(seed) is int for seed in row["seeds"])
        for split in ("validation", "test"):
            for found in row[split].values():
                assert found.keys() == {"mean", "low", "high"}
    assert [row["model"] for row in rows(comparison())] == list(NAMES)


def test_numbers_of_a_row_are_means_with_t_intervals():
    row = rows(comparison())[0]
    low, high = stats.t.interval(0.95, 2, loc=0.97, scale=stats.sem([0.97, 0.96, 0.98]))
    assert row["test"]["accuracy"] == pytest.approx({"mean": 0.97, "low": low, "high": high})
    assert row["validation"]["accuracy"]["mean"] == pytest.approx(0.96)
    assert (row["steps_per_second"], row["peak_memory_mib"], row["parameters"]) == (210.4, 31.2, 301_000)
    assert (row["steps"], row["seconds"], row["flops_per_step"]) == (1000, 10, 1e9)
    assert (row["decides"], row["higher_is_better"], row["budget"]) == ("accuracy", True, "1,000 steps")
    assert row["commands"]["1"] == "regard train digits --model static-transformer --seed 1"
    assert row["data_sha256"] == made_up.SHA and row["signature"].startswith("task:digits|model:static-trans")
    assert not row["failed"] and not row["warnings"] and "settings_chosen" not in row


def test_intervals_of_results_json_stay_within_what_the_metric_can_be_as_in_the_table():
    """Of 97, 99 and 100 %: half of the t interval is 4.303 · 1.528 / √3 = 3.79 points, so it would end at 102.46 %."""
    shares = (0.97, 0.99, 1.0)
    runs = [outcome("encoder", seed, share) for seed, share in enumerate(shares)]
    runs = [
        dataclasses.replace(run, test={"accuracy": share, "loss": 3 * seed**2})
        for seed, (run, share) in enumerate(zip(runs, shares, strict=True))
    ]
    found = rows(comparison(runs, [Contestant("encoder")], costs={}))
    low, high = stats.t.interval(0.95, 2, loc=statistics.fmean(shares), scale=stats.sem(shares))
    assert high > 1
    (row,) = found
    assert row["test"]["accuracy"] == pytest.approx({"mean": statistics.fmean(shares), "low": low, "high": 1.0})
    assert row["unclipped"]["test"] == {"accuracy": pytest.approx({"low": low, "high": high})}
    assert row["test"]["loss"]["low"] < 0, "no range of it is known"
    (column,) = columns(found, ["test"])
    assert str(column.cells[0]) == f"98.7 ± {100 * (high - low) / 2:.1f} %†"
    (line,) = csv.DictReader(to_csv(found).splitlines())
    assert (float(line["test_accuracy_low"]), float(line["test_accuracy_high"])) == (pytest.approx(low), 1.0)


def test_a_word_error_rate_may_be_above_one():
    rates = (0.9, 1.1, 1.3)
    runs = [
        dataclasses.replace(
            outcome("recognizer", seed, 0.5),
            metric="wer",
            higher_is_better=False,
            validation={"wer": rate},
            test={"wer": rate, "accuracy": 0.5 + rate / 10},
        )
        for seed, rate in enumerate(rates)
    ]
    given = dataclasses.replace(comparison(runs, [Contestant("recognizer")], costs={}), task="speech")
    (row,) = rows(given)
    low, high = stats.t.interval(0.95, 2, loc=1.1, scale=stats.sem(rates))
    assert row["test"]["wer"] == pytest.approx({"mean": 1.1, "low": low, "high": high}) and not row["unclipped"]
    assert "†" not in str(columns([row], ["test"])[0].cells[0])


def test_everything_is_plain_json_whatever_went_wrong():
    given = changed(comparison(), 0, test={"accuracy": math.nan, "loss": math.inf})
    given = changed(given, 4, error="OutOfMemoryError: sorry", test={}, validation={})
    text = json.dumps([rows(given), pairs(given, ACCURACY)], allow_nan=False)
    assert json.loads(text)[0] == rows(given)


def test_a_non_finite_number_makes_no_mean_and_is_reported():
    row = rows(changed(comparison(), 0, test={"accuracy": math.nan, "loss": 0.2}))[0]
    assert row["test"]["accuracy"] == {"mean": None, "low": None, "high": None}
    assert row["test"]["loss"]["mean"] == pytest.approx(0.2)
    assert row["warnings"] == ["test accuracy is missing or not finite with seed 0, so it has no mean"]


def test_a_metric_that_one_seed_lacks_makes_no_mean():
    row = rows(changed(comparison(), 1, test={"loss": 0.2}))[0]
    assert row["test"]["accuracy"]["mean"] is None and "seed 1" in row["warnings"][0]


def test_the_deciding_metric_is_missed_where_no_seed_has_it():
    given = comparison()
    for place in range(3):
        given = changed(given, place, test={"loss": 0.2})
    assert rows(given)[0]["test"]["accuracy"]["mean"] is None


def test_a_seed_that_failed_is_left_out_and_named():
    row = rows(changed(comparison(), 4, error="ValueError: no", test={}, validation={}))[1]
    assert row["seeds"] == [0, 2] and row["failed"] == {"1": "ValueError: no"}
    assert row["test"]["accuracy"]["mean"] == pytest.approx(0.935)
    assert "seeds:0,2|" in row["signature"]


def test_a_contestant_that_failed_altogether_still_has_its_row():
    given = comparison(costs={})
    for place in range(3):
        given = changed(given, place, error="ValueError: no", test={}, validation={}, metric="")
    row = rows(given)[0]
    assert row["seeds"] == [] and row["test"] == {} and row["steps_per_second"] is None
    assert row["decides"] == "accuracy" and len(row["failed"]) == 3


def test_without_a_measurement_of_its_own_speed_comes_from_training_and_says_so():
    row = rows(comparison(costs={}))[0]
    assert row["steps_per_second"] == pytest.approx(100.0) and row["peak_memory_mib"] is None
    assert "may have run side by side" in row["warnings"][0]


def test_tuned_settings_are_in_the_row():
    chosen = {"static-transformer": {"optim.lr": 3e-4}}
    found = rows(comparison(trials=20, chosen=chosen))
    assert found[0]["settings_chosen"] == {"optim.lr": 3e-4} and found[1]["settings_chosen"] == {}
    assert "|trials:20|" in found[0]["signature"]


@pytest.mark.parametrize(
    ("asked", "task", "attention"),
    [
        (Contestant("decoder", "local(window=65)"), "language", "local(window=65)"),
        (Contestant("decoder(attention=linear, layers=2)"), "language", "linear"),
        (Contestant("decoder"), "language", "causal"),
        (Contestant("encoder(layers=3)"), "digits", "multihead"),
        (Contestant("static-transformer"), "digits", "static-memory"),
        (Contestant("dynamic-transformer"), "digits", "dynamic-memory(segment=4)"),
        (Contestant("lstm-attention"), "digits", "additive"),
        (Contestant("seq2seq"), "dates", "additive"),
        (Contestant("transformer"), "dates", "multihead"),
        (Contestant("gla"), "dates", "global-query(project=query-key)"),
        (Contestant("transformer(preset=vaswani)"), "dates", "multihead(bias=False)"),
        (Contestant("ntm"), "copy(max_length=5)", "ntm"),
        (Contestant("transformer-xl"), "language", "relative(positions=transformer-xl)"),
    ],
)
def test_the_attention_of_a_row_is_named_also_where_it_is_the_default(asked, task, attention):
    assert attention_of(asked, task) == attention


def test_every_model_names_its_attention():
    assert not [
        name for name, cls in zip(MODELS, map(MODELS.__getitem__, MODELS), strict=True) if not cls.attention_default
    ]


def test_the_named_attention_is_the_one_a_model_is_built_with():
    problem = tasks.build("digits").problems()[0]
    for name in ("lstm-attention", "encoder", "static-transformer", "dynamic-transformer"):
        usual = models.build(name, problem)
        asked = models.build(name, problem, attention=MODELS[name].attention_default)
        assert str(usual) == str(asked)


def test_a_model_of_the_user_that_says_nothing_has_its_own():
    @model("quiet-model", gives=("pooled",))
    class Quiet(Model):
        """Says nothing."""

    try:
        assert attention_of(Contestant("quiet-model"), "digits") == "its own"
    finally:
        del MODELS._things["quiet-model"]


def test_rows_with_the_same_model_are_told_apart_by_attention():
    both = [Contestant("encoder", "multihead"), Contestant("encoder", "linear")]
    runs = [outcome("encoder", 0, 0.9, "multihead"), outcome("encoder", 0, 0.8, "linear")]
    found = rows(comparison(runs, both, costs={"encoder · linear": cost(5.0)}))
    assert [row["test"]["accuracy"]["mean"] for row in found] == [0.9, 0.8]
    assert [row["steps_per_second"] for row in found] == [100.0, 5.0]


# Pairs.


def test_every_pair_is_compared_on_the_deciding_metric():
    found = pairs(comparison(), ACCURACY)
    assert [(pair["first"], pair["second"]) for pair in found] == [
        (NAMES[0], NAMES[1]),
        (NAMES[0], NAMES[2]),
        (NAMES[1], NAMES[2]),
    ]
    first = found[0]
    scipys = stats.ttest_rel(made_up.TEST[NAMES[0]], made_up.TEST[NAMES[1]])
    assert first["p"] == pytest.approx(scipys.pvalue) and first["metric"] == "accuracy"
    assert first["p_holm"] == pytest.approx(2 * scipys.pvalue)  # two t tests: the third has no spread
    assert found[2]["p"] is None and found[2]["p_holm"] is None
    assert first["difference"]["mean"] == pytest.approx(0.03)
    assert first["bootstrap"]["low"] < 0.03 < first["bootstrap"]["high"]
    assert first["bootstrap"]["blocks"] == 20 and first["bootstrap"]["resamples"] == 10_000
    assert first["better"] is None and first["claim"].startswith("No difference can be claimed")


def test_a_clear_difference_is_claimed():
    shares = {"encoder": (0.95, 0.96, 0.955), "static-transformer": (0.80, 0.815, 0.80)}
    runs = [outcome(name, seed, share) for name, three in shares.items() for seed, share in enumerate(three)]
    (pair,) = pairs(comparison(runs, [Contestant(name) for name in shares], costs={}), ACCURACY)
    assert pair["better"] == "encoder" and pair["p_holm"] < 0.01 and pair["bootstrap"]["p_holm"] < 0.01


def test_seeds_that_failed_on_one_side_are_left_out_of_a_pair_and_named():
    found = pairs(changed(comparison(), 4, error="no", test={}, blocks=[]), ACCURACY)
    assert found[0]["seeds"] == [0, 2] and found[0]["left_out"] == [1]
    assert found[1]["seeds"] == [0, 1, 2] and found[1]["left_out"] == []
    assert found[0]["bootstrap"]["p"] <= 1.0


def test_different_test_data_are_never_resampled_together():
    found = pairs(changed(comparison(), 0, data_sha256="f" * 64), ACCURACY)
    assert all(pair["bootstrap"] is None for pair in found)


def test_trials_without_a_test_make_no_pairs():
    given = comparison([outcome(name, 0, 0.9, test={}, blocks=[]) for name in NAMES])
    assert pairs(given, ACCURACY) == []


def test_many_pairs_of_a_metric_that_is_no_mean_take_seconds():
    """Twelve contestants, three seeds, 200 blocks: 66 pairs."""
    contestants = [Contestant("encoder", f"local(window={2 * n + 1})") for n in range(12)]
    blocks = [{"perplexity": [10.0 + place % 7, 20.0]} for place in range(200)]
    runs = [
        outcome(
            "encoder",
            seed,
            0.5,
            one.attention,
            metric="perplexity",
            higher_is_better=False,
            blocks=blocks,
            test={"perplexity": 3.0 + 0.01 * seed + 0.1 * place},
        )
        for place, one in enumerate(contestants)
        for seed in range(3)
    ]
    started = time.process_time()
    found = pairs(comparison(runs, contestants, costs={}), PERPLEXITY)
    assert len(found) == 66 and found[0]["bootstrap"]["resamples"] == 10_000
    assert time.process_time() - started < 10.0


# Fairness.


def test_a_fair_comparison_says_why():
    said = " ".join(fairness(comparison()))
    for words in (
        "same batches in the same order",
        "All 9 runs were tested on the same examples (sha256 1a2b3c4d5e6f)",
        "same budget: 1,000 steps.",
        "No contestant was tuned",
        "best on validation was tested, once",
        "one contestant at a time, on cpu with 2 threads. What else ran on the machine was not checked",
    ):
        assert words in said
    assert "WARNING" not in said and "NOTE" not in said


def test_different_test_data_are_reported_as_a_warning():
    said = fairness(changed(comparison(), 0, data_sha256="f" * 64))
    assert [line for line in said if line.startswith("WARNING: the runs were tested on 2 different sets")]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (comparison(trials=20), "the same effort: 20 trials"),
        (comparison(costs={}), "may have run side by side"),
        (comparison(settings={"budget": "90 seconds"}, budget="90 seconds"), "depends on the machine"),
        (comparison(left_out=[("ntm · dot", "ntm takes none.")]), "Left out: ntm · dot: ntm takes none."),
        (
            changed(comparison(), 3, error="no"),
            "NOTE: failed, and not part of any mean: dynamic-transformer with seed 0.",
        ),
        (changed(comparison(), 0, stopped_by="patience"), "1 of 9 stopped early"),
        (changed(comparison(), 0, parameters=5678), "from 1,234 to 5,678 parameters"),
        (changed(comparison(), 0, settings={"task": "digits", "batch_size": 64}), "NOTE: runs differ in batch_size"),
    ],
)
def test_unequal_conditions_are_reported(given, words):
    assert words in " ".join(fairness(given))


def test_a_comparison_in_which_nothing_finished_says_so():
    given = comparison([outcome(name, 0, 0.9, error="no") for name in NAMES])
    assert fairness(given) == ["No run finished: there is nothing to compare."]


def test_a_setting_changed_on_resume_is_reported_with_the_number_of_runs():
    given = changed(comparison(), 0, changes=["steps 9 (was 5) from step 5 on"])
    (note,) = [text for text in fairness(given) if "resume" in text]
    assert note.startswith("NOTE") and "steps 9 (was 5) from step 5 on" in note and "in 1 of" in note
    assert not any("resume" in text for text in fairness(comparison()))

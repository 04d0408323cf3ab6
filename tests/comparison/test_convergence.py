"""Steps and seconds until validation first reaches a target, from runs whose curves are written down here."""

import csv
import io
import json
import math

import pytest
from scipy import stats

from regard.errors import BadValue
from regard_workbench.comparison.columns import read_columns
from regard_workbench.comparison.convergence import common_target, first_reached, read_target
from regard_workbench.comparison.job import Contestant
from regard_workbench.comparison.results import rows
from regard_workbench.comparison.table import render, to_csv, to_latex
from regard_workbench.tasks.measures.metrics import ACCURACY, PERPLEXITY
from tests.comparison.made_up import comparison, cost, outcome
from tests.comparison.test_table import printed

# Validation accuracy at steps 10, 20, 30, 40, 50. A run dips (the second of "encoder") and improves again.
CURVES = {
    "encoder": ([0.3, 0.6, 0.8, 0.9, 0.91], [0.4, 0.81, 0.7, 0.85, 0.88], [0.2, 0.5, 0.79, 0.8, 0.93]),
    "lstm-attention": ([0.1, 0.2, 0.3, 0.7, 0.83], [0.1, 0.3, 0.6, 0.8, 0.82], [0.2, 0.3, 0.5, 0.8, 0.8]),
}
SPEEDS = {"encoder": 40.0, "lstm-attention": 12.5}


def write(folder, scores, metric="accuracy"):
    """The metrics file of a run that logs every fifth step and validates every tenth, at half a second a step."""
    folder.mkdir(parents=True)
    lines = []
    for step in range(5, 10 * len(scores) + 1, 5):
        line = {"step": step, "loss": 1.0, "seconds": step / 2}
        if step % 10 == 0:
            line["validation"] = {"loss": 1.0, metric: scores[step // 10 - 1]}
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def made(tmp_path, curves=CURVES, metric="accuracy", costs=True, failed=(), **changes):
    runs = []
    for model, seeds in curves.items():
        for seed, scores in enumerate(seeds):
            folder = tmp_path / f"{model}-{seed}"
            write(folder, scores, metric)
            best = {metric: max(scores)}
            more = {"error": "ValueError: no"} if (model, seed) in failed else {}
            runs.append(
                outcome(
                    model,
                    seed,
                    0.5,
                    folder=str(folder),
                    metric=metric,
                    validation=best,
                    test=best,
                    higher_is_better=metric == "accuracy",
                    **more,
                )
            )
    known = {model: cost(SPEEDS[model], parameters=1000) for model in curves} if costs else {}
    return comparison(runs, [Contestant(model) for model in curves], costs=known, out=tmp_path, **changes)


def t_interval(values):
    mean = sum(values) / len(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))
    return pytest.approx({"mean": mean, "low": low, "high": high})


def test_the_default_target_is_the_best_score_that_every_run_reaches(tmp_path):
    # The best scores are 0.91, 0.88, 0.93 and 0.83, 0.82, 0.80; the lowest of them is 0.8.
    found = rows(made(tmp_path))
    assert [row["target"] for row in found] == [0.8, 0.8] and not found[0]["target_given"]
    # First at least 0.8: step 30, 20 (the dip afterwards does not count), 40; and 50, 40, 40.
    assert found[0]["steps_to_target"] == t_interval([30, 20, 40])
    assert found[1]["steps_to_target"] == t_interval([50, 40, 40])
    assert not any(row["warnings"] for row in found)


def test_seconds_are_the_steps_at_the_speed_that_was_measured_alone(tmp_path):
    found = rows(made(tmp_path))
    assert found[0]["seconds_to_target"] == t_interval([30 / 40, 20 / 40, 40 / 40])
    assert found[1]["seconds_to_target"] == t_interval([50 / 12.5, 40 / 12.5, 40 / 12.5])


def test_without_a_measured_speed_seconds_are_those_of_training(tmp_path):
    found = rows(made(tmp_path, costs=False))
    assert found[0]["seconds_to_target"] == t_interval([15, 10, 20])


def test_a_target_that_a_seed_never_reaches_leaves_no_mean_and_is_reported(tmp_path):
    first, second = rows(made(tmp_path, target=0.82))
    assert first["target_given"] and first["steps_to_target"] == t_interval([40, 40, 50])
    assert second["steps_to_target"] == second["seconds_to_target"] == {"mean": None, "low": None, "high": None}
    assert second["warnings"] == [
        "validation never reached the target of 0.82 with seed 2, so steps and seconds to it have no mean"
    ]


def test_where_lower_is_better_the_target_is_the_highest_best_score(tmp_path):
    curves = {"encoder": ([9.0, 5.0, 4.0],), "lstm-attention": ([8.0, 4.5, 4.6],)}
    found = rows(made(tmp_path, curves, "perplexity", seeds=[0]))
    assert [row["target"] for row in found] == [4.5, 4.5]
    assert [row["steps_to_target"]["mean"] for row in found] == [30, 20]


def test_failed_runs_have_no_say(tmp_path):
    found = rows(made(tmp_path, failed=[("lstm-attention", 1), ("lstm-attention", 2)]))
    assert found[0]["target"] == 0.83
    assert found[1]["steps_to_target"] == {"mean": 50, "low": 50, "high": 50}


def test_runs_without_validation_have_no_target():
    row = rows(comparison())[0]  # whose folders do not exist
    assert row["target"] is None and row["steps_to_target"] is None and row["seconds_to_target"] is None


def test_a_score_that_is_not_finite_does_not_count(tmp_path):
    curves = {"encoder": ([math.nan, 0.6, 0.7],), "lstm-attention": ([0.5, math.inf, 0.65],)}
    found = rows(made(tmp_path, curves, seeds=[0]))
    assert found[0]["target"] == 0.65
    assert [row["steps_to_target"]["mean"] for row in found] == [30, 30]


def test_the_table_names_the_target_and_shows_intervals(tmp_path):
    names = read_columns("steps-to-target,seconds-to-target")
    lines = printed(render(rows(made(tmp_path)), names))
    # Half of the interval: 4.303 · 10 / √3 = 24.8 steps; 4.303 · 5.774 / √3 = 14.3 steps.
    assert [" ".join(line.split()) for line in (lines[0], lines[1], lines[3], lines[4])] == [
        "steps to seconds to",
        "model 80.0 % 80.0 %",
        "encoder 30 ± 25 0.75 ± 0.62",
        "lstm-attention 43 ± 14 3.47 ± 1.15",
    ]
    note = " ".join(" ".join(lines).split())
    assert "Target: validation accuracy 80.0 %, the best score that every run reaches; counted to the" in note


def test_the_files_hold_convergence(tmp_path):
    found = rows(made(tmp_path, target=0.8))
    first, second = csv.DictReader(io.StringIO(to_csv(found)))
    assert float(first["steps_to_target_mean"]) == 30 and float(second["seconds_to_target_mean"]) == pytest.approx(
        130 / 3 / 12.5
    )
    assert first["target"] == "0.8" and first["target_given"] == "True"
    text = to_latex(found, read_columns("test,steps-to-target"))
    assert r"& steps to 80.0 \% \\" in text and r"Target: validation accuracy 80.0 \%, as given" in text
    assert "Target" not in to_latex(found)


@pytest.mark.parametrize(
    ("scores", "higher", "target"),
    [([[1, 3, 2], [2, 2, 1]], True, 2), ([[1, 3, 2], [2, 5, 4]], False, 2), ([], True, None)],
)
def test_the_common_target_is_the_worst_of_the_best(scores, higher, target):
    assert common_target(scores, higher) == target


def test_a_target_is_reached_where_a_score_equals_it():
    assert first_reached([1, 2, 3], 2, higher_is_better=True) == 1
    assert first_reached([3, 2, 1], 2, higher_is_better=False) == 1
    assert first_reached([1, 2], 3, higher_is_better=True) is None


def test_a_target_is_a_number_or_for_shares_a_percentage():
    assert read_target("0.9", ACCURACY) == read_target("90 %", ACCURACY) == read_target(0.9, ACCURACY) == 0.9
    assert read_target("85", PERPLEXITY) == 85 and read_target(None, ACCURACY) is None
    for given, metric in (("90", ACCURACY), ("85%", PERPLEXITY), ("good", ACCURACY), ("inf", PERPLEXITY)):
        with pytest.raises(BadValue, match="target: the validation"):
            read_target(given, metric)

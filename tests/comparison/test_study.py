"""The study judges: its statistics against hand-worked numbers and simulation, its sentences against the numbers."""

import math

import numpy as np
import scipy.stats
import study
from studying.evidence import Margin, Yardstick, entries, read_comparison
from studying.text import check
from studying.verdict import judge, strikes, take

from tests.comparison.made_up_study import CLEAR, folder, question, told, verdict_of


def test_a_contestant_far_behind_is_struck_off_and_the_best_is_taken(tmp_path):
    found = verdict_of(tmp_path, CLEAR, {"dot": 10.0, "hard": 20.0})
    one, other = found.everyone
    assert (one.name, other.name) == ("dot", "hard")
    assert found.struck == {other.label: one.label}
    assert found.take is one


def test_means_far_apart_over_seeds_that_scatter_strike_nobody_off(tmp_path):
    reached = {"dot": (0.9, 0.5, 0.7), "hard": (0.5, 0.6, 0.4)}
    found = verdict_of(tmp_path, reached, {"dot": 10.0, "hard": 20.0})
    assert not found.struck
    assert [entry.name for entry in found.close] == ["dot"]  # in the race, but not within one point


def pair(first, second, mean, p, boot=0.0, seeds=(0, 1, 2)):
    return {
        "first": first,
        "second": second,
        "difference": {"mean": mean, "low": 0, "high": 0},
        "p": p,
        "seeds": seeds,
        "bootstrap": None if boot is None else {"p": boot},
    }


def test_a_strike_needs_both_tests_below_the_level_shared_among_all_rivals():
    several = {"count": 6, "higher_is_better": True}  # 0.05 / 5 = 0.01
    assert strikes([pair("a", "b", 0.1, 0.009)], **several) == {"b": "a"}
    assert strikes([pair("a", "b", -0.1, 0.009)], **several) == {"a": "b"}
    assert not strikes([pair("a", "b", 0.1, 0.011)], **several)
    assert not strikes([pair("a", "b", 0.1, 0.009, boot=0.011)], **several)
    assert not strikes([pair("a", "b", 0.1, 0.009, seeds=(0,))], **several)
    assert not strikes([pair("a", "b", 0.0, 1.0)], **several)
    assert strikes([pair("a", "b", 0.1, 0.009)], count=6, higher_is_better=False) == {"a": "b"}


def test_without_variance_over_seeds_the_bootstrap_alone_decides():
    assert strikes([pair("a", "b", 1.0, None, boot=0.0002)], 3, higher_is_better=True) == {"b": "a"}
    assert not strikes([pair("a", "b", 0.01, None, boot=0.3)], 3, higher_is_better=True)
    assert not strikes([pair("a", "b", 0.01, None, boot=None)], 3, higher_is_better=True)


def test_the_rival_furthest_ahead_is_named():
    found = [pair("a", "c", 0.1, 0.001), pair("b", "c", 0.3, 0.001), pair("a", "b", -0.2, 0.001)]
    assert strikes(found, 3, higher_is_better=True) == {"c": "b", "a": "b"}


def test_the_true_best_survives_the_race_as_often_as_promised():
    """Ten alike: whoever is called the best may be struck off in five of a hundred studies at most."""
    rivals, studies = 9, 400
    reached = np.random.default_rng(7).normal(size=(studies, rivals + 1, 3))
    differences = reached[:, :1] - reached[:, 1:]
    p = scipy.stats.ttest_1samp(differences, 0, axis=-1).pvalue
    lost = 0
    for trial in range(studies):
        found = [
            pair("best", f"n{place}", differences[trial, place].mean(), p[trial, place]) for place in range(rivals)
        ]
        lost += "best" in strikes(found, rivals + 1, higher_is_better=True)
    assert lost / studies <= 0.05


def test_of_those_that_are_close_the_fastest_is_taken_and_of_equal_speeds_the_best(tmp_path):
    reached = {
        "additive": (0.970, 0.980, 0.985),
        "dot": (0.975, 0.971, 0.980),
        "general": (0.969, 0.978, 0.976),
        "multihead": (0.97, 0.98, 0.982),
    }
    speeds = {"additive": 1.0, "dot": 9.5, "general": 10.0, "multihead": 8.0}
    found = verdict_of(tmp_path, reached, speeds)
    assert [entry.name for entry in found.close] == ["additive", "multihead", "dot", "general"]
    assert found.take.name == "dot"  # 5 % slower than general, and better; multihead is better still, but 20 % slower
    assert take(found.close[:1]).name == "additive"


def test_the_margin_decides_what_is_close():
    points, part = Margin(0.01, "1 point"), Margin(0.02, "2 %", relative=True)
    assert points.allows(0.97, 0.98, higher_is_better=True)
    assert not points.allows(0.969, 0.98, higher_is_better=True)
    assert part.allows(8.16, 8.0, higher_is_better=False)
    assert not part.allows(8.17, 8.0, higher_is_better=False)


def test_contestants_with_the_same_numbers_are_one_entry_with_the_models_own_name_first(tmp_path):
    alike = (8.1, 8.2, 8.3)
    reached = {"causal": alike, "global": alike, "linear": (8.1, 8.2, 8.4), "multihead": alike}
    speeds = {"causal": 30.0, "global": 32.0, "linear": 9.0, "multihead": 31.0}
    place = folder(tmp_path / "one", reached, speeds, model="decoder", task="language", metric="perplexity")
    one, other = entries(read_comparison(place, ""))
    assert one.names == ("causal", "global", "multihead")
    assert (one.speed, one.timed) == (31.0, (30.0, 31.0, 32.0))
    assert other.names == ("linear",)


def test_the_check_reports_whether_equal_computations_gave_equal_numbers(tmp_path):
    asked = question(same=("causal", "global"), why_same="of a reason")
    alike = {"causal": (8.1, 8.2, 8.3), "global": (8.1, 8.2, 8.3), "linear": (9.0, 9.1, 9.3)}
    how = {"model": "decoder", "task": "language", "metric": "perplexity"}
    speeds = dict.fromkeys(alike, 10.0)
    first = judge(asked, read_comparison(folder(tmp_path / "a", alike, speeds, **how), ""))
    assert "the same to the last digit" in told(first)
    alike["global"] = (8.1, 8.2, 8.3000001)
    second = judge(asked, read_comparison(folder(tmp_path / "b", alike, speeds, **how), ""))
    assert "**They did not come out alike**" in told(second)


def test_unexpected_equal_contestants_are_reported(tmp_path):
    found = verdict_of(tmp_path, {"dot": (0.9, 0.8, 0.7), "general": (0.9, 0.8, 0.7)}, {})
    assert check(found) == ["`dot` and `general` came out the same to the last digit: here they are one thing."]


def test_differences_of_rounding_do_not_count_and_are_reported(tmp_path):
    reached = {"dot": (0.9, 0.8, 0.7), "local": (0.9 - 1e-8, 0.8 - 1.1e-8, 0.7 - 1.2e-8), "general": (0.1, 0.2, 0.3)}
    found = verdict_of(tmp_path, reached, {})
    assert "local" not in [name.rpartition(" ")[2] for name in found.struck]
    (sentence,) = check(found)
    assert sentence.startswith("`dot` and `local` agree with every seed but for rounding: a window that reaches")


def test_a_hair_of_speed_does_not_put_the_worse_on_the_front(tmp_path):
    reached = {"dot": (0.9, 0.8, 0.7), "hard": (0.5, 0.4, 0.3), "general": (0.1, 0.2, 0.3)}
    found = verdict_of(tmp_path, reached, {"dot": 10.0, "hard": 10.9, "general": 20.0})
    assert [entry.name for entry in found.front] == ["dot", "general"]


def test_timings_of_one_computation_that_lie_far_apart_are_a_warning(tmp_path):
    alike = {"causal": (8.1, 8.2, 8.3), "global": (8.1, 8.2, 8.3), "linear": (9.0, 9.1, 9.3)}
    asked = question(same=("causal", "global"), why_same="of a reason")
    for name, pace, words in (("a", 11.0, "closer than 10 %"), ("b", 20.0, "below a factor of 2.0 say nothing")):
        speeds = {"causal": 10.0, "global": pace, "linear": 5.0}
        place = folder(tmp_path / name, alike, speeds, model="decoder", task="language", metric="perplexity")
        assert words in told(judge(asked, read_comparison(place, "")))


def test_runs_that_were_still_learning_are_reported(tmp_path):
    place = folder(tmp_path / "one", CLEAR, {})
    assert "In all 6 runs the last checkpoint was the best" in told(judge(question(), read_comparison(place, "")))
    place = folder(tmp_path / "two", CLEAR, {}, best_step=300)
    assert "checkpoint" not in told(judge(question(), read_comparison(place, "")))


def test_sentences_name_the_best_the_struck_off_and_the_recommendation(tmp_path):
    yards = [Yardstick("tossing a coin", 0.5, guess=True), Yardstick("the old way", 0.9)]
    text = told(verdict_of(tmp_path, CLEAR, {"dot": 10.0, "hard": 20.0}, yards))
    assert "`dot` reached the highest test accuracy: 96.0 % (95 % interval 93.5–98.5 %)." in text
    assert "The tests strike off the other, so with 95 % confidence it is the best of them." in text
    assert "**Take `dot`**: the best by every test (96.0 %), 40.0 points ahead of `hard`." in text
    assert "tossing a coin gives 50.0 %; the old way gives 90.0 %, which only `dot` beats." in text
    assert "**Learnt less than half of it**, on the way from guessing to the best: `hard` (56.0 %)." in text


def test_nothing_is_recommended_where_no_contestant_learnt(tmp_path):
    yards = [Yardstick("tossing a coin", 0.98, guess=True)]
    found = verdict_of(tmp_path, CLEAR, {}, yards)
    assert found.take is None
    assert "nothing to recommend" in told(found)
    assert "nothing yet" in study.answers([found])


def test_slower_contestants_that_are_no_better_are_reported_with_their_cost(tmp_path):
    reached = {"dot": (0.95, 0.96, 0.97), "additive": (0.94, 0.95, 0.955), "general": (0.93, 0.95, 0.94)}
    found = verdict_of(tmp_path, reached, {"dot": 12.0, "additive": 1.0, "general": 6.0})
    assert (
        "**Costs more and gives no more** than `dot`: `additive` takes 12 × as long for a step and ends 1.2 "
        "points behind; likewise `general` (2.0 ×, 2.0 points)."
    ) in told(found)


def test_an_outlier_among_the_seeds_is_reported(tmp_path):
    reached = {
        "dot": (0.95, 0.96, 0.955),
        "additive": (0.94, 0.95, 0.955),
        "general": (0.93, 0.95, 0.94),
        "hard": (0.9, 0.3, 0.92),
    }
    text = told(verdict_of(tmp_path, reached, dict.fromkeys(reached, 5.0)))
    assert "**Unsteady**, its seeds far apart where others agree: `hard` (30.0–92.0 %)." in text


def test_the_gap_that_would_have_shown_is_that_of_the_t_test(tmp_path):
    reached = {"dot": (0.95, 0.96, 0.99), "hard": (0.94, 0.96, 0.93), "general": (0.93, 0.91, 0.94)}
    found = verdict_of(tmp_path, reached, {})
    needed = []
    for other in ("hard", "general"):
        differences = [a - b for a, b in zip(reached["dot"], reached[other], strict=True)]
        error = scipy.stats.sem(differences)
        needed.append(scipy.stats.t.ppf(1 - 0.05 / 2 / 2, 2) * error)
    assert math.isclose(found.needed, sum(needed) / 2, rel_tol=1e-9)

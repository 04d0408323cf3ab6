"""What a report says in words: the finding, the title, signs of differences."""

import pytest

from regard_workbench.comparison.report import summary, tables


def row(label, mean, low, high, seeds=3, **more):
    over = {"accuracy": {"mean": mean, "low": low, "high": high}}
    return {
        "label": label,
        "model": label,
        "attention": "x",
        "decides": "accuracy",
        "higher_is_better": True,
        "unit": "share",
        "seeds": list(range(seeds)),
        "failed": {},
        "validation": over,
        "test": over,
        "parameters": 1000,
        "match": None,
        **more,
    }


def pair(first, second, better):
    return {"first": first, "second": second, "better": better}


THREE = [row("a", 0.90, 0.89, 0.91), row("b", 0.981, 0.97, 0.992), row("c", 0.97, 0.96, 0.98)]


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ((None, None, None), "The difference to c and a is not distinguishable with 3 seeds."),
        (("b", None, None), "The difference to a is distinguishable with 3 seeds, the difference to c is not."),
        (("b", None, "b"), "The difference to each other is distinguishable with 3 seeds."),
        ((None, "c", None), "The difference to c and a is not distinguishable with 3 seeds."),
    ],
)
def test_the_finding_names_the_best_and_from_which_others_it_is_distinguishable(verdicts, said):
    couples = [pair(*names, better) for names, better in zip(("ab", "ac", "bc"), verdicts, strict=True)]
    best = "b is best on the test split: 98.10 % accuracy (95 % interval over 3 seeds: 97.00–99.20 %). "
    assert summary.finding(THREE, couples, "test") == best + said


def test_the_finding_begins_with_unequal_sizes_and_says_that_two_seeds_are_few():
    two = [row("a", 0.90, 0.89, 0.91, 2, parameters=168_000), row("b", 0.98, 0.97, 0.99, 2, parameters=738_000)]
    said = summary.finding(two, [pair("a", "b", "b")], "test")
    assert said.startswith("The sizes differ, 168k to 738k parameters. b is best on the test split")
    assert said.endswith("with 2 seeds. Two seeds are very few: how far seeds differ rests on one difference.")
    unclear = summary.finding(two, [pair("a", "b", None)], "test")
    assert unclear.endswith("The difference to a is not distinguishable with 2 seeds.")
    matched = [{**one, "match": "parameters"} for one in two]
    assert summary.finding(matched, [], "test").startswith("b is best")


def test_the_finding_where_less_is_better_and_all_have_one_model():
    over = [{"perplexity": {"mean": mean, "low": mean, "high": mean}} for mean in (20.5, 18.25)]
    found = [
        {
            **row(f"m · {name}", 0, 0, 0, 1),
            "model": "m",
            "attention": name,
            "test": one,
            "decides": "perplexity",
            "higher_is_better": False,
            "unit": "",
        }
        for name, one in zip(("dot", "local"), over, strict=True)
    ]
    assert summary.finding(found, [], "test").startswith(
        "local is best on the test split: 18.25 perplexity (one seed, so no interval). With one seed"
    )
    assert summary.title(found, "dates") == "2 attentions in m on dates"


def test_the_finding_of_a_single_contestant_has_no_comparison():
    assert summary.finding(THREE[:1], [], "test") == (
        "a reaches 90.00 % accuracy (95 % interval over 3 seeds: 89.00–91.00 %) on the test split."
    )
    assert summary.title(THREE[:1], "digits") == "a on digits"
    assert summary.title(THREE, "digits") == "a, b and c on digits"


def test_without_a_tested_run_validation_is_shown():
    assert summary.shown_split([{**one, "test": {}} for one in THREE]) == "validation"
    assert summary.shown_split(THREE) == "test"


@pytest.mark.parametrize(
    ("value", "decimals", "text"), [(1.234, 2, "+1.23"), (-1.234, 1, "−1.2"), (-0.001, 2, "0.00"), (0.0, 0, "0")]
)
def test_differences_have_a_sign_unless_they_are_nothing(value, decimals, text):
    assert tables.signed(value, decimals) == text

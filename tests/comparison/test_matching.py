"""`--match`: widths at which contestants have the same size, and that table, files and report say so."""

import dataclasses
import itertools
import json

import pytest
from torch import nn

from regard.errors import BadValue
from regard.registry import parse
from regard_workbench import models, tasks
from regard_workbench.comparison import flops, report, sweep
from regard_workbench.comparison.fairness import fairness, size_note
from regard_workbench.comparison.grid import RunGrid, compose, jobs
from regard_workbench.comparison.job import Contestant
from regard_workbench.comparison.matching import WITHIN, Match, Sized, choose, match, spread
from regard_workbench.comparison.plan import make_plan
from regard_workbench.comparison.results import rows
from regard_workbench.comparison.table import render, to_csv, to_latex
from regard_workbench.figures import svg
from regard_workbench.models.parts.model import MODELS, Model, model, options_of
from regard_workbench.tasks import TASKS
from regard_workbench.training.build import build_model, build_task
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.data import TrainingData
from tests.comparison import made_up_runs
from tests.comparison.made_up import NAMES, comparison, cost
from tests.comparison.test_sweep import Computer
from tests.comparison.test_table import printed
from tests.registries import unchanged_registries

THREE = [Contestant(name) for name in NAMES]


def weights(text, problem):
    """The number of weights of a model, counted on the model itself."""
    return sum(parameter.numel() for parameter in models.build(text, problem).parameters())


def test_the_three_models_of_the_users_table_are_equal_in_parameters():
    found = match({"task": "digits"}, THREE, "parameters")
    problem = tasks.build("digits").problems()[0]
    counted = {label: weights(text, problem) for label, text in found.models.items()}
    assert counted == found.sizes
    assert max(counted.values()) <= 1.05 * min(counted.values())
    assert found.models["static-transformer"] == "static-transformer(dim=128)"  # the first one sets the size
    assert parse(found.models["dynamic-transformer"])[1]["layers"] == 2  # the recipe's depth stays
    for label, text in found.models.items():
        assert parse(text)[1]["dim"] == found.widths[label]
    assert found.spread == pytest.approx(max(counted.values()) / min(counted.values()) - 1)


def test_the_same_question_has_the_same_widths():
    asked = ({"task": "digits", "seed": 3}, THREE[::2], "parameters")
    assert match(*asked) == match(*asked)


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("copy", ["ntm", "lstm-attention", "decoder"]),
        ("dates", ["seq2seq", "transformer(layers=1)", "gla(layers=1)"]),
        ("classify", ["lstm-attention(dim=192)", "static-transformer(num_heads=2)", "encoder(num_heads=2, layers=3)"]),
    ],
)
def test_models_of_every_kind_can_be_matched(task, names):
    found = match({"task": task}, [Contestant(name) for name in names], "parameters")
    assert spread(found.sizes) <= WITHIN
    problems = build_task(complete({"task": task})).problems()
    for label, text in found.models.items():
        assert weights(text, models.problem_for(parse(text)[0], problems)) == found.sizes[label]


def test_flops_of_a_step_are_matched_on_the_batches_of_a_run():
    settings = {"task": "digits", "seed": 1, "batch_size": 8}
    names = ["encoder(dim=16, num_heads=2)", "lstm-attention"]
    found = match(settings, [Contestant(name) for name in names], "flops")
    for label, text in found.models.items():
        config = complete({**settings, "model": text})
        task = build_task(config)
        built = build_model(config, task)
        assert flops.of_step(built, TrainingData(task, built, config).batch(0)) == found.sizes[label]
    assert found.widths[names[0]] == 16 and spread(found.sizes) <= WITHIN


def test_a_width_that_the_user_wrote_is_kept_and_sets_the_size():
    found = match({"task": "digits"}, [Contestant("lstm-attention"), Contestant("encoder(dim=36)")], "parameters")
    assert found.widths["encoder(dim=36)"] == 36
    problem = tasks.build("digits").problems()[0]
    assert weights("encoder(dim=36)", problem) / found.sizes["lstm-attention"] == pytest.approx(1, abs=0.05)


def test_two_written_widths_that_differ_in_size_are_refused_with_their_sizes():
    two = [Contestant("encoder(dim=32)"), Contestant("encoder(dim=64)")]
    with pytest.raises(BadValue, match="no widths bring all contestants within 5 % in parameters") as raised:
        match({"task": "digits"}, two, "parameters")
    problem = tasks.build("digits").problems()[0]
    assert f"encoder(dim=64): {weights('encoder(dim=64)', problem):,} with width 64" in str(raised.value)


def test_attentions_of_one_model_are_matched():
    two = [Contestant("encoder(num_heads=2)", "multihead"), Contestant("encoder(num_heads=2)", "static-memory")]
    found = match({"task": "digits"}, two, "parameters")
    problem = tasks.build("digits").problems()[0]
    for one in two:
        built = models.build(found.models[one.label], problem, attention=one.attention)
        assert sum(parameter.numel() for parameter in built.parameters()) == found.sizes[one.label]
    assert spread(found.sizes) <= WITHIN


def test_the_reference_takes_another_width_where_none_of_the_others_fits_its_own():
    with unchanged_registries():

        @model("coarse", gives=("pooled",))
        class Coarse(Model):
            """Its sizes are far apart: 160², 192², 224² …"""

            def __init__(self, problem, *, dim=160):
                super().__init__(problem)
                if dim % 32:
                    raise BadValue(f"dim: expected a multiple of 32, got {dim}.")
                self.table = nn.Parameter(nn.Linear(dim, dim).weight)

        @model("fine", gives=("pooled",))
        class Fine(Model):
            """Has any even width; 176², its own, lies between two of the others."""

            def __init__(self, problem, *, dim=176):
                super().__init__(problem)
                self.table = nn.Parameter(nn.Linear(dim, dim).weight)

        free = match({"task": "digits"}, [Contestant("fine"), Contestant("coarse")], "parameters")
        assert free.widths == {"fine": 192, "coarse": 192}
        with pytest.raises(BadValue, match="no widths bring all contestants within 5 %"):
            match({"task": "digits"}, [Contestant("fine(dim=176)"), Contestant("coarse")], "parameters")


def test_a_model_without_a_width_is_refused_by_name():
    with unchanged_registries():

        @model("no-width", gives=("pooled",))
        class NoWidth(Model):
            """Has nothing to vary."""

            def __init__(self, problem, *, layers=1):
                super().__init__(problem)

        message = "match: no-width has no width to vary: it has no option `dim`. Leave it out, use --match none"
        with pytest.raises(BadValue, match=message):
            match({"task": "digits"}, [Contestant("encoder"), Contestant("no-width")], "parameters")


def test_a_model_that_cannot_become_small_enough_is_refused():
    with unchanged_registries():

        @model("heavy", gives=("pooled",))
        class Heavy(Model):
            """A large table, whatever its width."""

            def __init__(self, problem, *, dim=8):
                super().__init__(problem)
                self.table = nn.Parameter(nn.Linear(1000, 1000).weight)
                self.map = nn.Linear(dim, dim)

        with pytest.raises(BadValue, match="heavy: 1,000,006 with width 2"):
            match({"task": "digits"}, [Contestant("encoder(dim=16)"), Contestant("heavy")], "parameters")


def test_a_width_at_which_a_model_of_the_user_fails_is_passed_over():
    with unchanged_registries():

        @model("brittle", gives=("pooled",))
        class Brittle(Model):
            """Built from torch alone, which asserts that three heads divide the width."""

            def __init__(self, problem, *, dim=12):
                super().__init__(problem)
                self.attention = nn.MultiheadAttention(dim, 3)

        found = match({"task": "digits"}, [Contestant("encoder"), Contestant("brittle")], "parameters")
        width = found.widths["brittle"]
        assert width % 3 == 0 and found.sizes["brittle"] == 4 * width**2 + 4 * width  # three projections and one
        assert spread(found.sizes) <= WITHIN


def test_every_model_has_a_width():
    without = [name for name in MODELS if MODELS[name].width_option not in options_of(MODELS[name])]
    assert without == ["linear-forecaster"]  # a yardstick, whose size follows from the task


# The choice.


def best_by_hand(near, goal):
    """Every combination within 5 %: the most round widths, then the smallest distance to the goal."""
    fits = [
        picked
        for picked in itertools.product(*near)
        if max(one.size for one in picked) <= 1.05 * min(one.size for one in picked)
    ]
    halvings = {1: 0, 2: 1, 4: 2, 8: 3}

    def rank(picked):
        distance = max(max(one.size / goal, goal / one.size) for one in picked)
        return (-sum(halvings[one.roundness] for one in picked), round(distance, 9))

    return min(map(rank, fits)) if fits else None


@pytest.mark.parametrize("shift", [0, 3, 11, 17, 29])
def test_the_choice_is_the_best_of_all_combinations(shift):
    near = {
        "a": [Sized(64, 1000.0)],
        "b": [Sized(width, 11.0 * width + shift) for width in range(87, 96)],
        "c": [Sized(width, 7.3 * width + shift) for width in range(131, 144, 2)],
    }
    chosen = choose(near, 1000.0)
    assert max(one.size for one in chosen.values()) <= 1.05 * min(one.size for one in chosen.values())
    halvings = {1: 0, 2: 1, 4: 2, 8: 3}
    assert sum(halvings[one.roundness] for one in chosen.values()) == -best_by_hand(near.values(), 1000.0)[0]


def test_multiples_of_eight_are_preferred_where_they_fit():
    near = {"a": [Sized(100, 1000.0)], "b": [Sized(118, 1001.0), Sized(120, 1040.0), Sized(128, 1090.0)]}
    assert choose(near, 1000.0)["b"] == Sized(120, 1040.0)


def test_there_is_no_choice_where_sizes_are_too_far_apart():
    assert choose({"a": [Sized(8, 100.0)], "b": [Sized(8, 106.0)]}, 100.0) is None
    assert choose({"a": [Sized(8, 100.0)], "b": []}, 100.0) is None


# What comes of it: jobs, rows, table, files, report.

MATCHED = Match(
    "parameters",
    {
        NAMES[0]: "static-transformer(dim=128)",
        NAMES[1]: "dynamic-transformer(layers=2, dim=108)",
        NAMES[2]: "lstm-attention(dim=232)",
    },
    dict(zip(NAMES, (128, 108, 232), strict=True)),
    dict(zip(NAMES, (535_946.0, 523_918.0, 544_978.0), strict=True)),
)
COSTS = {name: cost(100.0, parameters=int(size)) for name, size in MATCHED.sizes.items()}


def test_runs_train_with_the_chosen_widths_under_their_own_names(tmp_path):
    grid = RunGrid({"task": "digits"}, THREE, MATCHED.models)
    found = jobs(grid, [0], tmp_path)
    assert [job.settings["model"] for job in found] == list(MATCHED.models.values())
    assert [job.contestant for job in found] == THREE
    assert found[2].folder.endswith("lstm-attention-seed-0")


def test_tuning_keeps_the_chosen_widths(tmp_path):
    engine = Computer()
    (_, chosen) = sweep.tune_all(
        THREE[1:],
        {"task": "digits", "steps": 100},
        3,
        "model.dropout=0.1..0.3",
        engine,
        tmp_path / "sweep",
        1,
        lambda event: None,
        models=MATCHED.models,
    )
    assert {parse(job.settings["model"])[1]["dim"] for job in engine.jobs} == {108, 232}
    assert not chosen or parse(chosen["model"])[1]["dim"] == 232


def test_a_row_says_how_it_was_built():
    found = rows(comparison(match=MATCHED, costs=COSTS))
    assert [row["width"] for row in found] == [128, 108, 232] and found[0]["match"] == "parameters"
    assert found[2]["model"] == "lstm-attention" and found[2]["trained_as"] == "lstm-attention(dim=232)"
    assert "|model:lstm-attention(dim=232)|" in found[2]["signature"]
    assert "|match:parameters|" in found[2]["signature"]
    plain = rows(comparison())[2]
    assert plain["match"] is None and plain["width"] is None and plain["trained_as"] == "lstm-attention"
    assert json.loads(json.dumps(found)) == found


def test_table_latex_and_fairness_say_that_sizes_are_equal():
    given = comparison(match=MATCHED, costs=COSTS)
    # 544,978 / 523,918 = 1.0402
    said = (
        "Equal size (--match parameters): 523,918 to 544,978 parameters, 4.0 % apart. Widths: static-transformer 128, "
        "dynamic-transformer 108, lstm-attention 232."
    )
    assert said in printed(render(given.rows), 200)
    assert said in fairness(given) and "Sizes differ" not in " ".join(fairness(given))
    assert r"Equal size (-{}-match parameters): 523,918 to 544,978 parameters, 4.0 \% apart." in to_latex(given.rows)
    assert ",parameters,128,static-transformer(dim=128)," in to_csv(given.rows)


def test_sizes_that_came_out_unequal_are_reported():
    costs = {**COSTS, NAMES[0]: cost(100.0, parameters=600_000)}
    note = size_note(rows(comparison(match=MATCHED, costs=costs)))
    assert note.startswith("NOTE: Equal size (--match parameters): 523,918 to 600,000 parameters, 14.5 % apart.")
    flops_matched = dataclasses.replace(MATCHED, by="flops")
    assert "1,000,000,000 to 1,000,000,000 FLOPs per step, 0.0 % apart" in size_note(
        rows(comparison(match=flops_matched, costs=COSTS))
    )
    assert "no run finished" in size_note(rows(comparison([], THREE, match=MATCHED, costs={})))


def test_the_report_says_so_and_shows_convergence(tmp_path, monkeypatch):
    monkeypatch.setattr(svg, "publish", lambda drawing, folder, keys=None: "<svg></svg>")
    made = dataclasses.replace(made_up_runs.made(tmp_path), match=MATCHED)
    made = dataclasses.replace(
        made,
        costs={
            label: dataclasses.replace(known, parameters=int(MATCHED.sizes[label]))
            for label, known in made.costs.items()
        },
    )
    report.write(made, made.rows, made.report)
    text = " ".join(made.report.read_text().split())
    for words in (
        "equal parameters",
        "4.0 % apart",
        "steps to 87.7 %",
        "seconds to 87.7 %",
        "average convergence speed",
        "Target: validation accuracy 87.7 %",
        "lstm-attention(dim=232)",
    ):
        assert words in text


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in tasks.names() if len(TASKS[name].recipe.compared) > 1])
def test_the_models_that_a_recipe_compares_can_be_brought_to_equal_size(name):
    plan = make_plan({"task": name})
    assert plan.match == "parameters" and list(plan.models) == list(TASKS[name].recipe.compared)
    grid = compose(plan.settings, plan.models)
    assert grid.left_out == []
    assert match({**grid.settings, "seed": 0}, grid.contestants, plan.match).spread <= 0.05

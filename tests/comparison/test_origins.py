"""Contestants that differ in the weights they begin with: from scratch, and from the weights of another run."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from regard.errors import BadValue
from regard_workbench.comparison import compare as module
from regard_workbench.comparison import report
from regard_workbench.comparison.compare import compare
from regard_workbench.comparison.grid import compose, jobs, slug
from regard_workbench.comparison.job import SCRATCH, Contestant, Job, Outcome
from regard_workbench.comparison.plan import make_plan
from regard_workbench.comparison.results import rows
from regard_workbench.comparison.shareable import plain_without_folders
from regard_workbench.comparison.table import render, render_pairs, to_csv, to_latex
from regard_workbench.comparison.worker import failed
from regard_workbench.training import train
from tests.comparison.made_up import comparison, outcome
from tests.comparison.test_compare import Here
from tests.comparison.test_table import printed

SMALL = "encoder(dim=8, layers=1, num_heads=2)"
OTHER = "lstm-attention(dim=8)"
DIGITS = {"task": "digits", "batch_size": 3, "eval_limit": 5, "device": "cpu"}
T_TWO_SEEDS = 12.7062  # Student's t of one degree of freedom at 97.5 %


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("origin") / "pre"
    train({**DIGITS, "model": SMALL, "steps": 2, "seed": 5, "out": str(folder)}, quiet=True)
    return folder


def test_several_origins_as_text_and_as_a_list_are_one_plan_and_leave_the_shared_settings():
    text = make_plan({"task": "digits", "init_from": "scratch, runs/a"}, models=SMALL)
    assert text == make_plan({"task": "digits", "init_from": ["scratch", "runs/a"]}, models=SMALL)
    assert text.origins == [SCRATCH, "runs/a"] and "init_from" not in text.settings
    assert text.out != make_plan({"task": "digits", "init_from": "scratch,runs/b"}, models=SMALL).out


def test_a_single_origin_stays_a_setting_of_all(tmp_path):
    assert make_plan({"init_from": "runs/a"}).settings["init_from"] == "runs/a"
    assert make_plan({"init_from": ["runs/a"]}).settings["init_from"] == "runs/a"
    assert "init_from" not in make_plan({"init_from": SCRATCH}).settings
    comma = tmp_path / "one,two"
    comma.mkdir()
    plan = make_plan({"init_from": str(comma)})
    assert plan.settings["init_from"] == str(comma) and plan.origins == []


@pytest.mark.parametrize("given", ["runs/a,runs/a", ["scratch", ""]])
def test_an_origin_that_comes_twice_or_is_empty_is_refused(given):
    with pytest.raises(BadValue, match="init_from: expected different runs or scratch"):
        make_plan({"init_from": given})


def test_the_grid_puts_each_origin_into_each_model(pretrained):
    grid = compose({"task": "digits"}, [SMALL, OTHER], [], [SCRATCH, str(pretrained)])
    origins = ("scratch", pretrained)
    assert [one.label for one in grid.contestants] == [
        f"{model} · from {origin}" for model in (SMALL, OTHER) for origin in origins
    ]
    made = jobs(grid, [0], pretrained.parent)
    assert [job.settings.get("init_from") for job in made] == [None, str(pretrained)] * 2
    assert len({job.folder for job in made}) == 4
    assert slug(Contestant("encoder", None, "a/b")) != slug(Contestant("encoder", None, "a-b"))


def test_an_origin_that_is_no_run_is_a_wrong_call_and_nothing_is_left_out_for_it():
    with pytest.raises(BadValue, match="init_from: there is no run in nowhere"):
        compose({"task": "digits"}, [SMALL], [], [SCRATCH, "nowhere"])


def test_a_job_and_a_failed_run_keep_their_origin():
    job = Job(Contestant(SMALL, None, "runs/a"), 3, {"task": "digits"}, "folder")
    assert Job.from_json(job.to_json()) == job
    assert failed(job, "why").contestant == job.contestant


@pytest.fixture(scope="module")
def compared(pretrained, tmp_path_factory):
    """A comparison without training steps: what is measured are the weights that each contestant begins with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LocalEngine", Here)
        patch.setattr(module, "costs_of", lambda *_: {})
        patch.setattr(report, "write", lambda *_: None)
        settings = {**DIGITS, "steps": 0, "init_from": f"scratch,{pretrained}"}
        yield compare(make_plan(settings, models=SMALL, seeds=[0, 3], out=tmp_path_factory.mktemp("out")))


@pytest.mark.slow
def test_a_contestant_begins_with_the_weights_of_its_origin(compared, pretrained):
    (best,) = sorted((pretrained / "checkpoints").glob("*/model.safetensors"))[-1:]
    theirs = load_file(best)
    for run in compared.outcomes:
        own = load_file(Path(run.folder) / "checkpoints" / run.checkpoint / "model.safetensors")
        equal = all(own[name].equal(theirs[name]) for name in theirs)
        assert equal == (run.init_from != SCRATCH), run.folder


@pytest.mark.slow
def test_the_paired_difference_of_origins_is_written_with_its_interval(compared):
    (pair,) = json.loads((compared.out / "differences.json").read_bytes())
    assert pair == plain_without_folders(compared.pairs[0]) and pair["second"].endswith("· from pre")
    scores = {(run.init_from, run.seed): run.test["accuracy"] for run in compared.outcomes}
    origins = list(dict.fromkeys(run.init_from for run in compared.outcomes))
    one, other = (scores[origins[0], seed] - scores[origins[1], seed] for seed in (0, 3))
    half = T_TWO_SEEDS * abs(one - other) / 2
    assert pair["difference"]["mean"] == pytest.approx((one + other) / 2)
    assert pair["difference"]["high"] == pytest.approx((one + other) / 2 + half, rel=1e-4)
    assert pair["difference"]["low"] == pytest.approx((one + other) / 2 - half, rel=1e-4)
    assert pair["first"].endswith("from scratch") and pair["seeds"] == [0, 3]
    row = json.loads((compared.out / "results.json").read_bytes())[1]
    assert row["init_from"] == Path(origins[1]).name == "pre" and "init_from:pre" in row["signature"]
    assert Outcome.load(compared.outcomes[1].folder).contestant == compared.outcomes[1].contestant


def made_up(models):
    """Two origins of each model, with known scores."""
    who = [Contestant(model, None, origin) for model in models for origin in (SCRATCH, "runs/pre")]
    runs = [
        outcome(one.model, seed, 0.5 + 0.1 * number + 0.01 * seed, init_from=one.init_from)
        for number, one in enumerate(who)
        for seed in range(3)
    ]
    return comparison(runs, who, costs={})


def test_tables_name_what_a_contestant_begins_with():
    lines = printed(render(rows(made_up(["matcher", "matcher(exchange=true)"]))), 100)
    assert lines[1].startswith("model · begins with")
    assert [line.split("  ")[0] for line in lines[3:7]] == [
        f"{model} · {origin}" for model in ("matcher", "matcher(exchange=true)") for origin in ("scratch", "runs/pre")
    ]
    found = rows(made_up(["matcher"]))
    lines = printed(render(found), 100)
    assert lines[1].startswith("matcher that begins with") and lines[4].startswith("runs/pre")
    assert "model & begins with & " in to_latex(found)
    assert to_csv(found).splitlines()[2].startswith("matcher · from runs/pre,matcher,")
    assert "matcher · from scratch − matcher · from runs/pre" in " ".join(
        " ".join(printed(render_pairs(made_up(["matcher"]).pairs), 160)).split()
    )

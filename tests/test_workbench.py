"""`regard.train`, `evaluate`, `compare` and `view` run what the commands of the same names run, with typed results."""

import json

import pytest
import torch

import regard
from regard_workbench.cli.main import main

SMALL = {"model": "seq2seq(dim=8)", "steps": 3, "batch_size": 5, "eval_limit": 7, "log_every": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("workbench") / "run"
    return regard.train("dates", out=out, quiet=True, seed=11, optim={"lr": 3e-3}, **SMALL)


def losses(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines)]


def test_train_gives_the_run_that_the_command_gives(result, tmp_path, capsys):
    words = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    out = tmp_path / "run"
    assert main(["train", "dates", "--out", str(out), "--seed", "11", "--optim.lr", "3e-3", *words]) == 0
    capsys.readouterr()
    assert result.steps == 3
    assert losses(result.folder) == losses(out)


@pytest.mark.slow
def test_a_finished_run_goes_on_with_more_steps(result, tmp_path):
    again = regard.train("dates", out=tmp_path / "run", quiet=True, seed=11, **SMALL)
    more = regard.train(resume=again.folder, steps=4, quiet=True)
    assert (more.folder, more.steps) == (again.folder, 4)


def test_evaluate_gives_the_numbers_of_the_command(result, capsys):
    found = regard.evaluate(result, limit=7, device="cpu")
    assert main(["evaluate", str(result.folder), "--limit", "7", "--device", "cpu", "--json"]) == 0
    told = {row["metric"]: row["value"] for row in json.loads(capsys.readouterr().out)["metrics"]}
    assert {row.metric: row.value for row in found.metrics} == told
    assert found["exact_match"] == told["exact_match"]


def test_compare_makes_the_plan_of_the_command(monkeypatch, tmp_path):
    plans = []

    class Stop(Exception):
        pass

    def compare(plan, *_):
        plans.append(plan)
        raise Stop

    monkeypatch.setattr("regard_workbench.comparison.compare.compare", compare)
    out = tmp_path / "comparison"
    with pytest.raises(Stop):
        regard.compare(
            "dates", models=["seq2seq", "gla"], seeds=[3, 5], steps=7, out=out, optim={"lr": 2e-3}, quiet=True
        )
    with pytest.raises(Stop):
        main(
            [
                "compare",
                "dates",
                "--models",
                "seq2seq,gla",
                "--seeds",
                "3,5",
                "--steps",
                "7",
                "--out",
                str(out),
                "--optim.lr",
                "0.002",
            ]
        )
    ours, theirs = plans
    for name in ("models", "attentions", "seeds", "out", "trials", "engine", "workers", "beam", "heartbeat"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert {name: str(value) for name, value in ours.settings.items()} == {
        name: str(value) for name, value in theirs.settings.items() if value is not None
    }
    assert "models=['seq2seq', 'gla']" in ours.command


def test_view_shows_a_run_in_a_notebook_and_as_a_file(result, tmp_path):
    page = regard.view(result, text="3rd of May, 1979", device="cpu")
    assert page.sites and str(len(page.sites)) in str(page)
    assert page._repr_html_().startswith("<iframe")
    assert page.export(tmp_path / "page.html").stat().st_size > 10_000
    bundle = page._repr_mimebundle_()
    assert "widget" in str(bundle) or "text/html" in bundle


def test_view_shows_what_was_observed():
    torch.manual_seed(2)
    layer = regard.nn.build("causal", dim=6, num_heads=2)
    with regard.observe(layer) as seen:
        layer(torch.randn(1, 3, 6))
    page = regard.view(seen, tokens=["a", "b", "c"])
    assert page.page_model.variants[0].seen is seen
    with pytest.raises(regard.RegardError, match="already observed"):
        regard.view(seen, text="a b c")


@pytest.mark.slow
def test_mistakes_name_the_argument(result):
    with pytest.raises(regard.RegardError, match=r"run: expected text or a path or what .* returned, got 3"):
        regard.evaluate(3)
    with pytest.raises(regard.RegardError, match="tokens:"):
        regard.view(result, tokens=["a"])
    with pytest.raises(regard.RegardError, match="batch_sizes"):
        regard.train("dates", batch_sizes=3)


def test_results_have_rich_displays(result):
    assert "exact_match" in result._repr_html_() and str(result.steps) in result._repr_html_()
    assert "exact_match" in regard.evaluate(result, limit=7, device="cpu")._repr_html_()
    x = torch.randn(1, 2, 5, 3)
    shown = regard.explain(x, x, x, mask=regard.masks.window(1, 0))._repr_html_()
    assert "<table" in shown and "tiled" in shown and "not taken" in shown


def test_a_figure_shows_itself_in_a_notebook():
    layer = regard.nn.build("global", dim=6, num_heads=2)
    with regard.observe(layer) as seen:
        layer(torch.randn(1, 3, 6))
    assert seen.plot()._repr_png_().startswith(b"\x89PNG")

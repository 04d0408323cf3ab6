"""Forecasting and recommending from the command line: train, evaluate, predict, view, show."""

import csv
import io
import json

import numpy as np
import pytest
import torch

from regard_workbench.cli.main import main
from regard_workbench.figures import attention
from regard_workbench.inspection.inspection import inspect_run
from regard_workbench.training import load_run, train
from regard_workbench.verbs import evaluate
from tests.cli.trained import answered, called

pytestmark = pytest.mark.slow  # they share two trained runs
CONTEXT, HORIZON = 48, 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of a few steps, and the files they were trained on."""
    home = tmp_path_factory.mktemp("fields")
    hours = np.datetime64("2020-01-01T00:00:00") + np.arange(400) * np.timedelta64(1, "h")
    waves = np.stack([50 + 9 * np.sin(np.arange(400) / period) for period in (3.7, 11.0)], 1)
    rows = [f"{hour},{a:.4f},{b:.4f}" for hour, (a, b) in zip(hours, waves, strict=True)]
    (home / "waves.csv").write_text("date,load,heat\n" + "\n".join(rows))
    (home / "new.csv").write_text("date,load,heat\n" + "\n".join(rows[100:200]))
    lines = [f"u{user} {1 + (user + 3 * step) % 23}" for user in range(31) for step in range(3 + user % 9)]
    (home / "walks.txt").write_text("\n".join(lines))
    (home / "walks.titles.tsv").write_text("".join(f"{item}\tFilm no. {item}\n" for item in range(1, 24)))
    common = {"device": "cpu", "batch_size": 8}
    series = f'series(context={CONTEXT}, horizon={HORIZON}, split="60/20/20 %")'
    small = "forecaster(dim=16, layers=1, num_heads=2)"
    train(
        {
            "task": series,
            "data": str(home / "waves.csv"),
            "model": small,
            "steps": 60,
            "out": str(home / "series"),
            "eval_every": 60,
            "optim": {"lr": 3e-3, "warmup": 5},
            **common,
        },
        tell=lambda text: None,
    )
    train(
        {
            "task": "recommend(negatives=9, max_length=11)",
            "data": str(home / "walks.txt"),
            "steps": 80,
            "model": "recommender(dim=16, layers=1, dropout=0.0)",
            "out": str(home / "recommend"),
            "eval_every": 80,
            "optim": {"lr": 1e-2, "warmup": 5},
            **common,
        },
        tell=lambda text: None,
    )
    return home


def test_a_short_training_learns_to_forecast_and_to_recommend(folder):
    found = evaluate(folder / "series", device="cpu")
    task, _, _ = load_run(folder / "series")
    windows = task.examples("test")
    past, future, _ = windows.rows(range(len(windows)))
    repeated = float((past[:, -1:] - future).square().mean())
    assert found["mse"] < 0.5 * repeated, "twice as good as repeating the last value"
    assert found["linear_mse"] is not None and found["mae"] > 0
    found = evaluate(folder / "recommend", device="cpu")
    assert found["ndcg_at_10"] > 0.8 > 3 * found["popular_full_ndcg_at_10"]


def test_evaluate_prints_metrics_yardsticks_and_protocol(folder, capsys):
    found = answered(capsys, "evaluate", folder / "series")
    names = [row["metric"] for row in found["metrics"]]
    assert names == ["loss", "mse", "mae", "linear_mse", "linear_mae"]
    assert found["metrics"][1]["count"] == (80 - HORIZON + 1) * HORIZON * 2
    assert set(found["protocol"]) == {"windows", "units", "parts"}
    found = answered(capsys, "evaluate", folder / "recommend")
    names = {row["metric"] for row in found["metrics"]}
    kinds = {"hit_at_10", "ndcg_at_10", "full_hit_at_10", "full_ndcg_at_10"}
    assert names == {"loss", *kinds, *(f"popular_{kind}" for kind in kinds)}
    assert found["protocol"]["users"].startswith("31;")


def test_another_file_is_measured_as_a_whole(folder, capsys):
    found = answered(capsys, "evaluate", folder / "series", "--data", folder / "new.csv")
    assert found["examples"] == 100 - CONTEXT - HORIZON + 1
    assert [row["metric"] for row in found["metrics"]] == ["loss", "mse", "mae"]


@torch.no_grad()
def test_a_forecast_is_printed_as_csv_rows_that_follow_the_file(folder, capsys):
    code, out, err = called(capsys, "predict", folder / "series", "--table", folder / "new.csv", "--device", "cpu")
    assert code == 0
    rows = list(csv.reader(io.StringIO(out)))
    assert rows[0] == ["time", "load", "heat"] and len(rows) == HORIZON + 1
    assert rows[1][0] == "2020-01-09 08:00:00" and rows[-1][0] == "2020-01-09 14:00:00"
    task, model, _ = load_run(folder / "series")
    values = np.loadtxt(folder / "new.csv", delimiter=",", skiprows=1, usecols=(1, 2))[-CONTEXT:]
    window = torch.tensor((values - task.fitted.center) / task.fitted.spread)[None].float()
    expected = model.predict(model(task.collate([task.parse({"table": str(folder / "new.csv")})], None)), None)[0]
    assert torch.allclose(task.parse({"table": str(folder / "new.csv")}).past, window[0], atol=1e-5)
    assert np.allclose(
        [[float(cell) for cell in row[1:]] for row in rows[1:]],
        np.array(expected) * task.fitted.spread + task.fitted.center,
        rtol=1e-4,
    )
    assert err.startswith("looked at (causal of the last layer, of the newest position") and "2020-01-09" in err


def test_what_a_forecast_looked_back_at_is_the_last_row_of_the_weights(folder, capsys):
    import regard

    (found,) = answered(capsys, "predict", folder / "series", "--table", folder / "new.csv")
    task, model, _ = load_run(folder / "series")
    with torch.no_grad(), regard.observe(model) as seen:
        model(task.collate([task.parse({"table": str(folder / "new.csv")})], None))
    weights = seen[seen.names()[-1]].weights()[0, :, -1].mean(0)  # of the first column
    pieces = found["looked_at"]["pieces"]
    assert np.allclose([one["weight"] for one in pieces], weights, atol=1e-4)
    assert pieces[0]["piece"] == "2020-01-07 08:00:00 – 2020-01-07 23:00:00"


def test_a_forecast_is_drawn_with_what_it_looked_back_at(folder, capsys, tmp_path):
    where = tmp_path / "f.svg"
    arguments = ["predict", folder / "series", "--table", folder / "new.csv", "--device", "cpu"]
    assert called(capsys, *arguments, "--figure", where)[0] == 0
    text = where.read_text()
    assert "<svg" in text and text.count("2a7fc4") >= 6, "a shade for each patch"
    code, _, err = called(capsys, *arguments, "--figure", tmp_path / "no" / "f.svg")
    assert code == 2 and "--figure" in err and "cannot be written" in err
    code, _, err = called(capsys, *arguments, "--table", folder / "waves.csv", "--figure", where)
    assert code == 2 and "expected one input to draw, got 2" in err


def test_damaged_tables_are_refused_with_their_line(folder, capsys, tmp_path):
    (tmp_path / "bad.csv").write_text("date,load,heat\n2020-01-01,1,2\n2020-01-02,1\n")
    code, out, err = called(capsys, "predict", folder / "series", "--table", tmp_path / "bad.csv", "--device", "cpu")
    assert (code, out) == (2, "") and "bad.csv:3: expected 3 columns as in the first line, got 2" in err
    code, _, err = called(capsys, "predict", folder / "series", "--device", "cpu")
    assert code == 2 and "Give --table FILE" in err


def test_the_next_items_of_a_user_are_printed_with_titles_and_what_was_looked_at(folder, capsys):
    code, out, err = called(capsys, "predict", folder / "recommend", "--text", "user u8", "--device", "cpu")
    assert code == 0 and out.splitlines()[0].startswith(" 1. ") and "Film no. " in out.splitlines()[0]
    assert len(out.splitlines()) == 10 and err.startswith("looked at") and "Film no. " in err
    (found,) = answered(capsys, "predict", folder / "recommend", "--text", "9 12 15")
    assert len(found["looked_at"]["pieces"]) == 3 and len(found["predicted"]) == 10
    assert found["output"].splitlines()[0] == " 1. 18  Film no. 18", "three on, as in every walk"


def test_pages_show_the_window_as_a_picture_and_the_history_by_titles(folder, capsys, tmp_path):
    for run, arguments, words in (("series", [], "patches"), ("recommend", ["--text", "user u8"], "Film no. ")):
        where = tmp_path / f"{run}.html"
        code, _, err = called(capsys, "view", folder / run, *arguments, "--export", where, "--device", "cpu")
        assert code == 0, err
        assert words in where.read_text()


def test_the_report_lays_weights_over_the_window(folder):
    found = inspect_run(folder / "series")
    first = found.attributions[0]
    assert first.inputs and len(first.columns) == len(found.shown.pieces) == CONTEXT // 8
    drawing = attention.picture(first, "a", np.asarray(found.shown.picture, np.float64), found.shown.grid)
    over = drawing.figure.subfigs[0].axes[0]
    assert len(over.images) == 1 and len(over.patches) == CONTEXT // 8


@pytest.mark.parametrize("name", ["series", "recommend", "forecaster", "linear-forecaster", "recommender"])
def test_show_explains_them(name, capsys):
    assert main(["show", name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["example"].startswith("regard train ")


def test_the_picture_of_what_was_recommended_has_a_bar_for_each_title(folder, capsys, tmp_path):
    where = tmp_path / "r.svg"
    arguments = ["predict", folder / "recommend", "--text", "1 2", "--figure", where, "--device", "cpu", "--json"]
    code, out, err = called(capsys, *arguments)
    assert code == 0, err
    titles = [one["piece"] for one in json.loads(out)[0]["looked_at"]["pieces"]]
    assert len(titles) == 2 and where.read_text().startswith("<?xml")


def test_a_page_shows_the_last_window_of_another_file(folder, capsys, tmp_path):
    where = tmp_path / "page.html"
    arguments = ["view", folder / "series", "--table", folder / "new.csv", "--export", where, "--device", "cpu"]
    code, out, err = called(capsys, *arguments, "--json")
    assert code == 0, err
    last = (folder / "new.csv").read_text().strip().splitlines()[-1].partition(",")[0]
    assert last[:10] in where.read_text() and "the table new.csv" in json.loads(out)["words"]
    code, _, err = called(capsys, "view", folder / "recommend", "--table", folder / "new.csv", "--export", where)
    assert code == 2 and "--table: the task recommend reads" in err

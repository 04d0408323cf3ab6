"""`--report-to`: metrics in TensorBoard, Weights & Biases, MLflow and trackio, offline, several at once."""

import json

import pytest

from regard.errors import BadValue
from regard.training import reporting, train
from regard.training.config import read
from regard.training.reporting import REPORTERS, Reports
from tests.training.test_run import settings


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


def logged(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def scalars(folder):
    """What TensorBoard reads back."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {name: {e.step: e.value for e in found.Scalars(name)} for name in found.Tags()["scalars"]}


def tracked(folder):
    """What MLflow reads back."""
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlflow").absolute().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("regard").experiment_id])
    return run, {m.step: m.value for m in client.get_metric_history(run.info.run_id, "train/loss")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow about its own parts
def test_two_reporters_hold_what_metrics_jsonl_holds(tmp_path):
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    train(settings(tmp_path / "run", report_to="tensorboard,mlflow"), quiet=True)
    losses = {row["step"]: row["loss"] for row in logged(tmp_path / "run")}
    board = scalars(tmp_path / "run")
    assert board["train/loss"] == pytest.approx(losses)
    assert any(name.startswith("validation/") for name in board)
    run, found = tracked(tmp_path / "run")
    assert found == pytest.approx(losses)
    assert run.info.status == "FINISHED" and run.data.params["task"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_without_an_account_metrics_are_kept_in_files(tmp_path, name):
    pytest.importorskip(REPORTERS[name][0])
    said = []
    train(settings(tmp_path / "run", report_to=name), quiet=True, tell=said.append)
    assert not [line for line in said if "report_to" in line]
    place = tmp_path / "run" / "wandb" if name == "wandb" else tmp_path / "trackio"
    assert [path for path in place.rglob("*") if path.is_file() and path.stat().st_size]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_goes_on_under_its_entry_and_a_new_one_gets_its_own(tmp_path):
    pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    out = tmp_path / "run"
    train(settings(out, report_to="mlflow,wandb", steps=4), quiet=True)
    train({"steps": 6}, resume=str(out), quiet=True)
    run, found = tracked(out)  # there is one run
    assert found == pytest.approx({row["step"]: row["loss"] for row in logged(out)})
    assert run.info.status == "FINISHED"
    entries = {path.name.split("-")[3] for path in (out / "wandb").glob("offline-run-*")}
    assert entries == {(out / "wandb" / "entry.txt").read_text().strip()}
    train(settings(tmp_path / "other", report_to="wandb", steps=2), quiet=True)
    assert (tmp_path / "other" / "wandb" / "entry.txt").read_text().strip() not in entries


class Broken:
    def __init__(self, folder, settings, after):
        self.left = 1

    def write(self, metrics, step):
        if not self.left:
            raise RuntimeError("the server is away")
        self.left -= 1

    def close(self):
        raise AssertionError("a reporter that was left out is not closed")


def test_a_reporter_that_fails_is_left_out_and_said_once(tmp_path, monkeypatch):
    monkeypatch.setitem(reporting.REPORTERS, "wandb", ("json", Broken))
    said = []
    reports = Reports("wandb", tmp_path, {}, 0, said.append)
    for step in range(3):
        reports.write({"step": step, "loss": 1.0})
    reports.close()
    assert len(said) == 1 and "the server is away" in said[0] and "The run goes on" in said[0]


def test_numbers_that_are_missing_are_left_out(tmp_path, monkeypatch):
    seen = []

    class Listener(Broken):
        def write(self, metrics, step):
            seen.append((step, metrics))

        def close(self):
            seen.append("closed")

    monkeypatch.setitem(reporting.REPORTERS, "trackio", ("json", Listener))
    reports = Reports("trackio", tmp_path, {}, 0, seen.append)
    reports.write({"step": 3, "loss": 0.5, "lr": None, "validation": {"f1": 0.25, "bleu": None}})
    reports.close()
    assert seen == [(3, {"train/loss": 0.5, "validation/f1": 0.25}), "closed"]


def test_names_are_joined_by_commas_and_counted_once():
    assert read({"report_to": "wandb, tensorboard,wandb"}) == ({"report_to": "wandb,tensorboard"}, [])
    for wrong in ("tensorbord", "wandb;mlflow", "", 3):
        assert "some of tensorboard, wandb, mlflow, trackio" in read({"report_to": wrong})[1][0]


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setattr(reporting, "find_spec", lambda name: None)
    with pytest.raises(BadValue, match=r'mlflow is not installed here. Try pip install "regard\[mlflow\]"'):
        reporting.check_installed("mlflow")

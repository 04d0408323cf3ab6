"""`--report-to`: metrics in TensorBoard, Weights & Biases, MLflow and trackio, offline, several at once."""

import json
import struct
import time

import pytest

from regard.errors import BadValue
from regard_workbench.training import reporting, train
from regard_workbench.training.config import read
from regard_workbench.training.reporting import Reports
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


def log_records(data, block=1 << 15):
    """The records of a LevelDB log, the form of an offline run of Weights & Biases, after its header of 7 bytes."""
    found, parts, at = [], b"", 7
    while at + 7 <= len(data):
        if block - at % block < 7:  # a block ends with zeros if no header fits
            at += block - at % block
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + size]
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(parts)
            parts = b""
        at += 7 + size
    return found


def wandb_records(folder):
    """What an offline run of Weights & Biases holds: (step, loss) of each record of its history."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for record in map(Record.FromString, log_records(path.read_bytes())):
            if record.HasField("history"):
                items = {one.key or "/".join(one.nested_key): one.value_json for one in record.history.item}
                found.append((record.history.step.num, json.loads(items["train/loss"])))
    return found


def trackio_records(project="regard"):
    """What trackio reads back: for each run, (step, loss) of each record."""
    from trackio.sqlite_storage import SQLiteStorage

    return {
        run["name"]: [
            (row["step"], row["train/loss"]) for row in SQLiteStorage.get_logs(project, run["name"], run_id=run["id"])
        ]
        for run in SQLiteStorage.get_run_records(project)
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_without_an_account_wandb_keeps_what_metrics_jsonl_holds(tmp_path):
    pytest.importorskip("wandb")
    said = []
    train(settings(tmp_path / "run", report_to="wandb"), quiet=True, tell=said.append)
    assert not [line for line in said if "report_to" in line]
    losses = [(row["step"], row["loss"]) for row in logged(tmp_path / "run")]
    # On a loaded machine wandb's own process still writes when `finish` has returned.
    deadline = time.monotonic() + 120
    while len(found := wandb_records(tmp_path / "run")) < len(losses) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == losses


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trackio_holds_what_metrics_jsonl_holds_also_of_resumed_runs_and_of_equal_names(tmp_path, capfd):
    pytest.importorskip("trackio")
    said = []
    first, second = tmp_path / "a" / "run", tmp_path / "b" / "run"
    for out in (first, second):
        train(settings(out, report_to="trackio", steps=4), quiet=True, tell=said.append)
    train({"steps": 6}, resume=str(first), quiet=True, tell=said.append)
    assert not [line for line in said if "report_to" in line]
    found = trackio_records()
    for out in (first, second):
        name = f"run-{(out / 'trackio' / 'entry.txt').read_text().strip()}"
        assert found[name] == [(row["step"], row["loss"]) for row in logged(out)]
    assert capfd.readouterr().out == ""  # stdout is for results: --json


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

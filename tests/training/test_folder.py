"""Run folders: names that cannot lead out of them, their files, and metrics with a partial last line."""

import json
import os
from pathlib import Path

import pytest

from regard.errors import BadValue
from regard_workbench.training import Config, train
from regard_workbench.training.run_folder import durable, metrics_file
from regard_workbench.training.run_folder.folder import RunFolder, checked_name, locate

BAD = [
    "",
    " ",
    ".",
    "..",
    "../../x",
    "/etc/x",
    "a/b",
    "a\\b",
    "C:\\x",
    "C:x",
    "\\\\host\\x",
    "x\0y",
    "x" * 300,
    "CON",
    "con",
    "nul.txt",
    "LPT1",
    "com¹",
    "a\nb",
    "a\x1bb",
    "~x",
    "-rf",
    ".hidden",
    "x.",
    "x ",
    "a:b",
    "a*",
    "a\u202eb",
    "é" * 150,
    "\ud800",
]


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_a_name_that_could_lead_out_of_its_folder_is_refused(tmp_path, name):
    with pytest.raises(BadValue, match="name:"):
        checked_name(name)
    with pytest.raises(BadValue, match="name:"):
        train({"task": "toy", "out": str(tmp_path / "in"), "name": name})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["dates-3", "Süd_1", "a.b", "日本", "x" * 100, "console"])
def test_ordinary_names_are_accepted(name):
    assert checked_name(name) == name


def test_a_link_that_leads_out_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "out" / "link")
    with pytest.raises(BadValue, match="link that leads out"):
        locate(str(tmp_path / "out"), "link", "")


def test_out_is_the_run_folder_or_with_a_name_its_parent():
    assert locate("x/y", None, "f") == Path("x/y")
    assert locate("x/y", "n", "f") == Path("x/y/n")
    assert locate(None, "n", "f") == Path("runs/n")
    assert locate(None, None, "f") == Path("runs/f")


def test_a_run_folder_holds_the_promised_files(tmp_path):
    run = tmp_path / "run"
    result = train(Config(task="toy", steps=3, out=str(run), log_every=1))
    assert result.folder == run
    assert {"config.yaml", "env.json", "metrics.jsonl", "checkpoints", "figures"} <= {p.name for p in run.iterdir()}
    assert list(run.glob("checkpoints/*/model.safetensors"))
    assert json.loads((run / "env.json").read_text())["packages"]["torch"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3]
    assert all(isinstance(record["loss"], float) for record in records)


def test_a_folder_that_holds_a_run_is_refused_and_unchanged(tmp_path):
    run = tmp_path / "run"
    train(Config(task="toy", steps=1, out=str(run)))
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(BadValue, match="already holds a run"):
        train(Config(task="toy", steps=1, out=str(run)))
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_folder_that_cannot_be_made_is_an_error_before_any_training(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(durable.StorageFailed, match="is a file"):
        train(Config(task="toy", steps=1, out=str(tmp_path / "file" / "run")))
    with pytest.raises(BadValue, match="is a file, not a folder"):
        train(Config(task="toy", steps=1, out=str(tmp_path / "file")))

    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(durable.StorageFailed, match="read-only"):
        train(Config(task="toy", steps=1, out=str(tmp_path / "run")))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
def test_metrics_on_a_full_disk_are_an_error(tmp_path):
    os.symlink("/dev/full", tmp_path / "metrics.jsonl")
    with pytest.raises(durable.StorageFailed, match="disk is full"):
        train(Config(task="toy", steps=2, out=str(tmp_path)))


def test_a_run_that_cannot_be_built_leaves_no_folder(tmp_path):
    with pytest.raises(BadValue, match="option of toy-net"):
        train(Config(task="toy", model="toy-net(layers=3)", out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("end", [b"", b"\n", b'{"step": 4, "lo', b'{"step": 4}\x00\x00', b"\xff\xfe"])
def test_a_partial_last_line_is_removed(tmp_path, end):
    path = tmp_path / "metrics.jsonl"
    lines = b"".join(json.dumps({"step": step, "loss": 1.5}).encode() + b"\n" for step in (1, 2, 3))
    path.write_bytes(lines + end)
    assert [record["step"] for record in metrics_file.read(path)] == [1, 2, 3]
    metrics_file.cut(path, 3)
    writer = metrics_file.MetricsFile(path)
    writer.append({"step": 3, "loss": float("nan")})
    writer.close()
    assert [json.loads(line) for line in path.read_text().splitlines()][1:] == [
        {"step": 2, "loss": 1.5},
        {"step": 3, "loss": None},
    ]


def test_reading_the_settings_of_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(BadValue, match="no run here"):
        RunFolder(tmp_path).settings()


def test_a_line_of_metrics_that_fails_once_is_not_lost(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    writer, real, calls = metrics_file.MetricsFile(path), os.write, []

    def write(handle, data):
        calls.append(1)
        if len(calls) == 2:
            real(handle, bytes(data)[:5])  # part of the line is written before the error
            raise OSError(28, "No space left on device")
        return real(handle, data)

    monkeypatch.setattr(os, "write", write)
    writer.append({"step": 1, "loss": 1.0})
    with pytest.raises(durable.StorageFailed, match="disk is full"):
        writer.append({"step": 2, "loss": 2.0})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1]
    writer.sync()  # called before a checkpoint; it writes the failed line
    writer.append({"step": 3, "loss": 3.0})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert metrics_file.changed(path, writer.checksum()) == ""
    writer.close()


@pytest.mark.parametrize("failing", range(1, 9))
def test_a_run_in_which_one_write_of_metrics_failed_has_every_row_in_the_end(tmp_path, monkeypatch, failing):
    run, calls, real = tmp_path / "run", [], os.write
    settings = {"task": "toy", "steps": 8, "save_every": 3, "eval_every": 2, "log_every": 1, "out": str(run)}

    def write(handle, data):
        if bytes(data[:8]) == b'{"step":':
            calls.append(1)
            if len(calls) == failing:
                raise OSError(5, "Input/output error")
        return real(handle, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(durable.StorageFailed):
        train(settings)
    train(settings, resume="auto")
    assert [row["step"] for row in metrics_file.read(run / "metrics.jsonl")] == list(range(1, 9))
    whole = [row for row in metrics_file.read(run / "metrics.jsonl") if row["step"] % 2 == 0]
    assert all("validation" in row for row in whole)


def test_damaged_lines_are_reported(tmp_path):
    path, told = tmp_path / "metrics.jsonl", []
    path.write_bytes(b'{"step": 1}\n{"st\n\xff\n{"step": "2"}\n{"step": 5}\n{"step": 6, "lo')
    assert [row["step"] for row in metrics_file.read(path, told.append)] == [1, 5]
    assert told == [f"{path} is damaged in line 2, 3, 4: skipped."]


def test_every_new_folder_above_a_run_is_synced(tmp_path, monkeypatch):
    synced, real = set(), os.fsync

    def fsync(handle):
        synced.add(os.fstat(handle).st_ino)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    run = tmp_path / "a" / "b" / "run"
    train(Config(task="toy", steps=1, out=str(run)))
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b", run, run / "checkpoints"):
        assert folder.stat().st_ino in synced, folder

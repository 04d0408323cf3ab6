"""The lock of a run folder: it is taken before the first file is written, and the error names its holder."""

import json
import os
import re
import signal
import socket

import pytest
import yaml

from regard.errors import BadValue
from regard_workbench.training.run_folder import durable, lock
from regard_workbench.training.run_folder.folder import RunFolder
from tests.training.commands import Command
from tests.training.toy import weights

SETTINGS = ["train", "toy", "--steps", "6", "--log-every", "1", "--save-every", "2", "--batch-size", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("attempt", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2))])
def test_of_two_runs_started_in_one_folder_exactly_one_trains(tmp_path, attempt):
    out = tmp_path / "run"
    logs = []
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        logs.append(Command(tmp_path / str(seed), *SETTINGS, "--seed", seed, "--out", out, slow=0.01))
    codes = [command.wait() for command in logs]
    assert sorted(codes) == [0, 2], [command.text for command in logs]
    winner = 1 + codes.index(0)
    assert yaml.safe_load((out / "config.yaml").read_text())["seed"] == winner
    loser = logs[2 - winner].text
    assert "another process uses" in loser or "already holds a run" in loser
    alone = Command(tmp_path, *SETTINGS, "--seed", winner, "--out", tmp_path / "alone")
    assert alone.wait() == 0
    assert all((weights(out)[0][name] == tensor).all() for name, tensor in weights(tmp_path / "alone")[0].items())


@pytest.mark.slow
def test_the_error_names_the_holder_and_the_time(tmp_path):
    run = tmp_path / "run"
    first = Command(tmp_path, *SETTINGS, "--out", run, slow=0.2)
    first.wait_for(run / "metrics.jsonl")
    with pytest.raises(lock.FolderLocked) as refused, RunFolder(run).locked():
        pass
    pattern = rf"process {first.process.pid} on '{re.escape(socket.gethostname())}', since 20\d\d-\d\d-\d\dT"
    assert re.search(pattern, str(refused.value))
    first.send(signal.SIGKILL)
    first.wait()
    with RunFolder(run).locked():  # a dead process holds no lock, whatever `.lock` says
        assert json.loads((run / ".lock").read_text())["pid"] == os.getpid()
    assert (run / ".lock").read_text() == ""


def test_deleting_the_lock_file_does_not_release_the_lock(tmp_path):
    with RunFolder(tmp_path).locked():
        (tmp_path / ".lock").unlink()
        with pytest.raises(lock.FolderLocked), RunFolder(tmp_path).locked():
            pass


def without_locks(monkeypatch):
    import fcntl

    def refuse(handle, how):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_without_file_locks_the_process_named_in_the_lock_file_decides(tmp_path, monkeypatch):
    without_locks(monkeypatch)
    living = {"pid": os.getppid(), "host": socket.gethostname(), "since": "2026-01-02T03:04:05Z"}
    (tmp_path / ".lock").write_text(json.dumps(living))
    with pytest.raises(lock.FolderLocked, match=f"process {os.getppid()} .* since 2026-01-02"), lock.locked(tmp_path):
        pass
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    (tmp_path / ".lock").write_text(json.dumps({**living, "pid": child}))
    with lock.locked(tmp_path):
        pass
    (tmp_path / ".lock").write_text(json.dumps({**living, "pid": child, "host": "elsewhere"}))
    with pytest.raises(lock.FolderLocked, match=r"'elsewhere'.*If that process is gone, remove"), lock.locked(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}', "\0" * 99, "[" * 10_000])
def test_any_content_of_the_lock_file_is_accepted(tmp_path, monkeypatch, content):
    (tmp_path / ".lock").write_text(content)
    with lock.locked(tmp_path):
        pass
    without_locks(monkeypatch)
    (tmp_path / ".lock").write_text(content)
    with lock.locked(tmp_path):
        pass


def test_a_pipe_or_folder_instead_of_the_lock_file_is_an_error(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(durable.StorageFailed, match="not a plain file"), lock.locked(tmp_path):
        pass
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").mkdir()
    with pytest.raises(durable.StorageFailed), lock.locked(tmp_path):
        pass


def test_the_error_is_a_bad_value():
    assert issubclass(lock.FolderLocked, BadValue)

"""A run folder that is moved or deleted during training ends the run with an error naming the last checkpoint."""

import os
import shutil

import pytest

from regard_workbench.training import train
from regard_workbench.training.run_folder import checkpoints, metrics_file
from regard_workbench.training.run_folder.folder import RunFolder
from regard_workbench.training.run_folder.lock import Moved, locked
from tests.training.commands import Command

SETTINGS = ["train", "toy", "--steps", "400", "--save-every", "5", "--eval-every", "50", "--log-every", "1"]


@pytest.fixture
def running(tmp_path):
    run = tmp_path / "run"
    command = Command(tmp_path, *SETTINGS, "--out", run, slow=0.01)
    command.wait_for(run / "metrics.jsonl", 12)
    return command, run


def test_renaming_the_folder_during_training_ends_the_run_and_names_the_last_checkpoint(running, tmp_path):
    command, run = running
    run.rename(tmp_path / "other")
    assert command.wait() == 1
    last = checkpoints.load_newest(tmp_path / "other" / "checkpoints", print)[0]
    assert f"was moved to {tmp_path / 'other'}" in command.text
    assert str(tmp_path / "other" / "checkpoints" / last.name) in command.text
    assert "Traceback" not in command.text
    assert not run.exists()
    assert [row["step"] for row in metrics_file.read(tmp_path / "other" / "metrics.jsonl")][: last.step] == list(
        range(1, last.step + 1)
    )


def test_deleting_the_folder_during_training_ends_the_run(running):
    command, run = running
    shutil.rmtree(run, ignore_errors=True)  # the run may be writing into it
    assert command.wait() == 1
    assert "deleted" in command.text and "Traceback" not in command.text
    assert not (run / "config.yaml").exists()


def test_a_new_folder_at_the_old_path_is_not_written_to(running, tmp_path):
    command, run = running
    run.rename(tmp_path / "other")
    run.mkdir()
    assert command.wait() == 1
    assert "was moved to" in command.text
    assert not list(run.iterdir())


def test_a_rename_after_the_last_checkpoint_is_detected_too(tmp_path):
    run = RunFolder(tmp_path / "run")
    with run.locked():
        run.check_not_moved()
        os.rename(tmp_path / "run", tmp_path / "other")
        with pytest.raises(Moved, match=r"step-00000007.*regard train --resume"):
            run.check_not_moved("step-00000007")


def test_the_error_is_raised_even_if_the_new_path_is_unknown(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()

    def refuse(path):
        raise OSError(2, "No such file or directory")

    monkeypatch.setattr(os, "readlink", refuse)
    with locked(tmp_path / "run") as folder:
        os.rename(tmp_path / "run", tmp_path / "other")
        with pytest.raises(Moved, match="deleted, moved or replaced"):
            folder.check("")


def test_metrics_deleted_during_training_are_restored(tmp_path, monkeypatch):
    run, told = tmp_path / "run", []
    real = metrics_file.MetricsFile.append

    def append(self, record):
        real(self, record)
        if record["step"] == 5:
            os.unlink(self.path)

    monkeypatch.setattr(metrics_file.MetricsFile, "append", append)
    train({"task": "toy", "steps": 9, "save_every": 3, "log_every": 1, "out": str(run)}, tell=told.append)
    assert [row["step"] for row in metrics_file.read(run / "metrics.jsonl")] == list(range(1, 10))
    assert any("metrics.jsonl was deleted" in text for text in told)

"""A disk from which every call fails from some moment on: the last words name the file, and how to go on."""

import errno
import os

import pytest

from tests.training.test_damaged_runs import called

SETTINGS = ["train", "toy", "--steps", "4", "--save-every", "2", "--log-every", "1", "--device", "cpu"]
CALLS = (
    "open",
    "write",
    "close",
    "fsync",
    "ftruncate",
    "fstat",
    "stat",
    "lstat",
    "mkdir",
    "rename",
    "replace",
    "unlink",
    "rmdir",
    "scandir",
    "listdir",
    "pwrite",
)


class Disk:
    """Counts the calls of this process for what lies below a folder; those from `dead_from` on fail."""

    def __init__(self, monkeypatch, root, dead_from, number):
        self.root, self.dead_from, self.number, self.calls = str(root), dead_from, number, []
        for name in CALLS:
            monkeypatch.setattr(os, name, self._dying(name, getattr(os, name)))

    def _dying(self, name, real):
        def call(where=".", *more, **named):
            path = self._path(where)
            if not path.startswith(self.root):
                return real(where, *more, **named)
            self.calls.append((name, path))
            if len(self.calls) < self.dead_from:
                return real(where, *more, **named)
            if name == "close":  # the descriptor is free even if closing it fails
                real(where)
            raise OSError(self.number, os.strerror(self.number), *([] if type(where) is int else [path]))

        return call

    @staticmethod
    def _path(where):
        try:
            return os.readlink(f"/proc/self/fd/{where}") if type(where) is int else str(where)
        except OSError:
            return ""


def run(monkeypatch, root, dead_from, number):
    with monkeypatch.context() as patch:
        disk = Disk(patch, root, dead_from, number)
        code, _, err = called(*SETTINGS, "--out", root / "run")
    return disk.calls, code, err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ESTALE])
def test_the_last_words_name_a_file_of_the_run_and_how_to_go_on(tmp_path, monkeypatch, number):
    (tmp_path / "whole").mkdir()  # as the folders below, or this run alone has to make it, and counts calls too many
    calls, code, _ = run(monkeypatch, tmp_path / "whole", 10**9, number)
    assert code == 0 and {"write", "close", "fsync", "rename"} <= {name for name, _ in calls}
    for at in range(1 + number % 3, len(calls), 3):  # each number takes other calls
        root = tmp_path / str(at)
        root.mkdir()
        called_so_far, code, err = run(monkeypatch, root, at, number)
        last = err.strip().splitlines()[-1]
        assert code in (1, 2) and "Traceback" not in err, (called_so_far[at - 1], err)
        assert str(root) in last, (called_so_far[at - 1], last)
        if (root / "run" / "config.yaml").exists():
            assert "--resume" in last or "cannot read" in last, (called_so_far[at - 1], last)


def test_a_current_folder_that_was_deleted_is_named(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for words in ((), ("--out", tmp_path / "run"), ("--resume", "auto")):
        code, _, err = called(*SETTINGS, *words)
        assert (code, err) == (1, "regard train: the current folder was deleted. Go to one that exists.\n")
    assert not (tmp_path / "run").exists()

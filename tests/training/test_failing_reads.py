"""A read that fails once (a network disk, no free descriptor, no permission) says nothing about a file.

The command that meets it ends and names the file. It never answers from another checkpoint or run, and moves nothing.
"""

import errno
import json
import os
import shutil

import pytest

from regard_workbench.comparison.report import robustness
from regard_workbench.training import train
from regard_workbench.training.run_folder import durable, folder, metrics_file
from tests.training.test_damaged_runs import SETTINGS, called
from tests.training.toy import weights

ERRORS = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES)
CALLS = ("open", "stat", "scandir", "listdir", "read")


class Failing:
    """Counts the calls that read below a folder, by name, and lets one of them fail."""

    def __init__(self, monkeypatch, root, at=0, number=errno.EIO):
        self.root, self.at, self.number, self.calls = str(root), at, number, []
        for name in CALLS[:-1]:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))
        real = os.fdopen

        def fdopen(handle, *modes, **options):
            file = real(handle, *modes, **options)
            path = os.readlink(f"/proc/self/fd/{handle}")
            read = file.read

            def reading(*size):
                self._count("read", path)
                return read(*size)

            if path.startswith(self.root) and "b" in "".join(modes):
                file = _File(file, reading)
            return file

        monkeypatch.setattr(os, "fdopen", fdopen)

    def _counted(self, name, real):
        def call(path=".", *more, **named):
            if isinstance(path, (str, os.PathLike)) and str(path).startswith(self.root):
                self._count(name, str(path))
            return real(path, *more, **named)

        return call

    def _count(self, name, path):
        self.calls.append((name, path))
        if len(self.calls) == self.at:
            raise OSError(self.number, os.strerror(self.number), path if name != "read" else None)


class _File:
    """A file whose `read` is another."""

    def __init__(self, file, read):
        self.file, self.read = file, read

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run whose best checkpoint is neither its newest nor its oldest."""
    path = tmp_path_factory.mktemp("failing") / "run"
    settings = {**SETTINGS, "steps": 11, "keep": "all"}
    result = train({**settings, "out": str(path)}, quiet=True)
    assert result.best["step"] not in (2, 11)
    return path


def answer(run):
    code, out, err = called("evaluate", run, "--json")
    return code, json.loads(out)["signature"]["checkpoint"] if code == 0 else None, err


def calls_of(monkeypatch, run, *words):
    with monkeypatch.context() as patch:
        failing = Failing(patch, run)
        assert called(*words)[0] == 0
    return failing.calls


def test_evaluate_answers_from_the_best_checkpoint_or_ends_and_names_the_file(trained, monkeypatch):
    right = answer(trained)[1]
    calls = calls_of(monkeypatch, trained, "evaluate", trained, "--json")
    assert {"open", "stat", "read"} <= {name for name, _ in calls}
    for at, (name, path) in enumerate(calls, 1):
        with monkeypatch.context() as patch:
            Failing(patch, trained, at, ERRORS[at % len(ERRORS)])
            code, found, err = answer(trained)
        assert (code == 0 and found == right) or (code == 1 and not found), (name, path, err)
        assert "damaged" not in err and "Traceback" not in err
        if code:
            assert os.strerror(ERRORS[at % len(ERRORS)]) in err and path in err, (name, path, err)


def test_resume_sets_nothing_aside_and_loses_no_line(trained, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    words = ("train", "--resume", run)
    calls = calls_of(monkeypatch, run, *words)
    lines = (trained / "metrics.jsonl").read_bytes()
    before = {file.relative_to(run) for file in run.rglob("*") if "figures" not in file.parts}
    for at in range(1, len(calls) + 1):
        with monkeypatch.context() as patch:
            Failing(patch, run, at, ERRORS[at % len(ERRORS)])
            _, _, err = called(*words)
        assert "damaged" not in err and "Traceback" not in err, err
        assert {file.relative_to(run) for file in run.rglob("*") if "figures" not in file.parts} == before
        assert (run / "metrics.jsonl").read_bytes() == lines
    assert called(*words)[0] == 0
    for name, tensor in weights(trained)[0].items():
        assert tensor.equal(weights(run)[0][name])


def test_what_a_file_is_and_what_keeps_it_from_being_read_are_told_apart(tmp_path, monkeypatch):
    (tmp_path / "pipe").parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"12345678")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "long", "loop", "nothing", "long/inside", "."):
        with pytest.raises(OSError) as refused:
            durable.read(tmp_path / name, 7)
        assert not isinstance(refused.value, durable.ReadFailed)
    assert durable.read(tmp_path / "long", 8) == b"12345678"
    for number in ERRORS:
        with monkeypatch.context() as patch:
            Failing(patch, tmp_path, 1, number)
            with pytest.raises(durable.ReadFailed, match=os.strerror(number)) as failed:
                durable.read(tmp_path / "long", 8)
        assert str(tmp_path / "long") in str(failed.value)
        assert not isinstance(failed.value, OSError)  # or callers would take it for a fact about the file


def test_the_newest_run_is_not_another_one_because_its_settings_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("older", "newer")):
        train({**SETTINGS, "steps": 1, "out": f"runs/{name}"}, quiet=True)
        os.utime(f"runs/{name}/config.yaml", (number, number))
    assert folder.newest_run("toy").name == "newer"
    with monkeypatch.context() as patch:
        failing = Failing(patch, "runs/newer")
        folder.newest_run("toy")
    for at in range(1, len(failing.calls) + 1):
        with monkeypatch.context() as patch:
            Failing(patch, "runs/newer", at)
            with pytest.raises((durable.ReadFailed, OSError), match="runs/newer"):
                folder.newest_run("toy")


def test_curves_and_attacks_of_a_report_are_not_left_out_because_a_read_failed(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    (tmp_path / "attack.json").write_text("{}")
    for read, path in ((metrics_file.read, tmp_path / "metrics.jsonl"), (robustness._read, tmp_path)):
        read(path)
        with monkeypatch.context() as patch:
            failing = Failing(patch, tmp_path)
            read(path)
        at = max(number for number, (name, _) in enumerate(failing.calls, 1) if name == "open")
        with monkeypatch.context() as patch, pytest.raises(durable.ReadFailed):
            Failing(patch, tmp_path, at)
            read(path)

"""Any byte of any file of a run folder may be damaged: readers give the right answer or an error, never a crash."""

import contextlib
import io
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard_workbench.cli.main import main
from regard_workbench.training import train
from regard_workbench.training.run_folder import checkpoints
from tests.training.toy import weights

SETTINGS = {"task": "toy", "steps": 6, "save_every": 2, "eval_every": 2, "log_every": 1, "device": "cpu", "seed": 3}


def called(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(map(str, words)))
    return code, out.getvalue(), err.getvalue()


def metrics_in(out):
    """The metrics printed by evaluate, without the random one of the toy."""
    return {row["metric"]: row["value"] for row in json.loads(out)["metrics"] if row["metric"] in ("loss", "accuracy")}


class Made:
    """A run, its continuation to step 8, and the metrics of each of its checkpoints."""

    def __init__(self, folder):
        self.run, self.later = folder / "run", folder / "later"
        train({**SETTINGS, "steps": 3, "out": str(self.run)}, tell=lambda text: None)
        changed = {"steps": 6, "optim.lr": 0.02}  # so that there is a changes.json
        train(changed, resume=str(self.run), tell=lambda text: None)
        shutil.copytree(self.run, self.later)
        train({"steps": 8}, resume=str(self.later), tell=lambda text: None)
        self.right = metrics_in(called("evaluate", self.run, "--json")[1])
        there = checkpoints.paths(self.run / "checkpoints")
        self.answers = [metrics_in(called("evaluate", path, "--json")[1]) for path in there]
        self.files = sorted(str(path.relative_to(self.run)) for path in self.run.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("made"))


def swap(path, make):
    path.unlink()
    make()


DAMAGES = {
    "flip": lambda path, data, at: path.write_bytes(
        data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :]
    ),
    "cut": lambda path, data, at: path.write_bytes(data[: at // 8]),
    "zeros from": lambda path, data, at: path.write_bytes(data[: at // 8] + bytes(len(data) - at // 8)),
    "insert": lambda path, data, at: path.write_bytes(data[: at // 8] + b"\0\xff{[" + data[at // 8 :]),
    "add": lambda path, data, at: path.write_bytes(data + b"\0garbage\n"),
    "nest": lambda path, data, at: path.write_bytes(b"[" * 200_000),
    "delete": lambda path, data, at: path.unlink(),
    "folder": lambda path, data, at: swap(path, lambda: path.mkdir()),
    "pipe": lambda path, data, at: swap(path, lambda: os.mkfifo(path)),
    "link nowhere": lambda path, data, at: swap(path, lambda: path.symlink_to("nowhere")),
    "link to itself": lambda path, data, at: swap(path, lambda: path.symlink_to(path.name)),
    "link to nothing": lambda path, data, at: swap(path, lambda: path.symlink_to("/dev/null")),
}


def damage(made, folder, file, how, share):
    run = folder / "damaged"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(made.run, run)
    data = (run / file).read_bytes()
    how = "add" if how == "flip" and not data else how  # an empty file has no bit to flip
    DAMAGES[how](run / file, data, min(int(share * 8 * len(data)), 8 * len(data) - 1) if data else 0)
    return run


def assert_right_or_an_error(made, run):
    code, out, err = called("evaluate", run, "--json")
    assert code in (0, 1, 2) and "Traceback" not in err
    if code == 0:
        found = metrics_in(out)
        assert found in made.answers
        assert found == made.right or err.strip(), "another checkpoint without a warning"
    else:
        assert not out and err.strip()
    code, _, err = called("train", "--resume", run, "--steps", 8)
    assert code in (0, 1, 2) and "Traceback" not in err
    if code == 0:
        (ours, at), (theirs, there) = weights(run), weights(made.later)
        same = at == there and all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert same or "damaged" in err, "other weights without a warning"


FILES = st.integers(0, 10**6)


@pytest.mark.slow
@given(FILES, st.sampled_from(sorted(set(DAMAGES) - {"nest"})), st.floats(0, 1))
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
def test_damage_anywhere_gives_the_right_answer_or_an_error(made, tmp_path_factory, number, how, share):
    run = damage(made, Path(made.run.parent), made.files[number % len(made.files)], how, share)
    assert_right_or_an_error(made, run)


@pytest.mark.nightly
@pytest.mark.parametrize("how", sorted(DAMAGES))
def test_every_damage_of_every_file_gives_the_right_answer_or_an_error(made, tmp_path, how, record_property):
    shares = (0.0, 0.13, 0.38, 0.61, 0.87, 1.0) if how == "flip" else (0.5,)
    cases = [(file, share) for file in made.files for share in shares]
    record_property("tried", len(cases))
    for file, share in cases:
        assert_right_or_an_error(made, damage(made, tmp_path, file, how, share))


@pytest.mark.nightly
@given(FILES, st.sampled_from(sorted(DAMAGES)), st.floats(0, 1))
@settings(max_examples=3000, suppress_health_check=list(HealthCheck))
def test_damage_anywhere_gives_the_right_answer_or_an_error_many(made, tmp_path_factory, number, how, share):
    run = damage(made, Path(made.run.parent), made.files[number % len(made.files)], how, share)
    assert_right_or_an_error(made, run)


@pytest.mark.parametrize("how", ["pipe", "folder", "link to itself", "delete", "nest"])
@pytest.mark.parametrize("file", ["config.yaml", "changes.json", "metrics.jsonl", "env.json", ".lock"])
def test_something_else_instead_of_a_file_gives_the_right_answer_or_an_error(made, tmp_path, file, how):
    if file == "config.yaml" and how == "nest":
        how = "zeros from"  # nested YAML is tested elsewhere
    assert_right_or_an_error(made, damage(made, tmp_path, file, how, 0.3))

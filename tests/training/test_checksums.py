"""Settings, metrics and outcomes that were changed after they were written are refused or reported, never used."""

import dataclasses
import json
import random
import re
import shutil
from pathlib import Path

import pytest

from regard.errors import RegardError
from regard_workbench.comparison import previous_runs
from regard_workbench.comparison.fairness import fairness
from regard_workbench.comparison.job import Contestant, Job, Outcome
from regard_workbench.comparison.worker import perform
from regard_workbench.training import train
from regard_workbench.training.loading import load
from regard_workbench.training.run_folder import checkpoints, checksum, metrics_file
from regard_workbench.training.run_folder.folder import RunFolder
from tests.comparison import made_up
from tests.training.toy import assert_same

SETTINGS = {"task": "toy", "steps": 6, "save_every": 2, "eval_every": 3, "log_every": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    run = tmp_path_factory.mktemp("made") / "run"
    train({**SETTINGS, "out": str(run)}, tell=lambda text: None)
    return run


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def read_settings(run):
    return RunFolder(run).initial_settings()


def assert_no_flip_changes_the_settings(run, bits):
    path = run / "config.yaml"
    whole = path.read_bytes()
    right = read_settings(run)
    for bit in bits:
        path.write_bytes(flipped(whole, bit))
        try:
            found = read_settings(run)
        except RegardError:
            continue
        assert found == right, bit  # a bit of the comment after the checksum
    path.write_bytes(whole)


def test_no_flipped_bit_changes_the_settings(run):
    size = 8 * len((run / "config.yaml").read_bytes())
    assert_no_flip_changes_the_settings(run, random.Random(0).sample(range(size), 400))


@pytest.mark.nightly
def test_no_flipped_bit_changes_the_settings_all(run, record_property):
    size = 8 * len((run / "config.yaml").read_bytes())
    record_property("tried", size)
    assert_no_flip_changes_the_settings(run, range(size))


@pytest.mark.parametrize("with_checksum", [True, False])
def test_a_changed_setting_is_refused_by_every_reader_and_named(run, with_checksum):
    path = run / "config.yaml"
    text = path.read_text().replace("lr: 0.01", "lr: 0.03")
    path.write_text(text if with_checksum else re.sub(r"# sha256.*\n", "", text))
    words = r"config\.yaml is not what was written" if with_checksum else r"optim\.lr: .*0\.03.*trained with 0\.01"
    with pytest.raises(checksum.FileChanged, match=words):
        train({"steps": 8}, resume=str(run), tell=lambda text: None)
    with pytest.raises(checksum.FileChanged, match=words):
        load(run, device="cpu", tell=lambda text: None)


def test_settings_restored_by_hand_are_accepted(run, made):
    path = run / "config.yaml"
    path.write_text(re.sub(r"# sha256.*\n", "# by hand\n", path.read_text()))
    train({}, resume=str(run), tell=lambda text: None)
    assert_same(run, made)


@pytest.mark.parametrize("left", ["metrics.jsonl", "step-00000006"])
def test_what_is_left_of_a_run_without_its_settings_is_not_mixed_with_another(run, tmp_path, left):
    """Found by kills on a disk whose fsync lied: the new run's lines were added to half a line of the old one's."""
    (run / "config.yaml").unlink()
    if left == "metrics.jsonl":
        shutil.rmtree(run / "checkpoints")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    for resume in (None, "auto"):
        with pytest.raises(RegardError, match=rf"holds .*{left[:5]}.*without its config\.yaml"):
            train({**SETTINGS, "seed": 7, "out": str(run)}, resume=resume, tell=lambda text: None)
    assert before == {path: path.read_bytes() for path in before}


def test_a_run_may_be_moved(made, tmp_path):
    moved = shutil.copytree(made, tmp_path / "elsewhere")
    train({"steps": 8}, resume=str(moved), tell=lambda text: None)
    assert load(moved, device="cpu", tell=lambda text: None).checkpoint


def test_a_changed_changes_file_is_refused(run):
    train({"steps": 8, "optim.lr": 0.5}, resume=str(run), tell=lambda text: None)
    path = run / "changes.json"
    text = path.read_text()
    path.write_text(text.replace("0.5", "0.4"))
    with pytest.raises(RegardError, match=r"changes\.json.*SHA-256"):
        train({}, resume=str(run), tell=lambda text: None)
    path.write_text(json.dumps(json.loads(text.replace("0.5", "0.4"))["changes"]))  # as an earlier version wrote it
    with pytest.raises(RegardError, match=r"changes\.json differs from what step-00000008"):
        load(run, device="cpu", checkpoint="last", tell=lambda text: None)
    path.unlink()
    with pytest.raises(RegardError, match=r"changes\.json differs from what step-00000008"):
        train({}, resume=str(run), tell=lambda text: None)


def without_checksums(run):
    """A run as an earlier version left it."""
    path = run / "config.yaml"
    path.write_text(re.sub(r"# sha256.*\n", "", path.read_text()))
    for folder in checkpoints.paths(run / "checkpoints"):
        found = checkpoints.load(folder)
        found.state.pop("settings")
        found.state.pop("metrics")
        checkpoints.save(run / "checkpoints", found)
    (run / "checkpoints" / "index.json").write_text('{"last": "step-00000002", "best": "step-00000002"}')


def test_a_run_of_an_earlier_version_loads_with_a_warning_and_resumes(run, made, tmp_path):
    told = []
    without_checksums(run)
    load(run, device="cpu", tell=told.append)
    assert any("earlier version without checksums" in text for text in told)
    train({"steps": 8}, resume=str(run), tell=told.append)
    other = shutil.copytree(made, tmp_path / "other")
    train({"steps": 8}, resume=str(other), tell=told.append)
    assert_same(run, other)
    assert not (run / "checkpoints" / "index.json").exists()


def changed_line(run, number, before, after):
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[number - 1] = re.sub(before, after, lines[number - 1])
    path.write_text("".join(lines))


@pytest.mark.parametrize(
    "before, after, words",
    [(r'"loss": ', '"loss": 9', "SHA-256 differs"), (r"^\{", "", r"damaged in line 2"), (r"^.*\n$", "", "bytes")],
)
def test_a_changed_line_of_metrics_is_reported_and_the_file_kept(run, before, after, words):
    told, as_it_was = [], (run / "metrics.jsonl").read_bytes()
    changed_line(run, 2, before, after)
    as_found = (run / "metrics.jsonl").read_bytes()
    load(run, device="cpu", tell=told.append)
    assert any("metrics.jsonl" in text and re.search(words, text) for text in told)
    train({"steps": 7}, resume=str(run), tell=told.append)
    assert (run / metrics_file.ASIDE).read_bytes() == as_found
    assert any(metrics_file.ASIDE in text for text in told)
    assert [row["step"] for row in metrics_file.read(run / "metrics.jsonl")][-1] == 7
    assert as_it_was != as_found


def test_missing_metrics_are_reported(run):
    told = []
    (run / "metrics.jsonl").unlink()
    load(run, device="cpu", tell=told.append)
    assert any("metrics.jsonl is missing" in text for text in told)


def test_metrics_are_cut_to_exactly_the_bytes_before_the_checkpoint(run):
    path = run / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step": 7, "loss": 1.0}\n{"step": 8, "lo')
    told = []
    train({}, resume=str(run), tell=told.append)
    assert path.read_bytes() == whole
    assert not any("metrics.jsonl" in text for text in told)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged") / "run"
    settings = {"task": "toy", "model": "toy-net", "steps": 6, "save_every": 2, "eval_every": 2, "seed": 0}
    job = Job(Contestant("toy-net"), 0, {**settings, "device": "cpu"}, str(folder))
    return job, perform(job)


@pytest.fixture
def job(judged, tmp_path):
    shutil.copytree(judged[0].folder, tmp_path / "run")
    job = dataclasses.replace(judged[0], folder=str(tmp_path / "run"))
    dataclasses.replace(judged[1], folder=job.folder).save()
    return job


def test_a_changed_outcome_is_reported_and_measured_again(job, judged):
    path, told = Path(job.folder) / "outcome.json", []
    assert previous_runs.finished(job, told.append) is not None and not told
    path.write_text(re.sub(r'"accuracy": 0\.\d+', '"accuracy": 0.99', path.read_text()))
    assert previous_runs.finished(job, told.append) is None
    assert "outcome.json is not what was written" in told[0]
    assert perform(job).validation == judged[1].validation
    assert Outcome.load(job.folder).validation == judged[1].validation


@pytest.mark.parametrize("seed", range(40))
def test_no_flipped_bit_of_an_outcome_is_published(job, judged, seed):
    path = Path(job.folder) / "outcome.json"
    data = path.read_bytes()
    path.write_bytes(flipped(data, random.Random(seed).randrange(8 * len(data))))
    found = Outcome.load(job.folder)
    right = dataclasses.replace(judged[1], folder=job.folder)
    assert found is None or found == right  # only whitespace and the key `sha256` may change undetected


def test_an_outcome_of_another_checkpoint_than_the_best_is_measured_again(job, judged):
    """As a kill between the last checkpoint and the old index.json left it: 0.1450 was published for 0.1487."""
    told, other = [], "step-00000004" if judged[1].checkpoint != "step-00000004" else "step-00000006"
    dataclasses.replace(judged[1], folder=job.folder, checkpoint=other, test={"accuracy": 0.5}).save()
    assert previous_runs.finished(job, told.append) is None
    assert "its best checkpoint is" in told[0]
    assert perform(job).test == judged[1].test


def test_an_outcome_of_an_earlier_version_is_used_with_a_warning(job):
    path, told = Path(job.folder) / "outcome.json", []
    found = json.loads(path.read_text())
    for name in ("sha256", "checkpoint", "checkpoint_sha256", "settings_sha256", "metrics"):
        del found[name]
    path.write_text(json.dumps(found))
    assert previous_runs.finished(job, told.append) is not None
    assert "without checksums" in told[0]


def test_changed_metrics_are_reported_in_the_comparison(job):
    outcome = Outcome.load(job.folder)
    comparison = made_up.comparison([outcome], [job.contestant], settings=job.settings, task="toy")
    assert not any("metrics.jsonl" in text for text in fairness(comparison))
    changed_line(Path(job.folder), 1, r'"loss": ', '"loss": 9')
    assert any(text.startswith("NOTE") and "metrics.jsonl" in text for text in fairness(comparison))

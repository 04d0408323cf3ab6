"""Settings changed on resume are refused, or recorded with the step from which they apply; config.yaml is kept."""

import json

import pytest
import torch
import yaml

from regard.errors import BadValue
from regard_workbench.training import train
from regard_workbench.training.config import FIXED, Config, settings
from regard_workbench.training.loading import load
from regard_workbench.training.run_folder import changes, checkpoints, metrics_file
from regard_workbench.training.run_folder.changes import Change
from regard_workbench.training.run_folder.folder import RunFolder
from tests.training.registered import toy_registered  # noqa: F401
from tests.training.toy import weights

SETTINGS = {"task": "toy", "steps": 5, "save_every": 2, "eval_every": 50, "log_every": 1, "device": "cpu"}


@pytest.fixture
def run(tmp_path):
    train({**SETTINGS, "out": str(tmp_path / "run")}, tell=lambda text: None)
    return tmp_path / "run"


def test_a_changed_learning_rate_is_recorded_with_its_step_and_config_stays(run):
    before, told = (run / "config.yaml").read_bytes(), []
    train({"steps": 7, "optim.lr": 9.0}, resume=str(run), tell=told.append)
    assert (run / "config.yaml").read_bytes() == before
    assert json.loads((run / "changes.json").read_text())["changes"] == [
        {"step": 5, "setting": "steps", "was": 5, "now": 7},
        {"step": 5, "setting": "optim.lr", "was": 0.01, "now": 9.0},
    ]
    assert any("optim.lr 9.0 (was 0.01) from step 5 on" in text for text in told)
    assert RunFolder(run).settings()["optim.lr"] == 9.0
    assert RunFolder(run).settings(step=4)["optim.lr"] == 0.01


def test_a_recorded_change_applies_to_later_resumes(run):
    train({"steps": 6, "optim.lr": 9.0, "optim.schedule": "constant"}, resume=str(run))
    train({"steps": 7}, resume=str(run))
    rates = {row["step"]: row["lr"] for row in metrics_file.read(run / "metrics.jsonl")}
    assert rates[6] == rates[7] == 9.0 and rates[5] < 0.01
    kept = changes.read(run)
    assert [(one.step, one.setting) for one in kept] == [
        (5, "steps"),
        (5, "optim.lr"),
        (5, "optim.schedule"),
        (6, "steps"),
    ]


@pytest.mark.parametrize(
    "changed", [{"optim.weight_decay": 0.9}, {"optim.betas": "0.1,0.2"}, {"optim.clip": 1e-6}, {"optim.smoothing": 0.9}]
)
def test_a_changed_optimiser_setting_affects_the_next_step(tmp_path, changed):
    for name, more in (("plain", {}), ("changed", changed)):
        train({**SETTINGS, "optim.schedule": "constant", "out": str(tmp_path / name)})
        train({"steps": 6, **more}, resume=str(tmp_path / name))
    plain, other = (weights(tmp_path / name)[0] for name in ("plain", "changed"))
    assert any(not torch.equal(plain[name], other[name]) for name in plain)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", "toy(size=47)"),
        ("model", "toy-net(dim=5)"),
        ("data", "x.txt"),
        ("seed", 3),
        ("precision", "64-true"),
        ("batch_size", 3),
        ("accumulate", 2),
        ("bucket", 7),
        ("eval_limit", 3),
        ("init_from", "other"),
        ("optim.optimizer", "rmsprop"),
        ("attention", "local(window=3)"),
    ],
)
def test_changing_a_fixed_setting_is_refused_by_name(run, name, value):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(BadValue, match=f"{name}: .* was started with"):
        train({name: value, "steps": 7}, resume=str(run))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_every_setting_is_fixed_or_recorded():
    assert set(FIXED) <= set(settings())
    base, other = Config(task="a"), Config(task="a", keep="3", log_every=7, device="cuda")
    assert {one.setting for one in changes.between(base, other, 2)} == {"keep", "log_every", "device"}


def test_resuming_unchanged_records_nothing(run):
    train({"steps": 5, "task": "toy"}, resume=str(run))
    assert not (run / "changes.json").exists()


def test_resuming_into_another_folder_is_refused(run, tmp_path):
    with pytest.raises(BadValue, match=r"out: .* is resumed where it is"):
        train({"out": str(tmp_path / "other")}, resume=str(run))
    assert train({"out": str(run)}, resume=str(run)).steps == 5


def test_resuming_from_an_earlier_checkpoint_restores_the_settings_of_that_time(tmp_path):
    run, told = tmp_path / "run", []
    train({**SETTINGS, "keep": "all", "out": str(run)})
    train({"steps": 8, "optim.lr": 9.0}, resume=str(run))
    result = train({}, resume=str(run / "checkpoints" / "step-00000004"), tell=told.append)
    assert result.steps == 5
    assert changes.read(run) == []
    assert any("optim.lr 9.0" in text and "no longer applies" in text for text in told)
    rates = {row["step"]: row["lr"] for row in metrics_file.read(run / "metrics.jsonl")}
    assert rates[5] < 0.01


def test_after_losing_checkpoints_a_change_applies_from_the_resumed_step(tmp_path):
    run = tmp_path / "run"
    train({**SETTINGS, "keep": "all", "out": str(run)})
    train({"steps": 8, "optim.lr": 0.5}, resume=str(run))
    for step in (8, 6, 5):
        (run / "checkpoints" / checkpoints.name_of(step) / "model.safetensors").write_bytes(b"")
    train({}, resume=str(run))
    assert [(one.step, one.setting, one.was, one.now) for one in changes.read(run)] == [
        (4, "steps", 5, 8),
        (4, "optim.lr", 0.01, 0.5),
    ]


def test_a_setting_changed_twice_at_one_step_is_recorded_once(run):
    train({"log_every": 3}, resume=str(run))
    train({"log_every": 4}, resume=str(run))
    assert changes.read(run) == [Change(5, "log_every", 1, 4)]
    train({"log_every": 1}, resume=str(run))
    assert changes.read(run) == []


def test_replacing_steps_by_a_budget_records_both(run):
    train({"budget": "300 tokens"}, resume=str(run))
    assert {(one.setting, one.was, one.now) for one in changes.read(run)} == {
        ("steps", 5, None),
        ("budget", None, "300 tokens"),
    }
    assert train({}, resume=str(run)).stopped_by == "budget"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        '[{"step": -1, "setting": "steps", "was": 1, "now": 2}]',
        '[{"step": 1}]',
        "[3]",
        '[{"step": 1, "setting": "colour", "was": 1, "now": 2}]',
        '[{"step": 1, "setting": "seed", "was": 0, "now": 2}]',
    ],
)
def test_a_damaged_changes_file_is_an_error_that_names_it(run, text):
    (run / "changes.json").write_text(text)
    with pytest.raises(BadValue, match=r"changes\.json"):
        train({}, resume=str(run))
    with pytest.raises(BadValue, match=r"changes\.json"):
        load(run, device="cpu")


def test_a_checkpoint_lists_earlier_changes_that_affect_its_weights(tmp_path):
    run = tmp_path / "run"
    train({**SETTINGS, "keep": "all", "out": str(run)})
    train({"steps": 7, "optim.lr": 0.5, "log_every": 2}, resume=str(run))
    assert [one.setting for one in load(run, "last", "cpu").changes] == ["steps", "optim.lr"]
    assert load(run, "5", "cpu").changes == ()
    assert yaml.safe_load((run / "config.yaml").read_text())["steps"] == 5

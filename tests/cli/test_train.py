"""`regard train` from the command line: flags, files, exit codes, what goes to stdout."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml
from PIL import Image

from regard_workbench.cli.main import main
from tests.training.registered import toy_registered  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments):
    try:
        return main(["train", *map(str, arguments)])
    except SystemExit as stop:
        return stop.code


def test_results_go_to_stdout_and_progress_to_stderr(tmp_path, capsys):
    assert run("toy", "--steps", 3, "--out", tmp_path / "run", "--json") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["folder"] == str(tmp_path / "run") and found["steps"] == 3 and found["stopped_by"] == "steps"
    assert "accuracy" in found["metrics"]
    assert "loss" in err and "steps/s" in err


def test_flags_win_over_a_file_and_a_file_over_the_recipe(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("task: toy\nsteps: 77\nseed: 3\ncompile: true\noptim:\n  lr: 5e-3\n  clip: 2\n")
    assert run("--config", tmp_path / "c.yaml", "--steps", "1e2", "--optim.clip", "0.5", "--print_config") == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert (found["steps"], found["seed"], found["batch_size"], found["compile"]) == (100, 3, 5, True)
    assert (found["optim"]["lr"], found["optim"]["clip"]) == (5e-3, 0.5)


def test_a_printed_config_can_be_trained_from(tmp_path, capsys):
    assert run("toy", "--steps", 2, "--no-graph", "--print-config") == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["graph"] is False
    (tmp_path / "c.yaml").write_text(text)
    assert run("--config", tmp_path / "c.yaml", "--out", tmp_path / "run") == 0


@pytest.mark.parametrize("spelled", ["--batch-size", "--batch_size"])
def test_hyphens_and_underscores_mean_the_same(spelled, capsys):
    assert run("toy", spelled, 3, "--optim.weight-decay", 0.5, "--print-config") == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert (found["batch_size"], found["optim"]["weight_decay"]) == (3, 0.5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tyo"], "Did you mean 'toy'?"),
        (["toy", "--stesp", "3"], "Did you mean '--steps'?"),
        (["toy", "--optim.lrr", "3"], "Did you mean '--optim.lr'?"),
        (["toy", "--model", "toy-nett"], "Did you mean 'toy-net'?"),
        (["toy", "--attention", "locl(window=3)"], "Did you mean 'local'?"),
        (["toy", "--model", "toy-net(dmi=3)"], "Did you mean 'dim'?"),
        (["toy", "--precision", "bf16-mixd"], "Did you mean 'bf16-mixed'?"),
        (["toy", "--steps", "few", "--seed", "x"], "2 mistakes"),
        (["toy", "--name", "../../x"], "name: '../../x'"),
        (["toy", "--attention", "local(window=3)"], "no place for another attention"),
        ([], "name the task to train"),
        (["toy", "--config", "nowhere.yaml"], "cannot read nowhere.yaml"),
        (["--resume", "nowhere"], "no run here"),
    ],
)
def test_a_wrong_call_exits_with_two_and_helps(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_loss_that_is_no_number_exits_with_one(tmp_path, capsys):
    assert run("toy(poison=5)", "--out", tmp_path / "run") == 1
    assert "training examples" in capsys.readouterr().err


def test_a_dry_run_prints_facts_and_a_fast_one_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("toy", "--dry-run") == 0
    assert "parameters: 185" in capsys.readouterr().out
    assert run("toy", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 185
    assert run("toy", "--fast-dev-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["folder"] is None
    assert not list(tmp_path.iterdir())


def test_the_help_shows_every_setting(capsys):
    assert run("--help") == 0
    text = capsys.readouterr().out
    for option in ("--model", "--optim.lr", "--resume", "--dry-run", "--precision", "--init-from", "--json"):
        assert option in text
    assert "regard train dates" in text


@pytest.mark.slow
def test_the_whole_program_runs_in_a_process_of_its_own(tmp_path):
    command = [sys.executable, "-W", "error", "-m", "tests.training.toy", "train", "toy", "--steps", "2", "--json"]
    done = subprocess.run([*command, "--out", str(tmp_path / "run")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 2


def test_what_was_skipped_is_one_note_without_a_line_of_code(tmp_path, capsys):
    """Warnings of the package are for the user; those of other packages keep Python's form."""
    for number in range(9):
        for name in ("cat", "dog"):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new("L", (8, 8), 20 * number).save(tmp_path / name / f"{number}.png")
    (tmp_path / "cat" / "words.png").write_text("no picture")
    wanted = ["--steps", "1", "--batch-size", "2", "--device", "cpu", "--out", str(tmp_path / "run")]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["train", "images", "--data", str(tmp_path), "--bad-files", "skip", *wanted]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "words.png" in line]
    assert line.startswith("note: 1 file was skipped") and ".py" not in line

"""Runs that are killed or interrupted at random moments and resumed equal an uninterrupted run, bit for bit."""

import os
import random
import select
import signal
import threading
import time

import pytest

from regard_workbench.training.run_folder import metrics_file
from tests.training.commands import Command
from tests.training.toy import assert_same

SETTINGS = [
    "train",
    "toy",
    "--steps",
    "30",
    "--accumulate",
    "3",
    "--save-every",
    "4",
    "--eval-every",
    "7",
    "--log-every",
    "1",
    "--batch-size",
    "4",
]
SLOW = 0.003


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    command = Command(folder, *SETTINGS, "--out", folder / "run")
    assert command.wait() == 0, command.text
    return folder / "run"


def assert_every_step_is_logged_once(folder, steps=30):
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    assert [record["step"] for record in metrics_file.read(folder / "metrics.jsonl")] == list(range(1, steps + 1))
    assert len(lines) == steps


def logged(folder):
    records = metrics_file.read(folder / "metrics.jsonl")
    return [{k: v for k, v in r.items() if k not in ("seconds", "steps_per_second")} for r in records]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_sigkill_at_random_moments_changes_nothing(tmp_path, uninterrupted, seed):
    own, run = random.Random(seed), tmp_path / "run"
    kills = 0
    for attempt in range(60):
        # Slow enough that no process finishes before the third kill, on any machine.
        command = Command(tmp_path, *SETTINGS, "--out", run, "--resume", "auto", slow=3 * SLOW)
        if attempt < 10:
            if own.random() < 0.7 and not run.exists():
                command.wait_for(run / "metrics.jsonl")
            time.sleep(own.uniform(0.02, 0.25))
            command.send(signal.SIGKILL)
        code = command.wait()
        kills += code == -signal.SIGKILL
        if code == 0:
            break
        assert code == -signal.SIGKILL, command.text
    assert kills >= 2
    assert_same(run, uninterrupted)
    assert_every_step_is_logged_once(run)
    assert logged(run) == logged(uninterrupted)
    assert not [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]


HANDLED = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]


@pytest.mark.slow
@pytest.mark.parametrize("number", HANDLED, ids=lambda number: number.name)
def test_a_signal_saves_and_prints_the_resume_command(tmp_path, uninterrupted, number):
    own, run = random.Random(int(number)), tmp_path / "run"
    command = Command(tmp_path, *SETTINGS, "--out", run, slow=SLOW)
    for _ in range(3):
        lines = (run / "metrics.jsonl").read_bytes().count(b"\n") if run.exists() else 0
        command.wait_for(run / "metrics.jsonl", lines + 2)
        time.sleep(own.uniform(0, 3 * SLOW))  # also in the middle of an accumulated step
        command.send(number)
        assert command.wait() == 128 + number, command.text
        assert f"regard train --resume {run}" in command.text
        command = Command(tmp_path, "train", "--resume", run, slow=SLOW)
    assert command.wait() == 0, command.text
    assert_same(run, uninterrupted)
    assert_every_step_is_logged_once(run)
    assert logged(run) == logged(uninterrupted)


@pytest.mark.slow
def test_the_second_signal_quits_at_once_and_loses_no_checkpoint(tmp_path, uninterrupted):
    run = tmp_path / "run"
    command = Command(tmp_path, *SETTINGS, "--out", run, slow=0.05)
    command.wait_for(run / "metrics.jsonl", 5)
    command.send(signal.SIGINT)
    time.sleep(0.01)
    command.send(signal.SIGINT)
    started = time.monotonic()
    assert command.wait() == 130
    assert time.monotonic() - started < 5
    again = Command(tmp_path, *SETTINGS, "--out", run, "--resume", "auto")
    assert again.wait() == 0, again.text
    assert_same(run, uninterrupted)


def test_a_signal_before_the_first_step_is_not_lost(tmp_path):
    run = tmp_path / "run"
    command = Command(tmp_path, *SETTINGS, "--out", run, slow=0.5)
    command.wait_for(run / "config.yaml")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM, command.text
    assert list((run / "checkpoints").glob("step-*/model.safetensors"))


def test_a_run_that_ignores_sighup_continues(tmp_path, uninterrupted):
    run = tmp_path / "run"
    command = Command(tmp_path, *SETTINGS, "--out", run, slow=SLOW, ignore=signal.SIGHUP)  # as nohup does
    command.wait_for(run / "metrics.jsonl", 3)
    command.send(signal.SIGHUP)
    assert command.wait() == 0, command.text
    assert_same(run, uninterrupted)


def _drain(handle, ended):
    while not ended.is_set():
        if select.select([handle], [], [], 0.05)[0]:
            os.read(handle, 65536)


def test_a_run_whose_terminal_closes_saves_before_it_ends(tmp_path, uninterrupted):
    run = tmp_path / "run"
    ours, theirs = os.openpty()
    command = Command(tmp_path, *SETTINGS, "--out", run, slow=3 * SLOW, terminal=os.ttyname(theirs))
    drain = threading.Thread(target=_drain, args=(ours, ended := threading.Event()))
    drain.start()  # writing to a terminal blocks unless its output is read
    try:
        command.wait_for(run / "metrics.jsonl", 3)
    finally:
        ended.set()
        drain.join()
    os.close(theirs)
    os.close(ours)  # the system sends SIGHUP, and every later write to the terminal fails
    assert command.wait() == 128 + signal.SIGHUP
    assert list((run / "checkpoints").glob("step-*"))
    again = Command(tmp_path, "train", "--resume", run)
    assert again.wait() == 0, again.text
    assert_same(run, uninterrupted)


def test_a_second_process_in_the_same_folder_is_refused(tmp_path):
    run = tmp_path / "run"
    first = Command(tmp_path, *SETTINGS, "--out", run, slow=0.05)
    first.wait_for(run / "metrics.jsonl")
    second = Command(tmp_path, *SETTINGS, "--out", run, "--resume", "auto")
    assert second.wait() == 2
    assert "another process" in second.text
    first.send(signal.SIGKILL)
    first.wait()


def test_a_file_size_limit_is_an_error_and_the_run_can_be_resumed(tmp_path, uninterrupted):
    run = tmp_path / "run"
    command = Command(tmp_path, *SETTINGS, "--steps", "30", "--out", run, largest_file=6000)
    assert command.wait() == 1, command.text
    assert "ulimit" in command.text
    assert not list((run / "checkpoints").glob("step-*"))
    assert not list((run / "checkpoints").glob(".part-*"))
    again = Command(tmp_path, "train", "--resume", run)
    assert again.wait() == 0, again.text
    assert_same(run, uninterrupted)


@pytest.mark.slow
def test_a_kill_in_any_file_system_call_loses_no_checkpoint(tmp_path, uninterrupted):
    run, step, deaths = tmp_path / "run", 3, 0
    for attempt in range(60):
        # Ever later calls: while the folder, a line of metrics or a checkpoint is written, or one is deleted.
        command = Command(tmp_path, *SETTINGS, "--out", run, "--resume", "auto", die_at=5 + step * attempt)
        code = command.wait()
        deaths += code == 9
        if code == 0:
            break
        assert code == 9, command.text
    assert deaths >= 10
    assert_same(run, uninterrupted)
    assert_every_step_is_logged_once(run)
    assert logged(run) == logged(uninterrupted)
    assert "damaged" not in command.text

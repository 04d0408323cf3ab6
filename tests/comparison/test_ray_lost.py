"""The head of a cluster, its machine, the command are killed: it is said, nothing is left, and the run goes on."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from regard_workbench.comparison.engines import cluster
from regard_workbench.comparison.engines import ray as engines
from regard_workbench.comparison.engines.cluster import Cluster
from regard_workbench.comparison.engines.local import LocalEngine
from regard_workbench.comparison.engines.stopped import ClusterLost
from tests.comparison.registered import STRANGERS, pauses_of, strangers_registered  # noqa: F401
from tests.comparison.test_ray import PAUSES, command, facts, job_of, left_of, parent_of, processes, sessions_of
from tests.training.commands import lives, until


@pytest.fixture
def head(monkeypatch):
    """A cluster whose head and machine do what a test says, at a time that a test says."""
    found = SimpleNamespace(now=1000.0, answers=True, alive=True)
    context = SimpleNamespace(gcs_address="head:1", get_node_id=lambda: "here")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    monkeypatch.setattr("ray.nodes", lambda: [{"NodeID": "here", "Alive": found.alive}])
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: found.now))

    def call(address, seconds):
        if not found.answers:
            raise ConnectionRefusedError("nobody")

    monkeypatch.setattr(cluster, "_connect", call)
    return found


@pytest.mark.parametrize("address", [None, "head:1"])
def test_a_head_that_does_not_answer_for_a_while_is_lost(head, address):
    found = Cluster(address, 1)
    found._opened = True
    found.raise_if_lost()
    head.answers = False
    for _ in range(7):  # for 19.6 of 20 seconds
        head.now += 2.8
        found.raise_if_lost()
    head.now += 2.8
    with pytest.raises(ClusterLost, match=r"its head at head:1 is gone .* the same command resumes") as lost:
        found.raise_if_lost()
    assert ("ray start --head" in str(lost.value)) == (address is not None)


def test_a_head_that_comes_back_is_not_lost(head):
    found = Cluster(None, 1)
    for answers in (True, False, True, False, True):
        head.answers = answers
        head.now += 19.0
        found.raise_if_lost()


def test_a_machine_on_which_ray_has_ended_is_lost_at_once(head):
    found = Cluster(None, 1)
    found.raise_if_lost()
    head.alive = False
    head.now += 2.8
    with pytest.raises(ClusterLost, match="Ray has ended on this machine"):
        found.raise_if_lost()


def test_a_worker_is_stuck_if_it_is_silent_for_longer_than_a_run_may_be(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(engines, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def stuck(heard, heartbeat):
        return engines._stuck(SimpleNamespace(heard=heard, job=SimpleNamespace(heartbeat=heartbeat)))

    assert stuck(1000.0 - 7.0 - engines.SECONDS_LATE - 0.5, 7.0)
    assert not stuck(1000.0 - 7.0 - engines.SECONDS_LATE + 0.5, 7.0)
    assert not stuck(0.0, None)  # no limit
    assert not stuck(None, 7.0)  # it waits for a machine


@pytest.mark.nightly
@pytest.mark.parametrize("who", ["gcs_server", "raylet", "command", "all"])
def test_after_any_kill_nothing_is_left_and_the_run_resumes(tmp_path, who):
    file, pauses = pauses_of(tmp_path, PAUSES)
    job = job_of(tmp_path, use=(STRANGERS, file))
    lines = Path(job.folder) / "metrics.jsonl"
    with open(tmp_path / "log.txt", "wb") as log, command(tmp_path, "", job, output=log) as own:
        until(lambda: lines.exists() and lines.read_bytes().count(b"\n") >= 13)
        (training,) = processes("regard_workbench.comparison.worker", job.folder)
        worker = parent_of(training)
        (session,) = set(sessions_of(own.pid))
        commanded = who in ("command", "all")
        if commanded:
            own.kill()
        if who != "command":
            every = [*processes(session), training, worker]
            for number in every if who == "all" else processes(session, f"/{who} "):
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(number, signal.SIGKILL)
        code = own.wait(300)
    text = (tmp_path / "log.txt").read_text()
    assert code == (-signal.SIGKILL if commanded else 1), text
    assert commanded or ("is lost" in text and "the same command resumes" in text)
    assert "Traceback" not in text
    for pause in pauses:
        pause.touch()
    until(lambda: not lives(training) and not lives(worker))
    assert left_of(session, seconds=120) == []
    (found,) = LocalEngine(1).run([job], lambda event: None)
    (untouched,) = LocalEngine(1).run([job_of(tmp_path / "untouched")], lambda event: None)
    assert facts(found) == facts(untouched)


@pytest.mark.nightly
def test_the_second_ctrl_c_kills_a_model_that_hangs_with_pythons_lock(tmp_path):
    mark, file = tmp_path / "mark", tmp_path / "mark.py"
    file.write_text(f"import os\nos.environ['REGARD_TOY_MARK'] = {str(mark)!r}\n")
    job = job_of(tmp_path, model="deadlocks", use=(STRANGERS, str(file)))
    with open(tmp_path / "log.txt", "wb") as log, command(tmp_path, "", job, output=log) as own:
        until(mark.exists)
        until(lambda: "step" in (tmp_path / "log.txt").read_text())
        (training,) = processes("regard_workbench.comparison.worker", job.folder)
        worker = parent_of(training)
        (session,) = set(sessions_of(own.pid))
        own.send_signal(signal.SIGINT)
        until(lambda: "SIGINT: saving" in (tmp_path / "log.txt").read_text())
        own.send_signal(signal.SIGINT)
        assert own.wait(300) == 130
    until(lambda: not lives(training) and not lives(worker))
    assert left_of(session, seconds=120) == []

"""A cluster of two cores on this machine: the numbers of the local engine, also after workers were killed."""

import dataclasses
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from regard.errors import BadValue
from regard_workbench.comparison.engines import cluster, remote
from regard_workbench.comparison.engines import ray as engines
from regard_workbench.comparison.engines.ray import RayEngine
from regard_workbench.comparison.engines.remote import RemoteJob
from regard_workbench.comparison.job import Contestant, Job, Outcome
from regard_workbench.comparison.worker import perform
from regard_workbench.training.run_folder import checkpoints, metrics_file
from tests.comparison.registered import STRANGERS, pauses_of, strangers_registered  # noqa: F401

pytestmark = pytest.mark.slow
SETTINGS = {
    "task": "toy",
    "steps": 40,
    "eval_every": 8,
    "save_every": 8,
    "log_every": 1,
    "batch_size": 5,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def engine():
    before = signal.getsignal(signal.SIGTERM)
    with RayEngine(cores=2) as found:
        session = the_session()
        assert processes(session)
        yield found
    assert not left_of(session)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A file that makes every batch of the toy take its time, so that there is some for a kill."""
    file = tmp_path_factory.mktemp("use") / "slow.py"
    file.write_text("import os\nos.environ['REGARD_TOY_SLOW'] = '0.03'\n")
    return str(file)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """Two runs in this process, without a cluster."""
    folder, threads = tmp_path_factory.mktemp("here"), torch.get_num_threads()
    yield [perform(job_of(folder, seed)) for seed in (0, 1)]
    torch.set_num_threads(threads)


def job_of(folder, seed=0, model="toy-net", use=(STRANGERS,), **changes):
    settings = {**SETTINGS, "model": model, "seed": seed, **changes}
    return Job(Contestant(model), seed, settings, str(folder / f"{model}-{seed}"), use=use)


def facts(outcome):
    """All that must be equal, bit for bit; how long it took and where it stands may differ."""
    found = dataclasses.asdict(outcome)
    aside = ("folder", "seconds", "steps_per_second", "command", "metrics")
    kept = {name: found[name] for name in found if name not in aside}
    return json.loads(json.dumps(kept), parse_constant=str)  # one NaN is as good as another


def the_session():
    import ray

    return Path(ray._private.worker.global_worker.node.get_session_dir_path()).name


def processes(*words):
    """Those whose command line holds all the words, by their numbers."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(int(place.name))
    return found


def left_of(session, seconds=10):
    """What is still there of a cluster after a while."""
    limit = time.monotonic() + seconds
    while (found := processes(session)) and time.monotonic() < limit:
        time.sleep(0.1)
    return found


def parent_of(number):
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])


PATIENCE = 900  # seconds until a command counts as hanging, on however busy a machine
PAUSES = (13, 21)  # batches after which a run waits


class Killer:
    """Hears of a job, and kills its process at the first of two pauses, and its worker at the second."""

    def __init__(self, job, pauses):
        self.job, self.pauses, self.heard, self.deaths = job, pauses, [], []

    def __call__(self, event):
        self.heard.append(event)
        number = len(self.deaths)
        if event.news == "step" and number < len(self.pauses) and event.step >= PAUSES[number]:
            (training,) = processes("regard_workbench.comparison.worker", self.job.folder + "/job.json")
            os.kill(parent_of(training) if number else training, signal.SIGKILL)
            newest = checkpoints.paths(Path(self.job.folder) / "checkpoints")[0]
            self.deaths.append(int(newest.name.rpartition("-")[2]))
            self.pauses[number].touch()


def test_the_results_are_those_of_runs_without_a_cluster(engine, untouched, tmp_path):
    heard = []
    jobs = [job_of(tmp_path, 0), job_of(tmp_path, model="falls"), job_of(tmp_path, 1)]
    first, failed, second = found = engine.run(jobs, heard.append)
    assert [facts(first), facts(second)] == [facts(one) for one in untouched]
    assert [first.command, second.command] == [one.command for one in untouched]
    assert first.test != second.test
    assert failed.error == "RuntimeError: the floor gave way"  # and the others went on
    for job, outcome in zip(jobs, found, strict=True):
        assert Outcome.load(job.folder).folder == outcome.folder == job.folder
        assert facts(Outcome.load(job.folder)) == facts(outcome)
        assert not (Path(job.folder) / remote.PROBE).exists()
        own = [event for event in heard if event.job == job]
        assert own[0].news == "began" and own[-1].news == ("failed" if outcome is failed else "done")
        assert outcome.error in own[-1].text

    heard.clear()
    assert facts(engine.run([jobs[2]], heard.append)[0]) == facts(second)
    assert [(event.news, event.text) for event in heard] == [("done", "finished by an earlier command")]


@pytest.mark.nightly
def test_after_sigkill_a_job_resumes_from_its_checkpoint(engine, untouched, tmp_path, capsys):
    file, pauses = pauses_of(tmp_path, PAUSES)
    job = job_of(tmp_path, use=(STRANGERS, file))
    killer = Killer(job, pauses)
    (found,) = engine.run([job], killer)
    told = [
        one.news for one in killer.heard if one.news not in ("step", "silent")
    ]  # a busy machine: silent for a while
    assert told == ["began", "again", "again", "done"]
    for died_at, event in zip(killer.deaths, [one for one in killer.heard if one.news == "again"], strict=True):
        assert 8 <= died_at <= event.step <= SETTINGS["steps"]  # its last checkpoint may have come before the kill
        assert event.text.endswith(f"; resumes from step {event.step}")
    assert facts(found) == facts(untouched[0])
    logged = [record["step"] for record in metrics_file.read(Path(job.folder) / "metrics.jsonl")]
    assert logged == list(range(1, SETTINGS["steps"] + 1))
    assert capsys.readouterr().out == ""  # Ray reports the death of its worker, but not among the results


@pytest.mark.nightly
def test_a_worker_that_sees_neither_folder_nor_file_is_sent_both_and_sends_the_run_back(
    engine, untouched, tmp_path, monkeypatch
):
    def other_files(job, token, files, version):
        return RemoteJob(job, token, {STRANGERS: files[STRANGERS] + b"print(__file__)\n"}, version)

    monkeypatch.setattr(remote, "PROBE", ".nobody-looks-here")  # here, not in the worker
    monkeypatch.setattr(engines, "RemoteJob", other_files)
    job = job_of(tmp_path)
    (found,) = engine.run([job], lambda event: None)
    assert facts(found) == facts(untouched[0]) and found.command == untouched[0].command
    assert facts(Outcome.load(job.folder)) == facts(found)
    newest = checkpoints.load(checkpoints.paths(Path(job.folder) / "checkpoints")[0])
    assert newest.step == SETTINGS["steps"]
    assert f"out: {job.folder}\n" in (Path(job.folder) / "config.yaml").read_text()
    assert Job.from_json((Path(job.folder) / "job.json").read_text()) == job
    (used,) = [line for line in (Path(job.folder) / "log.txt").read_text().splitlines() if ".py" in line[-3:]]
    assert used.startswith(f"{tempfile.gettempdir()}/regard-") and used.endswith("/strangers.py")
    assert own_places(job) == []


def own_places(job):
    """Folders that workers made for themselves for this job, if they are still there."""
    own = hashlib.sha256(job.folder.encode()).hexdigest()[:16]  # others run jobs at the same time
    return [str(path) for path in Path(tempfile.gettempdir()).glob(f"regard-*-{own}")]


@pytest.mark.parametrize("machines_left", [True, False])
def test_a_job_fails_after_its_worker_died_three_times(tmp_path, monkeypatch, machines_left):
    from ray.exceptions import NodeDiedError

    begun, heard = [], []

    def dies():
        yield from ()
        raise NodeDiedError("the lights went out")

    def submit(remote_job):
        begun.append(remote_job)
        return dies()

    def machines():
        return [{"Resources": {"CPU": 1.0}}] if machines_left or not begun else []

    for module in (engines, cluster):
        monkeypatch.setattr(module, "machines", machines)
    monkeypatch.setattr(engines, "_submit", submit)
    sent = engines._send(0, job_of(tmp_path), "token")
    outcome = None
    while outcome is None:
        outcome = engines._listen(sent, heard.append)
    assert "the lights went out" in outcome.error
    assert ("its worker died 3 times" if machines_left else "no machine of the cluster") in outcome.error
    assert len(begun) == (3 if machines_left else 1)
    assert [event.news for event in heard] == ["failed"]
    assert facts(Outcome.load(outcome.folder)) == facts(outcome)


def test_another_version_on_the_cluster_is_refused(engine, monkeypatch, tmp_path):
    theirs = re.escape(remote.installed())
    monkeypatch.setattr(remote, "version", lambda package: "9.9.9")  # here, not in the workers
    with pytest.raises(BadValue, match=rf"expected regard 9\.9\.9 on every machine .* has {theirs}\. Install"):
        RayEngine().run([job_of(tmp_path)], lambda event: None)


def test_a_machine_that_joins_with_another_version_refuses_the_job(tmp_path):
    with pytest.raises(BadValue, match=rf"regard 9\.9\.9 on every machine, one has {re.escape(remote.installed())}"):
        next(remote.run_job(RemoteJob(job_of(tmp_path), "token", {}, "9.9.9")))


def test_a_job_that_fits_on_no_machine_is_refused(engine, tmp_path):
    wide = dataclasses.replace(job_of(tmp_path), threads=3)
    with pytest.raises(BadValue, match="no machine of the cluster has 3 cores"):
        engine.run([wide], lambda event: None)
    with pytest.raises(BadValue, match="1 cores and a GPU"):
        engine.run([job_of(tmp_path, device="cuda")], lambda event: None)
    assert not list(tmp_path.iterdir())


OWN = """
import signal, sys
from pathlib import Path
from regard_workbench import plugins
from regard_workbench.comparison.engines.ray import RayEngine
from regard_workbench.comparison.engines.stopped import ClusterLost, Stopped
from regard_workbench.comparison.job import Job

jobs = [Job.from_json(Path(file).read_text()) for file in sys.argv[2:]]
plugins.load(jobs[0].use)
engine = RayEngine(sys.argv[1] or None, cores=2)
try:
    for outcome in engine.run(jobs, lambda event: print(event.news, event.text, flush=True)):
        print(outcome.error or "no error")
except Stopped as stopped:
    sys.exit(stopped.exit_code)
except ClusterLost as lost:
    sys.exit(str(lost))
"""


def command(folder, address, *jobs, output=subprocess.PIPE):
    """An engine in a process of its own; it does not close its cluster, as one that is stopped may not."""
    files = []
    for number, job in enumerate(jobs):
        files.append(folder / f"{number}.json")
        files[-1].write_text(job.to_json())
    return subprocess.Popen(
        [sys.executable, "-c", OWN, address, *map(str, files)],
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )


@pytest.mark.nightly
def test_an_existing_cluster_is_joined_and_left_running(engine, untouched, tmp_path):
    import ray

    done = dataclasses.replace(job_of(tmp_path), folder=untouched[0].folder)
    address = ray.get_runtime_context().gcs_address
    with command(tmp_path, address, done) as joined:
        text, _ = joined.communicate(timeout=PATIENCE)
    assert joined.returncode == 0 and text == "done finished by an earlier command\nno error\n", text
    assert ray.nodes()[0]["Alive"]


@pytest.mark.nightly
def test_ctrl_c_saves_and_leaves_nothing_behind(tmp_path, slow):
    job = job_of(tmp_path, use=(STRANGERS, slow), steps=4000, save_every=1000, eval_every=1000)
    lines = Path(job.folder) / "metrics.jsonl"
    with command(tmp_path, "", job) as stopped:
        limit = time.monotonic() + PATIENCE
        while not lines.exists() or lines.read_bytes().count(b"\n") < 3:
            assert stopped.poll() is None and time.monotonic() < limit
            time.sleep(0.05)
        (training,) = processes("regard_workbench.comparison.worker", job.folder)
        (session,) = set(sessions_of(stopped.pid))
        stopped.send_signal(signal.SIGINT)
        text, _ = stopped.communicate(timeout=PATIENCE)
    assert stopped.returncode == 128 + signal.SIGINT, text
    assert training not in processes("regard_workbench.comparison.worker")
    assert left_of(session) == []
    (saved,) = checkpoints.paths(Path(job.folder) / "checkpoints")
    logged = [record["step"] for record in metrics_file.read(lines)]
    assert checkpoints.load(saved).step == logged[-1] < 1000
    assert own_places(job) == []


def sessions_of(parent):
    """The names of clusters that a process has begun."""
    for number in processes("session_"):
        if parent_of(number) == parent:
            line = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            yield from {part for part in line.replace("/", " ").split() if part.startswith("session_2")}


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "", "head:port"])
def test_an_address_has_a_host_and_a_port(address):
    with pytest.raises(BadValue, match=f"expected auto or HOST:PORT, .* got {address!r}"):
        RayEngine(address)


def test_an_address_without_a_cluster_is_refused_at_once(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"  # taken, but nobody listens
        with pytest.raises(BadValue, match=rf"no Ray cluster could be joined at '{address}': .*ray start --head"):
            RayEngine(address).run([], lambda event: None)


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadValue, match=r"pip install 'regard\[cluster\]'"):
        RayEngine()

"""Lists of measurements: they run a few at once inside a limit of time, and name only what exists."""

import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench import session
from regard.nn import positions
from regard.registry import options_of, parse, split
from regard_workbench.cli.main import main
from regard_workbench.comparison.engines.stopped import Stopped
from regard_workbench.models.parts.model import MODELS
from regard_workbench.models.parts.model import options_of as options_of_model
from regard_workbench.tasks.parts.task import TASKS

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted((ROOT / "bench" / "sessions").glob("*.toml"))


def ran(tmp_path, seconds=60, together=2, **commands):
    jobs = [session.Job(name, run, seconds=1) for name, run in commands.items()]
    session.Session(jobs, together, tmp_path / "data", tmp_path / "out", seconds).run()
    return {one["name"]: one for one in json.loads((tmp_path / "out" / "session.json").read_text())}


def test_a_job_is_recorded_with_its_end_and_what_it_printed(tmp_path):
    found = ran(
        tmp_path, good="echo words; printf '{\n \"bleu\": 3\n}\n7\n[1'; ls {data} 2>/dev/null; true", bad="exit 7"
    )
    assert found["good"]["ended"] == "done" and found["good"]["printed"] == [{"bleu": 3}, 7]
    assert found["good"]["command"].endswith(f"ls {tmp_path / 'data'} 2>/dev/null; true")
    assert found["bad"]["ended"] == "failed (7)"
    assert {found["good"]["beside"], found["bad"]["beside"]} == {0, 1}


def test_jobs_at_once_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(session.os, "cpu_count", lambda: 17)
    assert ran(tmp_path, together=5, one="echo $OMP_NUM_THREADS")["one"]["printed"] == [3]
    assert ran(tmp_path, together=19, one="echo $OMP_NUM_THREADS")["one"]["printed"] == [1]


def test_a_job_that_runs_too_long_is_ended_with_what_it_started(tmp_path):
    marker = tmp_path / "late"
    found = ran(tmp_path, seconds=2, slow=f"(sleep 5; touch {marker}) & sleep 600")
    assert found["slow"]["ended"] == "out of time" and found["slow"]["seconds"] < 60
    assert subprocess.run(["pgrep", "-f", str(marker)], capture_output=True).returncode == 1


def test_a_job_that_cannot_end_in_time_is_not_started(tmp_path, capsys):
    job = session.Job("long", "true", seconds=50)
    one = session.Session([job], 1, tmp_path, tmp_path / "out", seconds=5)
    one.run()
    assert one.outcomes["long"].ended == "not started"
    assert capsys.readouterr().out == "long: not started, it needs 50 s of 5 s left\n"


def test_a_job_alone_waits_for_the_others_and_later_ones_wait_for_it(tmp_path):
    trace = tmp_path / "trace"
    jobs = [
        session.Job("first", f"sleep 0.5; echo first >> {trace}", seconds=1),
        session.Job("timed", f"sleep 0.5; echo timed >> {trace}", seconds=1, alone=True),
        session.Job("last", f"echo last >> {trace}", seconds=1),
    ]
    one = session.Session(jobs, 3, tmp_path, tmp_path / "out", seconds=60)
    one.run()
    assert trace.read_text().split() == ["first", "timed", "last"]
    assert [outcome.beside for outcome in one.outcomes.values()] == [0, 0, 0]


def test_the_last_validation_of_a_run_folder_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [{"step": 1, "loss": 3.0}, {"step": 5, "validation": {"f1": 0.5}}, {"step": 9, "loss": 2.0}]
    record = "\n".join(json.dumps(line) for line in lines)
    found = ran(tmp_path, run=f"mkdir -p runs/x && cat > runs/x/metrics.jsonl <<'END'\n{record}\nEND\ntrue runs/x")
    assert found["run"]["validation"] == {"runs/x": {"step": 5, "f1": 0.5}}


def commands(job):
    """Every command of regard that a job runs, as words."""
    lines = job.run.replace("\\\n", " ").replace("&&", "\n").replace(";", "\n").splitlines()
    words = [shlex.split(line) for line in lines if line.strip().startswith("regard ")]
    return [one[1:] for one in words]


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_tasks_models_and_options_of_a_list_exist(path):
    jobs, together = session.read_jobs(path)
    assert jobs and together >= 1
    for job in jobs:
        assert set(re.findall(r"\{data\}/([\w-]+)", job.run)) <= set(job.data), job.name
        for verb, subject, *rest in commands(job):
            given = dict(itertools.pairwise(rest))
            if verb == "evaluate":
                assert f"--out {subject}" in job.run, job.name
                continue
            if verb == "attack":  # a run that an earlier command of the job made, or a variable that names it
                assert subject.removeprefix("$") + "=" in job.run or subject.rpartition("-")[0] in job.run, job.name
                continue
            name, options = parse(subject)
            assert set(options) <= set(options_of(TASKS[name], 0)), (job.name, name)
            for one in split(given.get("--models", given.get("--model", ""))):
                name, options = parse(one)
                assert set(options) <= set(options_of_model(MODELS[name])), (job.name, name)
                assert options.get("positions", "none") in positions.names(), (job.name, name)


def test_every_comparison_of_the_study_is_a_call_that_regard_takes(monkeypatch):
    plans = []

    def compare(plan, hear, tell):
        plans.append(plan)
        raise Stopped(15)

    monkeypatch.setattr("regard_workbench.comparison.compare.compare", compare)
    jobs, _ = session.read_jobs(ROOT / "bench" / "sessions" / "study.toml")
    page = (ROOT / "docs" / "study.md").read_text()
    for job in jobs:
        (words,) = commands(job)
        words = [word.replace("{data}", "../shared/data") for word in words]
        assert main(words) == 128 + 15
        assert shlex.join(["regard", *words]) in page
    assert sorted(str(plan.out) for plan in plans) == sorted(f"runs/study/{job.name}" for job in jobs)


@pytest.mark.slow
def test_the_command_line_tells_which_data_a_list_needs():
    command = [sys.executable, "-m", "bench.session", str(LISTS[0]), "--needs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    needed = {name for job in session.read_jobs(LISTS[0])[0] for name in job.data}
    assert set(done.stdout.split()) == needed


def test_without_the_service_jobs_share_a_gpu_in_turns(monkeypatch):
    monkeypatch.setattr(session.shutil, "which", lambda name: None)
    with session.shared_gpu(True):
        assert "CUDA_MPS_PIPE_DIRECTORY" not in session.os.environ

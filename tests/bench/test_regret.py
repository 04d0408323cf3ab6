"""The regret of `auto`: what is drawn, how it is counted, and on a GPU what it is."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import regard
from bench.gpu_checking import formula, regret
from bench.gpu_checking.regret import Drawn, Kind, calls_of, drawn, first_look, kinds, regret_of, summary
from bench.gpu_checking.report import Report

ROOT = Path(__file__).parents[2]
SMALL = Drawn(1, 2, 130, Kind("causal", 16, torch.float32), trains=True)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(formula, "DEVICE", "cpu")
    monkeypatch.setattr(regret, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def test_the_draw_is_fixed_and_covers_the_shapes_people_use():
    every = drawn()
    assert every == drawn() and len(set(every)) > 190 and drawn(seed=21) != every
    assert len(set(kinds())) == regret.KINDS
    assert {one.kind.mask for one in every} == set(regret.MASKS)
    assert {one.kind.width for one in every} == {32, 48, 64, 80, 96, 128, 256}
    assert {one.kind.dtype for one in every} == {torch.bfloat16, torch.float16, torch.float32}
    lengths, lines = [one.length for one in every], [one.batch * one.heads for one in every]
    assert min(lengths) < 150 and max(lengths) > 30_000 and (min(lines), max(lines)) == (1, 128)
    assert 80 < sum(one.trains for one in every) < 120
    assert max(one.seconds for one in every) <= 0.025


def test_every_request_is_compiled_by_the_job_of_its_kind():
    jobs = regret.by_kind()
    assert len(jobs) == regret.KINDS
    taken = [one for job in jobs for one in job.args[0]]
    assert sorted(map(str, taken)) == sorted(map(str, drawn()))


@pytest.mark.parametrize("mask", ["causal", "window"])
def test_a_request_runs_under_every_implementation_that_takes_it(on_cpu, mask):
    one = Drawn(1, 2, 130, Kind(mask, 16, torch.float32), trains=True)
    plan, call = calls_of(one)
    once, without = first_look(one, plan.impl, call)
    assert set(once) == ({"sdpa", "tiled"} if mask == "causal" else {"tiled"}) and next(iter(once)) == plan.impl
    assert "its kernels run on a GPU" in without["triton"]
    for wanted, found in zip(call("reference"), call(plan.impl), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("seconds", "best", "lost", "looks"),
    [
        ({"sdpa": 0.003, "triton": 0.001}, "triton", 2.0, 2),
        ({"sdpa": 0.00103, "triton": 0.001}, "triton", 0.03, 1),
        ({"sdpa": 0.001, "triton": 0.003}, "sdpa", 0.0, 1),
        ({"sdpa": 0.001, "triton": 0.005}, "sdpa", 0.0, 0),  # too far behind for a second look
    ],
)
def test_the_regret_is_the_time_of_the_choice_over_the_best(monkeypatch, seconds, best, lost, looks):
    plan = regard.Plan("sdpa", "a rule", {"triton": "another rule"})
    monkeypatch.setattr(regret, "calls_of", lambda one: (plan, seconds.get))
    monkeypatch.setattr(regret, "first_look", lambda *given: (seconds, {"tiled": "too slow"}))
    monkeypatch.setattr(regret, "group", lambda call, count, device: call())
    found = regret_of(SMALL)
    assert (found["auto"], found["best"], found["looks"]) == ("sdpa", best, looks)
    assert found["regret"] == pytest.approx(lost) and found["ok"] == (lost < 0.05)
    assert found.get("why") == (None if best == "sdpa" else "a rule; triton: another rule")
    assert found["not_timed"] == {"tiled": "too slow"} and set(found["ms"]) == set(seconds)


def test_what_nothing_else_can_run_is_not_timed_twice(on_cpu):
    found = regret_of(Drawn(1, 2, 130, Kind("window", 16, torch.float32), trains=False))
    assert (found["auto"], found["best"], found["regret"], found["looks"]) == ("tiled", "tiled", 0, 0)


def test_a_summary_counts_and_names_the_worst():
    found = [(number / 100, f"request {number}") for number in range(100)]
    told = summary(found, 200)
    assert (told["requests"], told["asked"], told["above"]) == (100, 200, 94)
    assert (told["mean"], told["median"], told["p95"], told["largest"]) == (0.495, 0.495, 0.95, 0.99)
    assert len(told["worst"]) == 10 and told["worst"][0] == "99.0% request 99"
    assert summary([(0.0, "only one")], 1)["worst"] == []


def test_requests_are_written_as_they_come_and_those_after_the_limit_are_skipped(on_cpu, monkeypatch, tmp_path):
    monkeypatch.setattr(regret, "drawn", lambda count: [SMALL] * 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a device")
    report = Report(str(tmp_path / "regret.jsonl"))
    report.until = time.time() + 60
    monkeypatch.setattr(regret, "regret_of", lambda one: {"regret": 0.1, "auto": "sdpa", "ms": {}, "why": "a rule"})
    told = regret.regret(report, 3)
    lines = [json.loads(line) for line in (tmp_path / "regret.jsonl").read_text().splitlines()]
    assert [line["case"] for line in lines] == [*[str(SMALL)] * 3, "all"]
    assert told["above"] == lines[-1]["above"] == 3 and "a rule" in told["worst"][0]
    report.until = 0
    assert regret.regret(report, 3) is None


@pytest.mark.gpu
@pytest.mark.nightly  # times, and therefore wants the machine for itself
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_auto_is_never_more_than_five_per_cent_slower_than_the_best(tmp_path, capsys):
    kept = tmp_path / "regret.jsonl"
    command = [sys.executable, "-m", "bench.gpu_check", "--stages", "warm,regret", "--out", str(kept)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    (told,) = [line for line in lines if line["stage"] == "regret" and line["case"] == "all"]
    with capsys.disabled():
        print(json.dumps(told, indent=1))
    assert told["requests"] == regret.REQUESTS and told["above"] == 0, told["worst"]

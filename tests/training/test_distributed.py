"""Several processes: DDP and FSDP train as one process does, and resume bit for bit."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from regard_workbench.training import evaluate, load_run, train
from regard_workbench.training.evaluation import completions
from regard_workbench.training.run_folder import checkpoints, metrics_file
from tests.training.commands import lives, until
from tests.training.distributed import Ranks, run, torchrun
from tests.training.toy import assert_same, weights

pytestmark = pytest.mark.slow

STRATEGIES = ("ddp", "fsdp")
TASKS = {
    # ragged on both sides, and generated in validation
    "transformer": ("dates(validation_size=9, test_size=7)", "transformer(dim=8, layers=2, num_heads=2, dropout=0.0)"),
    # input and output embeddings share one matrix
    "decoder": ("language(context=12)", "decoder(dim=8, layers=2, num_heads=2, dropout=0.0)"),
    # weights inside torch's own LSTM; attention outside of any stack
    "lstm": ("digits", "lstm-attention(dim=8, dropout=0.0)"),
}
TOY = {
    "task": "toy",
    "steps": 9,
    "accumulate": 2,
    "batch_size": 3,
    "save_every": 4,
    "eval_every": 3,
    "log_every": 1,
    "device": "cpu",
    "optim.average": 0.6,
}


def settings(name, out, accumulate, **changes):
    task, model = TASKS[name]
    return {
        "task": task,
        "model": model,
        "steps": 4,
        "batch_size": 3,
        "accumulate": accumulate,
        "log_every": 1,
        "eval_every": 2,
        "eval_limit": 9,
        "device": "cpu",
        "out": str(out),
        **changes,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="module")
def found(folder):
    """All runs of two processes in which none is killed, in one launch; results by name, then by rank."""
    jobs = {}
    for strategy in STRATEGIES:
        own = {"strategy": strategy}
        for name in TASKS:
            jobs[f"{name}-{strategy}"] = {"values": settings(name, folder / f"{name}-{strategy}", 2, **own)}
        game = settings("lstm", folder / f"gan-{strategy}", 2, **own)
        jobs[f"gan-{strategy}"] = {"values": {**game, "task": "generate", "model": "gan(dim=8)"}}
        average = {**own, "optim.average": 0.6}
        averaged = settings("decoder", folder / f"averaged-{strategy}", 2, **average)
        jobs[f"averaged-{strategy}"] = {"values": averaged}
        toy = {**TOY, **own}
        jobs[f"toy-{strategy}"] = {"values": {**toy, "out": str(folder / f"toy-{strategy}")}}
        stopped = {**toy, "out": str(folder / f"stopped-{strategy}")}
        jobs[f"stopped-{strategy}"] = {"values": stopped, "stop_at": 10}
        jobs[f"resumed-{strategy}"] = {"values": stopped, "resume": "auto"}
        poison = {**toy, "task": "toy(poison=5)", "out": str(folder / f"poison-{strategy}")}
        jobs[f"poison-{strategy}"] = {"values": poison}
    seconds = {**TOY, "steps": None, "budget": "0.4 seconds", "out": str(folder / "seconds"), "strategy": "fsdp"}
    jobs["seconds"] = {"values": seconds}
    jobs["compiled"] = {"values": {**TOY, "out": str(folder / "compiled"), "strategy": "fsdp", "compile": True}}
    mixed = {"strategy": "fsdp", "precision": "bf16-mixed"}
    jobs["mixed"] = {"values": settings("decoder", folder / "mixed", 2, **mixed)}
    train({**TOY, "steps": 2, "out": str(folder / "grown")}, quiet=True)
    jobs["grown"] = {"values": {"steps": 3, "strategy": "fsdp"}, "resume": str(folder / "grown")}
    results = run(list(jobs.values()), folder)
    return dict(zip(jobs, zip(*results, strict=True), strict=True))


def records(folder):
    return metrics_file.read(folder / "metrics.jsonl")


@pytest.mark.parametrize("name", TASKS)
def test_two_processes_with_two_batches_each_equal_one_with_four(tmp_path, folder, found, name):
    train(settings(name, tmp_path / "one", 4), quiet=True)
    for strategy in STRATEGIES:
        pairs = zip(records(tmp_path / "one"), records(folder / f"{name}-{strategy}"), strict=True)
        for one, two in pairs:
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-6)
            assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
            assert two["tokens"] == one["tokens"] and two["lr"] == one["lr"]
            assert two.get("validation", {}) == pytest.approx(one.get("validation", {}), rel=1e-6)
        assert ("validation" in one) and found[f"{name}-{strategy}"][0]["steps"] == 4


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_checkpoint_of_two_processes_equals_that_of_one(tmp_path, folder, found, strategy):
    """The same names, shapes and kinds of tensors, and the same numbers within rounding."""
    train(settings("decoder", tmp_path / "one", 4), quiet=True)
    (ours, at), (theirs, there) = weights(folder / f"decoder-{strategy}"), weights(tmp_path / "one")
    rounded = {"best": 0, "best_loss": 0, "metrics": 0}
    assert {**at, **rounded} == {**there, **rounded}
    for name, value in theirs.items():
        assert ours[name].shape == value.shape and ours[name].dtype == value.dtype
        if not name.startswith("random."):
            torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=2e-4)
    others = [name for name in ours if name not in theirs]
    assert others and all(name.startswith("random.process-1.") for name in others)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_average_their_weights_as_one_does(tmp_path, folder, found, strategy):
    train(settings("decoder", tmp_path / "one", 4, **{"optim.average": 0.6}), quiet=True)
    (ours, _), (theirs, _) = weights(folder / f"averaged-{strategy}"), weights(tmp_path / "one")
    for name, value in theirs.items():
        if not name.startswith("random."):
            torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=2e-4)
    pairs = zip(records(tmp_path / "one"), records(folder / f"averaged-{strategy}"), strict=True)
    plain = [one.get("validation") for one in records(folder / f"decoder-{strategy}")]
    for (one, two), other in zip(pairs, plain, strict=True):
        assert two.get("validation", {}) == pytest.approx(one.get("validation", {}), rel=1e-6)
        assert "validation" not in one or two["validation"]["loss"] != other["loss"]


@pytest.mark.parametrize("name", TASKS)
def test_a_checkpoint_of_two_processes_measures_the_same_in_one(folder, found, name):
    for strategy in STRATEGIES:
        last = checkpoints.paths(folder / f"{name}-{strategy}" / "checkpoints")[0]
        task, model, config = load_run(last)
        again = evaluate(task, model, batch_size=3, limit=9, seed=config.seed)
        measured = dict(found[f"{name}-{strategy}"][0]["metrics"])
        completed = {metric: measured.pop(metric) for metric in list(measured) if "completion" in metric}
        assert again == pytest.approx(measured, rel=1e-6)
        known = completions(task, model, "validation", batch_size=3, most=9, device="cpu")
        assert known == pytest.approx(completed, rel=1e-6)


def test_two_players_learn_the_same_sharded_as_replicated(folder, found):
    """Each learns from its own loss alone, whatever stands in for the weights of the other meanwhile."""
    replicated, sharded = (weights(folder / f"gan-{strategy}")[0] for strategy in STRATEGIES)
    # Biases before a normalisation have no gradient but rounding, of which Adam makes whole steps.
    matrices = [name for name in replicated if name.endswith((".original", ".original:exp_avg"))]
    assert any(name.startswith("discriminator.blocks") for name in matrices)
    for name in matrices:
        torch.testing.assert_close(sharded[name], replicated[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_signal_to_one_process_stops_both_and_they_resume_bit_for_bit(folder, found, strategy):
    first, second = found[f"stopped-{strategy}"]
    assert first["stopped_by"] == second["stopped_by"] == "SIGTERM"
    assert first["steps"] == second["steps"] == 5  # the tenth batch of a process ends its fifth step
    assert [one["stopped_by"] for one in found[f"resumed-{strategy}"]] == ["steps", "steps"]
    assert_same(folder / f"stopped-{strategy}", folder / f"toy-{strategy}")
    clock = {"seconds": 0, "steps_per_second": 0}
    lines = [[{**r, **clock} for r in records(folder / f"{name}-{strategy}")] for name in ("stopped", "toy")]
    assert lines[0] == lines[1]


def test_three_processes_resume_bit_for_bit(tmp_path):
    """A sum of three numbers depends on their order, which DDP chooses by the place in a bucket of gradients."""
    jobs, runs = [], {}
    for strategy, names in (("ddp", ("transformer", "toy")), ("fsdp", ("toy",))):
        for name in names:
            whole, again = (str(tmp_path / f"{name}-{strategy}-{which}") for which in ("whole", "again"))
            runs[whole] = again
            for out in (whole, again):
                own = {**TOY, "out": out} if name == "toy" else settings(name, out, 2)
                jobs.append({"values": {**own, "strategy": strategy, "save_every": 1, "keep": "all"}})
            jobs.append({"values": {}, "resume": f"{again}/checkpoints/step-00000002"})
    results = run(jobs, tmp_path, count=3)
    assert all(not one.get("error") for rank in results for one in rank)
    for whole, again in runs.items():
        assert_same(Path(whole), Path(again))
        assert weights(Path(again))[1]["step"] > 3


@pytest.mark.parametrize("name", TASKS)
def test_fsdp_holds_every_weight_and_its_optimiser_state_once_over_all_processes(found, name):
    both = found[f"{name}-fsdp"]
    whole = both[0]["whole"]
    assert sum(one["kept"] for one in both) == whole and sum(one["remembered"] for one in both) == 2 * whole
    assert max(one["kept"] for one in both) < 0.7 * whole
    assert all(one["kept"] == whole for one in found[f"{name}-ddp"])


def test_each_process_has_its_own_dropout(folder, found):
    kept = weights(folder / "toy-fsdp")[0]
    assert not torch.equal(kept["random.torch"], kept["random.process-1.torch"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_non_finite_loss_stops_both_with_the_same_examples(folder, found, strategy):
    first, second = found[f"poison-{strategy}"]
    assert first["error"] == second["error"] and "the loss is nan" in first["error"]
    examples = first["error"].partition("[")[2].partition("]")[0].split(", ")
    assert "5" in examples and len(examples) <= 3
    step = int(first["error"].partition("step ")[2].partition(":")[0])
    assert weights(folder / f"poison-{strategy}")[1]["step"] == step - 1


def test_the_clock_of_rank_0_decides_when_a_budget_in_seconds_ends(folder, found):
    first, second = found["seconds"]
    assert first["stopped_by"] == second["stopped_by"] == "budget"
    assert (first["steps"], first["seconds"], first["tokens"]) == (second["steps"], second["seconds"], second["tokens"])
    assert first["seconds"] >= 0.4 and records(folder / "seconds")[-1]["validation"]


def test_settings_that_fsdp_does_not_support_are_refused(folder, found):
    assert all("Leave out --compile" in one["error"] for one in found["compiled"])
    assert not (folder / "compiled").exists()


def test_mixed_precision_is_close_to_that_of_one_process(tmp_path, folder, found):
    train(settings("decoder", tmp_path / "one", 4, precision="bf16-mixed"), quiet=True)
    for one, two in zip(records(tmp_path / "one"), records(folder / "mixed"), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=2e-2)
    assert all(
        tensor.dtype == torch.float32
        for tensor in checkpoints.load(checkpoints.paths(folder / "mixed" / "checkpoints")[0]).weights.values()
    )


def test_resuming_with_another_number_of_processes_is_reported(tmp_path, folder, found):
    assert found["grown"][0]["steps"] == 3
    assert any("was 1 and is 2 now" in text for text in found["grown"][0]["told"])
    told = []
    shutil.copytree(folder / "toy-fsdp", tmp_path / "run")
    shrunk = train({"steps": 10}, resume=str(tmp_path / "run"), quiet=True, tell=told.append)
    assert shrunk.steps == 10
    assert any("was 2 and is 1 now" in text for text in told) and any(
        "shards nothing in one process" in text for text in told
    )


FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in TOY.items() if name != "task"]


class Launch:
    """The toy task in two processes; it can be paused at a batch, to be killed there."""

    def __init__(self, folder, strategy="fsdp"):
        self.folder, self.run, self.log = folder, folder / "run", folder / "log.txt"
        self.resume_file = folder / "resume-file"
        own = (f"--strategy={strategy}", f"--out={self.run}", "--resume=auto")
        self.command = ("train", "toy", *FLAGS, *own)

    def pause_at(self, calls):
        return {"REGARD_TOY_PAUSE": f"{calls}:7:{self.resume_file}"}

    def torchrun(self, **environment):
        return torchrun("-m", "tests.training.toy", *self.command, log=self.log, **environment)

    def wait_for(self, lines, alive):
        """Return once the metrics have this many lines: then the run is about to pause."""
        limit = time.monotonic() + 300
        while len(records(self.run)) < lines:
            assert alive() and time.monotonic() < limit, self.log.read_text()
            time.sleep(0.01)

    def paused(self, calls, lines):
        """Start it with torchrun, and return once it pauses after `calls` batches of each process."""
        process = self.torchrun(**self.pause_at(calls))
        self.wait_for(lines, lambda: process.poll() is None)
        return process

    def finish(self):
        ranks = Ranks(self.folder, *self.command)
        assert ranks.wait() == [0, 0], ranks.text


def test_a_killed_process_ends_the_run_with_a_message_and_it_resumes_bit_for_bit(tmp_path, folder, found):
    launch = Launch(tmp_path)
    ranks = Ranks(tmp_path, *launch.command, environment=launch.pause_at(10))
    launch.wait_for(5, lambda: ranks.commands[0].process.is_alive())
    ranks.commands[1].send(signal.SIGKILL)
    launch.resume_file.touch()
    assert ranks.wait() == [1, -signal.SIGKILL]
    assert "Another of the 2 processes of this run is gone" in ranks.text
    assert f"--resume {launch.run}" in ranks.text and "Traceback" not in ranks.text
    launch.finish()
    assert_same(launch.run, folder / "toy-fsdp")


def test_a_run_resumes_bit_for_bit_after_torchrun_got_a_signal(tmp_path, folder, found):
    """torchrun forwards the SIGTERM to its processes."""
    launch = Launch(tmp_path)
    process = launch.paused(calls=14, lines=7)
    process.send_signal(signal.SIGTERM)
    until(lambda: "SIGTERM: saving" in launch.log.read_text())
    launch.resume_file.touch()
    process.wait(300)
    assert "[rank0]: Traceback" not in launch.log.read_text()  # torchrun prints its own
    assert len(records(launch.run)) < 9
    launch.finish()
    assert_same(launch.run, folder / "toy-fsdp")


@pytest.mark.nightly
@pytest.mark.parametrize("who", ["first", "torchrun", "all"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_resumed_after_killing_any_process_ends_the_same(tmp_path, folder, found, strategy, who):
    launch = Launch(tmp_path, strategy)
    killed = launch.paused(calls=10, lines=5)
    workers = _workers(killed.pid)
    for number in {"first": workers[:1], "torchrun": [killed.pid], "all": [killed.pid, *workers]}[who]:
        os.kill(number, signal.SIGKILL)
    if who == "torchrun":  # its processes still run, so that a second command finds the folder locked
        assert launch.torchrun().wait(300) != 0
        assert "another process" in launch.log.read_text()
    launch.resume_file.touch()
    assert killed.wait(300) != 0
    until(lambda: not any(lives(number) for number in workers))
    launch.finish()
    assert_same(launch.run, folder / f"toy-{strategy}")
    assert [record["step"] for record in records(launch.run)] == list(range(1, 10))


def _workers(parent):
    """The processes that torchrun started, in the order of their ranks."""
    with open(f"/proc/{parent}/task/{parent}/children") as children:
        return sorted(map(int, children.read().split()))

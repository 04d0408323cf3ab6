"""One run of a comparison: trained, measured at its best, cut into blocks; taken over, continued, refused, failed."""

import dataclasses
import json
import math
import shlex
from pathlib import Path

import pytest
import torch

from regard.errors import BadValue
from regard_workbench.cli.main import main
from regard_workbench.comparison import previous_runs
from regard_workbench.comparison.job import Contestant, Job, Outcome
from regard_workbench.comparison.worker import BLOCKS, command_of, in_blocks, perform, reason
from regard_workbench.tasks import Batch, Mean, OneOf, Task, Tokens
from regard_workbench.tasks.measures.metrics import merged, values
from regard_workbench.training import evaluate, load_run
from regard_workbench.training.run_folder import selection
from regard_workbench.training.run_folder.folder import RunFolder
from tests.comparison.registered import STRANGERS, strangers_registered  # noqa: F401

SETTINGS = {"task": "toy", "steps": 8, "eval_every": 2, "batch_size": 5, "device": "cpu"}


def job_of(folder, model="toy-net", test=True, beam=None, **changes):
    settings = {**SETTINGS, **changes, "model": model, "seed": changes.get("seed", 0)}
    return Job(Contestant(model), settings["seed"], settings, str(folder), test=test, beam=beam, use=(STRANGERS,))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison") / "runs" / "toy-net-seed-0"
    return job_of(folder), perform(job_of(folder))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_an_outcome_says_how_the_run_went(done):
    job, outcome = done
    assert (outcome.model, outcome.attention, outcome.seed, outcome.error) == ("toy-net", None, 0, "")
    assert (outcome.steps, outcome.stopped_by, outcome.metric, outcome.higher_is_better) == (
        8,
        "steps",
        "accuracy",
        True,
    )
    assert outcome.parameters == 185 and outcome.seconds > 0
    assert outcome.settings == job.settings and outcome.folder == job.folder
    assert set(outcome.versions) == {"regard", "torch", "python", "device"}
    assert len(outcome.data_sha256) == 64
    assert json.loads(json.dumps(dataclasses.asdict(Outcome.load(job.folder)))) == json.loads(
        json.dumps(dataclasses.asdict(outcome))
    )


def test_the_best_checkpoint_by_validation_is_measured(done):
    job, outcome = done
    best = selection.require(RunFolder(Path(job.folder)), selection.BEST, print)
    assert outcome.best_step == best.step
    assert (outcome.checkpoint, outcome.checkpoint_sha256) == (best.name, best.sha256)
    task, model, config = load_run(job.folder)
    found = evaluate(task, model, batch_size=config.batch_size, seed=config.seed)
    assert {name: outcome.validation[name] for name in ("accuracy", "loss")} == {
        name: found[name] for name in ("accuracy", "loss")
    }
    assert "never" not in outcome.validation  # a metric that is no number is not there


def test_the_blocks_of_the_test_add_up_to_its_metrics(done):
    job, outcome = done
    task, model, _ = load_run(job.folder)
    assert len(outcome.blocks) == 43  # one example each
    found = evaluate(task, model, "test", batch_size=1)
    for name in ("accuracy", "loss"):
        right, count = (math.fsum(block[name][i] for block in outcome.blocks) for i in (0, 1))
        assert count == 43
        assert right / count == pytest.approx(outcome.test[name], rel=1e-12)
        assert outcome.test[name] == found[name]


class Counting(Task):
    """Example i measures i."""

    def __init__(self, size=0):
        self.size = size

    metric = Mean("sum", look=lambda answered: (float(answered.batch.inputs.sum()), answered.batch.size))

    def streams(self):
        return {"inputs": Tokens(3, length=1)}

    def answers(self):
        return [OneOf(2)]

    def metrics(self):
        return (self.metric,)

    def examples(self, split):
        return range(self.size)

    def collate(self, examples, generator):
        return Batch.of(torch.tensor(examples)[:, None])


@pytest.mark.parametrize(
    ("size", "blocks", "first"),
    [(0, 0, []), (1, 1, [0]), (200, 200, [0]), (201, 101, [0, 1]), (6401, 101, range(64)), (40000, 179, range(224))],
)
def test_the_test_is_cut_into_at_most_two_hundred_blocks_by_its_size_alone(size, blocks, first):
    task = Counting(size)
    task.pose(task.problems()[0])
    config = dataclasses.make_dataclass("C", [("device", str)])("cpu")
    metrics, found, _ = in_blocks(task, torch.nn.Linear(1, 1), config)
    assert len(found) == blocks <= BLOCKS
    if size:
        assert found[0]["sum"] == [sum(first), len(first)]
        assert metrics["sum"] == sum(range(size)) / size
        assert sum(block["sum"][1] for block in found) == size


def test_every_model_and_seed_reads_the_same_test(done, tmp_path):
    _, outcome = done
    other = perform(job_of(tmp_path / "other", "toy-net(dim=5)", seed=3, steps=1))
    assert other.data_sha256 == outcome.data_sha256
    assert [block["accuracy"][1] for block in other.blocks] == [block["accuracy"][1] for block in outcome.blocks]


def test_a_finished_run_is_taken_as_it_is(done, monkeypatch):
    job, outcome = done
    monkeypatch.setattr("regard_workbench.comparison.worker.train", lambda *_, **__: pytest.fail("it trained again"))
    again = perform(Job.from_json(job.to_json()))
    assert repr(again) == repr(outcome)  # NaN equals itself only on paper


def test_a_run_that_was_not_tested_is_tested_without_training_again(tmp_path):
    trial = perform(job_of(tmp_path / "run", test=False))
    assert trial.test == {} and trial.blocks == [] and trial.validation
    assert previous_runs.finished(job_of(tmp_path / "run")) is None
    assert previous_runs.finished(job_of(tmp_path / "run", test=False)) is not None
    written = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    tested = perform(job_of(tmp_path / "run"))
    assert tested.test and tested.validation == trial.validation
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == written


def test_another_beam_measures_again_without_training_again(tmp_path):
    changes = {"task": "dates(validation_size=3, test_size=7)", "steps": 1, "batch_size": 2}
    greedy = perform(job_of(tmp_path / "run", "seq2seq(dim=8)", **changes))
    assert previous_runs.finished(job_of(tmp_path / "run", "seq2seq(dim=8)", beam=2, **changes)) is None
    wide = perform(job_of(tmp_path / "run", "seq2seq(dim=8)", beam=2, **changes))
    assert (greedy.beam, wide.beam) == (None, 2) and wide.steps == 1
    assert wide.data_sha256 == greedy.data_sha256


def test_bleu_carries_its_signature_and_adds_up_over_blocks(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"the {n} birds see {n + 1} boats today\n" for n in range(90)))
    (tmp_path / "b.txt").write_text("".join(f"heute sehen {n} vögel {n + 1} boote\n" for n in range(90)))
    changes = {"task": "translate(level=word)", "data": [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]}
    outcome = perform(job_of(tmp_path / "run", "seq2seq(dim=8)", steps=1, **changes))
    assert "13a" in outcome.protocol["bleu"] and len(outcome.blocks) == 9
    task, _, _ = load_run(tmp_path / "run")
    states = json.loads(json.dumps(outcome.blocks))  # as outcome.json keeps them
    found = values(task.metrics(), merged(task.metrics(), states))
    assert found["bleu"] == pytest.approx(outcome.test["bleu"])


def test_a_run_with_more_steps_resumes_and_is_reported(tmp_path):
    perform(job_of(tmp_path / "run", steps=4))
    job = job_of(tmp_path / "run", steps=6)
    assert (previous_runs.longer(job), previous_runs.refusal(job), previous_runs.finished(job)) == ("4 steps", "", None)
    outcome = perform(job)
    assert outcome.steps == 6 and not outcome.error
    assert previous_runs.finished(job) is not None and previous_runs.longer(job) == ""
    assert previous_runs.finished(job_of(tmp_path / "run", steps=4)) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 3}, "8 steps"),
        ({"budget": "90 seconds", "steps": None}, "90 seconds"),
        ({"optim.lr": 0.5}, "optim.lr was 0.01 and is now 0.5"),
        ({"batch_size": 4}, "batch_size was 5 and is now 4"),
        ({"eval_every": 3}, "eval_every was 2 and is now 3"),
        ({"eval_every": None}, "eval_every was 2"),
        ({"steps": 20, "optim.clip": 7.0}, "optim.clip"),
        ({"precision": "64-true"}, "precision"),
        ({"task": "toy(size=44)"}, "task"),
    ],
)
def test_a_run_does_not_become_another_one(done, changes, said):
    job, _ = done
    settings = {name: value for name, value in {**job.settings, **changes}.items() if value is not None}
    other = dataclasses.replace(job, settings=settings)
    assert said in previous_runs.refusal(other) and "another --out" in previous_runs.refusal(other)
    assert previous_runs.finished(other) is None


def test_settings_without_influence_on_the_result_may_change(done):
    job, _ = done
    assert previous_runs.refusal(dataclasses.replace(job, settings={**job.settings, "log_every": 1})) == ""
    assert (
        previous_runs.refusal(dataclasses.replace(job, folder=job.folder + "-elsewhere", settings={"task": "toy"}))
        == ""
    )


def test_a_longer_run_keeps_the_pace_of_its_validations(tmp_path):
    plain = {"task": "toy", "steps": 20, "model": "toy-net", "seed": 0, "device": "cpu"}
    job = dataclasses.replace(job_of(tmp_path / "run"), settings=plain)
    perform(job)
    longer = dataclasses.replace(job, settings={**plain, "steps": 40})
    assert previous_runs.refusal(longer) == ""
    perform(longer)
    assert previous_runs.finished(longer) is not None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"model": 1}', "\0"])
def test_an_outcome_that_cannot_be_read_is_none(done, tmp_path, damage):
    (tmp_path / "outcome.json").write_text(damage)
    assert previous_runs.finished(dataclasses.replace(done[0], folder=str(tmp_path))) is None


def test_a_failing_run_says_why_and_is_tried_again(tmp_path, capsys):
    outcome = perform(job_of(tmp_path / "run", "falls"))
    assert outcome.error == "RuntimeError: the floor gave way"
    assert "Traceback" in capsys.readouterr().err
    assert Outcome.load(tmp_path / "run").error == outcome.error
    assert previous_runs.finished(job_of(tmp_path / "run", "falls")) is None
    assert perform(job_of(tmp_path / "run", "falls")).error == outcome.error


def test_a_loss_that_is_no_number_is_a_failure_with_its_step(tmp_path, capsys):
    outcome = perform(job_of(tmp_path / "run", task="toy(poison=5)"))
    assert "the loss is nan" in outcome.error and "\n" not in outcome.error
    assert outcome.steps == int(outcome.error.partition("saved in ")[2].partition("step-")[2][:8])


def test_the_reason_is_one_line():
    assert reason(BadValue("a: b\n  c")) == "a: b   c"
    assert reason(RuntimeError("")) == "RuntimeError"
    assert reason(KeyError("x")) == "KeyError: 'x'"


def test_the_command_gives_the_same_run_alone(done, tmp_path, capsys):
    job, outcome = done
    words = shlex.split(outcome.command)
    assert words[:4] == ["regard", "--use", STRANGERS, "train"]
    assert main([*words[1:], "--out", str(tmp_path / "alone")]) == 0
    ours, theirs = (
        selection.require(RunFolder(Path(f)), selection.BEST, print) for f in (job.folder, tmp_path / "alone")
    )
    assert ours.weights.keys() == theirs.weights.keys()
    assert all(torch.equal(ours.weights[name], theirs.weights[name]) for name in ours.weights)


def test_a_command_spells_every_kind_of_setting():
    settings = {
        "task": "x(a=1)",
        "data": ["a b", "c"],
        "compile": True,
        "graph": False,
        "optim.betas": [0.9, 0.98],
        "batch_size": 3,
        "attention": None,
        "init_from": "it's",
    }
    assert command_of(Job(Contestant("m"), 0, settings, "f")) == (
        "regard train 'x(a=1)' --data 'a b,c' --compile --no-graph --optim.betas 0.9,0.98 --batch-size 3 "
        "--init-from 'it'\"'\"'s'"
    )

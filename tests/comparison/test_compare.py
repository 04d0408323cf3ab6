"""A comparison from the plan to its files. A killed command, repeated, runs nothing again that was finished."""

import csv
import dataclasses
import io
import json
import signal
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from regard.errors import BadValue
from regard_workbench.cli.main import main
from regard_workbench.comparison import compare as module
from regard_workbench.comparison import report
from regard_workbench.comparison.compare import ComparisonPlan, compare
from regard_workbench.comparison.job import Cost, Job, Outcome
from regard_workbench.comparison.worker import perform
from regard_workbench.training.run_folder import metrics_file
from regard_workbench.training.run_folder.folder import RunFolder
from tests.comparison.registered import STRANGERS, pauses_of, strangers_registered  # noqa: F401
from tests.comparison.test_local import logged, plain
from tests.training.commands import Command, until

pytestmark = pytest.mark.slow
SETTINGS = {"steps": 30, "eval_every": 6, "save_every": 5, "log_every": 1, "device": "cpu"}
MODELS = ["toy-net", "falls", "toy-net(dim=5)"]


class Story:
    """A command that is killed in the middle of its third run, and then repeated at once, in this process."""

    def __init__(self, home):
        self.out = home / "out"
        pausing, pauses = pauses_of(home, (13,), width=5)
        options = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
        arguments = [
            "--use",
            STRANGERS,
            "--use",
            pausing,
            "compare",
            "toy",
            f"--models={','.join(MODELS)}",
            "--seeds=1",
            "--workers=1",
            "--threads=1",
            *options,
            f"--out={self.out}",
        ]
        self.killed = self._kill(Command(home, *arguments), *pauses)
        self.finished_at = (self.first() / "outcome.json").stat().st_mtime_ns
        shown, told = io.StringIO(), io.StringIO()
        with redirect_stdout(shown), redirect_stderr(told):
            self.code = main(arguments)
        self.shown, self.told = shown.getvalue(), told.getvalue()

    def first(self):
        return self.out / "runs" / "toy-net-seed-0"

    def third(self):
        return next((self.out / "runs").glob("toy-net-dim-5-*"))

    def _kill(self, command, go_on):
        def paused():
            assert command.process.is_alive(), command.text
            return list((self.out / "runs").glob("toy-net-dim-5-*")) and self.step() >= 12

        until(paused)
        command.send(signal.SIGKILL)
        code = command.wait()
        until(lambda: "SIGTERM: saving" in (self.third() / "log.txt").read_text())
        go_on.touch()
        return code

    def step(self):
        return max((line["step"] for line in metrics_file.read(self.third() / "metrics.jsonl")), default=0)

    def rows(self):
        return {row["model"]: row for row in json.loads((self.out / "results.json").read_bytes())}


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    return Story(tmp_path_factory.mktemp("story"))


def test_the_command_was_killed_and_then_ran_to_its_end(story):
    assert story.killed == -signal.SIGKILL
    assert story.code == 1, story.told  # one of three contestants always fails


def test_a_finished_run_is_not_repeated(story):
    assert (story.first() / "outcome.json").stat().st_mtime_ns == story.finished_at
    assert (story.first() / "log.txt").read_text().count("--- ") == 1
    assert "done    toy-net, seed 0: finished by an earlier command" in story.told


def test_the_interrupted_run_saved_and_was_resumed(story):
    log = (story.third() / "log.txt").read_text()
    assert log.count("--- ") == 2
    assert "SIGTERM: saving" in log and "Resuming from step-" in log
    assert [line["step"] for line in metrics_file.read(story.third() / "metrics.jsonl")] == list(range(1, 31))


def test_the_interrupted_run_ends_with_the_bits_of_an_undisturbed_one(story, tmp_path):
    job = Job.from_json((story.third() / "job.json").read_text())
    untouched = perform(dataclasses.replace(job, folder=str(tmp_path / "untouched")))
    assert plain(untouched) == plain(Outcome.load(story.third()))
    assert logged(tmp_path / "untouched") == logged(story.third())


def test_a_failing_contestant_does_not_affect_the_rows_of_the_others(story):
    rows = story.rows()
    assert list(rows) == MODELS
    assert rows["falls"]["failed"] == {"0": "RuntimeError: the floor gave way"} and rows["falls"]["seeds"] == []
    for name in ("toy-net", "toy-net(dim=5)"):
        assert rows[name]["seeds"] == [0] and not rows[name]["failed"]
    shown = story.shown
    assert "failed" in shown and "RuntimeError: the floor gave way" in shown and "toy-net" in shown
    assert "FAILED  falls, seed 0: RuntimeError: the floor gave way" in story.told


def test_rows_hold_what_the_api_promises(story):
    row = story.rows()["toy-net"]
    assert (row["model"], row["task"], row["seeds"], row["parameters"]) == ("toy-net", "toy", [0], 185)
    assert isinstance(row["attention"], str) and isinstance(row["signature"], str) and row["signature"]
    assert row["steps_per_second"] > 0 and row["peak_memory_mib"] >= 0
    outcome = Outcome.load(story.first())
    for split in ("validation", "test"):
        assert row[split]["accuracy"]["mean"] == getattr(outcome, split)["accuracy"]
        assert set(row[split]["accuracy"]) == {"mean", "low", "high"}
    assert "--use" in row["commands"]["0"]


def test_every_file_is_written_and_the_report_is_self_contained(story):
    lines = list(csv.DictReader((story.out / "results.csv").read_text().splitlines()))
    assert [line["model"] for line in lines] == MODELS
    assert "\\begin{tabular}" in (story.out / "results.tex").read_text()
    page = (story.out / "report.html").read_text()
    assert "falls" in page and "http://" not in page.replace("http://www.w3.org", "")
    assert str(story.out / "report.html") in story.shown
    costs = json.loads((story.out / "costs.json").read_bytes())
    assert len(costs) == 2 and all(Cost(**cost).steps_per_second > 0 for cost in costs.values())


# What follows runs in this process, without the report and without processes.


class Here:
    """An engine without processes."""

    seen: list

    def __init__(self, workers):
        self.workers = workers

    def run(self, jobs, hear):
        jobs = list(jobs)
        type(self).seen = jobs
        return [perform(job) for job in jobs]


@pytest.fixture
def quick(monkeypatch):
    """Only what `compare` itself does."""
    monkeypatch.setattr(module, "LocalEngine", Here)
    monkeypatch.setattr(module, "costs_of", lambda *_: {})
    monkeypatch.setattr(report, "write", lambda *_: None)


def plan_of(out, **changes):
    settings = {"task": "toy", "steps": 2, "device": "cpu", **changes.pop("settings", {})}
    models = changes.pop("models", ["toy-net"])
    return ComparisonPlan(settings=settings, models=models, out=out, **{"seeds": [0], "use": (STRANGERS,), **changes})


def test_a_comparison_is_plain_data_about_everything(quick, tmp_path):
    told = []
    plan = plan_of(tmp_path, models=["toy-net", "refuses"], seeds=[3, 1], command="regard compare x")
    found = compare(plan, tell=told.append)
    assert (found.task, found.seeds, found.budget, found.engine, found.trials) == ("toy", [3, 1], "2 steps", "local", 0)
    assert found.left_out == [("refuses", "model: refuses is not to be had.")]
    assert told == ["left out: refuses: model: refuses is not to be had.", "writing the report"]
    assert [(outcome.model, outcome.seed, outcome.steps) for outcome in found.outcomes] == [
        ("toy-net", 3, 2),
        ("toy-net", 1, 2),
    ]
    assert (found.out, found.command) == (tmp_path, "regard compare x")
    assert [row["model"] for row in json.loads((tmp_path / "results.json").read_bytes())] == ["toy-net"]


def test_matched_contestants_are_trained_with_their_widths_and_measured_to_a_target(quick, tmp_path):
    told = []
    settings = {"task": "digits", "steps": 2, "eval_every": 1, "eval_limit": 16, "batch_size": 4}
    plan = plan_of(
        tmp_path,
        models=["encoder(dim=48, num_heads=2, layers=1)", "lstm-attention"],
        settings=settings,
        match="parameters",
        target=0.0,
        columns=("test", "width"),
    )
    found = compare(plan, tell=told.append)
    assert "choosing widths for equal parameters" in told
    first, second = (row["parameters"] for row in found.rows)
    assert 1 / 1.05 <= first / second <= 1.05
    width = found.rows[1]["width"]
    assert Here.seen[1].settings["model"] == found.rows[1]["trained_as"] == f"lstm-attention(dim={width})"
    assert found.rows[1]["model"] == "lstm-attention"
    assert [row["steps_to_target"]["mean"] for row in found.rows] == [1, 1]
    assert str(width) in str(found) and "convergence" not in str(found)
    assert compare(plan).rows == found.rows  # the same widths again, so that nothing is refused


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 2000}, "2,000 steps"),
        ({"budget": "5ktokens", "steps": None}, "5,000 tokens"),
        ({"budget": "1.5s", "steps": None}, "1.5 seconds"),
    ],
)
def test_the_budget_is_written_in_words(quick, monkeypatch, tmp_path, settings, words):
    monkeypatch.setattr(Here, "run", lambda self, jobs, hear: [])
    monkeypatch.setattr("regard_workbench.comparison.results.rows", lambda comparison: [])
    assert compare(plan_of(tmp_path, settings=settings)).budget == words


def test_a_larger_budget_continues_the_run_and_is_reported(quick, tmp_path):
    compare(plan_of(tmp_path))
    told = []
    found = compare(plan_of(tmp_path, settings={"steps": 4}), tell=told.append)
    assert found.outcomes[0].steps == 4
    said, _ = told
    assert "a run of 2 steps" in said and "fresh --out" in said


def test_other_settings_in_the_same_folder_are_refused_before_anything_runs(quick, monkeypatch, tmp_path):
    compare(plan_of(tmp_path, seeds=[0, 1]))
    monkeypatch.setattr(Here, "run", lambda *_: pytest.fail("it ran"))
    with pytest.raises(BadValue, match="another --out") as error:
        compare(plan_of(tmp_path, seeds=[0, 1], settings={"optim.lr": 0.5}))
    assert str(error.value).count("optim.lr was") == 2


def test_settings_chosen_by_tuning_are_used_in_the_runs(quick, monkeypatch, tmp_path):
    asked = []

    def tune_all(contestants, settings, trials, space, engine, folder, threads, hear, *, use, models):
        asked.append((len(contestants), settings["seed"], trials, space, folder, use))
        return [{"optim.lr": 0.5}, {}]

    monkeypatch.setattr("regard_workbench.comparison.sweep.tune_all", tune_all)
    plan = plan_of(tmp_path, models=["toy-net", "toy-net(dim=5)"], seeds=[7, 8], trials=4, space="optim.lr=1e-3..1")
    found = compare(plan)
    assert asked == [(2, 7, 4, "optim.lr=1e-3..1", tmp_path / "sweep", (STRANGERS,))]
    assert found.chosen == {"toy-net": {"optim.lr": 0.5}, "toy-net(dim=5)": {}} and found.trials == 4
    assert [job.settings.get("optim.lr") for job in Here.seen] == [0.5, None, 0.5, None]


def test_a_folder_that_cannot_be_used_is_refused(quick, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match="is a file"):
        compare(plan_of(tmp_path / "file"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("task: toy")
    with pytest.raises(BadValue, match="is a run of"):
        compare(plan_of(tmp_path / "run"))
    with pytest.raises(BadValue, match="NUL"):
        compare(plan_of(Path("a\0b")))


def test_two_commands_do_not_work_in_one_folder(quick, tmp_path):
    with RunFolder(tmp_path).locked(), pytest.raises(BadValue, match="another process"):
        compare(plan_of(tmp_path))


def test_an_unknown_engine_is_refused_by_name(quick, tmp_path):
    with pytest.raises(BadValue, match="Did you mean 'local'"):
        compare(plan_of(tmp_path, engine="locl"))
    with pytest.raises(BadValue, match="--engine ray"):
        compare(plan_of(tmp_path, address="auto"))

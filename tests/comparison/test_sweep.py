"""The same tuning effort for everybody, restartable, and never worse than the recipe. The engine here computes."""

import json
import math
from pathlib import Path

import pytest
from scipy.stats import binom

from regard.errors import BadValue
from regard_workbench.comparison import sweep
from regard_workbench.comparison.engines.engine import Event
from regard_workbench.comparison.job import Contestant, Outcome
from regard_workbench.comparison.worker import perform
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.run_folder.folder import RunFolder
from tests.comparison.registered import STRANGERS, strangers_registered  # noqa: F401

ENCODER, GLOBAL = Contestant("encoder"), Contestant("encoder", "global")
SPACE = "optim.lr=1e-4..1e-1:log,optim.weight_decay=0|0.01|0.1"
SETTINGS = {"task": "digits", "steps": 100}
BEST_RATE = 3e-2


class Killed(Exception):
    """Someone ended the command."""


class Computer:
    """Trains nothing: the accuracy falls with the distance of the learning rate from the best one."""

    def __init__(self, diverges_above=math.inf, dies_after=10**9, loss=False):
        self.diverges_above, self.dies_after, self.loss = diverges_above, dies_after, loss
        self.rounds, self.jobs = [], []

    def accuracy(self, settings):
        config = complete(settings)
        distance = abs(math.log10(config.optim.lr) - math.log10(BEST_RATE))
        return 0.9 - 0.1 * distance - config.optim.weight_decay

    def run(self, jobs, hear):
        jobs = list(jobs)
        self.rounds.append(jobs)
        outcomes = []
        for job in jobs:
            if len(self.jobs) >= self.dies_after:
                raise Killed
            self.jobs.append(job)
            hear(Event(job, "began"))
            run = RunFolder(Path(job.folder))
            if not run.exists:
                run.create(complete(job.settings))
            outcome = self.outcome(job)
            outcome.save()
            outcomes.append(outcome)
        return outcomes

    def outcome(self, job):
        about = (job.contestant.model, job.contestant.attention, job.seed, job.settings, job.folder)
        if complete(job.settings).optim.lr > self.diverges_above:
            return Outcome(*about, error="step 3: the loss is not finite.", steps=2)
        found = self.accuracy(job.settings)
        if self.loss:
            return Outcome(*about, metric="loss", higher_is_better=False, validation={"loss": 1 - found})
        return Outcome(*about, metric="accuracy", validation={"accuracy": found, "loss": found})


def tune(folder, engine, *, trials=8, contestants=(ENCODER,), space=SPACE, settings=SETTINGS):
    place = folder / "sweep"
    found = sweep.tune_all(contestants, settings, trials, space, engine, place, 1, lambda event: None)
    told = json.loads((folder / "sweep.json").read_text())
    return {one.label: chosen for one, chosen in zip(contestants, found, strict=True)}, told


def rate(found):
    return found[ENCODER.label]["optim.lr"]


def test_the_first_trial_is_the_recipe_and_no_trial_reads_the_test_split(tmp_path):
    engine = Computer()
    tune(tmp_path, engine)
    assert engine.jobs[0].settings == {**SETTINGS, "model": "encoder", "seed": 0}
    assert not any(job.test for job in engine.jobs)
    assert {job.seed for job in engine.jobs} == {job.settings["seed"] for job in engine.jobs} == {0}
    assert [Path(job.folder).name for job in engine.jobs] == [f"trial-{n:03}" for n in range(1, 9)]
    assert all(Path(job.folder).is_absolute() for job in engine.jobs)
    assert len({json.dumps(job.settings) for job in engine.jobs}) == 8


def test_it_finds_better_settings_than_the_recipe_and_records_its_trials(tmp_path):
    engine = Computer()
    found, told = tune(tmp_path, engine, trials=20)
    assert engine.accuracy({**SETTINGS, **found["encoder"]}) > engine.accuracy(SETTINGS) + 0.1
    assert BEST_RATE / 3 < rate(found) < BEST_RATE * 3
    (one,) = told["contestants"]
    values = [trial["value"] for trial in one["trials"]]
    assert told["trials"] == len(values) == 20
    assert one["best"] == 1 + values.index(max(values))
    assert one["chosen"] == found["encoder"] == one["trials"][one["best"] - 1]["settings"]
    assert one["trials"][0]["settings"] == {}
    assert (one["label"], one["metric"], one["higher_is_better"]) == ("encoder", "accuracy", True)
    assert one["space"] == {"optim.lr": "0.0001..0.1:log", "optim.weight_decay": "0|0.01|0.1"}


def test_a_metric_that_should_be_small_is_made_small(tmp_path):
    by_accuracy, _ = tune(tmp_path / "a", Computer())
    by_loss, told = tune(tmp_path / "b", Computer(loss=True))
    assert by_loss == by_accuracy
    assert told["contestants"][0]["higher_is_better"] is False


def test_where_nothing_is_better_the_recipe_stays(tmp_path):
    class Flat(Computer):
        def accuracy(self, settings):
            return 0.5

    found, told = tune(tmp_path, Flat())
    assert found == {"encoder": {}}
    assert told["contestants"][0]["best"] == 1


@pytest.mark.parametrize("done", [1, 2, 6, 7])
def test_a_killed_sweep_resumes_and_chooses_the_same(tmp_path, done):
    undisturbed, told = tune(tmp_path / "undisturbed", Computer(diverges_above=0.05))
    with pytest.raises(Killed):
        tune(tmp_path / "killed", Computer(diverges_above=0.05, dies_after=done))
    kept = [trial["error"] == "" for trial in told["contestants"][0]["trials"][:done]]
    again = Computer(diverges_above=0.05)
    found, tells = tune(tmp_path / "killed", again)
    assert len(again.jobs) == 8 - sum(kept)  # what failed is given another chance
    assert found == undisturbed
    assert json.dumps(tells).replace("/killed/", "/undisturbed/") == json.dumps(told)


def test_a_longer_sweep_uses_the_trials_of_a_shorter_one(tmp_path):
    tune(tmp_path, Computer(), trials=6)
    again = Computer()
    tune(tmp_path, again, trials=9)
    assert len(again.jobs) == 3


def test_a_trial_that_diverges_is_the_worst_and_no_error(tmp_path):
    engine = Computer(diverges_above=0.02)
    found, told = tune(tmp_path, engine, trials=25)
    trials = told["contestants"][0]["trials"]
    failed = [trial for trial in trials if trial["value"] is None]
    assert failed and all("not finite" in trial["error"] for trial in failed)
    assert rate(found) <= 0.02


def test_the_sampler_learns_to_avoid_diverging_settings(tmp_path):
    class Flat(Computer):
        def accuracy(self, settings):
            return 0.5

    _, told = tune(tmp_path, Flat(diverges_above=1e-3), trials=26)
    failed = [trial["value"] is None for trial in told["contestants"][0]["trials"]]
    # Two thirds of the space diverge. That so few of twenty do would be an accident of less than one in a hundred.
    assert binom.cdf(sum(failed[6:]), 20, 2 / 3) < 0.01


def test_a_validation_that_is_no_number_counts_as_failed(tmp_path):
    class Silent(Computer):
        def outcome(self, job):
            found = super().outcome(job)
            return Outcome(**{**vars(found), "validation": {} if job.folder.endswith("2") else found.validation})

    _, told = tune(tmp_path, Silent(), trials=3)
    assert [trial["value"] is None for trial in told["contestants"][0]["trials"]] == [False, True, False]
    assert "accuracy" in told["contestants"][0]["trials"][1]["error"]


def test_if_every_trial_fails_the_error_says_how(tmp_path):
    with pytest.raises(BadValue, match=r"no trial succeeded[\s\S]*encoder, trial 2: step 3: the loss is not finite"):
        tune(tmp_path, Computer(diverges_above=0), trials=2)


def test_one_contestant_that_always_fails_does_not_stop_the_others(tmp_path):
    class Partial(Computer):
        def outcome(self, job):
            self.diverges_above = 0 if job.contestant == GLOBAL else math.inf
            return super().outcome(job)

    found, told = tune(tmp_path, Partial(), contestants=(ENCODER, GLOBAL))
    assert found["encoder"] and found[GLOBAL.label] == {}
    assert [one["best"] is None for one in told["contestants"]] == [False, True]


def test_a_round_is_one_trial_of_each_contestant_and_all_get_the_same_first_questions(tmp_path):
    engine = Computer()
    tune(tmp_path, engine, trials=3, contestants=(ENCODER, GLOBAL))
    assert [[job.contestant for job in jobs] for jobs in engine.rounds] == [[ENCODER, GLOBAL]] * 3
    for one, other in engine.rounds:
        assert {**one.settings, "attention": "global"} == other.settings
        assert Path(one.folder).name == Path(other.folder).name
    assert len({job.folder for job in engine.jobs}) == 6


def test_a_recipe_outside_of_the_search_space_is_tried_first(tmp_path):
    engine = Computer()
    found, told = tune(tmp_path, engine, space="optim.lr=1e-7..1e-6", trials=4)
    assert engine.jobs[0].settings == {**SETTINGS, "model": "encoder", "seed": 0}
    assert all(1e-7 <= job.settings["optim.lr"] <= 1e-6 for job in engine.jobs[1:])
    assert found == {"encoder": {}} and told["contestants"][0]["best"] == 1


def test_options_of_the_model_are_tuned_inside_its_name(tmp_path):
    class Dropping(Computer):
        def accuracy(self, settings):
            return 0.1 if settings["model"] == "encoder" else 0.9

    engine = Dropping()
    found, told = tune(tmp_path, engine, space="model.dropout=0.2..0.4,model.layers=1|3", trials=3)
    assert found["encoder"]["model"] == engine.jobs[1].settings["model"]
    assert found["encoder"]["model"].startswith("encoder(dropout=0.")
    assert complete({**SETTINGS, **found["encoder"]}).model == found["encoder"]["model"]
    tried = told["contestants"][0]["trials"][1]["settings"]
    assert 0.2 <= tried["model.dropout"] <= 0.4 and tried["model.layers"] in (1, 3)


def test_the_usual_space_is_used_where_none_is_given(tmp_path):
    engine = Computer()
    _, told = tune(tmp_path, engine, space=None, trials=2)
    assert set(told["contestants"][0]["space"]) == {"optim.lr", "optim.weight_decay", "optim.warmup"}
    assert 1e-4 <= engine.jobs[1].settings["optim.lr"] <= 1e-2
    assert 0 <= engine.jobs[1].settings["optim.warmup"] <= 50


def test_trials_of_another_space_make_room_and_those_of_another_comparison_do_not(tmp_path):
    tune(tmp_path, Computer(), trials=3)
    other = Computer()
    tune(tmp_path, other, trials=3, space="optim.lr=1e-5..1e-4")
    assert len(other.jobs) == 2  # the recipe's own trial holds in any space
    stored = RunFolder(Path(other.jobs[0].folder)).settings()
    assert stored["optim.lr"] == other.jobs[0].settings["optim.lr"]
    with pytest.raises(BadValue, match=r"batch_size was 32 and is now 16\. Choose another --out"):
        tune(tmp_path, Computer(), trials=3, settings={**SETTINGS, "batch_size": 16})


def test_longer_trials_begin_anew(tmp_path):
    tune(tmp_path, Computer(), trials=2)
    kept = Path(tmp_path / "sweep" / "encoder" / "trial-001" / "kept")
    kept.touch()
    tune(tmp_path, Computer(), trials=2, settings={**SETTINGS, "steps": 200})
    assert not kept.exists()


def test_every_trial_is_reported_as_an_event(tmp_path):
    heard = []
    found = sweep.tune_all([ENCODER], SETTINGS, 3, SPACE, Computer(), tmp_path / "one", 1, heard.append)[0]
    everyone, _ = tune(tmp_path / "all", Computer(), trials=3)
    assert found == everyone["encoder"]
    assert [event.news for event in heard] == ["began"] * 3


def test_a_wrong_call_is_refused_before_anything_runs(tmp_path):
    engine = Computer()
    with pytest.raises(BadValue, match="at least 1 trial, got 0"):
        tune(tmp_path, engine, trials=0)
    with pytest.raises(BadValue, match=r"Did you mean 'optim\.lr'"):
        tune(tmp_path, engine, space="optim.lt=1..2")
    assert not engine.jobs


class Here:
    """An engine without processes."""

    def run(self, jobs, on_event):
        return [perform(job) for job in jobs]


def test_real_trials_never_see_the_test_and_one_that_diverges_does_not_win(tmp_path):
    settings = {"task": "toy", "steps": 4, "eval_every": 2, "device": "cpu"}
    found = sweep.tune_all(
        [Contestant("toy-net")],
        settings,
        2,
        "optim.lr=1e30|1e31",
        Here(),
        tmp_path / "sweep",
        1,
        lambda event: None,
        use=(STRANGERS,),
    )
    assert found == [{}]
    (told,) = json.loads((tmp_path / "sweep.json").read_text())["contestants"]
    first, second = told["trials"]
    outcome = Outcome.load(first["folder"])
    assert first["value"] == outcome.validation["accuracy"] and outcome.best_step in (2, 4)
    assert outcome.test == {} and outcome.blocks == []
    assert second["value"] is None and second["settings"]["optim.lr"] >= 1e30
    assert "the loss is nan" in second["error"]


def test_without_optuna_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(BadValue, match=r"pip install 'regard\[sweep\]'"):
        tune(tmp_path, Computer())

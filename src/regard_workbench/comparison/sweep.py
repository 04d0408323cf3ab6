"""Tuning with the same number of trials for every contestant; the first trial has the recipe's own settings.

Optuna proposes settings (a TPE sampler with a fixed seed, the study in memory), an engine trains, and the validation of
the best checkpoint decides. The test split is never read. Only the `outcome.json` of each trial is stored: the seeded
sampler makes the same proposals for the same results, so an interrupted sweep is replayed from the start, and finished
trials return their outcomes at once.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import BadValue
from regard_workbench.comparison import previous_runs
from regard_workbench.comparison import search_space as spaces
from regard_workbench.comparison.engines.engine import Engine, Event
from regard_workbench.comparison.grid import named, slug
from regard_workbench.comparison.job import Contestant, Job, Outcome, Settings
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.run_folder import durable

if TYPE_CHECKING:
    import optuna

NAME = "trial-{:03}"
SEED = 0  # of the sampler; the same for all contestants, so that their first proposals are equal
# Random trials before the sampler uses results. A constant: a share of the trials would change the proposals of a sweep
# that is repeated with more trials, and none of its finished trials could be reused.
RANDOM_TRIALS = 5


@dataclass(frozen=True)
class Trial:
    """One trial: the settings it changed, and its result."""

    settings: Settings  # by dotted name; empty: the recipe's own
    value: float | None  # of the deciding metric; None: the trial failed
    error: str
    steps: int
    folder: str
    loss: float | None = None  # of the same validation; breaks ties


class Study:
    """The trials of one contestant. `job` is the first one, with nothing changed; `space` None: the default space."""

    def __init__(self, job: Job, space: str | None) -> None:
        self.job, self.config = job, complete(job.settings)
        self.space = spaces.default_space(self.config) if space is None else spaces.read(space, self.config)
        self.trials: list[Trial] = []
        self.metric, self.higher_is_better = "", True
        self._optuna = _in_memory()
        self._asked: optuna.trial.Trial | None = None
        self._chosen: Settings = {}

    def ask(self) -> Job:
        """The next trial."""
        first = not self.trials
        recipe = spaces.own(self.space, self.config) if first else None
        if recipe is not None:
            self._optuna.enqueue_trial(recipe)
        if recipe is None and first:  # a recipe outside of the space is tried, but the sampler does not learn from it
            self._asked, self._chosen = None, {}
        else:
            self._asked = self._optuna.ask({dimension.name: dimension.distribution() for dimension in self.space})
            drawn = self._asked.params
            self._chosen = (
                {} if first else {dimension.name: dimension.setting(drawn[dimension.name]) for dimension in self.space}
            )
        folder = Path(self.job.folder).parent / NAME.format(len(self.trials) + 1)
        changed = {**self.job.settings, **spaces.settings(self._chosen, self.config)}
        return dataclasses.replace(self.job, settings=changed, folder=str(folder))

    def tell(self, outcome: Outcome) -> None:
        """Record the outcome of the last trial. A failed trial counts as the worst, so that the sampler avoids it."""
        from optuna.trial import TrialState

        score = outcome.validation.get(outcome.metric)
        value = None if outcome.error or score is None or not math.isfinite(score) else score
        error = outcome.error or (
            "" if value is not None else f"no finite validation value of {outcome.metric or 'the metric'}"
        )
        if value is not None:
            self.metric, self.higher_is_better = outcome.metric, outcome.higher_is_better
        loss = outcome.validation.get("loss")
        self.trials.append(Trial(self._chosen, value, error, outcome.steps, outcome.folder, loss))
        if self._asked is not None:
            self._optuna.tell(
                self._asked,
                None if value is None else self._cost(value),
                TrialState.PRUNED if value is None else TrialState.COMPLETE,
            )

    def _cost(self, value: float) -> float:
        return -value if self.higher_is_better else value

    @property
    def best(self) -> int | None:
        """The index of the best trial; ties go to the lower loss, then to the first. None if all failed."""
        costs = [
            (self._cost(trial.value), math.inf if trial.loss is None else trial.loss, index)
            for index, trial in enumerate(self.trials)
            if trial.value is not None
        ]
        return min(costs)[2] if costs else None

    @property
    def chosen(self) -> Settings:
        """The settings that the best trial changed, as `train` takes them."""
        return {} if self.best is None else spaces.settings(self.trials[self.best].settings, self.config)

    def facts(self) -> dict[str, Any]:
        """The study as plain data, for the report."""
        contestant = self.job.contestant
        return {
            "label": contestant.label,
            "model": contestant.model,
            "attention": contestant.attention,
            "init_from": contestant.init_from,
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "space": {dimension.name: str(dimension) for dimension in self.space},
            "chosen": self.chosen,
            "best": None if self.best is None else self.best + 1,
            "trials": [{"trial": i, **dataclasses.asdict(trial)} for i, trial in enumerate(self.trials, 1)],
        }


def tune_all(
    contestants: Sequence[Contestant],
    settings: Settings,
    trials: int,
    space: str | None,
    engine: Engine,
    folder: Path,
    threads: int,
    on_event: Callable[[Event], None],
    use: tuple[str, ...] = (),
    models: Mapping[str, str] | None = None,
) -> list[Settings]:
    """The best settings of each contestant, in order. A round is one trial of each, so that they run side by side.

    Trials are in FOLDER/<contestant>/trial-001 …, a summary in FOLDER.json. A contestant whose trials all failed keeps
    the recipe's settings; if every trial of every contestant failed, that is an error. `models`: see `grid.named`.
    """
    if trials < 1:
        raise BadValue(f"sweep: expected at least 1 trial, got {trials}.")
    firsts = [
        _first(contestant, {**settings, **named(contestant, models)}, folder, threads, use)
        for contestant in contestants
    ]
    studies = [Study(first, space) for first in firsts]
    for _ in range(trials):
        jobs = [study.ask() for study in studies]
        for study, outcome in zip(studies, _outcomes(jobs, engine, on_event), strict=True):
            study.tell(outcome)
        _write(folder, studies)
    if all(study.best is None for study in studies):
        raise BadValue(_all_failed(studies))
    return [study.chosen for study in studies]


def _first(contestant: Contestant, settings: Settings, folder: Path, threads: int, use: tuple[str, ...]) -> Job:
    """The first trial of a contestant: the settings of the comparison, with its first seed."""
    seed = int(settings.get("seed", 0))
    trial = folder.absolute() / slug(contestant) / NAME.format(1)
    job = Job(contestant, seed, {**settings, "seed": seed}, str(trial), threads=threads, test=False, use=use)
    if why := previous_runs.refusal(job):
        raise BadValue(why)
    return job


def _outcomes(jobs: Sequence[Job], engine: Engine, on_event: Callable[[Event], None]) -> list[Outcome]:
    """Outcomes of finished trials as they are, of the others from the engine.

    A failed trial is run again from its last checkpoint: one that diverged fails again at once, one that lost its
    machine gets another chance.
    """
    finished = [previous_runs.finished(job) for job in jobs]
    left = [job for job, outcome in zip(jobs, finished, strict=True) if outcome is None]
    for job in left:
        # A run of another search space in this folder would be continued, which is not the same trial.
        if previous_runs.refusal(job) or previous_runs.longer(job):
            durable.remove(Path(job.folder))
    new = iter(engine.run(left, on_event) if left else [])
    return [next(new) if outcome is None else outcome for outcome in finished]


def _write(folder: Path, studies: Sequence[Study]) -> None:
    facts = {
        "sampler": f"TPE, seed {SEED}, {RANDOM_TRIALS} random trials",
        "trials": max(len(study.trials) for study in studies),
        "contestants": [study.facts() for study in studies],
    }
    with durable.reporting(folder):
        durable.make_folder(folder)
    durable.replace(folder.with_name(f"{folder.name}.json"), json.dumps(facts, indent=1, ensure_ascii=False).encode())


def _all_failed(studies: Sequence[Study]) -> str:
    lines = [
        f"{study.job.contestant.label}, trial {number}: {trial.error}"
        for study in studies
        for number, trial in enumerate(study.trials, 1)
    ]
    return "\n  ".join(["sweep: no trial succeeded.", *lines])


def _in_memory() -> optuna.Study:
    try:
        import optuna
    except ImportError:
        raise BadValue("sweep: tuning needs Optuna. Try pip install 'regard[sweep]'.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # the engine reports each trial already
    sampler = optuna.samplers.TPESampler(seed=SEED, n_startup_trials=RANDOM_TRIALS)
    return optuna.create_study(sampler=sampler)

"""Which validation is the best: the deciding metric, then the lower loss, then the earlier one."""

import math

import pytest

from regard_workbench.comparison.job import Contestant, Job, Outcome
from regard_workbench.comparison.sweep import Study
from regard_workbench.training import evaluate, train
from regard_workbench.training.loop import Position
from regard_workbench.training.run_folder import selection
from regard_workbench.training.run_folder.folder import RunFolder
from tests.training.registered import toy_registered  # noqa: F401


def best_of(rows, higher=True):
    """The position after validations with these (value, loss) at steps 1, 2, 3 …, and whether each was the best."""
    position = Position()
    kept = []
    for position.step, (value, loss) in enumerate(rows, 1):
        kept.append(position.validated(value, higher, loss))
    return position, kept


@pytest.mark.parametrize(
    ("rows", "higher", "step"),
    [
        ([(0.5, 0.9), (0.5, 0.7), (0.5, 0.8)], True, 2),
        ([(0.5, 0.9), (0.5, 0.9)], True, 1),
        ([(0.5, 0.9), (0.4, 0.1), (0.5, 0.9)], True, 1),
        ([(0.5, 0.9), (0.6, 5.0), (0.6, 4.0), (0.5, 0.1)], True, 3),
        ([(3.0, 0.9), (3.0, 0.7), (2.0, 0.8), (2.0, 0.8)], False, 3),
        ([(0.5, 0.9), (0.5, math.nan), (0.5, None), (0.5, 0.8)], True, 4),
        ([(0.5, None), (0.5, 0.1)], True, 1),  # the first loss is unknown
        ([(math.nan, 0.1), (0.5, 0.9)], True, 2),
    ],
)
def test_a_tie_goes_to_the_lower_loss_and_then_to_the_earlier(rows, higher, step):
    assert best_of(rows, higher)[0].best_step == step


def test_a_lower_loss_at_the_same_metric_does_not_count_against_patience():
    position, kept = best_of([(1.0, 0.5), (1.0, 0.4), (1.0, 0.3)])
    assert kept == [True, True, True]
    assert position.stale == 2


def test_a_run_keeps_the_checkpoint_with_the_lower_loss_among_equals(tmp_path, monkeypatch):
    losses = iter((0.9, 0.7, 0.8, 0.7))

    def same_accuracy(*given, **options):
        return {**evaluate(*given, **options), "accuracy": 0.5, "loss": next(losses)}

    monkeypatch.setattr("regard_workbench.training.loop.evaluate", same_accuracy)
    result = train(
        {"task": "toy", "steps": 8, "eval_every": 2, "save_every": 2, "out": str(tmp_path / "run"), "device": "cpu"}
    )
    assert result.best == {"step": 4, "metric": "accuracy", "value": 0.5}
    assert selection.require(RunFolder(tmp_path / "run"), selection.BEST, print).name == "step-00000004"


def test_a_checkpoint_without_a_best_loss_still_loads():
    position = Position.read({"step": 3, "best": 0.5, "best_step": 2, "stale": 1})
    position.step = 4
    assert not position.validated(0.5, True, 0.1)
    assert position.best_step == 2


def test_a_sweep_prefers_the_lower_loss_among_equal_trials(tmp_path):
    study = Study(Job(Contestant("toy-net"), 0, {"task": "toy", "model": "toy-net"}, str(tmp_path)), None)
    for loss in (0.9, 0.4, 0.6):
        job = study.ask()
        study.tell(
            Outcome(
                "toy-net",
                None,
                0,
                job.settings,
                job.folder,
                metric="accuracy",
                steps=1,
                validation={"accuracy": 0.5, "loss": loss},
            )
        )
    assert study.best == 1

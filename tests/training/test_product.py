"""Every model trains on every task it fits: two steps of the real loop, and a validation."""

import math

import pytest

from regard_workbench import models, tasks
from regard_workbench.cli.common import catalogue
from regard_workbench.models import MODELS
from regard_workbench.models.parts.model import options_of
from regard_workbench.training import train

SMALL = {"language": "language(context=24)", "copy": "copy(max_length=3)"}

EVERY_TASK, EVERY_MODEL = set(tasks.names()), set(models.names())
PROBLEMS = {task: catalogue.posed(task) for task in tasks.names()}
PAIRS = [
    (task, model)
    for task, problems in PROBLEMS.items()
    for model in models.names()
    if any(models.fits(MODELS[model], problem) for problem in problems)
]


def _usual(task, model):
    """The models that a task's recipe names, and each model on its first task; `make nightly` trains all pairs."""
    recipe = tasks.TASKS[task].recipe
    first = next(other for other, able in PAIRS if able == model)
    return task == first or model in {recipe.model, *recipe.models}


@pytest.mark.parametrize(
    ("task", "model"), [pytest.param(*pair, marks=() if _usual(*pair) else pytest.mark.nightly) for pair in PAIRS]
)
def test_every_model_trains_on_every_task_it_serves(tmp_path, task, model):
    sizes = {"dim": 16, "layers": 1, **({"slots": 5, "width": 4, "hidden": 8} if model == "ntm" else {})}
    known = set(options_of(MODELS[model]))
    small = f"{model}({', '.join(f'{name}={size}' for name, size in sizes.items() if name in known)})"
    result = train(
        {
            "task": SMALL.get(task, task),
            "model": small,
            "steps": 2,
            "batch_size": 3,
            "accumulate": 1,
            "eval_every": 2,
            "eval_limit": 4,
            "out": str(tmp_path / "run"),
            "device": "cpu",
        },
        quiet=True,
    )
    assert result.steps == 2
    assert math.isfinite(result.metrics["loss"])
    made = tasks.build(task)
    made.pose(models.problem_for(model, made.problems()))  # what decides may depend on what the model is asked for
    assert made.metric.name in result.metrics
    assert (tmp_path / "run" / "checkpoints").is_dir()


def test_the_pairs_cover_every_task_and_every_model():
    assert {task for task, _ in PAIRS} == EVERY_TASK
    assert {model for _, model in PAIRS} == EVERY_MODEL

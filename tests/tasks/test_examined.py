"""The limit of `regard evaluate` holds for what `examine` measures, in every task that has an `examine` of its own."""

import copy

import pytest
import torch

from regard_workbench import models, tasks
from regard_workbench.tasks import series
from regard_workbench.tasks.generated.draws import Generated
from regard_workbench.tasks.parts.task import TASKS

FEW = 6
EXAMINING = [name for name in tasks.names() if TASKS[name].defines("examine")]
NOTHING = {"hidden-words", "language"}  # without a cache


def posed(spec, model=None):
    """A task without files, and an untrained model for a problem of it."""
    task = tasks.build(spec)
    recipe = task.recipe
    torch.manual_seed(0)
    task.pose(task.problems()[0])
    return task, models.build(model or recipe.models.get(recipe.model, recipe.model), task.problem).eval()


def measured(task, model):
    with torch.no_grad():
        found = task.examine(model, "test", batch_size=4, device="cpu")
    return {metric.name: (metric.value(state), metric.count(state)) for metric, state in found}


def first(examples, count):
    """A split that has no further examples; of its own class, where a task reads more from it than its items."""
    if isinstance(examples, Generated):
        shorter = copy.copy(examples)
        shorter._length = count
        return shorter
    return [examples[index] for index in range(count)]


@pytest.mark.parametrize("name", EXAMINING)
def test_a_limit_gives_what_a_split_of_so_many_examples_gives(name, monkeypatch):
    task, model = posed(name)
    task.examined = 2 * FEW
    more = measured(task, model)
    task.examined = FEW
    limited = measured(task, model)
    every = task.examples
    task.examined = None
    monkeypatch.setattr(task, "examples", lambda split: first(every(split), FEW) if split == "test" else every(split))
    assert limited == measured(task, model)
    assert bool(limited) == (name not in NOTHING)
    assert all(count < more[metric][1] for metric, (_, count) in limited.items())


def test_a_limit_beyond_the_end_leaves_a_split_as_it_is():
    task = tasks.build("tag")
    task.examined = len(task.examples("test"))
    assert list(task.examined_examples("test")) == list(task.examples("test"))
    task.examined += 1
    assert list(task.examined_examples("test")) == list(task.examples("test"))


def test_a_limit_holds_for_the_cache_of_a_language_model():
    task, model = posed("language(context=16, cache=20, cache_weight=0.2, cache_sharpness=1.0)")
    task.examined = FEW
    limited = measured(task, model)
    task.examined = None
    ids = task.tokens("test")
    assert len(ids) > 2 * FEW * task.context
    task._by_split["test"] = ids[: FEW * task.context + 1]  # those of so many windows, and what follows the last
    assert limited == measured(task, model)
    ((_, count),) = limited.values()
    assert count == FEW * task.context


def test_a_yardstick_learns_from_all_training_examples_whatever_the_limit_is(monkeypatch):
    task, model = posed("series")
    learned = []
    fitted = series.linear_forecast.fitted
    monkeypatch.setattr(series.linear_forecast, "fitted", lambda windows: fitted(learned.extend(windows) or learned))
    task.examined = 1
    states = [state for _, state in task.examine(model, "train", batch_size=4, device="cpu")]
    assert sum(len(past) for past, _, _ in learned) == len(task.examples("train"))
    assert {count for _, count in states} == {task.fitted.horizon * len(task.fitted.columns)}, (
        "it is measured on one window"
    )
